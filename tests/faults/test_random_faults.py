"""Whatever happens to a server, in any order: what it acknowledged is stored, and what is stored is delivered once.

    make test ARGS=tests/faults/test_random_faults.py    20 seconds for each log; `make test` has three faults each
    FAULT_SEED=17 make test ARGS=…                       another schedule
    make soak                                            an hour, with a schedule that is new each time

A schedule says what happens, in which order and for how long. What the server does meanwhile is not the same each time.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tests.faults.machine import HOUR, Machine, machine
from tests.faults.recorder import EVENT_TYPE, Publisher, Watcher, assert_record
from tests.harness.broker import wait_until

SECONDS = float(os.environ.get("FAULT_SECONDS", "20"))
SEED = int(os.environ.get("FAULT_SEED", "1"))


@pytest.mark.timeout(4 * SECONDS + 1200)
@pytest.mark.parametrize("seconds", [0.0, pytest.param(SECONDS, marks=pytest.mark.long)])  # it goes on by design
@pytest.mark.parametrize("kind", ["in_memory", "sqlite", "jetstream"])
def test_acknowledged_is_stored_and_stored_is_delivered_once(kind: str, seconds: float, tmp_path: Path) -> None:
    print(f"FAULT_SEED={SEED} FAULT_SECONDS={seconds:g}", flush=True)
    with machine(kind, tmp_path) as running, ExitStack() as clients:
        servers = [running.server]
        publishers = [clients.enter_context(Publisher(name, servers)) for name in ("a", "b", "c")]
        watchers = [clients.enter_context(Watcher(servers, each)) for each in ({}, {"place": "b"})]
        wait_until(lambda: all(publisher.acknowledged for publisher in publishers))
        go_wrong(running, Random(SEED), seconds)
        before = [len(publisher.acknowledged) for publisher in publishers]
        wait_until(lambda: all(len(p.acknowledged) > n for p, n in zip(publishers, before, strict=True)))
        for publisher in publishers:
            publisher.stop()
        assert_record(publishers, watchers, running.server)
        if kind == "in_memory":  # nothing happened to the server that would be a reason to close a stream
            assert [dict(watcher.reasons) for watcher in watchers] == [{}, {}]


def test_the_faults_are_real(tmp_path: Path) -> None:
    """A disk that is full or fails refuses publishes; the clock of the server jumps."""
    with machine("sqlite", tmp_path) as running:
        client = running.server.client
        client.publish(EVENT_TYPE, {"place": "x", "level": 1}, "before")
        with running.full_disk():
            assert client.notify(EVENT_TYPE, {"place": "x", "level": 1}, "full").status == 500
        client.publish(EVENT_TYPE, {"place": "x", "level": 1}, "room again")
        if "clock" in running.faults():
            with running.failing_disk():
                assert client.notify(EVENT_TYPE, {"place": "x", "level": 1}, "failing").status == 500
            client = running.server.restart().client  # until then nothing that was written is trusted
            running.set_clock(30 * 24 * HOUR)
            client.publish(EVENT_TYPE, {"place": "x", "level": 1}, "next month")
            events = client.replay(EVENT_TYPE, {}).notifications
            times = [datetime.fromisoformat(each["time"]) for each in events]
            assert timedelta(days=29) < times[-1] - times[0] < timedelta(days=31)


def go_wrong(running: Machine, chance: Random, seconds: float) -> None:
    """Let one fault follow the other, at least three."""
    faults = sorted(running.faults().items())
    deadline = time.monotonic() + seconds
    count = 0
    while count < 3 or time.monotonic() < deadline:
        name, fault = chance.choice(faults)
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        fault(chance)
        count += 1
        time.sleep(chance.uniform(0.0, 1.0))
