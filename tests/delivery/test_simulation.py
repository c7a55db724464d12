"""Thousands of schedules in a simulated world: each reader gets each matching notification once and in order.

`AVISO_SCHEDULES=20000 pytest tests/delivery/test_simulation.py` tries more of them than usual. A failure prints its
seed and the shortest schedule that still fails; `simulate(seed, steps)` repeats it.
"""

from __future__ import annotations

import inspect
import logging
import os
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from aviso_server import store
from aviso_server.delivery import clients, history, live
from tests.delivery.simulation import make_schedule, shortest, simulate

SCHEDULES = int(os.environ.get("AVISO_SCHEDULES", "400"))
PARTS = 4


@pytest.fixture(autouse=True)
def small_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits that a few dozen notifications reach, and no log records."""
    monkeypatch.setattr(live, "_TURN_SECONDS", -1.0)  # a turn for each notification: the real clock decides nothing
    monkeypatch.setattr(live, "_RECENT_COUNT", 8)
    monkeypatch.setattr(live, "_QUEUE_COUNT", 60)
    monkeypatch.setattr(store, "FIRST_BATCH", 3)
    monkeypatch.setattr(store, "LARGEST_BATCH", 10)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_law_holds_in_every_schedule(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        steps = make_schedule(seed)
        if broken := simulate(seed, steps):
            pytest.fail(f"{broken}\nseed {seed}, shortest schedule: {shortest(seed, steps)}")


def mutate(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace a piece of the source of a function."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source
    namespace: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{source.replace(old, new)}", "<mutant>", "exec")
    exec(code, function.__globals__, namespace)
    monkeypatch.setattr(owner, name, namespace[name])


def first_broken() -> tuple[int, str] | None:
    """The first schedule that fails, and the law that it breaks."""
    for seed in range(SCHEDULES):
        if broken := simulate(seed, make_schedule(seed)):
            return seed, broken
    return None


def test_a_transport_error_that_ends_the_sweep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect of old: a RuntimeError of one transport ended the live feed of everybody."""
    mutate(monkeypatch, clients.ClientWriter, "write", "except Exception as error", "except OSError as error")
    mutate(monkeypatch, live.LiveFeed, "_pass_on", "except Exception:", "except ConnectionError:")
    found = first_broken()
    assert found is not None
    assert found[1].startswith("a live feed failed")


def test_a_standstill_that_nobody_notices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, live.LiveFeed, "look", "self._looks < _MOST_LOOKS", "True")
    found = first_broken()
    assert found is not None
    assert found[1].startswith("nothing is missing")


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        pytest.param(clients.Watcher, "offer", "offered[0][0] < self.position", "False", id="a frame is offered twice"),
        pytest.param(
            clients.Watcher, "fall_behind", "self.position = self._backlog[0][0][0][0]", "pass", id="backlog is lost"
        ),
        pytest.param(live.LiveFeed, "join", "if watcher.position < self._known_from", "if False", id="joins too early"),
        pytest.param(store.Store, "read", "if trimmed >= start", "if False", id="retention is not noticed"),
        pytest.param(history.Chunks, "wake", "self._woken = True", "pass", id="heartbeats wait for history"),
        pytest.param(history.Chunks, "close", "self._maker.cancel()", "pass", id="reading goes on for nobody"),
    ],
)
def test_other_defects_are_found_too(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str
) -> None:
    mutate(monkeypatch, owner, name, old, new)
    assert first_broken() is not None
