"""The live end of one stream: from the log's newest notifications to the watchers who want them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from aviso_server.counts import Flow
from aviso_server.delivery.index import FilterIndex
from aviso_server.log.base import Log, Subscription
from aviso_server.model.cloudevent import LIVE, Renderer
from aviso_server.model.filter import Filter, View
from aviso_server.model.geometry import Polygon, cost
from aviso_server.model.notification import Notification

if TYPE_CHECKING:
    from aviso_server.delivery.watcher import Watcher

__all__ = ["Channel", "Frames", "Passed", "Tail"]

logger = logging.getLogger(__name__)

_RECENT_COUNT = 4096
_RECENT_BYTES = 8 * 1024 * 1024
_WRITES_PER_TURN = 256  # then other requests get their turn
_EAGER_WRITES_PER_TURN = 16  # sooner, while little waits for the next pass: one long write costs less than many short
_ENOUGH = 64  # notifications
_QUEUE_COUNT = 65_536  # what may wait for a sweep; beyond that the watchers read it from the log
_QUEUE_BYTES = 64 * 1024 * 1024
_COSTLY = 50_000  # edge pairs, about two milliseconds; more than that are compared outside of the event loop
_MOST_EFFORT = 512  # of one join: about a millisecond

Passed = Callable[[str, Sequence[Notification], int], None]
"""Called with a stream, the notifications that were handed on and the time when that began."""

Frames = Sequence[tuple[int, bytes]]
"""Rendered notifications with their sequences, ascending."""


class Channel:
    """The watchers who want exactly the same: found once, rendered once, written many times."""

    __slots__ = ("frames", "members", "wanted")

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.members: set[Watcher] = set()
        self.frames: list[tuple[int, bytes]] = []

    def take(self) -> tuple[list[Watcher], Frames]:
        """What is to be written now, and to whom."""
        frames, self.frames = self.frames, []
        return list(self.members), frames


class Tail:
    """Follows one stream for all its watchers of this process."""

    def __init__(
        self,
        stream: str,
        renderer: Renderer,
        positional: bool,
        log: Log,
        executor: Executor,
        backlog_limit: int,
        flow: Flow,
        on_lost: Callable[[Tail], None] | None = None,
    ) -> None:
        self.stream = stream
        self.watchers = 0  # how many hold on to this tail, joined or catching up
        self.lost = False  # the log cannot feed it any longer
        self._renderer = renderer
        self._positional = positional
        self._log = log
        self._executor = executor
        self._backlog_limit = backlog_limit // 2
        self.flow = flow
        self.on_passed: Passed | None = None  # told what was handed on, and when that began
        self._on_lost = on_lost
        self._index: FilterIndex[Channel] = FilterIndex()
        self._channels: dict[Filter, Channel] = {}
        self._queue: list[Notification] = []
        self._queue_bytes = 0
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._recent: deque[Notification] = deque()
        self._recent_bytes = 0
        self._known_from = 0  # from here on everything was seen and is in `_recent` or to come
        self._taken = 0  # up to here everything was seen and handed on

    async def open(self) -> None:
        """Begin to follow; from now on no notification is missed."""
        self._subscription = self._log.follow(self.stream, self._feed, self._lose)
        try:
            last = (await self._log.state(self.stream)).last
        except BaseException:
            self._subscription.cancel()
            raise
        self._known_from = min([last + 1, *[each.sequence for each in self._queue[:1]]])
        self._taken = self._known_from - 1
        self._sweeper = asyncio.create_task(self._sweep(), name=f"tail of {self.stream}")

    def close(self) -> None:
        """Stop following."""
        # Both refer back to this tail: a circle would keep all that is remembered until the next full collection.
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    @property
    def index_size(self) -> int:
        """How many different filters are live."""
        return len(self._index)

    def join(self, watcher: Watcher) -> bool:
        """Make the watcher live from its position on; False if that is further back than what is remembered.

        False also if finding out what it wants takes too long for the event loop. If more is remembered than a
        backlog may hold or than can be looked at in one go, it gets a part of it and has to ask again.
        """
        if watcher.position < self._known_from:
            return False
        frames: list[tuple[int, bytes]] = []
        size = spent = 0
        for each in self._recent:
            if each.sequence < watcher.position:
                continue
            effort = _effort(watcher.wanted, each)
            if spent + effort > _MOST_EFFORT:
                if not spent:
                    return False
                watcher.remember(frames, each.sequence, live=False)
                return True
            spent += effort
            if not watcher.wanted.matches(each):
                continue
            frame = self._renderer.frame(LIVE, each)
            frames.append((each.sequence, frame))
            size += len(frame)
            if size > self._backlog_limit:
                watcher.remember(frames, each.sequence + 1, live=False)
                return True
        channel = self._channels.get(watcher.wanted)
        if channel is None:
            channel = self._channels[watcher.wanted] = Channel(watcher.wanted)
            self._index.add(channel)
        channel.members.add(watcher)
        watcher.remember(frames, max(watcher.position, self._taken + 1), live=True)
        return True

    def leave(self, watcher: Watcher) -> None:
        """The watcher is no longer live."""
        channel = self._channels.get(watcher.wanted)
        if channel is None:
            return
        channel.members.discard(watcher)
        if not channel.members:
            del self._channels[watcher.wanted]
            self._index.discard(channel)

    def _feed(self, notifications: Sequence[Notification]) -> None:
        self._queue.extend(notifications)
        self._queue_bytes += sum([len(each.payload) for each in notifications])
        if len(self._queue) > _QUEUE_COUNT or self._queue_bytes > _QUEUE_BYTES:
            self._overrun()
        self._arrived.set()

    def _overrun(self) -> None:
        """More waits than memory should hold: forget it, and let every watcher read it from the log."""
        logger.warning(
            "%d notifications waited for delivery; the watchers read them from the log",
            len(self._queue),
            extra={"event": "stream.live.overrun", "stream": self.stream},
        )
        self._taken = self._queue[-1].sequence
        self._known_from = self._taken + 1
        self._queue, self._queue_bytes = [], 0
        self._recent.clear()
        self._recent_bytes = 0
        for channel in list(self._channels.values()):
            self._set_aside(channel)

    def _set_aside(self, channel: Channel) -> None:
        """The watchers of the channel go on by themselves, from the log; what was found for them is found there."""
        channel.frames = []
        for watcher in list(channel.members):
            watcher.fall_behind()

    def _lose(self, reason: str) -> None:
        """The log cannot hand on everything any longer: whoever relies on this tail has to begin anew."""
        logger.error("live feed lost: %s", reason, extra={"event": "stream.live.lost", "stream": self.stream})
        self.lost = True
        if self._on_lost is not None:
            self._on_lost(self)

    async def _sweep(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                batch, began = self._take(), time.time_ns()
                await self._pass_on(batch)
                if self.on_passed is not None:
                    self.on_passed(self.stream, batch, began)
            except Exception:
                logger.exception("delivery failed", extra={"event": "stream.live.failed", "stream": self.stream})
                for channel in list(self._channels.values()):
                    for watcher in list(channel.members):
                        watcher.close("end_of_stream")

    def _take(self) -> Sequence[Notification]:
        """The newly arrived ones; from this moment newcomers find them among the recent ones."""
        batch, self._queue, self._queue_bytes = self._queue, [], 0
        batch = [each for each in batch if each.sequence > self._taken]
        if not batch:
            return batch
        self._taken = batch[-1].sequence
        for each in batch:
            self._recent.append(each)
            self._recent_bytes += len(each.payload) + len(each.identifier)
        while len(self._recent) > _RECENT_COUNT or self._recent_bytes > _RECENT_BYTES:
            oldest = self._recent.popleft()
            self._recent_bytes -= len(oldest.payload) + len(oldest.identifier)
            self._known_from = oldest.sequence + 1
        return batch

    async def _pass_on(self, batch: Sequence[Notification]) -> None:
        touched: dict[Channel, None] = {}
        too_slow: dict[Channel, None] = {}
        for each in batch:
            if not self._channels:
                break
            view = View(each, self._positional)
            self.flow.examined += 1
            sure, doubtful = self._index.candidates(view)
            if doubtful:
                costs = _costs(view, doubtful)
                too_slow.update((channel, None) for channel, needed in costs.items() if needed > _COSTLY)
                doubtful = [channel for channel in doubtful if channel not in too_slow]
                if sum(costs.values()) > _COSTLY:
                    loop = asyncio.get_running_loop()
                    sure += await loop.run_in_executor(self._executor, _passing, view, doubtful)
                else:
                    sure += _passing(view, doubtful)
            if sure:
                self.flow.matched += len(sure)
                frame = self._renderer.frame(LIVE, each)
                for channel in sure:
                    channel.frames.append((each.sequence, frame))
                    touched[channel] = None
        for channel in too_slow:
            self._set_aside(channel)  # so that nobody else waits for the tests of large areas
        written = 0
        for members, frames in [channel.take() for channel in touched if channel.frames]:
            chunk = b"".join([frame for _, frame in frames])
            for watcher in members:
                watcher.offer(frames, chunk)
                written += 1
                if written % (_WRITES_PER_TURN if len(self._queue) >= _ENOUGH else _EAGER_WRITES_PER_TURN) == 0:
                    await asyncio.sleep(0)


def _passing(view: View, doubtful: list[Channel]) -> list[Channel]:
    return [channel for channel in doubtful if channel.wanted.passes(view)]


def _effort(wanted: Filter, notification: Notification) -> int:
    """How long the test may take, in units of a few microseconds, guessed without parsing anything."""
    if wanted.area is None:
        return 1
    vertices = wanted.area.vertices if isinstance(wanted.area, Polygon) else 1
    return 1 + (vertices + 8) * len(notification.identifier) // 8192


def _costs(view: View, doubtful: list[Channel]) -> dict[Channel, int]:
    """How many pairs of edges the test of each area may have to compare."""
    areas = {channel: channel.wanted.area for channel in doubtful if isinstance(channel.wanted.area, Polygon)}
    shape = view.shape if areas else None
    if shape is None:
        return {}
    return {channel: cost(shape, area) for channel, area in areas.items()}
