"""A cursor: what a subscription wants from a sequence on, out of history until it is level, and then live.

While nothing matches, a cursor is an entry in the index of the live feed and nothing else: no task, no timer, no
buffer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from aviso_server.delivery.history import Chunks, chunks
from aviso_server.delivery.hub import Hub
from aviso_server.delivery.live import Frames, LiveFeed
from aviso_server.errors import HistoryGone
from aviso_server.model.cloudevent import LIVE
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification, Rendered
from aviso_server.subscriptions.subscription import Gap

__all__ = ["Cursor", "Event", "event_chunks", "read_events"]

_BEFORE = len(b"event: " + LIVE + b"\ndata: ")
_AFTER = len(b"\n\n")
_MOST_LIVE = 256  # events that wait in memory before the rest is left in the log
_MOST_LIVE_BYTES = 512 * 1024
_PREFETCH = 1


class Event(NamedTuple):
    """A notification as it is delivered."""

    sequence: int
    body: bytes  # the CloudEvent as JSON


class _Line(msgspec.Struct, gc=False):
    sequence: int
    specversion: str = ""  # an error about a notification has none


_decode = msgspec.json.Decoder(_Line).decode


def _split(lines: Rendered) -> list[Event]:
    """Return the events in rendered lines; what says that a notification cannot be shown is left out."""
    found = bytes(lines).split(b"\n")
    return [Event(known.sequence, line) for line in found if line and (known := _decode(line)).specversion]


async def event_chunks(hub: Hub, wanted: Filter, start: int, end: int) -> AsyncGenerator[list[Event], None]:
    """Yield the events of a range some at a time, from wherever they are now."""
    reading = chunks(hub.store, wanted, hub.renderer(wanted.event_type).lines, start, end, prefetch=0)
    try:
        async for chunk in reading:
            yield _split(chunk.data)
            await asyncio.sleep(0)  # others wait too
    finally:
        reading.close()


async def read_events(hub: Hub, wanted: Filter, start: int, end: int) -> list[Event]:
    """Read the events of a small range."""
    return [event async for events in event_chunks(hub, wanted, start, end) for event in events]


class Reader(Protocol):
    """Whoever a cursor reads for."""

    def ready(self) -> None:
        """Hear that a cursor that was level has something again."""

    def note_gap(self, gap: Gap) -> None:
        """Hear that retention was faster."""


class Cursor:
    """Reads for one subscription; a member of a live feed while it is level."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_chunks",
        "_feed",
        "_hub",
        "_reader",
        "_tolerant_to",
        "live",
        "position",
        "request_id",
        "wanted",
    )

    def __init__(
        self,
        hub: Hub,
        wanted: Filter,
        position: int,
        name: str,
        reader: Reader,
    ) -> None:
        """Read from `position` on, for somebody who is told when there is something."""
        self.wanted = wanted
        self.position = position  # everything before it was handed out or is in the buffer
        self.request_id = name
        self.live = False
        self._hub = hub
        self._reader = reader
        self._buffer: list[Event] = _EMPTY
        self._bytes = 0
        self._feed: LiveFeed | None = None
        self._chunks: Chunks | None = None
        self._tolerant_to = 0  # up to here retention has left holes, and that was said

    @property
    def next(self) -> int:
        """Everything before this sequence was handed out, or is not wanted."""
        if self._buffer:
            return self._buffer[0].sequence
        if self.live and self._feed is not None:
            return max(self.position, self._feed.passed + 1)
        return self.position

    @property
    def waiting(self) -> Sequence[Event]:
        """What was read and not taken yet."""
        return self._buffer

    async def fill(self, least: int = 1) -> bool:
        """Read until so many wait; False if there is nothing, and the live feed will bring what is next."""
        while len(self._buffer) < least and not self.live:
            await self._advance()
        return bool(self._buffer)

    async def fill_to(self, sequence: int) -> None:
        """Read until everything up to a sequence waits."""
        while self.position <= sequence and not self.live:
            await self._advance()

    def take_to(self, sequence: int) -> list[Event]:
        """Take all that waits up to a sequence."""
        taken = self._buffer[: self._count_before(sequence + 1)]
        self.drop(len(taken))
        return taken

    def waiting_from(self, sequence: int) -> Sequence[Event]:
        """Return what waits from a sequence on."""
        return self._buffer[self._count_before(sequence) :]

    def drop_before(self, sequence: int) -> None:
        """Drop what waits before a sequence: somebody has it."""
        self.drop(self._count_before(sequence))

    def _count_before(self, sequence: int) -> int:
        return bisect_left(self._buffer, sequence, key=_sequence_of)

    def take(self, most: int, most_bytes: int) -> list[Event]:
        """Take from what waits: at least one, if there is one."""
        count, size = 0, 0
        for event in self._buffer[:most]:
            size += len(event.body)
            if count and size > most_bytes:
                break
            count += 1
        taken = self._buffer[:count]
        self.drop(count)
        return taken

    def drop(self, count: int) -> None:
        """Drop the first of what waits: somebody has them."""
        if not count:
            return
        self._bytes -= sum([len(event.body) for event in self._buffer[:count]])
        self._buffer = self._buffer[count:] or _EMPTY

    def put_back(self, events: Sequence[Event]) -> None:
        """Take back what was taken last, and not delivered."""
        self._buffer = [*events, *self._buffer]
        self._bytes += sum([len(event.body) for event in events])

    def close(self) -> None:
        """Stop reading, and leave the live feed."""
        self._stop_reading()
        self._leave()
        self._buffer, self._bytes = _EMPTY, 0

    # what a live feed calls

    def remember(self, remembered: Frames, position: int, live: bool) -> None:
        """Take what the live feed remembers; with `live`, it offers everything from `position` on."""
        self.position, self.live = position, live
        self._add([Event(sequence, frame[_BEFORE:-_AFTER]) for sequence, frame in remembered])

    def offer(self, offered: Frames, chunk: bytes) -> None:
        """Take what is new as far as there is room; leave the rest in the log."""
        if not self.live:
            return
        for sequence, frame in offered:
            if sequence < self.position:
                continue
            if len(self._buffer) >= _MOST_LIVE or self._bytes >= _MOST_LIVE_BYTES:
                self._detach()
                break
            self._add([Event(sequence, frame[_BEFORE:-_AFTER])])
            self.position = sequence + 1
        self._reader.ready()

    def fall_behind(self) -> None:
        """Leave, and go on from the log."""
        self._detach()
        self._reader.ready()

    def abort(self) -> None:
        """Go on from the log: an offer has failed."""
        self.fall_behind()

    def lose_feed(self) -> None:
        """Go on from the log: the live feed may have missed something."""
        self.live, self._feed = False, None
        self._reader.ready()

    def _add(self, events: list[Event]) -> None:
        if events:
            self._buffer = [*self._buffer, *events] if self._buffer else events
            self._bytes += sum([len(event.body) for event in events])

    def _detach(self) -> None:
        if self._feed is not None:
            self._feed.leave(self)
        self.live = False

    def _leave(self) -> None:
        self._detach()
        if self._feed is not None:
            feed, self._feed = self._feed, None
            self._hub.leave(feed, self)

    async def _advance(self) -> None:
        """Get some further: into the live feed, or by a chunk of history."""
        if self._feed is None:
            feed = await self._hub.join(self.wanted, self)
            if feed.lost:
                self._hub.leave(feed, self)
                return
            self._feed = feed
        if self._feed.join(self):
            self._stop_reading()
            if not self.live:
                await asyncio.sleep(0)  # there is more to look at, but others wait too
            return
        if self._chunks is None:
            self._chunks = self._history()
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._stop_reading()
            await asyncio.sleep(0)
            return
        except HistoryGone:
            self._stop_reading()
            await self._go_on_after_gap()
            return
        except BaseException:
            self._stop_reading()
            raise
        self.position = max(self.position, chunk.next)
        if chunk.data:
            self._add(_split(chunk.data))

    def _history(self) -> Chunks:
        tolerant = self.position <= self._tolerant_to
        renderer = self._hub.renderer(self.wanted.event_type)

        def render(notifications: Sequence[Notification]) -> Rendered:
            return renderer.lines(notifications)

        return chunks(
            self._hub.store,
            self.wanted,
            render,
            self.position,
            self._tolerant_to if tolerant else None,
            topics=self.wanted.positional,
            unbroken=not tolerant,
            prefetch=_PREFETCH,
        )

    async def _go_on_after_gap(self) -> None:
        """Say that retention was faster, and read on with what is left."""
        state = await self._hub.store.state(self.wanted.stream)
        if state.trimmed >= self.position:
            if state.trimmed > self._tolerant_to:
                self._reader.note_gap(Gap(self.position, state.trimmed))
                self._tolerant_to = state.trimmed
            else:  # told already, and still in the way
                self.position = max(self.position, min(state.first, state.trimmed + 1))
        await asyncio.sleep(0)

    def _stop_reading(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None


def _sequence_of(event: Event) -> int:
    return event.sequence


_EMPTY: list[Event] = []
"""Shared by all cursors that have nothing; never changed."""
