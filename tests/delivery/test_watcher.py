"""One client of a stream: history, live, order, and the ways it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from aviso_server.delivery import live
from aviso_server.delivery.clients import ClientWriter, Watcher
from aviso_server.log.base import Log
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.event_type import read_point
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, FailingLog, Reader, hub_on, join, publish, roomy, settled
from tests.delivery.simulation import in_simulated_time
from tests.log.scenario import in_event_loop
from tests.model.event_types import POLYGON, SQUARE

MakeLog = Callable[[], Log]


@pytest.fixture(params=["memory", "sqlite"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLog:
    """Both logs."""
    return roomy if request.param == "memory" else lambda: SqliteLog(tmp_path / "log")


@in_event_loop
async def test_live_delivers_what_passes_and_nothing_older(make_log: MakeLog) -> None:
    async with hub_on(make_log()) as hub:
        await publish(hub.store.log, 3)
        _, everything = await join(hub)
        _, oslo = await join(hub, port="oslo")
        _, high = await join(hub, level={"gte": 5})
        await publish(hub.store.log, 2)
        await publish(hub.store.log, 1, port="kiel", level=7)
        await settled(lambda: len(everything.sequences) == 3)
        assert everything.sequences == [4, 5, 6]
        assert oslo.sequences == [4, 5]
        assert high.sequences == [6]
        frame = everything.frames[0]
        assert frame.event == "live-notification"
        assert frame.data["id"] == "tide@4"
        assert frame.data["data"]["identifier"] == {"level": "3", "port": "oslo"}


@in_event_loop
async def test_history_comes_first_then_live_each_once(make_log: MakeLog) -> None:
    async with hub_on(make_log()) as hub:
        await publish(hub.store.log, 250)
        _, reader = await join(hub, Span(from_sequence=100))
        for _ in range(20):
            await publish(hub.store.log, 3)
            await asyncio.sleep(0)
        await settled(lambda: len(reader.sequences) >= 211)
        assert reader.sequences == list(range(100, 311))
        names = [frame.event for frame in reader.frames if frame.kind == "notification"]
        assert names == ["replay"] * 151 + ["live-notification"] * 60
        assert reader.kinds.index("replay_completed") == 151


@pytest.mark.parametrize(
    ("span", "first"), [(Span(from_sequence=0), 1), (Span(from_sequence=99), None), (Span(from_time=0), 1)]
)
def test_where_history_starts(span: Span, first: int | None) -> None:
    async def scene() -> None:
        async with hub_on(roomy()) as hub:
            await publish(hub.store.log, 5)
            _, reader = await join(hub, span)
            await settled(lambda: "replay_completed" in reader.kinds)
            await publish(hub.store.log)
            await settled(lambda: 6 in reader.sequences)
            assert reader.sequences == [*([] if first is None else range(first, 6)), 6]

    asyncio.run(scene())


@pytest.mark.parametrize(("cap", "limited"), [(2, True), (3, False), (9, False)])
def test_a_cap_counts_what_passes(cap: int, limited: bool) -> None:
    async def scene() -> None:
        async with hub_on(roomy()) as hub:
            for port in ("oslo", "kiel", "oslo", "kiel", "oslo"):
                await publish(hub.store.log, port=port)
            _, reader = await join(hub, Span(from_sequence=1), cap=cap, port="oslo")
            if not limited:
                await settled(lambda: "replay_completed" in reader.kinds)
                assert reader.sequences == [1, 3, 5]
                return
            await settled(lambda: reader.ended)
            assert reader.sequences == [1, 3]
            assert reader.kinds[2:] == ["notification_replay_limit_reached", "connection-closing"]
            assert reader.frames[-2].data["max_allowed"] == cap
            assert reader.reason == "end_of_stream"

    asyncio.run(scene())


@in_simulated_time
async def test_a_newcomer_with_much_to_remember_is_not_forgotten() -> None:
    """More arrives between subscribing and going live than one backlog may hold."""
    async with hub_on(roomy(), buffer_bytes=10_000) as hub:
        _, other = await join(hub)
        reader = Reader()
        watcher = await hub.watcher(TIDE.compile({}, "watch"), ClientWriter(reader.send), "the-request")
        await publish(hub.store.log, 30, size=1_000)
        await settled(lambda: len(other.sequences) == 30)
        watcher.go_live()
        hub.begin(watcher)
        await publish(hub.store.log, 1)
        await settled(lambda: len(reader.sequences) >= 31)
        assert reader.sequences == list(range(1, 32))


@pytest.mark.parametrize("pause", range(7))
def test_joining_in_the_middle_of_a_delivery(pause: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivery waits for a costly test in another thread; whoever joins meanwhile gets everything once, too."""
    monkeypatch.setattr(live, "_COSTLY", 0)

    async def scene() -> None:
        async with hub_on(roomy()) as hub:
            draft = POLYGON.check({"date": "20250101", "time": "12", "polygon": SQUARE}, 1)
            requests: list[dict[str, str]] = [{"point": "1,1"}, {"polygon": SQUARE}]

            async def subscribed(request: dict[str, str]) -> tuple[Watcher, Reader, int]:
                reader, before = Reader(), (await hub.store.log.state("polygon")).last
                wanted = POLYGON.compile(request, "watch", read_point(request))
                return await hub.watcher(wanted, ClientWriter(reader.send), "the-request"), reader, before

            everyone = [await subscribed(request) for request in requests]
            for watcher, _, _ in everyone:
                watcher.go_live()
            for _ in range(5):
                early = [await subscribed(request) for request in requests]
                await hub.store.log.append_many([draft] * 3)
                for _ in range(pause):
                    await asyncio.sleep(0)
                late = [await subscribed(request) for request in requests]
                for watcher, _, _ in (*early, *late):
                    watcher.go_live()
                everyone += early + late
            await hub.store.log.append(draft)
            for _, reader, before in everyone:
                await settled(lambda reader=reader: reader.sequences[-1:] == [16])
                assert reader.sequences == list(range(before + 1, 17))

    asyncio.run(scene())


@in_simulated_time
async def test_signs_of_life_during_history() -> None:
    async with hub_on(roomy(), batch_delay=0.1, batch_size=1, heartbeat_interval=0.2) as hub:
        await publish(hub.store.log, 8)
        _, reader = await join(hub, Span(from_sequence=1))
        await settled(lambda: "replay_completed" in reader.kinds)
        assert reader.sequences == list(range(1, 9))
        kinds = [frame.kind for frame in reader.frames]
        assert "heartbeat" in kinds[: kinds.index("replay_completed")]


@in_simulated_time
async def test_heartbeats_come_in_their_period() -> None:
    async with hub_on(roomy(), heartbeat_interval=0.2) as hub:
        _, reader = await join(hub, port="oslo")
        await asyncio.sleep(1.3)
        assert 4 <= reader.heartbeats <= 6
        assert set(reader.frames[0].data) == {"timestamp", "topic"}
        assert reader.frames[0].data["topic"] == "tides.oslo.*"


@in_simulated_time
async def test_max_duration_ends_the_stream() -> None:
    async with hub_on(roomy(), max_duration=0.3) as hub:
        watcher, reader = await join(hub)
        await publish(hub.store.log)
        await settled(lambda: reader.ended)
        assert reader.kinds == ["notification", "connection-closing"]
        assert reader.reason == "max_duration_reached"
        assert reader.frames[-1].data["request_id"] == "the-request"
        hub.release(watcher)
        await publish(hub.store.log)
        await asyncio.sleep(0.2)
        assert reader.sequences == [1]


@in_simulated_time
async def test_shutdown_ends_all_and_whoever_comes_after() -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 3)
        _, live = await join(hub)
        hub.close_streams()
        _, late = await join(hub)
        _, back = await join(hub, Span(from_sequence=1))
        await settled(lambda: live.ended and late.ended and back.ended)
        assert live.reason == late.reason == back.reason == "server_shutdown"


@in_simulated_time
async def test_shutdown_beats_max_duration_beats_the_natural_end() -> None:
    async with hub_on(roomy(), max_duration=0.2) as hub:
        _, slow = await join(hub)
        slow.stop()
        await publish(hub.store.log)
        await asyncio.sleep(0.6)
        hub.close_streams("server_shutdown")
        slow.resume()
        await settled(lambda: slow.ended)
        assert slow.kinds == ["notification", "connection-closing"]
        assert slow.reason == "server_shutdown"


@in_simulated_time
async def test_max_duration_does_not_take_back_a_shutdown() -> None:
    async with hub_on(roomy(), max_duration=0.4) as hub:
        _, slow = await join(hub)
        slow.stop()
        await publish(hub.store.log)
        await asyncio.sleep(0.05)
        hub.close_streams("server_shutdown")
        await asyncio.sleep(0.7)
        slow.resume()
        await settled(lambda: slow.ended)
        assert slow.reason == "server_shutdown"


@in_simulated_time
async def test_a_client_that_is_gone_harms_nobody() -> None:
    async with hub_on(roomy(), heartbeat_interval=0.2) as hub:
        gone, stays = Reader(), Reader()
        await join(hub, reader=gone)
        await join(hub, reader=stays)
        gone.gone = True
        await publish(hub.store.log, 2)
        await settled(lambda: len(stays.sequences) == 2)
        await asyncio.sleep(0.5)
        await publish(hub.store.log, 1)
        await settled(lambda: len(stays.sequences) == 3)
        assert stays.heartbeats >= 1
        assert gone.received == b""


@in_simulated_time
async def test_released_watchers_leave_nothing_behind() -> None:
    async with hub_on(roomy()) as hub:
        readers = [Reader() for _ in range(4)]
        watchers = [
            (await join(hub, reader=reader, port=port))[0] for reader, port in zip(readers, "abca", strict=True)
        ]
        watchers.append((await join(hub, Span(from_sequence=1)))[0])
        await settled(lambda: not any(watcher.catching_up for watcher in watchers))
        feed = watchers[0].feed
        assert feed.index_size == 4, "equal filters share a place"
        for watcher in watchers:
            hub.release(watcher)
            hub.release(watcher)
        assert hub.open_streams == set()
        assert feed.index_size == 0
        assert feed.watchers == 0
        await publish(hub.store.log, port="a")
        await asyncio.sleep(0.05)
        assert all(reader.received == b"" for reader in readers)


@in_simulated_time
async def test_a_watcher_released_before_its_worker_began() -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 3)
        watcher, reader = await join(hub, Span(from_sequence=1))
        hub.release(watcher)
        await asyncio.sleep(0.05)
        assert reader.received == b""


@pytest.mark.parametrize("broken", ["read", "first_since"])
def test_history_that_cannot_be_read(broken: str) -> None:
    async def scene() -> None:
        async with hub_on(log := FailingLog(1000)) as hub:
            await publish(log, 3)
            log.broken.add(broken)
            _, reader = await join(hub, Span(from_time=0))
            await settled(lambda: reader.ended)
            assert reader.kinds == ["error", "connection-closing"]
            error = reader.frames[0].data
            assert set(error) == {"error", "message", "topic", "request_id"}
            assert error["error"] == "stream_processing_failed"
            assert error["topic"] == "tides.*.*"
            assert reader.reason == "end_of_stream"
            log.broken.clear()
            _, again = await join(hub, Span(from_sequence=1))
            await settled(lambda: "replay_completed" in again.kinds)
            assert again.sequences == [1, 2, 3]

    asyncio.run(scene())


def test_catching_up_from_a_log_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_RECENT_COUNT", 4)

    async def scene() -> None:
        async with hub_on(log := FailingLog(1000), buffer_bytes=1_000) as hub:
            _, slow = await join(hub)
            slow.stop()
            for _ in range(50):
                await publish(log, 1, size=100)
                await asyncio.sleep(0)
            log.broken.add("read")
            slow.resume()
            await settled(lambda: slow.ended)
            assert slow.kinds[-2:] == ["error", "connection-closing"]
            delivered = slow.sequences
            assert delivered == list(range(1, len(delivered) + 1))
            assert len(delivered) < 50

    asyncio.run(scene())


@pytest.mark.parametrize("broken", ["follow", "state"])
def test_a_failed_subscription_leaves_nothing_behind(broken: str) -> None:
    async def scene() -> None:
        async with hub_on(log := FailingLog(1000)) as hub:
            log.broken.add(broken)
            for _ in range(2):
                with pytest.raises(Exception, match="the disk is on fire"):
                    await join(hub)
            assert hub.open_streams == set()
            log.broken.clear()
            _, reader = await join(hub)
            await publish(log)
            await settled(lambda: reader.sequences == [1])

    asyncio.run(scene())


@in_simulated_time
async def test_a_lost_live_feed_ends_the_streams_and_newcomers_get_a_new_one() -> None:
    async with hub_on(log := FailingLog(1000)) as hub:
        old, reader = await join(hub)
        slow = Reader()
        await join(hub, reader=slow)
        slow.stop()
        await publish(log)
        await settled(lambda: reader.sequences == [1])
        log.lose("tides")
        _, newcomer = await join(hub)
        await publish(log)
        await settled(lambda: newcomer.sequences == [2])
        slow.resume()
        await settled(lambda: slow.ended)
        assert reader.reason == slow.reason == "end_of_stream"
        assert reader.sequences == slow.sequences == [1]
        hub.release(old)
        await publish(log)
        await settled(lambda: newcomer.sequences == [2, 3])


@pytest.mark.parametrize("start", [None, Span(from_sequence=1)])
def test_a_stream_that_is_closed_before_it_began_says_nothing_before_its_opening(start: Span | None) -> None:
    async def scene() -> None:
        async with hub_on(roomy()) as hub:
            await publish(hub.store.log, 2)
            reader = Reader()
            watcher = await hub.watcher(TIDE.compile({}, "watch"), ClientWriter(reader.send), "the-request")
            hub.close_streams()
            assert reader.received == b""
            watcher.go_live() if start is None else watcher.go_back(start, None)
            hub.begin(watcher)
            await settled(lambda: reader.ended)
            assert reader.reason == "server_shutdown"

    asyncio.run(scene())


# While the next part of history is not there yet


@in_event_loop
async def test_a_watcher_shows_life_while_it_waits_for_history(make_log: MakeLog) -> None:
    async with hub_on(make_log(), batch_size=2, batch_delay=3600, heartbeat_interval=0.02) as hub:
        await publish(hub.store.log, 5)
        _, reader = await join(hub, Span(from_sequence=1))
        await settled(lambda: reader.heartbeats >= 3)
        assert reader.sequences == [1, 2]
        assert not reader.ended


@pytest.mark.parametrize("reason", ["server_shutdown", "max_duration_reached"])
@in_event_loop
async def test_a_watcher_ends_when_it_is_time_though_it_waits_for_history(make_log: MakeLog, reason: str) -> None:
    duration = 0.1 if reason == "max_duration_reached" else 3600
    async with hub_on(make_log(), batch_size=2, batch_delay=3600, max_duration=duration) as hub:
        await publish(hub.store.log, 5)
        _, reader = await join(hub, Span(from_sequence=1))
        await settled(lambda: len(reader.sequences) == 2)
        if reason == "server_shutdown":
            hub.close_streams()
        await settled(lambda: reader.ended)
        assert reader.sequences == [1, 2]
        assert reader.kinds[-1] == "connection-closing", "history is not complete"
        assert reader.reason == reason


@in_event_loop
async def test_history_with_pauses_goes_on_after_signs_of_life(make_log: MakeLog) -> None:
    async with hub_on(make_log(), batch_size=2, batch_delay=0.2, heartbeat_interval=0.02) as hub:
        await publish(hub.store.log, 7)
        _, reader = await join(hub, Span(from_sequence=1))
        await settled(lambda: "replay_completed" in reader.kinds)
        await publish(hub.store.log, 1)
        await settled(lambda: len(reader.sequences) == 8)
        assert reader.sequences == list(range(1, 9))
        assert reader.heartbeats >= 1
