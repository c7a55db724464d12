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

All methods are called from the event loop's thread. Nothing here blocks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from aviso_server.counts import Histogram
from aviso_server.errors import KeyRefused
from aviso_server.model.notification import Box, Draft, Notification

__all__ = [
    "COMMIT_SIZES",
    "Advancing",
    "Appended",
    "Batch",
    "BatchKey",
    "Batching",
    "Follower",
    "Key",
    "KeyPolicy",
    "Keyed",
    "Log",
    "Lost",
    "Pouring",
    "Read",
    "StoragePolicy",
    "StreamState",
    "Subscription",
    "Waiting",
]


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
        """A key for one of the entries by itself."""
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


Read = Callable[[int, int, int], Batch]
"""Up to so many notifications (the third) from one sequence to another, as `read` has them; called in a thread."""


@runtime_checkable
class Pouring(Protocol):
    """A log that reads in threads of its own, where what was read can be dealt with at once."""

    async def in_thread(self, stream: str, work: Callable[[Read], None], topics: bool = True) -> None:
        """Call `work` in a thread, with a function that reads this stream there, with or without the topics.

        Before the event loop hears of a batch, `state` knows of everything that retention had removed when it was read.
        """

    def handy_batch(self, stream: str) -> int:
        """How many notifications of the stream are best read at once to be sent at once; a read finds room for them."""


class Log(Protocol):
    """An append-only store of notifications, one numbered stream per topic base."""

    kind: str  # the name under `notification_backend.kind`

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
        """True if `append_many` stores all of these or none, whatever happens."""

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """From now on hand every newly stored notification of the stream to the follower.

        A log that lives elsewhere may find out that it cannot keep this promise any longer: then it calls `lost`.
        """

    async def state(self, stream: str) -> StreamState:
        """What the stream holds now; a stream nobody has used is empty, not an error.

        `last` covers every notification whose publisher already has an answer, whichever server took it.
        """

    async def streams(self) -> Sequence[str]:
        """The streams that exist, sorted: those that ever held a notification."""

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        """Up to `limit` notifications with start <= sequence <= end, ascending.

        Fewer than `limit`, even none, do not mean the end: only `next` > `end` does. Never more than `state` knows of.
        With `box`, notifications whose own box is absent or does not overlap it may be left out
        (a hint: leaving out none is correct too).
        """

    async def first_since(self, stream: str, time: int) -> int:
        """The lowest held sequence stored at or after `time`; last + 1 if there is none."""

    async def last_until(self, stream: str, time: int) -> int:
        """The highest held sequence stored at or before `time`; first - 1 if there is none."""

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one notification for good; False if it is not there."""

    async def wipe(self, stream: str) -> int | None:
        """Remove all notifications of a stream, keep its numbering; how many, or None if there is no such stream."""
