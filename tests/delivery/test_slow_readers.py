"""Readers that do not keep up: nothing is lost, nothing comes twice, nobody waits for them, memory is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.delivery import live
from aviso_server.delivery.clients import Watcher
from aviso_server.delivery.hub import Hub
from aviso_server.log.base import Log
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.cloudevent import LIVE
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, Reader, hub_on, join, publish, roomy, settled
from tests.delivery.simulation import in_simulated_time
from tests.log.scenario import in_event_loop
from tests.model.event_types import SQUARE, event_type

BUFFER = 64 * 1024
STORM = event_type("storm", {"name": "StringHandler", "polygon": "PolygonHandler"}, order=["name"])
MakeLog = Callable[[], Log]


@pytest.fixture(params=["memory", "sqlite"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLog:
    """Both logs."""
    return roomy if request.param == "memory" else lambda: SqliteLog(tmp_path / "log")


@pytest.fixture(params=["remembered by the feed", "only in the log"])
def remembered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what a slow reader missed is still in memory or has to come from the log."""
    if request.param == "only in the log":
        monkeypatch.setattr(live, "_RECENT_COUNT", 8)


@pytest.mark.usefixtures("remembered")
@in_event_loop
async def test_a_stopped_reader_catches_up_and_rejoins(make_log: MakeLog) -> None:
    async with hub_on(make_log(), buffer_bytes=BUFFER) as hub:
        slow_watcher, slow = await join(hub, port="oslo")
        _, fast = await join(hub)
        slow.stop()
        for _ in range(40):
            await publish(hub.store.log, 5, size=4_000)
            await publish(hub.store.log, 1, port="kiel")
            assert slow_watcher.backlog_bytes <= BUFFER
            await asyncio.sleep(0)
        await settled(lambda: len(fast.sequences) == 240)
        assert slow_watcher.catching_up
        assert slow.received == b""
        slow.resume()
        await settled(lambda: len(slow.sequences) >= 200 and not slow_watcher.catching_up)
        await publish(hub.store.log, 1)
        await settled(lambda: 241 in slow.sequences)
        assert fast.sequences == list(range(1, 242))
        assert slow.sequences == [each for each in range(1, 242) if each % 6 or each > 240]
        assert {frame.event for frame in slow.frames} == {"live-notification"}


@in_event_loop
async def test_publishing_goes_on_while_a_reader_catches_up(make_log: MakeLog) -> None:
    async with hub_on(make_log(), buffer_bytes=8_000) as hub:
        _, slow = await join(hub)
        slow.stop()
        await publish(hub.store.log, 200, size=500)
        slow.resume()
        for number in range(100):
            await publish(hub.store.log, 1, size=500)
            slow.stop() if number % 7 == 3 else slow.resume()
        slow.resume()
        await settled(lambda: len(slow.sequences) >= 300)
        assert slow.sequences == list(range(1, 301))


@in_simulated_time
async def test_a_notification_larger_than_the_buffer_gets_through() -> None:
    async with hub_on(roomy(), buffer_bytes=1_000) as hub:
        _, slow = await join(hub)
        slow.stop()
        for size in (10, 5_000, 900, 20_000, 10):
            await publish(hub.store.log, 1, size=size)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        slow.resume()
        await settled(lambda: len(slow.sequences) == 5)
        assert slow.sequences == [1, 2, 3, 4, 5]


@in_simulated_time
async def test_falling_behind_what_the_log_keeps_ends_the_stream() -> None:
    """Only the newest of a topic is kept: what the reader missed is gone, and it must not go on as if nothing was."""
    async with hub_on(MemoryLog(max_history_per_topic=1), buffer_bytes=BUFFER) as hub:
        _, slow = await join(hub)
        slow.stop()
        for _ in range(60):
            await publish(hub.store.log, 1, size=200_000)
            await asyncio.sleep(0)
        slow.resume()
        await settled(lambda: slow.ended)
        assert slow.reason == "end_of_stream"
        delivered = slow.sequences
        assert delivered == list(range(1, len(delivered) + 1))
        assert len(delivered) < 60


@in_simulated_time
async def test_signs_of_life_while_blocked() -> None:
    async with hub_on(roomy(), heartbeat_interval=0.2) as hub:
        _, slow = await join(hub)
        _, fast = await join(hub)
        slow.stop()
        await publish(hub.store.log)
        await settled(lambda: fast.heartbeats >= 3)
        slow.resume()
        await settled(lambda: slow.heartbeats > 0)
        assert slow.heartbeats == 1, "heartbeats do not pile up"
        assert [frame.kind for frame in slow.frames[:2]] == ["notification", "heartbeat"]


@in_event_loop
async def test_a_reader_blocked_in_history_misses_nothing(make_log: MakeLog) -> None:
    async with hub_on(make_log(), buffer_bytes=8_000, heartbeat_interval=0.1) as hub:
        await publish(hub.store.log, 300, size=300)
        _, slow = await join(hub, Span(from_sequence=1))
        slow.stop()
        await asyncio.sleep(0.3)
        for _ in range(30):
            await publish(hub.store.log, 10, size=300)
        slow.resume()
        await settled(lambda: len(slow.sequences) >= 600)
        assert slow.sequences == list(range(1, 601))
        assert slow.kinds.count("replay_completed") == 1
        assert slow.kinds.index("replay_completed") == 300


@in_simulated_time
async def test_a_watcher_that_reads_again_after_its_time_gets_all_of_it() -> None:
    async with hub_on(roomy(), max_duration=0.2, patience=10.0) as hub:
        _, slow = await join(hub)
        slow.stop()
        await publish(hub.store.log, 3)
        await asyncio.sleep(0.6)
        slow.resume()
        await settled(lambda: slow.ended)
        assert slow.sequences == [1, 2, 3]
        assert slow.reason == "max_duration_reached"
        assert not slow.hung_up


@in_simulated_time
async def test_a_watcher_that_never_reads_again_is_hung_up_on_after_its_time() -> None:
    async with hub_on(roomy(), max_duration=0.3, patience=0.6) as hub:
        _, stopped = await join(hub)
        stopped.stop()
        await publish(hub.store.log)
        await asyncio.sleep(0.6)
        assert not stopped.hung_up, "it still has time to take what waits for it"
        await settled(lambda: stopped.hung_up)
        assert stopped.received == b""


@in_simulated_time
async def test_a_blocked_reader_that_is_dropped_frees_everything() -> None:
    async with hub_on(roomy(), buffer_bytes=1_000) as hub:
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        watchers = [await join(hub) for _ in range(3)]
        for _, reader in watchers:
            reader.stop()
        await publish(hub.store.log, 50, size=100)
        await asyncio.sleep(0.05)
        for watcher, _ in watchers:
            hub.release(watcher)
        await asyncio.sleep(0.05)
        assert hub.open_streams == set()
        assert asyncio.all_tasks() == before


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 12), st.sampled_from([0, 50, 400, 3_000])),
        st.tuples(st.just("open"), st.sampled_from(["live", "back"]), st.sampled_from(["oslo", "kiel", None])),
        st.tuples(st.just("stop"), st.integers(0, 9), st.none()),
        st.tuples(st.just("resume"), st.integers(0, 9), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([0, 0.002]), st.none()),
    ),
    max_size=40,
)


class Scene:
    """Readers that come, stop, resume and leave, and what each of them must have received in the end."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.ports: list[str] = []  # of every notification so far
        self.open: list[tuple[Watcher, Reader, str | None, int]] = []

    async def do(self, verb: str, one: Any, other: Any) -> None:
        if verb == "publish":
            for number in range(one):
                port = "oslo" if (number + other) % 3 else "kiel"
                await publish(self.hub.store.log, 1, size=other, port=port)
                self.ports.append(port)
        elif verb == "open":
            first = len(self.ports) // 2 + 1 if one == "back" else len(self.ports) + 1
            span = Span(from_sequence=first) if one == "back" else None
            watcher, reader = await join(self.hub, span, **({} if other is None else {"port": other}))
            self.open.append((watcher, reader, other, first))
        elif verb == "wait":
            await asyncio.sleep(one)
        elif self.open:
            watcher, reader, port, first = self.open[one % len(self.open)]
            if verb == "leave":
                self.open.remove((watcher, reader, port, first))
                self.hub.release(watcher)
                self.check(reader, port, first, complete=False)
            else:
                reader.stop() if verb == "stop" else reader.resume()

    def expected(self, port: str | None, first: int) -> list[int]:
        return [each for each, its in enumerate(self.ports, 1) if each >= first and port in (None, its)]

    def check(self, reader: Reader, port: str | None, first: int, complete: bool) -> None:
        expected, received = self.expected(port, first), reader.sequences
        assert received == (expected if complete else expected[: len(received)])


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1, 600, 5_000]), st.sampled_from([3, 4096]))
def test_exactly_once_in_order_whatever_readers_do(steps: list[tuple[str, Any, Any]], buffer: int, recent: int) -> None:
    async def scene() -> None:
        async with hub_on(roomy(), buffer_bytes=buffer) as hub:
            scene = Scene(hub)
            for verb, one, other in steps:
                await scene.do(verb, one, other)
            for _, reader, _, _ in scene.open:
                reader.resume()
            for _, reader, port, first in scene.open:
                await settled(
                    lambda reader=reader, port=port, first=first: (
                        len(reader.sequences) >= len(scene.expected(port, first))
                    )
                )
            await asyncio.sleep(0)
            for _, reader, port, first in scene.open:
                scene.check(reader, port, first, complete=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "_RECENT_COUNT", recent)
        asyncio.run(scene())


@in_event_loop
async def test_more_than_a_sweep_can_hold_is_read_from_the_log(
    make_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_QUEUE_COUNT", 50)
    async with hub_on(make_log()) as hub:
        watcher, reader = await join(hub)
        _, oslo = await join(hub, port="oslo")
        await hub.store.log.append_many([TIDE.check({"port": "oslo", "level": 3})] * 300)
        await settled(lambda: len(reader.sequences) >= 300 and not watcher.catching_up)
        await publish(hub.store.log, 1)
        await settled(lambda: 301 in reader.sequences and 301 in oslo.sequences)
        assert reader.sequences == oslo.sequences == list(range(1, 302))
        assert watcher.flow.fell_behind >= 1


@in_event_loop
async def test_a_large_area_holds_up_nobody_else(make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_COSTLY", 20)  # every pair of polygons is too much for the event loop
    async with hub_on(make_log()) as hub:
        near_watcher, near = await join(hub, event_type=STORM, polygon=SQUARE)
        _, everything = await join(hub, event_type=STORM)
        for _ in range(30):
            await hub.store.log.append(STORM.check({"name": "near", "polygon": SQUARE}))
            await hub.store.log.append(STORM.check({"name": "far", "polygon": "(1,1,1,9,9,9,9,1,1,1)"}))
            await hub.store.log.append(STORM.check({"name": "away", "polygon": "(60,60,60,61,61,61,60,60)"}))
        await settled(lambda: len(everything.sequences) == 90 and len(near.sequences) == 60)
        assert everything.sequences == list(range(1, 91))
        assert near.sequences == [each for each in range(1, 91) if each % 3]
        assert near_watcher.flow.fell_behind >= 1


@in_simulated_time
async def test_what_is_offered_to_a_watcher_that_has_just_fallen_behind_is_left_to_the_log() -> None:
    async with hub_on(roomy()) as hub:
        watcher, slow = await join(hub)
        slow.stop()
        for position in (2, 4):  # one is being written, two wait
            await publish(hub.store.log, position // 2)
            await settled(lambda position=position: watcher.position == position)
        watcher.fall_behind()
        assert watcher.position == 2
        [fourth] = await publish(hub.store.log)
        frame = hub.renderer("tide").frame(LIVE, fourth)
        watcher.offer([(fourth.sequence, frame)], frame)  # by a sweep that had begun before
        slow.resume()
        await settled(lambda: len(slow.sequences) >= 4)
        assert slow.sequences == [1, 2, 3, 4]
