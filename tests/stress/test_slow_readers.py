"""One reader that stops, a dozen that do not, and tens of megabytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.stress.configuration import configuration
from tests.stress.sockets import Listener, resident_bytes

READERS = 12
COUNT = 1600
PAYLOAD = "x" * 20_000
ROOM = 28 * 1024 * 1024  # what the server may take beyond what it had: less than what is published


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on disk whose watchers may have little waiting for them."""
    with Server(configuration(watch_endpoint={"buffer_bytes": 262_144}), tmp_path) as server:
        yield server


def test_a_stopped_reader_harms_nobody_and_loses_nothing(server: Server) -> None:
    async def scene() -> None:
        stopped = Listener()
        await stopped.open(server, receive_buffer=4096)
        listeners = [Listener() for _ in range(READERS)]
        for listener in listeners:
            await listener.open(server)
        before = resident_bytes(server)
        notifications = [({"port": "oslo", "level": 1}, PAYLOAD)] * COUNT
        publishing = asyncio.to_thread(server.client.publish_many, "tide", notifications)
        async with asyncio.timeout(4 * PATIENCE):
            await asyncio.gather(publishing, *[listener.read_to(COUNT) for listener in listeners])
        grown = resident_bytes(server) - before
        everything = list(range(1, COUNT + 1))
        assert all(listener.sequences == everything for listener in listeners)
        assert stopped.sequences == []
        assert grown < ROOM < COUNT * len(PAYLOAD), f"the server grew by {grown} bytes"
        async with asyncio.timeout(4 * PATIENCE):
            await stopped.read_to(COUNT)
        assert stopped.sequences == everything
        server.client.publish("tide", {"port": "oslo", "level": 1})
        await asyncio.gather(*[listener.read_to(COUNT + 1) for listener in (stopped, *listeners)])
        assert stopped.sequences == listeners[0].sequences == [*everything, COUNT + 1]
        for listener in (stopped, *listeners):
            listener.close()

    asyncio.run(scene())
