"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.harness.warm import use_warm_starts
from tests.java import use_quick_java

use_quick_java()
use_warm_starts()

settings.register_profile(
    "tests",
    deadline=None,  # a busy machine is no reason to fail
    derandomize=True,  # nor is bad luck: what passes once passes always, and `make fuzz` looks for new cases
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")

_TESTS = Path(__file__).parent
_FIRST = ("spark", "faults", "archive", "browser", "docs", "stress", "client", "conformance", "http")
"""Folders with Spark, browsers and many servers come first, so that no long file is left for one worker at the end."""

_PLACES = [_TESTS / name for name in _FIRST]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(_PLACES) if item.path.is_relative_to(folder)), len(_PLACES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Spread files over the workers, and those that share a Spark session over two; long tests share none."""
    return LoadFileScheduling(config, log) if config.option.markexpr == "long" else _Spread(config, log)


class _Spread(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if not file.startswith("tests/spark/"):
            return file
        return "archived" if file.startswith(_ARCHIVED) else "published"


_ARCHIVED = tuple(
    f"tests/spark/{place}"
    for place in ("archive/", "test_insight", "test_lateness", "test_count.py", "test_cold_replay.py")
)
