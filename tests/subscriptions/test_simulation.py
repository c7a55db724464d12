"""Hundreds of schedules of crashes, partitions and failing sinks: at least once, in order, by one server at a time.

`AVISO_SCHEDULES=20000 pytest tests/subscriptions/test_simulation.py` tries more of them than usual. A failure prints
its seed and the shortest schedule that still fails; `simulate(seed, steps)` repeats it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from aviso_server import store
from aviso_server.delivery import live
from aviso_server.subscriptions import active, pull, push, registry
from tests.delivery.simulation import shortest
from tests.delivery.test_simulation import mutate
from tests.subscriptions.simulation import make_schedule, simulate

SCHEDULES = int(os.environ.get("AVISO_SCHEDULES", "200"))
# beyond the usual ones: broken once, or by one of the defects below
FOUND = (236, 333, 563, 596, 1429, 1502, 10_320, 10_617, 11_004, 14_049)


@pytest.fixture(autouse=True)
def small_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits that a few dozen notifications reach, and no log records."""
    monkeypatch.setattr(live, "_RECENT_COUNT", 8)
    monkeypatch.setattr(live, "_TURN_SECONDS", -1.0)  # others get their turn after every notification
    monkeypatch.setattr(store, "FIRST_BATCH", 3)
    monkeypatch.setattr(store, "LARGEST_BATCH", 10)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_every_law_holds_in_every_schedule() -> None:
    for seed in (*range(SCHEDULES), *FOUND):
        steps = make_schedule(seed)
        if broken := simulate(seed, steps):
            pytest.fail(f"{broken}\nseed {seed}, shortest schedule: {shortest(seed, steps, simulate)}")


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        pytest.param(push.Pusher, "_settle", "[:1]]) + 1", "[:1]]) + 2", id="one is skipped"),
        pytest.param(
            push.Pusher,
            "_step",
            "state.next = events[0].sequence\n",
            "state.next = events[0].sequence + 1; self._states.note(active)\n",
            id="the cursor moves before the sink has answered",
        ),
        pytest.param(pull.Puller, "_lease", "state.edition != edition", "False", id="leased under a former filter"),
        pytest.param(pull.Puller, "_read_bodies", "sequence <= lost", "False", id="retention is silent"),
        pytest.param(
            registry.Subscriptions,
            "_fenced",
            "self._fenced_off.add(active)",
            "pass",
            id="fenced off by itself for ever",
        ),
        pytest.param(
            registry.Subscriptions,
            "_give_sign",
            "max([each.revision for each in await self._records.load(key)], default=0)",
            "0",
            id="dead for others after a lost answer",
        ),
        pytest.param(push.Pusher, "_step", "await self._states.save(active)", "pass", id="a batch is not durable"),
        pytest.param(push.Pusher, "_post", "> self.lease_until", "< 0", id="nobody looks at the lease"),
        pytest.param(
            active.StateWriter, "_save", "if revision is None:", "if (revision := revision or 0) < 0:", id="no fencing"
        ),
        pytest.param(pull.Puller, "_save_together", "if revision is not None:", "if True:", id="conflicts are ignored"),
        pytest.param(pull, "_take", "known.token != token", "False", id="any lease will do"),
        pytest.param(registry.Subscriptions, "resume", "self._serve(active)", "pass", id="resumed, and not served"),
    ],
)
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    mutate(monkeypatch, owner, name, old, new)
    assert any(simulate(seed, make_schedule(seed)) for seed in (*range(SCHEDULES), *FOUND))
