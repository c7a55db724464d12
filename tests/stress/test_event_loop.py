"""Large areas are published, watched and replayed without making anybody else wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Client, Server
from tests.stress.configuration import configuration

VERTICES = 10_000
TEETH = 700
PROBE_INTERVAL = 0.02  # seconds
LIMITS = {0.5: 0.3, 0.95: 2.0}
"""Seconds that a share of the answers may come later than those of an idle server."""


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
    with Server(configuration(), tmp_path / "busy") as server:
        yield server


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Server]:
    """A server with nothing to do: what its clients wait is the fault of the machine."""
    with Server(configuration(), tmp_path / "idle") as server:
        yield server


def assert_prompt(server: Server, idle: Server, work: Callable[[], None]) -> None:
    """Others get their answers while the work is done, as soon as from an idle server and a little later."""
    with ThreadPoolExecutor(3) as pool:
        busy = pool.submit(work)
        probes = [pool.submit(health_times, each.client, busy) for each in (server, idle)]
        busy.result()
        times, usual = (probe.result() for probe in probes)
    for share, allowed in LIMITS.items():
        waited, elsewhere = (each[int(len(each) * share)] for each in (times, usual))
        assert waited < allowed + 5 * elsewhere, (
            f"{share:.0%} wait less than {waited:.3f} s, {elsewhere:.3f} s elsewhere"
        )


def health_times(client: Client, busy: Future[None]) -> list[float]:
    """How long a client waits for its answers while something is done, sorted."""
    times: list[float] = []
    start = time.monotonic()
    while not busy.done() or len(times) < 10:
        # counted from when it should have been sent, so that one long wait is as many late answers as it held up
        due = start + len(times) * PROBE_INTERVAL
        time.sleep(max(0.0, due - time.monotonic()))
        assert client.get("/health").status == 200
        times.append(time.monotonic() - due)
    return sorted(times)


def test_large_areas_that_meet(server: Server, idle: Server) -> None:
    client, count = server.client, 25
    watches = [client.watch("area", {"polygon": polygon}) for polygon in (star(0, 0), star(1, 1), star(0, 60))]
    for watch in watches:
        watch.until("connection_established")

    def work() -> None:
        areas = [({"kind": "storm", "polygon": star(number / 10, 0)}, number) for number in range(count)]
        client.publish_many("area", areas)
        assert len(client.replay("area", {"polygon": star(1, 1)}).notifications) == count

    assert_prompt(server, idle, work)
    for watch in watches[:2]:
        assert [watch.notification()["data"]["payload"] for _ in range(count)] == list(range(count))
    client.publish("area", {"kind": "storm", "polygon": star(0, 60)}, "far")
    assert watches[2].notification()["data"]["payload"] == "far"
    for watch in watches:
        watch.close()


def test_large_areas_that_are_hard_to_tell_apart(server: Server, idle: Server) -> None:
    client = server.client
    with client.watch("area", {"polygon": comb(2)}) as watch:
        watch.until("connection_established")

        def work() -> None:
            client.publish_many("area", [({"kind": "storm", "polygon": comb(0)}, "apart")] * 6)
            client.publish("area", {"kind": "storm", "polygon": star(0, 0)}, "meets")
            assert watch.notification(60)["data"]["payload"] == "meets"
            (found,) = client.replay("area", {"polygon": comb(2)}).notifications
            assert found["data"]["payload"] == "meets"

        assert_prompt(server, idle, work)
