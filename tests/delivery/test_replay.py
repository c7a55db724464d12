"""A stream that ends with history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviso_server.delivery.clients import ClientWriter, Replay
from aviso_server.delivery.hub import Hub
from aviso_server.log.base import Log
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Notification
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, FailingLog, Reader, hub_on, publish, roomy, settled
from tests.delivery.simulation import in_simulated_time
from tests.log.scenario import in_event_loop

MakeLog = Callable[[], Log]


@pytest.fixture(params=["memory", "sqlite"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLog:
    """Both logs."""
    return roomy if request.param == "memory" else lambda: SqliteLog(tmp_path / "log")


async def replay(
    hub: Hub, span: Span, cap: int | None = None, reader: Reader | None = None, **wanted: Any
) -> tuple[Replay, Reader]:
    """Begin a replay as the HTTP route does, without its opening frame."""
    reader = reader or Reader()
    filter_ = TIDE.compile(wanted, "replay")
    end = await hub.store.end_of(filter_.stream, span, (await hub.store.log.state(filter_.stream)).last)
    stream = hub.replay(filter_, ClientWriter(reader.send, reader.hang_up), "the-request")
    stream.begin(span, end, cap)
    return stream, reader


@in_event_loop
async def test_all_of_a_long_history_once_and_in_order(make_log: MakeLog) -> None:
    async with hub_on(make_log()) as hub:
        await publish(hub.store.log, 9_000)
        _, reader = await replay(hub, Span(from_sequence=0))
        await settled(lambda: reader.ended, 30)
        assert reader.sequences == list(range(1, 9_001))
        assert reader.kinds[-2:] == ["replay_completed", "connection-closing"]
        assert reader.reason == "end_of_stream"
        assert reader.heartbeats == 0
        assert {frame.event for frame in reader.frames[:-2]} == {"replay"}


@in_event_loop
async def test_what_comes_later_is_not_part_of_it(make_log: MakeLog) -> None:
    async with hub_on(make_log()) as hub:
        await publish(hub.store.log, 300)
        _, reader = await replay(hub, Span(from_sequence=1))
        await publish(hub.store.log, 50)
        await settled(lambda: reader.ended)
        assert reader.sequences == list(range(1, 301))


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (Span(from_sequence=2, to_sequence=4), [2, 3, 4]),
        (Span(from_sequence=2, to_sequence=99), [2, 3, 4, 5]),
        (Span(from_sequence=5, to_sequence=5), [5]),
        (Span(from_sequence=9), []),
        (Span(from_sequence=2**64 - 1), []),
        (Span(from_time=-(10**20)), [1, 2, 3, 4, 5]),
        (Span(from_time=10**20), []),
        (Span(from_sequence=1, to_time=10**20), [1, 2, 3, 4, 5]),
        (Span(from_sequence=1, to_time=0), []),
        (Span(from_sequence=1, to_time=-(10**20)), []),
    ],
)
def test_spans(make_log: MakeLog, span: Span, expected: list[int]) -> None:
    async def scene() -> None:
        async with hub_on(make_log()) as hub:
            await publish(hub.store.log, 5)
            _, reader = await replay(hub, span)
            await settled(lambda: reader.ended)
            assert reader.sequences == expected
            assert reader.kinds[len(expected) :] == ["replay_completed", "connection-closing"]

    asyncio.run(scene())


@in_event_loop
async def test_times_include_their_instant(make_log: MakeLog) -> None:
    async with hub_on(make_log()) as hub:
        stored: list[Notification] = []
        for _ in range(5):
            stored += await publish(hub.store.log)
            await asyncio.sleep(0.002)
        _, reader = await replay(hub, Span(from_time=stored[1].time, to_time=stored[3].time))
        _, narrow = await replay(hub, Span(from_time=stored[1].time + 1, to_time=stored[3].time - 1))
        await settled(lambda: reader.ended and narrow.ended)
        assert reader.sequences == [2, 3, 4]
        assert narrow.sequences == [3]


@pytest.mark.parametrize(("cap", "limited"), [(1, True), (2, True), (3, False)])
def test_the_cap(cap: int, limited: bool) -> None:
    async def scene() -> None:
        async with hub_on(roomy()) as hub:
            for port in ("oslo", "kiel", "oslo", "kiel", "oslo", "kiel"):
                await publish(hub.store.log, port=port)
            _, reader = await replay(hub, Span(from_sequence=1), cap=cap, port="oslo")
            await settled(lambda: reader.ended)
            assert reader.sequences == [1, 3, 5][:cap]
            last = "notification_replay_limit_reached" if limited else "replay_completed"
            assert reader.kinds[cap:] == [last, "connection-closing"]
            assert reader.reason == "end_of_stream"

    asyncio.run(scene())


@in_simulated_time
async def test_the_reader_sets_the_pace() -> None:
    async with hub_on(log := FailingLog(1_000_000)) as hub:
        await publish(log, 20_000)
        stream, reader = await replay(hub, Span(from_sequence=1))
        reader.stop()
        await asyncio.sleep(0.3)
        assert log.reads <= 3, "one batch is on its way to a stopped reader, one is rendered, one is read"
        reader.resume()
        await settled(lambda: reader.ended, 30)
        assert reader.sequences == list(range(1, 20_001))
        hub.release(stream)
        assert hub.open_streams == set()


@in_simulated_time
async def test_batches_with_a_delay_between_them() -> None:
    async with hub_on(roomy(), batch_size=100, batch_delay=0.1) as hub:
        await publish(hub.store.log, 250)
        before = asyncio.get_running_loop().time()
        _, reader = await replay(hub, Span(from_sequence=1))
        await settled(lambda: reader.ended)
        assert asyncio.get_running_loop().time() - before >= 0.2
        assert reader.sequences == list(range(1, 251))


@in_simulated_time
async def test_shutdown_in_the_middle() -> None:
    async with hub_on(roomy(), batch_size=1, batch_delay=0.05) as hub:
        await publish(hub.store.log, 100)
        _, reader = await replay(hub, Span(from_sequence=1))
        await settled(lambda: len(reader.sequences) > 2)
        hub.close_streams()
        await settled(lambda: reader.ended)
        assert reader.reason == "server_shutdown"
        assert "replay_completed" not in reader.kinds
        assert reader.sequences == list(range(1, len(reader.sequences) + 1))


@pytest.mark.parametrize("broken", ["read", "first_since"])
def test_history_that_cannot_be_read(broken: str) -> None:
    async def scene() -> None:
        async with hub_on(log := FailingLog(1000)) as hub:
            await publish(log, 3)
            log.broken.add(broken)
            _, reader = await replay(hub, Span(from_time=0))
            await settled(lambda: reader.ended)
            assert reader.kinds == ["error", "connection-closing"]
            assert reader.reason == "end_of_stream"

    asyncio.run(scene())


@in_simulated_time
async def test_a_client_that_leaves_is_let_go() -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 5_000)
        stream, reader = await replay(hub, Span(from_sequence=1))
        await settled(lambda: reader.sequences)
        reader.gone = True
        await asyncio.sleep(0.05)
        hub.release(stream)
        assert hub.open_streams == set()


@in_simulated_time
async def test_a_reader_who_takes_nothing_for_long_is_hung_up_on() -> None:
    async with hub_on(roomy(), stall=0.5) as hub:
        await publish(hub.store.log, 300)
        reader = Reader()
        reader.stop()
        await replay(hub, Span(from_sequence=1), reader=reader)
        await asyncio.sleep(0.3)
        assert not reader.hung_up
        await settled(lambda: reader.hung_up)
        assert reader.received == b""


@in_simulated_time
async def test_a_slow_reader_who_takes_something_now_and_then_gets_all_of_it() -> None:
    async with hub_on(roomy(), stall=0.5) as hub:
        await publish(hub.store.log, 4_000)
        reader = Reader()
        reader.stop()
        await replay(hub, Span(from_sequence=1), reader=reader)
        while not reader.ended:
            await asyncio.sleep(0.3)
            taken = reader.chunks
            reader.resume()
            await settled(lambda taken=taken: reader.chunks > taken)
            reader.stop()
        assert reader.sequences == list(range(1, 4_001))
        assert not reader.hung_up


@in_event_loop
async def test_a_shutdown_ends_it_in_the_middle_of_a_pause(make_log: MakeLog) -> None:
    async with hub_on(make_log(), batch_size=2, batch_delay=3600) as hub:
        await publish(hub.store.log, 5)
        _, reader = await replay(hub, Span(from_sequence=1))
        await settled(lambda: len(reader.sequences) == 2)
        hub.close_streams()
        await settled(lambda: reader.ended)
        assert reader.sequences == [1, 2]
        assert reader.kinds[-2:] == ["notification", "connection-closing"]
        assert reader.reason == "server_shutdown"


@in_simulated_time
async def test_retention_that_overtakes_the_reader_is_an_error() -> None:
    async with hub_on(MemoryLog(max_history_per_topic=10_000)) as hub:
        await publish(hub.store.log, 10_000)
        reader = Reader()
        reader.stop()
        stream, _ = await replay(hub, Span(from_sequence=1), reader=reader)
        await settled(lambda: stream.flow.sent)  # the first chunk is on its way
        await publish(hub.store.log, 9_900)  # what is in the prefetched chunks and more
        reader.resume()
        await settled(lambda: reader.ended)
        assert reader.sequences == list(range(1, len(reader.sequences) + 1))
        assert reader.kinds[-2:] == ["error", "connection-closing"]
        assert "retention has removed notifications" in reader.frames[-2].data["message"]
