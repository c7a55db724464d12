"""A log in memory, for tests and play: the same promises as the others, but for restarts.

Each topic keeps its newest `max_history_per_topic` notifications, and at most `max_topics` topics are kept over all
streams: before a new one is added, the topic whose newest notification is oldest leaves whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from aviso_server.errors import KeyRefused, LogUnavailable
from aviso_server.log.base import (
    Appended,
    Batch,
    BatchKey,
    Follower,
    Followers,
    Key,
    Keyed,
    KeyPolicy,
    KnownBatch,
    KnownKey,
    Lost,
    MemoryRecords,
    Records,
    StreamState,
    Subscription,
    append_once,
    pack_places,
    unpack_places,
)
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["MemoryLog"]

_logger = logging.getLogger(__name__)

MOST_KEYS = 100_000
BATCH_BYTES = 16 * 1024 * 1024  # no batch holds more than about this, unless it is one large notification
_STORED_AT_ONCE = 500
_FREED_AT_ONCE = 2000


class MemoryLog:
    """Notifications in memory, gone when the process ends."""

    kind = "in_memory"

    def __init__(
        self,
        max_history_per_topic: int = 1,
        max_topics: int = 10_000,
        clock: Callable[[], int] = time.time_ns,
        keys: KeyPolicy = KeyPolicy(),  # noqa: B008  # frozen
    ) -> None:
        self.records: Records = MemoryRecords()
        self._keys = _Keys(keys, clock)
        self._max_history = max(1, max_history_per_topic)
        self._max_topics = max(1, max_topics)
        self._clock = clock
        self._open = False
        self._followers = Followers()
        self._streams: dict[str, _Stream] = {}
        self._changes = _Changes()
        self._accepted = 0  # over all streams: tells which of two notifications is older
        self._topics: dict[_Key, _Topic] = {}  # in the order of their newest notifications
        self._older: dict[_Key, _Topic] = {}  # those whose newest one was deleted, in any order
        self._ages: list[tuple[int, _Key]] = []  # a heap of these with their ages; some of it is not true any more
        self._emptied: dict[_Key, _Topic] = {}  # by deletes: they still count, and leave last

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        """Take no more calls. What is held stays until the process ends."""
        self._open = False

    @property
    def connected(self) -> bool:
        return self._open

    def append(self, draft: Draft) -> asyncio.Future[Notification]:
        self._check_open()
        if self._changes.under_way:
            return asyncio.ensure_future(self._append_later(draft))
        notification = self._store(draft, self._clock())
        self._followers.tell(draft.stream, [notification])
        stored: asyncio.Future[Notification] = asyncio.get_running_loop().create_future()
        stored.set_result(notification)
        return stored

    async def _append_later(self, draft: Draft) -> Notification:
        return (await self.append_many([draft]))[0]

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Store several; they follow each other without others between them."""
        self._check_open()
        stored: list[Notification] = []
        async with self._changes as change:
            now = self._clock()
            for start in range(0, len(drafts), _STORED_AT_ONCE):
                if start:
                    await change.next_turn()
                stored += self._store_some(drafts[start : start + _STORED_AT_ONCE], now)
        return stored

    def _store_some(self, drafts: Sequence[Draft], now: int) -> list[Notification]:
        """Store drafts and tell the followers of their streams."""
        stored = [self._store(draft, now) for draft in drafts]
        by_stream: dict[str, list[Notification]] = {}
        for draft, one in zip(drafts, stored, strict=True):
            by_stream.setdefault(draft.stream, []).append(one)
        for stream, some in by_stream.items():
            self._followers.tell(stream, some)
        return stored

    async def append_keyed(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None = None
    ) -> Sequence[Appended | KeyRefused]:
        """Store what was not stored under its key before."""
        self._check_open()
        outcomes: list[Appended | KeyRefused] = []
        async with self._changes as change:
            now = self._clock()

            def store(new: Sequence[Draft]) -> list[int]:
                return [one.sequence for one in self._store_some(new, now)]

            for place, outcome in enumerate(append_once(entries, whole, self._keys, store, batch), 1):
                outcomes.append(outcome)
                if place % _STORED_AT_ONCE == 0:
                    await change.next_turn()
            while self._keys.forget():
                await change.next_turn()
        return outcomes

    async def indivisible(self, drafts: Sequence[Draft]) -> bool:
        """True: nothing can come between them."""
        return True

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        return self._followers.add(stream, follower)

    async def state(self, stream: str) -> StreamState:
        self._check_open()
        return self._stream(stream).state()

    async def streams(self) -> Sequence[str]:
        self._check_open()
        return sorted(self._streams)

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        self._check_open()
        found = self._stream(stream).run(start, end, max(1, limit))
        whole = _within(found, BATCH_BYTES)
        done = len(whole) == len(found) and (len(found) < max(1, limit) or found[-1].sequence >= end)
        found = whole
        next_sequence = max(start, end + 1) if done else found[-1].sequence + 1
        if box is not None:
            found = [one for one in found if one.box is not None and one.box.overlaps(box)]
        return Batch(found, next_sequence)

    async def first_since(self, stream: str, time: int) -> int:
        self._check_open()
        return self._stream(stream).first_from(time)

    async def last_until(self, stream: str, time: int) -> int:
        self._check_open()
        return self._stream(stream).last_until(time)

    async def delete(self, stream: str, sequence: int) -> bool:
        self._check_open()
        async with self._changes:
            notification = self._stream(stream).remove(sequence)
            if notification is None:
                return False
            key = (stream, notification.topic)
            topic = self._take_out(key)
            del topic[next(index for index, place in enumerate(topic) if place.sequence == sequence)]
            if not topic:
                self._emptied[key] = topic
            else:
                self._older[key] = topic
                heappush(self._ages, (topic[-1].age, key))
                if len(self._ages) > 2 * len(self._older) + 64:
                    self._ages = [(each[-1].age, name) for name, each in self._older.items()]
                    heapify(self._ages)
            return True

    async def wipe(self, stream: str) -> int | None:
        self._check_open()
        if stream not in self._streams:
            return None
        async with self._changes as change:
            held, sequences, times, topics = self._streams[stream].clear()
            removed = len(held)
            dropped: list[_Topic] = []
            for place, topic in enumerate(topics, 1):
                dropped.append(self._take_out((stream, topic)))
                if place % _FREED_AT_ONCE == 0:
                    await change.next_turn()
        await _let_go([*dropped, dropped, held, sequences, times, topics])
        return removed

    def _take_out(self, key: _Key) -> _Topic:
        """Remove a topic that is held from wherever it stands."""
        return next(topics for topics in (self._topics, self._older, self._emptied) if key in topics).pop(key)

    def _check_open(self) -> None:
        if not self._open:
            raise LogUnavailable("the log in memory is closed")

    def _stream(self, name: str) -> _Stream:
        return self._streams.get(name, _NEVER_USED)

    def _store(self, draft: Draft, now: int) -> Notification:
        stream = self._streams.get(draft.stream)
        if stream is None:
            stream = self._streams[draft.stream] = _Stream()
        key = (draft.stream, draft.topic)
        topic = self._topics.pop(key, None)
        if topic is None:
            topic = self._older.pop(key, None) or self._emptied.pop(key, None)
        if topic is None:
            self._make_room()
            topic = deque()
            stream.topics[draft.topic] = None
        notification = stream.add(draft, now)
        self._accepted += 1
        topic.append(_Place(self._accepted, notification.sequence))
        self._topics[key] = topic
        if len(topic) > self._max_history:
            stream.trim(topic.popleft().sequence)
        return notification

    def _make_room(self) -> None:
        if len(self._topics) + len(self._older) + len(self._emptied) < self._max_topics:
            return
        stream, topic = key = self._oldest()
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug("topic left", extra={"event": "backend.in_memory.topic.evicted", "topic": topic})
        held = self._streams[stream]
        del held.topics[topic]
        for place in self._take_out(key):
            held.trim(place.sequence)

    def _oldest(self) -> _Key:
        """Return the topic whose newest notification is oldest; one that is empty if all are."""
        while self._ages and not self._is_true(*self._ages[0]):
            heappop(self._ages)
        first = next(iter(self._topics), None)
        if self._ages and (first is None or self._ages[0][0] < self._topics[first][-1].age):
            return self._ages[0][1]
        return first or next(iter(self._emptied))

    def _is_true(self, age: int, key: _Key) -> bool:
        return key in self._older and self._older[key][-1].age == age


class _Changes:
    """Lets one change at a time take several turns of the event loop, in the order in which they were asked for.

    A change that has begun is finished, even if whoever asked for it is cancelled.
    """

    def __init__(self) -> None:
        self.under_way = 0  # that have begun or wait for others
        self._lock = asyncio.Lock()
        self._cancelled: asyncio.CancelledError | None = None

    async def __aenter__(self) -> _Changes:
        self.under_way += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self.under_way -= 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        cancelled, self._cancelled = self._cancelled, None
        self.under_way -= 1
        self._lock.release()
        if cancelled is not None:
            raise cancelled

    async def next_turn(self) -> None:
        """Let others have their turn in the midst of a change."""
        if self._cancelled is None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                self._cancelled = error


async def _let_go(parts: Sequence[deque[Any] | dict[Any, Any] | list[Any]]) -> None:
    """Empty collections that nobody uses any more, a little in each turn of the event loop: memory is freed slowly."""
    left = _FREED_AT_ONCE
    for part in parts:
        drop: Callable[[], object] = part.popitem if isinstance(part, dict) else part.pop
        while part:
            drop()
            left -= 1
            if not left:
                left = _FREED_AT_ONCE
                await asyncio.sleep(0)


class _Keys:
    """The keys of this process, oldest first; at most MOST_KEYS, whatever the policy says."""

    def __init__(self, policy: KeyPolicy, clock: Callable[[], int]) -> None:
        self._retention = policy.retention_ns
        self._most = min(policy.max_keys, MOST_KEYS)
        self._clock = clock
        self._known: OrderedDict[bytes, _Remembered] = OrderedDict()

    def get(self, name: bytes) -> KnownKey | None:
        found = self._known.get(name)
        if found is None or found.time < self._clock() - self._retention:
            return None
        return KnownKey(found.content, found.sequence)

    def add(self, key: Key, sequence: int) -> None:
        self._known.pop(key.name, None)
        self._known[key.name] = _Remembered(key.content, sequence, b"", self._clock())

    def get_batch(self, name: bytes) -> KnownBatch | None:
        if self.get(name) is None:
            return None
        found = self._known[name]
        return KnownBatch(found.content, dict(unpack_places(found.places)))

    def add_batch(self, name: bytes, known: KnownBatch) -> None:
        self._known.pop(name, None)
        self._known[name] = _Remembered(known.content, 0, pack_places(known.sequences), self._clock())

    def forget(self) -> bool:
        """Forget some that are too old or too many; True if there may be more of them."""
        horizon = self._clock() - self._retention
        for _ in range(_FREED_AT_ONCE):
            if not self._known:
                return False
            if len(self._known) <= self._most and next(iter(self._known.values())).time >= horizon:
                return False
            self._known.popitem(last=False)
        return True


class _Remembered(msgspec.Struct, frozen=True, gc=False):
    """What was stored under a key, and when."""

    content: bytes
    sequence: int
    places: bytes  # of a batch, instead of a sequence
    time: int


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a notification stands: among all accepted ones, and in its stream."""

    age: int
    sequence: int


_Key = tuple[str, str]  # stream, topic
_Topic = deque[_Place]


class _Stream:
    """The notifications of one stream in the order of their sequences."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}  # those of which it holds something, or that deletes have emptied
        self._held: dict[int, Notification] = {}
        # All numbers with their times, removed ones included until they are the majority: for bisection.
        self._sequences: list[int] = []
        self._times: list[int] = []
        self._last = 0
        self._last_time = 0
        self._bytes = 0
        self._trimmed = 0

    def state(self) -> StreamState:
        return StreamState(self._first(), self._last, len(self._held), self._bytes, self._trimmed)

    def add(self, draft: Draft, now: int) -> Notification:
        self._last += 1
        self._last_time = max(self._last_time, now)
        notification = Notification(
            self._last, self._last_time, draft.topic, draft.identifier, draft.payload, draft.box
        )
        self._held[self._last] = notification
        self._sequences.append(self._last)
        self._times.append(self._last_time)
        self._bytes += _size(notification)
        return notification

    def remove(self, sequence: int) -> Notification | None:
        notification = self._held.pop(sequence, None)
        if notification is not None:
            self._bytes -= _size(notification)
            if len(self._sequences) > 2 * len(self._held) + 64:
                self._sequences = list(self._held)
                self._times = [one.time for one in self._held.values()]
        return notification

    def trim(self, sequence: int) -> None:
        self.remove(sequence)
        self._trimmed = max(self._trimmed, sequence)

    def clear(self) -> tuple[dict[int, Notification], list[int], list[int], dict[str, None]]:
        """Hold nothing, and return what was held."""
        held = self._held, self._sequences, self._times, self.topics
        self._held, self._sequences, self._times, self.topics, self._bytes = {}, [], [], {}, 0
        return held

    def run(self, start: int, end: int, limit: int) -> list[Notification]:
        found: list[Notification] = []
        for index in range(bisect_left(self._sequences, start), bisect_right(self._sequences, end)):
            notification = self._held.get(self._sequences[index])
            if notification is not None:
                found.append(notification)
                if len(found) == limit:
                    break
        return found

    def first_from(self, time: int) -> int:
        return self._held_from(bisect_left(self._times, time))

    def last_until(self, time: int) -> int:
        for index in range(bisect_right(self._times, time) - 1, -1, -1):
            if self._sequences[index] in self._held:
                return self._sequences[index]
        return self._first() - 1

    def _first(self) -> int:
        return next(iter(self._held), self._last + 1)

    def _held_from(self, index: int) -> int:
        for later in range(index, len(self._sequences)):
            if self._sequences[later] in self._held:
                return self._sequences[later]
        return self._last + 1


def _size(notification: Notification) -> int:
    return len(notification.topic.encode()) + len(notification.identifier) + len(notification.payload)


_NEVER_USED = _Stream()


def _within(notifications: list[Notification], limit: int) -> list[Notification]:
    """Return the first of them, as many as fit into so many bytes, one at the least."""
    size = 0
    for place, notification in enumerate(notifications):
        size += len(notification.identifier) + len(notification.payload)
        if size > limit and place:
            return notifications[:place]
    return notifications
