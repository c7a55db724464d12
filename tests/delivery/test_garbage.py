"""Streams that are over are freed at once, not when Python next looks for circles: they may hold megabytes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from aviso_server.delivery.clients import ClientWriter
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, Reader, hub_on, join, publish, roomy, settled

OURS = {"Tail", "Watcher", "Replay", "Channel", "Outlet", "Notification"}


@pytest.fixture
def circles() -> Iterator[None]:
    """Keep everything that only a search for circles would free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def left_over() -> set[str]:
    gc.collect()
    return {type(each).__name__ for each in gc.garbage} & OURS


def test_watchers_and_their_tail(circles: None) -> None:
    async def scenario() -> None:
        async with hub_on(roomy()) as hub:
            live, reader = await join(hub, port="oslo")
            behind, slow = await join(hub, Span(from_sequence=1), port="oslo")
            slow.stop()
            await publish(hub.store.log, count=5)
            await settled(lambda: len(reader.sequences) == 5)
            for watcher in (live, behind):
                hub.release(watcher)
            await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert left_over() == set()


def test_replays_that_are_abandoned(circles: None) -> None:
    async def scenario() -> None:
        async with hub_on(roomy()) as hub:
            await publish(hub.store.log)
            reader = Reader()
            reader.stop()
            wanted = TIDE.compile({"port": "oslo"}, "replay")
            stream = hub.replay(wanted, ClientWriter(reader.send, reader.hang_up), "the-request")
            stream.begin(Span(from_sequence=1), 1, None)
            await asyncio.sleep(0.05)
            hub.release(stream)
            await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert left_over() == set()
