"""Large areas are published, watched and replayed without making anybody else wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Client, Server
from tests.stress.configuration import configuration

VERTICES = 10_000
PUBLISHES = 25
PATIENCE = 0.1  # seconds, at the 95th percentile, on a busy machine


def star(lat: float, lon: float, spikes: int = VERTICES - 1) -> str:
    """A spiky ring around a place: the edges of two of them cross often."""
    pairs = []
    for number in range(spikes):
        angle, radius = 2 * math.pi * number / spikes, 20 if number % 2 else 10
        pairs.append(f"{lat + radius * math.sin(angle):.5f},{lon + radius * math.cos(angle):.5f}")
    return ",".join([*pairs, pairs[0]])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on disk."""
    with Server(configuration(), tmp_path) as server:
        yield server


def health_times(client: Client, busy: threading.Thread) -> list[float]:
    times: list[float] = []
    while busy.is_alive():
        before = time.monotonic()
        assert client.get("/health").status == 200
        times.append(time.monotonic() - before)
        time.sleep(0.01)
    return sorted(times)


def test_large_polygons_do_not_hold_up_others(server: Server) -> None:
    client = server.client
    near, far = star(0, 0), star(0, 60)
    inside = star(1, 1)
    watches = [client.watch("area", {"polygon": polygon}) for polygon in (near, inside, far, star(-1, 2))]
    for watch in watches:
        watch.until("connection_established")

    def work() -> None:
        client.publish_many(
            "area", [({"kind": "storm", "polygon": star(number / 10, 0)}, number) for number in range(PUBLISHES)]
        )
        client.replay("area", {"polygon": inside})

    busy = threading.Thread(target=work)
    busy.start()
    times = health_times(client, busy)
    busy.join()
    assert len(times) > 10
    assert times[int(len(times) * 0.95)] < PATIENCE, f"the slowest: {times[-5:]}"
    assert [watches[0].notification()["data"]["payload"] for _ in range(PUBLISHES)] == list(range(PUBLISHES))
    assert [watches[1].notification()["data"]["payload"] for _ in range(PUBLISHES)] == list(range(PUBLISHES))
    client.publish("area", {"kind": "storm", "polygon": far}, "far")
    assert watches[2].notification()["data"]["payload"] == "far"
    for watch in watches:
        watch.close()
