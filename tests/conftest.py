"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.warm import use_warm_starts
from tests.java import use_quick_java

use_quick_java()
use_warm_starts()

_LONG = ("pipeline", "archive", "browser", "stress", "client", "conformance", "docs", "http")
"""Folders with Spark, browsers and many servers come first, so that no long file is left for one worker at the end."""

_PLACES = [Path(__file__).parent / name for name in _LONG]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(_PLACES) if item.path.is_relative_to(folder)), len(_PLACES))
