"""The live feed of one stream: from the newest notifications of the log to the watchers that want them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aviso_server.counters import Flow
from aviso_server.delivery.index import FilterIndex, added, removed
from aviso_server.log.base import Subscription
from aviso_server.model.cloudevent import LIVE, Renderer
from aviso_server.model.filter import Filter, View
from aviso_server.model.notification import Notification
from aviso_server.model.predicates import cost
from aviso_server.model.shapes import Polygon
from aviso_server.store import Store

__all__ = ["Channel", "Frames", "LiveFeed", "Member", "Passed"]

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
_TESTED_AT_ONCE = 25 * _COSTLY  # edge pairs that a thread compares before the feed shows that it moves
_TEST = 50  # what testing a filter without an area costs, in edge pairs
_TURN_SECONDS = 0.005  # then others get their turn, however much is still to be passed on
_TOLD_AT_ONCE = 128  # notifications whose delivery is traced in one turn
_RESTART_DELAY = 0.1  # seconds
_LOOKED_AT = 100  # notifications
_MOST_LOOKS = 5  # in a row at a feed that does not move, though it should: then it is restarted

Passed = Callable[[str, Sequence[Notification], int], None]
"""Called with a stream, the notifications that were delivered and the time when that began."""

Frames = Sequence[tuple[int, bytes]]
"""Rendered notifications with their sequences, ascending."""


class Member(Protocol):
    """Whoever takes notifications from a live feed: a watcher, or the cursor of a subscription."""

    position: int  # the next sequence it has not been handed yet
    request_id: str  # names it in log records

    @property
    def wanted(self) -> Filter:
        """Its filter; it never changes."""

    def remember(self, remembered: Frames, position: int, live: bool) -> None:
        """Take what the live feed remembers; with `live`, it offers everything from `position` on."""

    def offer(self, offered: Frames, chunk: bytes) -> None:
        """Take new notifications; `chunk` is all of the frames joined."""

    def fall_behind(self) -> None:
        """Leave, and go on from the log."""

    def abort(self) -> None:
        """Give up: an offer has failed."""


_NONE: list[tuple[int, bytes]] = []
"""Shared by all channels that have nothing to write; never changed."""


class Channel:
    """The members with the same filter: found once, rendered once, written many times."""

    __slots__ = ("frames", "members", "wanted")

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.members: Collection[Member] = ()  # in the order in which they joined
        self.frames: list[tuple[int, bytes]] = _NONE

    def take(self) -> tuple[list[Member], Frames]:
        """Take what is to be written now, and its watchers."""
        frames, self.frames = self.frames, _NONE
        return list(self.members), frames


class LiveFeed:
    """Follows one stream for all watchers of this process with the same event type.

    One task delivers what arrives. If it fails or stands still, the watchers go on from the log, each from its cursor,
    and a new task takes over.
    """

    def __init__(
        self,
        stream: str,
        event_type: str,
        renderer: Renderer,
        positional: bool,
        store: Store,
        backlog_limit: int,
        flow: Flow,
        on_lost: Callable[[LiveFeed], None] | None = None,
    ) -> None:
        self.stream = stream
        self.event_type = event_type
        self.watchers = 0  # how many use this feed, joined or catching up
        self.lost = False  # the log may have missed something
        self.down = False  # its task has ended and is to be restarted
        self._renderer = renderer
        self._positional = positional
        self._store = store
        self._backlog_limit = backlog_limit // 2
        self.flow = flow
        self.on_passed: Passed | None = None  # told what was delivered, and when that began
        self._on_lost = on_lost
        self._index: FilterIndex[Channel] = FilterIndex()
        self._channels: dict[Filter, Channel] = {}
        self._queue: list[Notification] = []
        self._queue_bytes = 0
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._restarting: asyncio.TimerHandle | None = None
        self._recent: deque[Notification] = deque()
        self._recent_bytes = 0
        self._known_from = 0  # from here on everything was seen and is in `_recent` or to come
        self._taken = 0  # up to here everything was seen
        self.passed = 0  # up to here everything was offered to its members
        self._busy = False  # the task works on what it has taken
        self._moves = 0  # of the task
        self._found = (0, 0)  # by the last look: moves, and the newest sequence that was seen
        self._deaf = False  # the log has to be asked anew before it is restarted
        self._looks = 0  # in a row that found the feed where it was, though it should have moved

    async def open(self) -> None:
        """Follow the stream; from now on no notification is missed."""
        self._subscription = self._store.follow(self.stream, self._feed, self._lose)
        try:
            last = (await self._store.state(self.stream)).last
        except BaseException:
            self._subscription.cancel()
            raise
        self._known_from = min([last + 1, *[each.sequence for each in self._queue[:1]]])
        self._taken = self.passed = self._known_from - 1
        self._start()

    def close(self) -> None:
        """Stop following."""
        # Both refer back to this feed: a circle would keep all that is remembered until the next full collection.
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        if self._sweeper is not None:
            sweeper, self._sweeper = self._sweeper, None
            sweeper.cancel()
        if self._restarting is not None:
            self._restarting.cancel()
            self._restarting = None

    async def look(self) -> None:
        """Restart the feed if it has not moved for several looks, though it has something to do; LogError from the log.

        Looks are counted, not seconds: a process that got no time for a while does not mistake that for a standstill.
        """
        if self._deaf:
            await self._follow_again()
        if not self._runs():
            return
        waiting = self._busy or bool(self._queue)
        found, missed = (self._moves, self._seen), False
        if not waiting:
            last = (await self._store.state(self.stream)).last
            # what somebody has deleted, or nobody can read, is not handed over: read once before it counts
            missed = last > found[1] and (self._looks > 0 or await self._holds(found[1] + 1, last))
        if (
            self.down
            or self._subscription is None
            or not (waiting or missed)
            or not found == self._found == (self._moves, self._seen)
        ):
            self._found, self._looks = found, 0
            return
        self._looks += 1
        if self._looks < _MOST_LOOKS:
            return
        self._looks, self._deaf = 0, missed
        if missed:
            self._restart("it stands still, because the log does not tell it what is new")
            await self._follow_again()
        else:
            self._restart("it stands still")

    @property
    def _seen(self) -> int:
        """The newest sequence that the log has handed over."""
        return self._queue[-1].sequence if self._queue else self._taken

    def _runs(self) -> bool:
        return self._sweeper is not None

    async def _holds(self, start: int, end: int) -> bool:
        return bool((await self._store.log.read(self.stream, start, end, _LOOKED_AT)).notifications)

    async def _follow_again(self) -> None:
        """Ask the log anew for what comes, and start again; what came meanwhile the watchers read."""
        if self._subscription is None:
            return
        self._subscription.cancel()
        subscription = self._subscription = self._store.follow(self.stream, self._feed, self._lose)
        last = (await self._store.state(self.stream)).last
        if self._subscription is subscription and self._deaf:
            self._deaf = False
            self._taken = max(self._taken, last)
            self._detach_all()
            self._start()

    @property
    def index_size(self) -> int:
        """How many different filters are live."""
        return len(self._index)

    def join(self, watcher: Member) -> bool:
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
            if not self._renderer.can_render(each):
                if not frames:
                    return False  # the log tells it, as an error
                watcher.remember(frames, each.sequence, live=False)
                return True
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
        channel.members = added(channel.members, watcher)
        watcher.remember(frames, max(watcher.position, self._taken + 1), live=True)
        return True

    def leave(self, watcher: Member) -> None:
        """Stop offering notifications to the watcher."""
        channel = self._channels.get(watcher.wanted)
        if channel is None:
            return
        channel.members = removed(channel.members, watcher)
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
        """Drop the queue, which holds more than memory should, and let every watcher read it from the log."""
        logger.warning(
            "%d notifications waited for delivery; the watchers read them from the log",
            len(self._queue),
            extra={"event": "stream.live.overrun", "stream": self.stream},
        )
        self._taken = self._queue[-1].sequence
        self._queue, self._queue_bytes = [], 0
        self._detach_all()

    def _detach_all(self) -> None:
        """Forget what was taken, and let every watcher read it from the log."""
        self._known_from = self._taken + 1
        self._recent.clear()
        self._recent_bytes = 0
        for channel in list(self._channels.values()):
            self._detach(channel)

    def _detach(self, channel: Channel) -> None:
        """Let the watchers of the channel go on from the log."""
        channel.frames = _NONE
        for watcher in list(channel.members):
            watcher.fall_behind()

    def _lose(self, reason: str) -> None:
        """Give up: the log may have missed something, so that every watcher has to begin anew."""
        logger.error("live feed lost: %s", reason, extra={"event": "stream.live.lost", "stream": self.stream})
        self.lost = True
        if self._on_lost is not None:
            self._on_lost(self)

    def _start(self) -> None:
        self.down, self._restarting = False, None
        self._arrived.set()
        self._sweeper = asyncio.create_task(self._sweep(), name=f"live feed of {self.stream}")
        self._sweeper.add_done_callback(self._ended)

    def _ended(self, sweeper: asyncio.Task[None]) -> None:
        """Restart the task, unless the feed was closed."""
        error = None if sweeper.cancelled() else sweeper.exception()
        if self._sweeper is sweeper:
            self._restart(repr(error or "cancelled"), error)

    def _restart(self, reason: str, error: BaseException | None = None) -> None:
        logger.error(
            "live feed failed: %s; it is restarted, and its watchers read from the log",
            reason,
            exc_info=error,
            extra={"event": "stream.live.failed", "stream": self.stream},
        )
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
        self.down, self._busy = True, False
        self.flow.restarts += 1
        self._detach_all()
        if not self._deaf:
            self._restarting = asyncio.get_running_loop().call_later(_RESTART_DELAY, self._start)

    async def _sweep(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._busy = True
            batch, began = self._take(), time.time_ns()
            await self._pass_on(batch)
            if batch:
                self.passed = batch[-1].sequence
            if self.on_passed is not None:
                for start in range(0, len(batch), _TOLD_AT_ONCE):
                    self.on_passed(self.stream, batch[start : start + _TOLD_AT_ONCE], began)
                    await asyncio.sleep(0)
            self._busy = False

    def _take(self) -> Sequence[Notification]:
        """Take what has arrived; from now on newcomers find it among the recent ones."""
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
        aside: dict[Channel, None] = {}
        until = time.perf_counter() + _TURN_SECONDS
        for each in batch:
            if not self._channels:
                break
            if time.perf_counter() > until:
                until = await _next_turn()
            view = View(each, self._positional)
            self._moves += 1
            self.flow.examined += 1
            sure, doubtful = self._index.candidates(view)
            if doubtful:
                costs = _costs(view, doubtful)
                # so that nobody else waits for the tests of large areas
                aside.update((channel, None) for channel, needed in costs.items() if needed > _COSTLY)
                doubtful = [channel for channel in doubtful if channel not in aside]
                if sum(costs.values()) + _TEST * len(doubtful) > _COSTLY:
                    sure += await self._passing_aside(view, doubtful, costs)
                else:
                    sure += _passing(view, doubtful)
            if sure and not self._renderer.can_render(each):
                aside.update((channel, None) for channel in sure)  # each reads the error from the log
            elif sure:
                self.flow.matched += len(sure)
                frame = self._renderer.frame(LIVE, each)
                for channel in sure:
                    if channel.frames:
                        channel.frames.append((each.sequence, frame))
                    else:
                        channel.frames = [(each.sequence, frame)]
                    touched[channel] = None
        for channel in aside:
            self._detach(channel)
        written = 0
        for members, frames in [channel.take() for channel in touched if channel.frames]:
            chunk = b"".join([frame for _, frame in frames])
            for watcher in members:
                try:
                    watcher.offer(frames, chunk)
                except Exception:  # the others must not suffer
                    logger.exception(
                        "delivery to a watcher failed",
                        extra={"event": "stream.watcher.failed", "request_id": watcher.request_id},
                    )
                    watcher.abort()
                written += 1
                self._moves += 1
                at_once = _WRITES_PER_TURN if len(self._queue) >= _ENOUGH else _EAGER_WRITES_PER_TURN
                if written % at_once == 0 or time.perf_counter() > until:
                    until = await _next_turn()

    async def _passing_aside(self, view: View, doubtful: list[Channel], costs: dict[Channel, int]) -> list[Channel]:
        """Find those that pass in a thread, some at a time."""
        loop, passing = asyncio.get_running_loop(), list[Channel]()
        some, needed = list[Channel](), 0
        for place, channel in enumerate(doubtful, 1):
            some.append(channel)
            needed += costs.get(channel, _TEST)
            if needed > _TESTED_AT_ONCE or place == len(doubtful):
                passing += await loop.run_in_executor(self._store.spatial, _passing, view, some)
                self._moves += 1
                some, needed = [], 0
        return passing


async def _next_turn() -> float:
    """Let others have their turn; return when the next one is over."""
    await asyncio.sleep(0)
    return time.perf_counter() + _TURN_SECONDS


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
