"""All open streams of this process: who is live, who is reading history, and when they are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import msgspec

from aviso_server.counts import Endpoint, Flow, Histogram, Operations
from aviso_server.delivery.archive import Archive
from aviso_server.delivery.forms import EventStream, Form, Render
from aviso_server.delivery.frames import Reason
from aviso_server.delivery.history import History
from aviso_server.delivery.outlet import Outlet
from aviso_server.delivery.piece import LARGEST_BATCH, Piece
from aviso_server.delivery.pieces import pieces, pieces_with_pauses
from aviso_server.delivery.reading import Reading
from aviso_server.delivery.replay import Replay
from aviso_server.delivery.tail import Passed, Tail
from aviso_server.delivery.watcher import Watcher
from aviso_server.delivery.wheel import Wheel
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Log
from aviso_server.model.cloudevent import Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.timestamp import SECOND

__all__ = ["GENERIC", "Hub", "Pace"]

GENERIC = "generic"
"""What event types that nobody configured are counted as: their names are without limit."""

_READERS = 4
_SPATIAL_READERS = 2
_MOST_RENDERERS = 1024  # generic event types come and go
_LIFETIMES = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)  # seconds


class Pace(msgspec.Struct, frozen=True):
    """How streams run."""

    heartbeat_interval: float = 10.0  # seconds
    max_duration: float = 3600.0  # seconds
    batch_size: int = 100  # what `replay_started` reports; the real batches only with a delay between them
    batch_delay: float = 0.0  # seconds
    buffer_bytes: int = 1024 * 1024  # what may wait for one client before it is caught up from the log
    patience: float = 30.0  # seconds that a watcher, once its time is over, has to take what waits for it
    stall: float = 3600.0  # seconds that a replay waits for a reader who takes nothing


class Hub:
    """Opens streams and closes them, gives everyone their heartbeat, and keeps one tail per stream."""

    def __init__(
        self,
        log: Log,
        base_url: str,
        pace: Pace,
        clock: Callable[[], int] = time.time_ns,
        event_types: Collection[str] = (),
        operations: Operations | None = None,
        archive: Archive | None = None,
    ) -> None:
        self.log = log
        self.pace = pace
        self.clock = clock
        self.on_passed: Passed | None = None  # told what live watchers were handed
        self.open_streams: set[Watcher | Replay] = set()
        self.flows: dict[tuple[Endpoint, str], Flow] = {}
        self.lifetimes: dict[Endpoint, Histogram] = {"watch": Histogram(_LIFETIMES), "replay": Histogram(_LIFETIMES)}
        self._event_types = frozenset(event_types)
        self._base_url = base_url
        self._executor = ThreadPoolExecutor(_READERS, thread_name_prefix="render")
        self._spatial = ThreadPoolExecutor(_SPATIAL_READERS, thread_name_prefix="areas")
        operations = operations or Operations()
        self.history = History(log, self._executor, self._spatial, operations, archive)
        self.log_history = self.history  # what the log alone holds
        if archive is not None:
            self.log_history = History(log, self._executor, self._spatial, operations)
        self._tails: dict[str, Tail] = {}
        self._opening: dict[str, asyncio.Task[Tail]] = {}
        self._renderers: dict[str, Renderer] = {}
        self._wheel = Wheel()
        self._turning: asyncio.Task[None] | None = None
        self._leaving: Reason | None = None

    @property
    def buffer_bytes(self) -> int:
        """What may wait for one client before it is caught up from the log."""
        return self.pace.buffer_bytes

    def start(self) -> None:
        """Set the clock going."""
        self._turning = asyncio.create_task(self._wheel.turn(), name="heartbeats")

    def close_streams(self, reason: Reason = "server_shutdown") -> None:
        """End every open stream in order, and each that opens from now on."""
        self._leaving = reason
        for stream in list(self.open_streams):
            stream.close(reason)

    async def stop(self) -> None:
        """Let go of everything."""
        for stream in list(self.open_streams):
            self.release(stream)
        if self._turning is not None:
            self._turning.cancel()
        for executor in (self._executor, self._spatial):
            executor.shutdown(wait=False, cancel_futures=True)

    async def watcher(self, wanted: Filter, outlet: Outlet, request_id: str) -> Watcher:
        """A watcher whose position lies behind everything that is stored now; LogError if it cannot be live."""
        tail = await self._tail(wanted)
        tail.watchers += 1
        try:
            last = (await self.log.state(wanted.stream)).last
            _check_fed(tail)
        except BaseException:
            self._release_tail(tail)
            raise
        watcher = Watcher(self, tail, wanted, outlet, request_id, last + 1)
        watcher.flow.opened += 1
        self.open_streams.add(watcher)
        return watcher

    def begin(self, watcher: Watcher, until: int | None = None) -> None:
        """The opening frame is out: count the duration and the heartbeats from now on; end at `until` at the latest."""
        now = asyncio.get_running_loop().time()
        deadline = now + self.pace.max_duration
        if until is not None:
            deadline = min(deadline, now + self._seconds_to(until))
        watcher.begin(now + self.pace.heartbeat_interval, deadline)
        self._wheel.add(watcher, min(watcher.next_heartbeat, watcher.deadline))
        if self._leaving is not None:
            watcher.close(self._leaving)

    def replay(
        self,
        wanted: Filter,
        outlet: Outlet,
        request_id: str,
        until: int | None = None,
        form: Form | None = None,
        history: History | None = None,
    ) -> Replay:
        """A stream that ends with history, or at `until` if that comes first; of events unless a form is given."""
        form = form or EventStream(wanted.topic, self.renderer(wanted.event_type), request_id)
        replay = Replay(self, wanted, form, outlet, request_id, history or self.history)
        replay.flow.opened += 1
        self.open_streams.add(replay)
        now = asyncio.get_running_loop().time()
        if until is not None:
            replay.deadline = now + self._seconds_to(until)
        self._wheel.add(replay, min(replay.deadline, now + self.pace.stall))
        if self._leaving is not None:
            replay.close(self._leaving)
        return replay

    def release(self, stream: Watcher | Replay) -> None:
        """The stream is over."""
        if stream not in self.open_streams:
            return
        self.open_streams.remove(stream)
        self.lifetimes[stream.endpoint].observe(time.monotonic() - stream.since)
        stream.abandon()
        self._wheel.discard(stream)
        if isinstance(stream, Watcher):
            self._release_tail(stream.tail)

    def pieces(
        self,
        history: History,
        wanted: Filter,
        render: Render,
        start: int,
        end: int,
        cap: int | None = None,
        plain: bool = False,
    ) -> AsyncGenerator[Piece, None]:
        """History from `start` to `end`, at most `cap` notifications of it.

        With `plain`, a notification is rendered the same whatever came before it, and without its topic.
        """
        if not self.pace.batch_delay:
            return pieces(history, wanted, render, start, end, cap, plain)
        size, pause = self.pace.batch_size, self.pace.batch_delay
        return pieces_with_pauses(history, wanted, render, start, end, cap, size, pause)

    async def next_piece(self, reading: Reading, render: Render) -> Piece:
        """What a watcher who fell behind gets next."""
        last = (await self.log.state(reading.wanted.stream)).last
        found = await reading.next(last, self.pace.batch_size if self.pace.batch_delay else LARGEST_BATCH)
        return await self.history.piece(reading.wanted, render, found)

    def renderer(self, event_type: str) -> Renderer:
        """The renderer of an event type; made once."""
        found = self._renderers.get(event_type)
        if found is None:
            if len(self._renderers) >= _MOST_RENDERERS:
                self._renderers.clear()
            found = self._renderers[event_type] = Renderer(event_type, self._base_url)
        return found

    def flow(self, endpoint: Endpoint, event_type: str) -> Flow:
        """The counts of an endpoint and an event type."""
        key = (endpoint, event_type if event_type in self._event_types else GENERIC)
        found = self.flows.get(key)
        if found is None:
            found = self.flows[key] = Flow()
        return found

    @property
    def tails(self) -> Collection[Tail]:
        """The streams that somebody watches."""
        return self._tails.values()

    def _seconds_to(self, time: int) -> float:
        return max(time - self.clock(), 0) / SECOND

    async def _tail(self, wanted: Filter) -> Tail:
        # once opened, the tail may have been closed again before we get our turn
        while (tail := self._tails.get(wanted.stream)) is None:
            opening = self._opening.get(wanted.stream)
            if opening is None:
                opening = self._opening[wanted.stream] = asyncio.create_task(self._open_tail(wanted))
            await asyncio.shield(opening)
        return tail

    async def _open_tail(self, wanted: Filter) -> Tail:
        try:
            tail = Tail(
                wanted.stream,
                self.renderer(wanted.event_type),
                wanted.positional,
                self.log,
                self._spatial,
                self.pace.buffer_bytes,
                self.flow("watch", wanted.event_type),
                self._tail_lost,
            )
            tail.on_passed = self.on_passed
            await tail.open()
            if tail.lost:
                tail.close()
            _check_fed(tail)
            self._tails[wanted.stream] = tail
            return tail
        finally:
            del self._opening[wanted.stream]

    def _tail_lost(self, tail: Tail) -> None:
        """Close everyone who relies on the tail: they ask again from where they are, and newcomers get a new tail."""
        if self._tails.get(tail.stream) is tail:
            del self._tails[tail.stream]
            tail.close()
        for stream in list(self.open_streams):
            if isinstance(stream, Watcher) and stream.tail is tail:
                stream.close("end_of_stream")

    def _release_tail(self, tail: Tail) -> None:
        tail.watchers -= 1
        if tail.watchers <= 0 and self._tails.get(tail.stream) is tail:
            del self._tails[tail.stream]
            tail.close()


def _check_fed(tail: Tail) -> None:
    if tail.lost:
        raise LogUnavailable(f"the live feed of stream '{tail.stream}' was lost; ask again")
