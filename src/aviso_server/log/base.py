"""The Log protocol: where notifications live while they are young, and what it promises.

Promises, checked for every implementation by `tests/log/contract.py`:

- `append` returns once the notification is as durable as the log can make it, never earlier.
- Per stream, sequences start at 1 and rise by one with each accepted notification. A number is never used twice:
  not after a delete, a wipe, a trim, a failed append or a restart (`in_memory` begins anew after a restart).
- Within a stream, `time` never falls as `sequence` rises.
- A follower sees every notification of its stream with a sequence above the one it asked for,
  once and in order, before the publisher of it gets its answer.
- A failed call leaves everything as it was.
- What was stored under a key is not stored under it again while the key is remembered: not after a restart, a crash or
  a removal (`in_memory` forgets keys at a restart).

All methods are called from the event loop's thread. Nothing here blocks it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from aviso_server.counters import Histogram
from aviso_server.errors import KeyRefused, KeyReused
from aviso_server.model.notification import Box, Draft, Notification

__all__ = [
    "COMMIT_SIZES",
    "PATIENCE",
    "Advancing",
    "Appended",
    "Archived",
    "Batch",
    "BatchKey",
    "Batching",
    "Change",
    "Follower",
    "Followers",
    "HeldBack",
    "Key",
    "KeyPolicy",
    "Keyed",
    "KnownBatch",
    "KnownKey",
    "Lease",
    "Log",
    "Lost",
    "MemoryRecords",
    "Record",
    "Records",
    "RetentionClock",
    "Shared",
    "StoragePolicy",
    "StreamState",
    "Subscription",
    "ThreadedLog",
    "Waiting",
    "append_once",
    "boot_time_ns",
    "exceeded",
    "has_limits",
    "horizon",
    "pack_places",
    "unpack_places",
    "with_own_keys",
]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it is now; one without a value was removed."""

    key: str
    revision: int  # higher than that of every earlier change of any record
    value: bytes


class Change(msgspec.Struct, frozen=True, gc=False):
    """What a record is to become; without a value it is removed."""

    key: str  # tokens of letters, digits, - and _, joined by dots
    value: bytes
    expected: int = 0  # the revision that is replaced; 0: there must be none


class Records(Protocol):
    """Small records beside a log, durable as it is: what subscriptions are, and how far each has come.

    Every change names the revision that it replaces, so that of two writers with the same idea one finds out. A log on
    a broker shares its records with all servers; the others belong to one process.
    """

    shared: bool  # other servers write here too

    async def load(self, prefix: str) -> Sequence[Record]:
        """Return the records whose keys begin like this, sorted by key; LogError if that is not possible now."""

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        """Make the changes and return the new revisions once they are durable.

        Each change is judged by itself: None for one whose record has another revision than the expected.
        """

    async def changed(self, after: int) -> Sequence[Record]:
        """Return what was changed after a revision, in order of revisions: of each record the newest change.

        A log that shares its records also returns those that were removed.
        """


class MemoryRecords:
    """Records that are gone when the process ends."""

    shared = False

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._newest = 0

    async def load(self, prefix: str) -> Sequence[Record]:
        return [self._records[key] for key in sorted(self._records) if key.startswith(prefix)]

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        return [self._save(change) for change in changes]

    async def changed(self, after: int) -> Sequence[Record]:
        found = [record for record in self._records.values() if record.revision > after]
        return sorted(found, key=lambda record: record.revision)

    def _save(self, change: Change) -> int | None:
        known = self._records.get(change.key)
        if (0 if known is None else known.revision) != change.expected:
            return None
        self._newest += 1
        if change.value:
            self._records[change.key] = Record(change.key, self._newest, change.value)
        else:
            self._records.pop(change.key, None)
        return self._newest


T = TypeVar("T")


class StoragePolicy(msgspec.Struct, frozen=True):
    """How long a stream keeps its notifications; None means without limit."""

    retention_ns: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    allow_duplicates: bool | None = None  # False: only the newest of each topic is kept
    compression: bool | None = None


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds now. An empty stream has first = last + 1."""

    first: int  # oldest sequence still held
    last: int  # newest sequence ever given out; 0 before the first
    count: int
    bytes: int
    trimmed: int = 0  # newest sequence that the log's own limits (not an admin) have removed; 0 if none


class Batch(msgspec.Struct, frozen=True):
    """A run of notifications in ascending order, and where reading goes on."""

    notifications: Sequence[Notification]
    next: int  # the sequence to read from next; greater than `end` when the range is done


class Key(msgspec.Struct, frozen=True, gc=False):
    """What tells a repeated publish from a new one."""

    name: bytes  # 16 bytes for the publisher and the text that they chose
    content: bytes  # 16 bytes for what is published: a repetition has the same


class BatchKey(msgspec.Struct, frozen=True):
    """What tells a repeated batch from a new one: a key for all its notifications that have none of their own."""

    name: bytes  # 12 bytes for the publisher and the text that they chose
    content: bytes  # 16 bytes for the whole batch
    places: Sequence[int]  # where in the batch the entries stand that come with this key

    def of(self, entry: int) -> Key:
        return Key(self.name + self.places[entry].to_bytes(4, "big"), self.content)


class Keyed(msgspec.Struct, frozen=True, gc=False):
    """A draft, and the key under which it is to be stored once."""

    draft: Draft
    key: Key | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a keyed draft is."""

    sequence: int
    repeated: bool = False  # it was there before, under the same key


class KeyPolicy(msgspec.Struct, frozen=True):
    """How long keys are remembered, and how many; the oldest give way."""

    retention_ns: int = 7 * 86_400 * 1_000_000_000
    max_keys: int = 10_000_000


COMMIT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of how many notifications are written together."""

Follower = Callable[[Sequence[Notification]], None]
"""Called in the event loop's thread with newly stored notifications, in order."""

Lost = Callable[[str], None]
"""Called once with the reason when notifications may have been missed; the follower is not called again after it."""


class Subscription(Protocol):
    """A follower's hold on a stream."""

    def cancel(self) -> None:
        """Stop: the follower is not called again."""


@runtime_checkable
class Batching(Protocol):
    """A log that writes together what arrives together, and counts how much that was."""

    commit_sizes: Histogram

    @property
    def waiting(self) -> int:
        """How many notifications wait to be written."""


@runtime_checkable
class Waiting(Protocol):
    """A log that lets go only of what is archived, if there is an archive behind it."""

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that hold more than their policy says, because the archive does not have it yet."""


@runtime_checkable
class Advancing(Protocol):
    """A log that can go on numbering further up, for the sake of an archive that is ahead of it."""

    async def advance(self, stream: str, last: int) -> None:
        """Give out no sequence up to `last`; what the stream held up to there is to be found in the archive."""


class Lease(Protocol):
    """A server's part in the election of the one that does a task."""

    def start(self) -> None:
        """Take part."""

    async def stop(self) -> None:
        """Take no part any more, and leave the task to the others at once."""


@runtime_checkable
class Shared(Protocol):
    """A log that several servers share."""

    def lease(self, task: str, changed: Callable[[bool], None]) -> Lease:
        """Let one of the servers do a task; `changed` is called with True when it is this one, and with False after."""


@runtime_checkable
class ThreadedLog(Protocol):
    """A log that reads in threads of its own, where a batch can be rendered at once."""

    async def read_in_thread(
        self, stream: str, start: int, end: int, limit: int, topics: bool, work: Callable[[Batch, int], T]
    ) -> T:
        """Read as `read` does, and call `work` in the same thread; return its result.

        `work` gets the batch and the newest sequence that retention had removed when it was read. A batch has at most
        about a megabyte. Without `topics` all topics are empty.
        """


class Log(Protocol):
    """An append-only store of notifications, one numbered stream per topic base."""

    kind: str  # the name under `notification_backend.kind`
    records: Records  # usable while the log is open

    async def open(self) -> None:
        """Make the log usable, or raise LogInUse, LogDamaged or LogUnavailable and change nothing."""

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. Safe to call twice."""

    @property
    def connected(self) -> bool:
        """True while the log can be reached; what `/ready` reports."""

    def append(self, draft: Draft) -> Awaitable[Notification]:
        """Store one notification durably and return it as stored; raise LogError if that failed."""

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Store several, all or none, with adjacent places in one commit where the log can."""

    async def append_keyed(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None = None
    ) -> Sequence[Appended | KeyRefused]:
        """Store what was not stored under its key before, as `append_many` does; where each of them is.

        A key that stands for something else gets KeyRefused in its place; with `whole` that is raised, and nothing is
        stored. An entry without a key is stored under that of the batch, or in any case if there is none. A key of the
        batch comes with `whole` only.
        """

    async def indivisible(self, drafts: Sequence[Draft]) -> bool:
        """Return whether `append_many` stores all of these or none, whatever happens."""

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """Hand every notification of the stream that is stored from now on to the follower.

        A log that lives elsewhere may find out that it cannot keep this promise any longer: then it calls `lost`.
        """

    async def state(self, stream: str) -> StreamState:
        """Return what the stream holds now; a stream nobody has used is empty, not an error.

        `last` covers every notification whose publisher already has an answer, whichever server took it.
        """

    async def streams(self) -> Sequence[str]:
        """Return the streams that ever held a notification, sorted."""

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        """Return up to `limit` notifications with start <= sequence <= end, ascending.

        Fewer than `limit`, even none, do not mean the end: only `next` > `end` does. Never more than `state` knows of.
        With `box`, notifications whose own box is absent or does not overlap it may be left out
        (a hint: leaving out none is correct too).
        """

    async def first_since(self, stream: str, time: int) -> int:
        """Return the lowest held sequence stored at or after `time`; last + 1 if there is none."""

    async def last_until(self, stream: str, time: int) -> int:
        """Return the highest held sequence stored at or before `time`; first - 1 if there is none."""

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one notification for good; False if it is not there."""

    async def wipe(self, stream: str) -> int | None:
        """Remove all notifications of a stream, keep its numbering; how many, or None if there is no such stream."""


class Followers:
    """The followers of all streams of one log. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[_Hold, ...]] = {}

    def add(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """Add a follower, to which `tell` hands the stream's notifications from now on."""
        hold = _Hold(self, stream, follower, lost)
        self._holds[stream] = (*self._holds.get(stream, ()), hold)
        return hold

    def tell(self, stream: str, notifications: Sequence[Notification]) -> None:
        """Call every follower of the stream; one that fails is reported and does not harm the others."""
        for hold in self._holds.get(stream, ()):
            if not hold.active:
                continue
            try:
                hold.follower(notifications)
            except Exception as error:  # a follower's fault must not reach publishers
                _report(stream, error)

    def lose(self, stream: str, reason: str) -> None:
        """Tell every follower of the stream that it may have missed something, and forget them all."""
        for hold in self._holds.pop(stream, ()):
            if not hold.active:
                continue
            hold.active = False
            try:
                if hold.lost is not None:
                    hold.lost(reason)
            except Exception as error:  # the others must hear of it too
                _report(stream, error)

    def any(self, stream: str) -> bool:
        return stream in self._holds

    def remove(self, hold: _Hold) -> None:
        """Forget one hold; unknown ones are fine."""
        left = tuple(other for other in self._holds.get(hold.stream, ()) if other is not hold)
        if left:
            self._holds[hold.stream] = left
        else:
            self._holds.pop(hold.stream, None)


def _report(stream: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"a follower of stream '{stream}' failed", "exception": error}
    )


class _Hold:
    __slots__ = ("_followers", "active", "follower", "lost", "stream")

    def __init__(self, followers: Followers, stream: str, follower: Follower, lost: Lost | None) -> None:
        self._followers = followers
        self.stream = stream
        self.follower = follower
        self.lost = lost
        self.active = True

    def cancel(self) -> None:
        self.active = False
        self._followers.remove(self)


Archived = Callable[[str], int]
"""The newest sequence of a stream that the archive holds, 0 if none; called from whichever thread lets go."""

PATIENCE = 600 * 10**9
"""Nanoseconds that the archive may be behind before somebody should look."""

_JUMP = 60 * 10**9  # nanoseconds by which a clock is corrected without anybody being told
_DOUBT = 24 * 3600 * 10**9  # nanoseconds after which a clock that has jumped is believed

_logger = logging.getLogger(__name__)


def boot_time_ns() -> int:
    """Return nanoseconds since the machine was started, asleep or not; no setting of the clock changes them."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class RetentionClock:
    """The time by which notifications expire: a jump of the clock ahead is believed only after a day.

    A clock that is set ahead by mistake would make young notifications look old, and what retention removes does not
    come back.
    """

    def __init__(self, clock: Callable[[], int], elapsed: Callable[[], int]) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._offset: int | None = None  # of the clock from the time elapsed, as far as it is believed
        self._doubted_since: int | None = None  # by the time elapsed

    def __call__(self) -> int:
        now, elapsed = self._clock(), self._elapsed()
        offset = now - elapsed
        if self._offset is None or offset <= self._offset + _JUMP:
            self._offset = offset
            self._doubted_since = None
            return now
        if self._doubted_since is None:
            self._doubted_since = elapsed
            _logger.warning(
                "the clock has jumped ahead by %.0f seconds; retention goes by the old time for a day",
                (offset - self._offset) / 1e9,
                extra={"event": "backend.retention.clock.jumped"},
            )
        if elapsed - self._doubted_since >= _DOUBT:
            self._offset = offset
            self._doubted_since = None
            return now
        return elapsed + self._offset


class HeldBack:
    """The streams that have waited long for the archive; each is said once. `kind` is that of the log."""

    def __init__(self, kind: str) -> None:
        self.streams: frozenset[str] = frozenset()
        self._kind = kind

    def note(self, stream: str, late: bool) -> None:
        """Note whether the stream has held more than its policy says for long."""
        if late == (stream in self.streams):
            return
        if late:
            self.streams |= {stream}
            _logger.warning(
                "stream %s holds more than its policy says: the archive does not have it yet",
                stream,
                extra={"event": f"backend.{self._kind}.retention.waiting", "stream": stream},
            )
        else:
            self.streams -= {stream}
            _logger.warning(
                "stream %s need not wait for the archive any longer",
                stream,
                extra={"event": f"backend.{self._kind}.retention.resumed", "stream": stream},
            )


def has_limits(policy: StoragePolicy) -> bool:
    """Return whether there is anything that the policy does not keep."""
    numbers = (policy.retention_ns, policy.max_messages, policy.max_bytes)
    return policy.allow_duplicates is False or any(each is not None for each in numbers)


def horizon(policy: StoragePolicy, now: int) -> int | None:
    """Return the time before which notifications have expired; None if they never do."""
    return None if policy.retention_ns is None else now - policy.retention_ns


def exceeded(policy: StoragePolicy, count: int, size: int) -> bool:
    """Return whether these are more notifications, or bytes, than the policy keeps."""
    return (policy.max_messages is not None and count > policy.max_messages) or (
        policy.max_bytes is not None and size > policy.max_bytes
    )


class KnownKey(NamedTuple):
    """What was stored under a key."""

    content: bytes
    sequence: int


class KnownBatch(NamedTuple):
    """What was stored under the key of a batch."""

    content: bytes
    sequences: Mapping[int, int]  # by places in the batch


class KeyBook(Protocol):
    """The keys that are remembered."""

    def get(self, name: bytes) -> KnownKey | None:
        """Return what was stored under this name; None if nothing was, or if that was too long ago."""

    def add(self, key: Key, sequence: int) -> None:
        """Note what was stored just now."""

    def get_batch(self, name: bytes) -> KnownBatch | None:
        """Return what was stored under this name of a batch; else as `get`."""

    def add_batch(self, name: bytes, known: KnownBatch) -> None:
        """Note what was stored just now, or some of it earlier."""


_STORED_AT_ONCE = 500


def append_once(
    entries: Sequence[Keyed],
    whole: bool,
    book: KeyBook,
    store: Callable[[Sequence[Draft]], Sequence[int]],
    batch: BatchKey | None = None,
) -> Iterator[Appended | KeyRefused]:
    """Store what is new, and yield what became of each.

    KeyReused if `whole` and one of the keys stands for something else, before any is stored.
    """
    if whole:
        _refuse_reuse(entries, book)
    earlier = None if batch is None else book.get_batch(batch.name)
    if batch is not None and earlier is not None and earlier.content != batch.content:
        raise KeyReused
    known_places = {} if earlier is None else earlier.sequences
    new_places: dict[int, int] = {}
    together = batch is not None and earlier is None and not any([entry.key for entry in entries])  # noqa: C419  # quicker
    if batch is not None and together:
        for start in range(0, len(entries), _STORED_AT_ONCE):
            sequences = store([entry.draft for entry in entries[start : start + _STORED_AT_ONCE]])
            new_places.update(zip(batch.places[start : start + _STORED_AT_ONCE], sequences, strict=True))
            yield from map(Appended, sequences)
        entries = ()
    for number, entry in enumerate(entries):
        key = entry.key
        if key is not None:
            known = book.get(key.name)
            if known is None:
                [sequence] = store([entry.draft])
                book.add(key, sequence)
                yield Appended(sequence)
            elif known.content == key.content:
                yield Appended(known.sequence, repeated=True)
            else:
                yield KeyReused()
        elif batch is None:
            yield Appended(store([entry.draft])[0])
        elif (place := batch.places[number]) in known_places:
            yield Appended(known_places[place], repeated=True)
        else:
            [sequence] = [new_places[place]] = store([entry.draft])
            yield Appended(sequence)
    if batch is not None and (new_places or together):
        book.add_batch(batch.name, KnownBatch(batch.content, {**known_places, **new_places}))


def with_own_keys(entries: Sequence[Keyed], batch: BatchKey) -> list[Keyed]:
    """Give each entry a key of its own: for logs that keep one for each notification."""
    return [
        entry if entry.key is not None else Keyed(entry.draft, batch.of(number)) for number, entry in enumerate(entries)
    ]


def pack_places(sequences: Mapping[int, int]) -> bytes:
    """Pack the sequences of a batch by places into as few bytes as there are interruptions."""
    runs: list[list[int]] = []  # place, sequence, length
    for place, sequence in sorted(sequences.items()):
        if runs and place == runs[-1][0] + runs[-1][2] and sequence == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([place, sequence, 1])
    return msgspec.msgpack.encode(runs)


def unpack_places(packed: bytes) -> Iterable[tuple[int, int]]:
    """Return the places and sequences that went into `pack_places`."""
    for place, sequence, length in msgspec.msgpack.decode(packed, type=list[tuple[int, int, int]]):
        yield from zip(range(place, place + length), range(sequence, sequence + length), strict=True)


def _refuse_reuse(entries: Sequence[Keyed], book: KeyBook) -> None:
    contents: dict[bytes, bytes] = {}
    for key in [entry.key for entry in entries if entry.key is not None]:
        known = book.get(key.name)
        content = contents.setdefault(key.name, key.content) if known is None else known.content
        if content != key.content:
            raise KeyReused
