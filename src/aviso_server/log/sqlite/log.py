"""The default log: one SQLite database in a directory, durable, embedded, nothing to install.

`append` returns after the commit is on disk: in the write-ahead file, which a thread forces there. Each stream has a
table with its sequence as primary key; the catalogue keeps the numbering, which survives wipes, restarts and crashes.
`storage_policy.compression` is accepted and changes nothing here: rows are stored as they are, so that reading them
costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from aviso_server.counts import Histogram
from aviso_server.errors import KeyRefused, LogDamaged, LogError, LogUnavailable
from aviso_server.log.base import (
    COMMIT_SIZES,
    Appended,
    Batch,
    BatchKey,
    Follower,
    Keyed,
    KeyPolicy,
    Lost,
    Read,
    StoragePolicy,
    StreamState,
    Subscription,
)
from aviso_server.log.followers import Followers
from aviso_server.log.retention import PATIENCE, Archived
from aviso_server.log.sqlite.checkpoints import Checkpoints
from aviso_server.log.sqlite.files import Ahead, DirectoryLock, as_log_error, connect_unforced, make_room_ahead, prepare
from aviso_server.log.sqlite.keys import KeyedAppend
from aviso_server.log.sqlite.reader import Reader, handy_batch
from aviso_server.log.sqlite.stream import Entry, load_entries
from aviso_server.log.sqlite.work import Advance, Append, Outcome, Remove, Wipe, Work
from aviso_server.log.sqlite.writer import Writer
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["SqliteLog"]

NEVER_USED = StreamState(first=1, last=0, count=0, bytes=0)
NO_POLICIES: Mapping[str, StoragePolicy] = MappingProxyType({})


class SqliteLog:
    """A log in a directory of its own. Policies are found by stream name, ignoring case."""

    kind = "sqlite"

    def __init__(
        self,
        path: Path,
        policies: Mapping[str, StoragePolicy] = NO_POLICIES,
        clock: Callable[[], int] = time.time_ns,
        max_waiting: int = 65_536,
        keys: KeyPolicy = KeyPolicy(),  # noqa: B008  # frozen
        archived: Archived | None = None,
        patience: int = PATIENCE,
    ) -> None:
        self._archived = archived  # with an archive only what it holds is let go of
        self._patience = patience
        self._keys = keys
        self._path = path
        self._policies = policies
        self._clock = clock
        self._max_waiting = max_waiting
        self._lock = DirectoryLock(path)
        self._followers = Followers()
        self._entries: dict[str, Entry] = {}
        self._known: dict[str, int] = {}  # the transactions that the entries are from
        self._trimmed: dict[str, int] = {}  # what readers have seen of retention; the writer's word may come later
        self._gathered: list[Work] = []
        self._handed_over = 0  # so many are with the writer's thread
        self._waiting = 0
        self.commit_sizes = Histogram(COMMIT_SIZES)
        self._accepting = False
        self._opened: _Opened | None = None

    async def open(self) -> None:
        """Make the log usable, or raise LogInUse, LogDamaged or LogUnavailable and change nothing."""
        if self._opened is not None:
            raise LogUnavailable(f"the log in '{self._path}' is open already")
        loop = asyncio.get_running_loop()
        self._opened = await asyncio.to_thread(self._open, loop)
        self._accepting = True

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. Safe to call twice."""
        self._accepting = False
        opened = self._opened
        if opened is None:
            return
        if not opened.closing:
            opened.closing = True
            self._hand_over()
            opened.closed = asyncio.ensure_future(asyncio.to_thread(self._shut, opened))
        assert opened.closed is not None  # set with `closing`
        await asyncio.shield(opened.closed)
        self._opened = None

    @property
    def connected(self) -> bool:
        """True while the log is open and its last attempt to write did not fail."""
        return self._accepting and self._opened is not None and not self._opened.writer.failing

    @property
    def waiting(self) -> int:
        """How many notifications wait to be written."""
        return self._waiting

    def append(self, draft: Draft) -> asyncio.Future[Notification]:
        """Store one notification and return it once it is on disk."""
        try:
            future = self._promise(1)
        except LogUnavailable as refused:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(refused)
            return future
        self._submit(Append((draft,), future, True))
        return future

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Store several in one commit, all or none."""
        if not drafts:
            return []
        future = self._promise(len(drafts))
        self._submit(Append(tuple(drafts), future, False))
        notifications: Sequence[Notification] = await future
        return notifications

    async def append_keyed(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None = None
    ) -> Sequence[Appended | KeyRefused]:
        """Store what was not stored under its key before, in one commit with the keys, all or none."""
        if not entries:
            return []
        future = self._promise(len(entries))
        self._submit(KeyedAppend(tuple(entries), whole, batch, future))
        outcomes: Sequence[Appended | KeyRefused] | KeyRefused = await future
        if isinstance(outcomes, KeyRefused):
            raise outcomes
        return outcomes

    async def indivisible(self, drafts: Sequence[Draft]) -> bool:
        """True: a commit is."""
        return True

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """From now on hand every newly stored notification of the stream to the follower; none is ever lost."""
        return self._followers.add(stream, follower)

    async def state(self, stream: str) -> StreamState:
        """What the stream holds now; a stream nobody has used is empty, not an error."""
        self._reader()
        entry = self._entries.get(stream)
        if entry is None:
            return NEVER_USED
        state = entry.state()
        seen = self._trimmed.get(stream, 0)
        return state if seen <= state.trimmed else msgspec.structs.replace(state, trimmed=seen)

    async def streams(self) -> Sequence[str]:
        """The streams that ever held a notification, sorted."""
        self._reader()
        return sorted(self._entries)

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        """Up to `limit` notifications with start <= sequence <= end, ascending."""
        reader = self._reader()
        entry = self._entries.get(stream)
        if entry is None:
            return Batch((), max(start, end + 1))
        low, high = max(start, entry.first), min(end, entry.last)
        if low > high:
            return Batch((), max(start, end + 1))
        batch, trimmed = await reader.read(entry, low, high, limit, box)
        self._note_trimmed(entry, trimmed)
        return batch if batch.next <= high else Batch(batch.notifications, end + 1)

    async def in_thread(self, stream: str, work: Callable[[Read], None], topics: bool = True) -> None:
        """Call `work` in a thread, with a function that reads this stream there, with or without the topics."""
        loop = asyncio.get_running_loop()
        reader = self._reader()

        def read(start: int, end: int, limit: int) -> Batch:
            entry = self._entries.get(stream)
            if entry is None or (low := max(start, entry.first)) > (high := min(end, entry.last)):
                return Batch((), max(start, end + 1))
            batch, trimmed = reader.read_here(entry, low, high, limit, topics)
            if trimmed > entry.trimmed:
                loop.call_soon_threadsafe(self._note_trimmed, entry, trimmed)
            return batch if batch.next <= high else Batch(batch.notifications, end + 1)

        await reader.call(partial(work, read))

    def handy_batch(self, stream: str) -> int:
        """How many notifications of the stream are best read at once to be sent at once."""
        entry = self._entries.get(stream)
        return 1 if entry is None else handy_batch(entry)

    def _note_trimmed(self, entry: Entry, trimmed: int) -> None:
        if trimmed > entry.trimmed:
            self._trimmed[entry.name] = max(trimmed, self._trimmed.get(entry.name, 0))

    async def first_since(self, stream: str, time: int) -> int:
        """The lowest held sequence stored at or after `time`; last + 1 if there is none."""
        reader = self._reader()
        entry = self._entries.get(stream)
        return NEVER_USED.last + 1 if entry is None else await reader.first_from(entry, time)

    async def last_until(self, stream: str, time: int) -> int:
        """The highest held sequence stored at or before `time`; first - 1 if there is none."""
        reader = self._reader()
        entry = self._entries.get(stream)
        return NEVER_USED.first - 1 if entry is None else await reader.last_before(entry, time + 1)

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one notification for good; False if it is not there."""
        future = self._promise(0)
        self._submit(Remove(stream, sequence, future))
        return bool(await future)

    async def wipe(self, stream: str) -> int | None:
        """Remove all notifications of a stream, keep its numbering; how many, or None if there is no such stream."""
        future = self._promise(0)
        self._submit(Wipe(stream, future))
        removed: int | None = await future
        return removed

    async def advance(self, stream: str, last: int) -> None:
        """Go on numbering a stream after `last`, if it is not further already: the archive has it up to there."""
        future = self._promise(0)
        self._submit(Advance(stream, last, future))
        await future

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that hold more than their policy says, because the archive does not have it yet."""
        return frozenset() if self._opened is None else self._opened.writer.held_back

    def _reader(self) -> Reader:
        if not self._accepting or self._opened is None:
            raise LogUnavailable(f"the log in '{self._path}' is closed")
        return self._opened.reader

    def _promise(self, drafts: int) -> asyncio.Future[Any]:
        opened = self._opened
        if not self._accepting or opened is None:
            raise LogUnavailable(f"the log in '{self._path}' is closed")
        if drafts and self._waiting + drafts > self._max_waiting and self._waiting:
            raise LogUnavailable(
                f"{self._waiting} notifications wait to be written and {self._max_waiting} may; publish again later"
            )
        self._waiting += drafts
        return opened.loop.create_future()

    def _submit(self, work: Work) -> None:
        # What two turns of the event loop bring, and what comes while the last commit is on its way to the disk, is
        # committed together. A turn that finds nothing takes microseconds; one that finds more saves a commit.
        assert self._opened is not None  # _promise has looked
        if not self._gathered and not self._handed_over:
            loop = self._opened.loop
            loop.call_soon(loop.call_soon, self._hand_over)
        self._gathered.append(work)

    def _hand_over(self) -> None:
        if not self._gathered or self._opened is None:
            return
        gathered, self._gathered = self._gathered, []
        outcomes = None if self._handed_over else self._opened.writer.write_now(gathered)
        if not outcomes:
            self._handed_over += len(gathered)
            if outcomes is None:
                self._opened.writer.put(gathered)
            return
        for outcome in outcomes:
            self._arrived(outcome)

    def _came_back(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._handed_over -= len(outcome.answers)
            self._arrived(outcome)
        if self._gathered and not self._handed_over and self._opened is not None:
            self._opened.loop.call_soon(self._hand_over)

    def _arrived(self, outcome: Outcome) -> None:
        """Runs in the event loop after each transaction: followers first, then the publishers."""
        for stream, entry in outcome.entries.items():
            # what retention did comes by way of the thread and may be overtaken
            if outcome.number > self._known.get(stream, 0):
                self._known[stream] = outcome.number
                self._entries[stream] = entry
        for stream, notifications in outcome.added:
            self._followers.tell(stream, notifications)
        if outcome.drafts:
            self._waiting -= outcome.drafts
            self.commit_sizes.observe(outcome.drafts)
        error = outcome.error
        if error is None:
            for future, answer in outcome.answers:
                if not future.done():
                    future.set_result(answer)
        else:
            for future, _ in outcome.answers:
                if not future.done():
                    future.set_exception(type(error)(*error.args))

    def _open(self, loop: asyncio.AbstractEventLoop) -> _Opened:
        """Runs in a thread of its own: takes the directory, checks the files, conforms to the policies."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise LogDamaged(
                f"'{self._path}' is not a directory; set notification_backend.sqlite.path to a directory"
            ) from error
        except OSError as error:
            raise self._not_opened(error) from error
        connection: sqlite3.Connection | None = None
        ahead: Ahead | None = None
        try:
            self._lock.take()
            file = prepare(self._path)
            connection = connect_unforced(file)
            entries = load_entries(connection)
            ahead = Ahead(file)
            checkpoints = Checkpoints(file)

            def deliver(outcomes: Sequence[Outcome]) -> None:
                # A loop that was closed over an open log has nobody left to tell.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._came_back, outcomes)

            writer = Writer(
                connection,
                entries,
                self._policies,
                self._clock,
                deliver,
                self._keys,
                self._archived,
                self._patience,
                checkpoints,
                ahead.force,
            )
            self._entries = writer.apply_policies()
            make_room_ahead(file)
            reader = Reader(file)
            checkpoints.start()
            writer.start()
            return _Opened(loop, connection, writer, reader, checkpoints, ahead)
        except BaseException as error:
            if ahead is not None:
                ahead.close()
            if connection is not None:
                connection.close()
            self._lock.release()
            if isinstance(error, (sqlite3.Error, OSError)) and not isinstance(error, LogError):
                raise self._not_opened(error) from error
            raise

    def _not_opened(self, error: Exception) -> LogError:
        reason = as_log_error(error, "opening")
        if isinstance(reason, LogDamaged):
            return reason
        return LogUnavailable(
            f"{reason}; let this user write to '{self._path}', or set notification_backend.sqlite.path to another "
            "directory"
        )

    def _shut(self, opened: _Opened) -> None:
        opened.writer.stop()
        opened.checkpoints.stop()
        opened.reader.close()
        # If this fails, everything is still in the write-ahead log and found there at the next start.
        with contextlib.suppress(sqlite3.Error):
            opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        opened.connection.close()
        opened.ahead.close()
        self._lock.release()


class _Opened:
    """What an open log holds on to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: sqlite3.Connection,
        writer: Writer,
        reader: Reader,
        checkpoints: Checkpoints,
        ahead: Ahead,
    ) -> None:
        self.loop = loop
        self.connection = connection
        self.checkpoints = checkpoints
        self.ahead = ahead
        self.writer = writer
        self.reader = reader
        self.closing = False
        self.closed: asyncio.Future[None] | None = None
