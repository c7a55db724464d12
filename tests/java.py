"""A Java that starts quickly, for all the tests that run Spark."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CLASSES", "OPTIONS", "QUICK", "use_quick_java"]

OPTIONS = "JDK_JAVA_OPTIONS"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"  # no time for the best code, nor for complaints
CLASSES = Path(__file__).parents[1] / "build" / "spark-classes.jsa"
"""What `tests/java_classes.py` has made, if it could."""


def use_quick_java() -> None:
    """Let every Java that this process and its children start be a quick one."""
    os.environ[OPTIONS] = f"{QUICK} -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else QUICK
