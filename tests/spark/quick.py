"""Spark for tests: one session for all modules of a test process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aviso_server.spark.session import has_session, open_session

__all__ = ["CORES", "pytest_runtest_teardown", "quick_session", "spark"]

CORES = 2
"""As many things does Spark do at a time."""

_SHARING = Path(__file__).parent
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
}


def quick_session(folder: Path) -> SparkSession:
    """The session of this process: opened when it is asked for first, and anew if somebody has stopped it."""
    if not has_session():
        end_java()  # of a session that was stopped: it is not a quick one
    return open_session(folder, f"local[{CORES}]", settings=_SETTINGS)


def end_java() -> None:
    """End the session of this process and its Java, so that the next one can have settings of its own."""
    running, gateway = SparkSession.getActiveSession(), SparkContext._gateway
    if running is not None:
        running.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # Java ends with its input
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Spark for the tests of a module; modules one after the other share it."""
    return quick_session(tmp_path_factory.mktemp("spark"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave no Java behind for tests that have no use for it."""
    if nextitem is None or not nextitem.path.is_relative_to(_SHARING):
        end_java()
