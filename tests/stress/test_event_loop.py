"""Large areas are published, watched and replayed without making anybody else wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Server
from tests.stress.configuration import configuration

VERTICES = 10_000
TEETH = 700
PROBE_INTERVAL = 0.02  # seconds
MEDIAN, MOST = 0.1, 0.6
"""Seconds of processor time that the server may take before it answers, so that a busy machine does not matter."""


def star(lat: float, lon: float) -> str:
    """A spiky ring around a place."""
    pairs = []
    for number in range(VERTICES - 1):
        angle, radius = 2 * math.pi * number / (VERTICES - 1), 20 if number % 2 else 10
        pairs.append(f"{lat + radius * math.sin(angle):.5f},{lon + radius * math.cos(angle):.5f}")
    return ",".join([*pairs, pairs[0]])


def comb(shift: int) -> str:
    """Long slanting teeth; those of shift 0 and of shift 2 reach between each other everywhere and never touch.

    The boxes of nearly all edges overlap, so that nothing short of looking at the pairs of edges tells.
    """
    left, right = (-10, 10) if shift == 0 else (-9, 11)
    pairs = []
    for tooth in range(TEETH):
        lower, upper = (4 * tooth + shift) / 1000, (4 * tooth + shift + 1) / 1000
        # the spine is on the left of the one comb and on the right of the other
        inner, outer = (left, right) if shift == 0 else (right, left)
        pairs += [(inner + lower, inner), (outer + lower, outer), (outer + upper, outer), (inner + upper, inner)]
    return ",".join(f"{lat:.3f},{lon}" for lat, lon in [*pairs, pairs[0]])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on disk."""
    with Server(configuration(), tmp_path) as server:
        yield server


def assert_prompt(server: Server, work: Callable[[], None]) -> None:
    """Others get their answers while the work is done, and do not wait for the end of it."""
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(work)
        taken = sorted(work_before_each_answer(server, busy))
        busy.result()
    median, most = taken[len(taken) // 2], taken[-1]
    assert median < MEDIAN, f"half of {len(taken)} answers came after {median:.3f} s of work"
    assert most < MOST, f"one of {len(taken)} answers came after {most:.3f} s of work"


def work_before_each_answer(server: Server, busy: Future[None]) -> Iterator[float]:
    """How much processor time the server takes between question and answer while something is done."""
    clock = (~server.pid << 3) | 2  # the processor time of another process, as in clock_getcpuclockid(3)
    asked = 0
    while not busy.done() or asked < 10:
        before = time.clock_gettime(clock)
        assert server.client.get("/health").status == 200
        yield time.clock_gettime(clock) - before
        asked += 1
        time.sleep(PROBE_INTERVAL)


def test_large_areas_that_meet(server: Server) -> None:
    client, count = server.client, 25
    watches = [client.watch("area", {"polygon": polygon}) for polygon in (star(0, 0), star(1, 1), star(0, 60))]
    for watch in watches:
        watch.until("connection_established")

    def work() -> None:
        areas = [({"kind": "storm", "polygon": star(number / 10, 0)}, number) for number in range(count)]
        client.publish_many("area", areas)
        assert len(client.replay("area", {"polygon": star(1, 1)}).notifications) == count

    assert_prompt(server, work)
    for watch in watches[:2]:
        assert [watch.notification()["data"]["payload"] for _ in range(count)] == list(range(count))
    client.publish("area", {"kind": "storm", "polygon": star(0, 60)}, "far")
    assert watches[2].notification()["data"]["payload"] == "far"
    for watch in watches:
        watch.close()


def test_large_areas_that_are_hard_to_tell_apart(server: Server) -> None:
    client = server.client
    with client.watch("area", {"polygon": comb(2)}) as watch:
        watch.until("connection_established")

        def work() -> None:
            client.publish_many("area", [({"kind": "storm", "polygon": comb(0)}, "apart")] * 6)
            client.publish("area", {"kind": "storm", "polygon": star(0, 0)}, "meets")
            assert watch.notification()["data"]["payload"] == "meets"
            (found,) = client.replay("area", {"polygon": comb(2)}).notifications
            assert found["data"]["payload"] == "meets"

        assert_prompt(server, work)
