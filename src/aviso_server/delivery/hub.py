"""All open streams of this process: who is live, who is reading history, and when they are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from aviso_server.counters import Endpoint, Flow, Histogram
from aviso_server.delivery.clients import ClientWriter, Replay, Watcher
from aviso_server.delivery.formats import EventStream, Format
from aviso_server.delivery.history import PREFETCH, Chunks, chunks
from aviso_server.delivery.live import LiveFeed, Passed
from aviso_server.delivery.sse import Reason
from aviso_server.errors import LogError, LogUnavailable
from aviso_server.model.cloudevent import Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.shapes import PolygonForm
from aviso_server.model.times import SECOND, Span
from aviso_server.store import Store

__all__ = ["GENERIC", "Hub", "Pace", "Timers"]

logger = logging.getLogger(__name__)

_RESOLUTION = 0.1  # seconds
_CALLS_PER_TURN = 256  # then other requests get their turn


class Due(Protocol):
    """Something that wants to be called now and then."""

    def tick(self, now: float) -> float | None:
        """Act, and return when the next tick is due; None for never again."""

    def abort(self) -> None:
        """Hear that the tick has failed; it is not called again."""


class Timers:
    """Heartbeats and deadlines of all streams, without a timer or a task for each.

    With 10,000 heartbeats due at once (`python -m bench.timers`), one `call_later` each makes others wait six times as
    long, because asyncio calls all that are due in one go, and takes 1 kB more per watcher.
    """

    def __init__(self) -> None:
        self._due: dict[int, dict[Due, None]] = {}
        self._place: dict[Due, int] = {}
        self._turned = 0

    def add(self, item: Due, when: float) -> None:
        """Call the item at that time of the loop's clock."""
        place = max(int(when / _RESOLUTION) + 1, self._turned + 1)
        self._place[item] = place
        self._due.setdefault(place, {})[item] = None

    def discard(self, item: Due) -> None:
        """Do not call the item any more."""
        place = self._place.pop(item, None)
        if place is not None and (due := self._due.get(place)) is not None:
            due.pop(item, None)
            if not due:
                del self._due[place]

    async def run(self) -> None:
        """Go on for ever."""
        loop = asyncio.get_running_loop()
        self._turned = int(loop.time() / _RESOLUTION)
        while True:
            await asyncio.sleep(_RESOLUTION)
            now = loop.time()
            while self._turned < int(now / _RESOLUTION):
                self._turned += 1
                await self._call(self._due.pop(self._turned, {}), now)

    async def _call(self, due: dict[Due, None], now: float) -> None:
        for number, item in enumerate(due):
            if self._place.pop(item, None) is None:
                continue  # has left since
            try:
                again = item.tick(now)
            except Exception:  # one that fails must not stop the clock for all
                logger.exception("a tick failed", extra={"event": "stream.heartbeat.failed"})
                with suppress(Exception):
                    item.abort()
                continue
            if again is not None:
                self.add(item, again)
            if number % _CALLS_PER_TURN == _CALLS_PER_TURN - 1:
                await asyncio.sleep(0)


GENERIC = "generic"
"""What event types that nobody configured are counted as: their names are without limit."""

_LOOK_SECONDS = 2.0  # between two looks at the live feeds
_LOG_SECONDS = 5.0  # for the log to say how far it is
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


class Follower(Protocol):
    """Whoever uses a live feed without being a stream of this hub: the cursor of a subscription."""

    def lose_feed(self) -> None:
        """Hear that the feed may have missed something: it is not to be used any more."""


class Hub:
    """Opens streams and closes them, gives everyone their heartbeat, and keeps one feed per stream and event type."""

    def __init__(
        self,
        store: Store,
        base_url: str,
        pace: Pace,
        clock: Callable[[], int] = time.time_ns,
        event_types: Collection[str] = (),
        polygons: Mapping[str, PolygonForm] | None = None,
    ) -> None:
        self.store = store
        self.pace = pace
        self.clock = clock
        self.on_passed: Passed | None = None  # told what live watchers were handed
        self.open_streams: set[Watcher | Replay] = set()
        self.flows: dict[tuple[Endpoint, str], Flow] = {}
        self.lifetimes: dict[Endpoint, Histogram] = {"watch": Histogram(_LIFETIMES), "replay": Histogram(_LIFETIMES)}
        self._event_types = frozenset(event_types)
        self._base_url = base_url
        self._polygons = polygons or {}  # how they go out, for event types that have them
        # by stream and event type, which says how to match and render
        self._feeds: dict[tuple[str, str], LiveFeed] = {}
        self._followers: dict[LiveFeed, dict[Follower, None]] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[LiveFeed]] = {}
        self._renderers: dict[str, Renderer] = {}
        self._timers = Timers()
        self._tasks: list[asyncio.Task[None]] = []
        self._shutdown: Reason | None = None

    def start(self) -> None:
        """Start the heartbeats, and looking after the live feeds."""
        self._tasks = [
            asyncio.create_task(self._timers.run(), name="heartbeats"),
            asyncio.create_task(self._supervise(), name="supervision of live feeds"),
        ]

    def close_streams(self, reason: Reason = "server_shutdown") -> None:
        """End every open stream in order, and each that opens from now on."""
        self._shutdown = reason
        for stream in list(self.open_streams):
            stream.close(reason)

    async def stop(self) -> None:
        """Release every stream, and stop the heartbeats and the threads."""
        for stream in list(self.open_streams):
            self.release(stream)
        for task in (*self._tasks, *self._opening.values()):
            task.cancel()
        for feed in list(self._feeds.values()):
            feed.close()
        self.store.close()

    async def join(self, wanted: Filter, follower: Follower) -> LiveFeed:
        """Return the live feed for a filter, which stays open until `leave`; LogError if there is none now."""
        feed = await self._feed(wanted)
        feed.watchers += 1
        self._followers.setdefault(feed, {})[follower] = None
        return feed

    def leave(self, feed: LiveFeed, follower: Follower) -> None:
        """Give a feed of `join` back; a second time changes nothing."""
        followers = self._followers.get(feed, {})
        if follower in followers:
            del followers[follower]
            if not followers:
                del self._followers[feed]
            self._release_feed(feed)

    async def watcher(self, wanted: Filter, writer: ClientWriter, request_id: str) -> Watcher:
        """Open a watcher positioned after everything that is stored now; LogError if it cannot be live."""
        feed = await self._feed(wanted)
        feed.watchers += 1
        try:
            last = (await self.store.state(wanted.stream)).last
            _check_feed(feed)
        except BaseException:
            self._release_feed(feed)
            raise
        watcher = Watcher(self, feed, wanted, writer, request_id, last + 1)
        watcher.flow.opened += 1
        self.open_streams.add(watcher)
        return watcher

    def begin(self, watcher: Watcher, until: int | None = None) -> None:
        """Start the duration and the heartbeats, after the opening frame; end at `until` at the latest."""
        now = asyncio.get_running_loop().time()
        deadline = now + self.pace.max_duration
        if until is not None:
            deadline = min(deadline, now + self._seconds_to(until))
        watcher.begin(now + self.pace.heartbeat_interval, deadline)
        self._timers.add(watcher, min(watcher.next_heartbeat, watcher.deadline))
        if self._shutdown is not None:
            watcher.close(self._shutdown)

    def replay(
        self,
        wanted: Filter,
        writer: ClientWriter,
        request_id: str,
        until: int | None = None,
        format_: Format | None = None,
        store: Store | None = None,
    ) -> Replay:
        """Open a stream that ends with history, or at `until`; server-sent events unless a format is given."""
        format_ = format_ or EventStream(wanted.topic, self.renderer(wanted.event_type), request_id)
        replay = Replay(self, wanted, format_, writer, request_id, store or self.store)
        replay.flow.opened += 1
        self.open_streams.add(replay)
        now = asyncio.get_running_loop().time()
        if until is not None:
            replay.deadline = now + self._seconds_to(until)
        self._timers.add(replay, min(replay.deadline, now + self.pace.stall))
        if self._shutdown is not None:
            replay.close(self._shutdown)
        return replay

    def release(self, stream: Watcher | Replay) -> None:
        """Forget a stream that is over."""
        if stream not in self.open_streams:
            return
        self.open_streams.remove(stream)
        self.lifetimes[stream.endpoint].observe(time.monotonic() - stream.since)
        stream.abandon()
        self._timers.discard(stream)
        if isinstance(stream, Watcher):
            self._release_feed(stream.feed)

    def history(
        self,
        wanted: Filter,
        format_: Format,
        span: Span,
        end: int,
        cap: int | None = None,
        store: Store | None = None,
    ) -> Chunks:
        """Return the chunks from the start of a span to `end`, at most `cap` notifications, at the configured pace."""
        pause = self.pace.batch_delay
        return chunks(
            store or self.store,
            wanted,
            format_.render,
            span,
            end,
            most=cap,
            topics=format_.topics or wanted.positional,
            batch=self.pace.batch_size if pause else None,
            pause=pause,
            prefetch=0 if pause else PREFETCH,
        )

    def catch_up(self, wanted: Filter, format_: Format, start: int) -> Chunks:
        """Return the chunks that a watcher has missed, up to the newest; HistoryGone if they are not all there.

        There is no prefetch: many watchers may be behind at once.
        """
        topics = format_.topics or wanted.positional
        return chunks(self.store, wanted, format_.render, start, None, topics=topics, unbroken=True, prefetch=0)

    def renderer(self, event_type: str) -> Renderer:
        """Return the renderer of an event type; it is made once."""
        found = self._renderers.get(event_type)
        if found is None:
            if len(self._renderers) >= _MOST_RENDERERS:
                self._renderers.clear()
            found = self._renderers[event_type] = Renderer(event_type, self._base_url, self._polygons.get(event_type))
        return found

    def flow(self, endpoint: Endpoint, event_type: str) -> Flow:
        """Return the counts of an endpoint and an event type."""
        key = (endpoint, event_type if event_type in self._event_types else GENERIC)
        found = self.flows.get(key)
        if found is None:
            found = self.flows[key] = Flow()
        return found

    @property
    def feeds(self) -> Collection[LiveFeed]:
        """The live feeds that have watchers."""
        return self._feeds.values()

    @property
    def restarts(self) -> int:
        """How often live feeds failed and were restarted."""
        return sum(flow.restarts for flow in self.flows.values())

    async def _supervise(self) -> None:
        """Restart every live feed that stands still."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look_at_feeds()  # apart, so that no feed is remembered meanwhile

    async def _look_at_feeds(self) -> None:
        for feed in list(self.feeds):
            try:
                async with asyncio.timeout(_LOG_SECONDS):
                    await feed.look()
            except (LogError, TimeoutError):
                return  # the log is away, which is told elsewhere
            except Exception:  # the others are looked after all the same
                logger.exception(
                    "looking after a live feed failed", extra={"event": "stream.live.failed", "stream": feed.stream}
                )

    def _seconds_to(self, time: int) -> float:
        return max(time - self.clock(), 0) / SECOND

    async def _feed(self, wanted: Filter) -> LiveFeed:
        # once opened, the feed may have been closed again before we get our turn
        key = (wanted.stream, wanted.event_type)
        while (feed := self._feeds.get(key)) is None:
            opening = self._opening.get(key)
            if opening is None:
                opening = self._opening[key] = asyncio.create_task(self._open_feed(wanted))
            await asyncio.shield(opening)
        return feed

    async def _open_feed(self, wanted: Filter) -> LiveFeed:
        try:
            feed = LiveFeed(
                wanted.stream,
                wanted.event_type,
                self.renderer(wanted.event_type),
                wanted.positional,
                self.store,
                self.pace.buffer_bytes,
                self.flow("watch", wanted.event_type),
                self._feed_lost,
            )
            feed.on_passed = self.on_passed
            await feed.open()
            if feed.lost:
                feed.close()
            _check_feed(feed)
            self._feeds[_key(feed)] = feed
            return feed
        finally:
            del self._opening[wanted.stream, wanted.event_type]

    def _feed_lost(self, feed: LiveFeed) -> None:
        """Close everyone who relies on the feed: they ask again from where they are, and newcomers get a new feed."""
        if self._feeds.get(_key(feed)) is feed:
            del self._feeds[_key(feed)]
            feed.close()
        for stream in list(self.open_streams):
            if isinstance(stream, Watcher) and stream.feed is feed:
                stream.close("end_of_stream")
        for follower in self._followers.pop(feed, {}):
            follower.lose_feed()

    def _release_feed(self, feed: LiveFeed) -> None:
        feed.watchers -= 1
        if feed.watchers <= 0 and self._feeds.get(_key(feed)) is feed:
            del self._feeds[_key(feed)]
            feed.close()


def _key(feed: LiveFeed) -> tuple[str, str]:
    return feed.stream, feed.event_type


def _check_feed(feed: LiveFeed) -> None:
    if feed.lost:
        raise LogUnavailable(f"the live feed of stream '{feed.stream}' was lost; ask again")
