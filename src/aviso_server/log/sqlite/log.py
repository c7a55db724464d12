"""The default log: one SQLite database in a directory, durable, embedded, nothing to install.

`append` returns after the commit is on disk: in the write-ahead file, which the writer's thread forces there. Each
stream has a table with its sequence as primary key; the catalogue keeps the numbering, which survives wipes, restarts
and crashes.
`storage_policy.compression` is accepted and changes nothing here: rows are stored as they are, so that reading them
costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from aviso_server.counters import Histogram
from aviso_server.errors import KeyRefused, LogDamaged, LogError, LogUnavailable
from aviso_server.log.base import (
    COMMIT_SIZES,
    PATIENCE,
    Appended,
    Archived,
    Batch,
    BatchKey,
    Change,
    Follower,
    Followers,
    Keyed,
    KeyPolicy,
    Lost,
    Record,
    Records,
    RetentionClock,
    StoragePolicy,
    StreamState,
    Subscription,
    boot_time_ns,
)
from aviso_server.log.sqlite.damage import acknowledged_of, refuse_damage
from aviso_server.log.sqlite.database import (
    Checkpoints,
    DirectoryLock,
    Entry,
    WriteAheadFile,
    as_log_error,
    connect_without_sync,
    is_full,
    load_entries,
    preallocate_wal,
    prepare,
    upgrade,
)
from aviso_server.log.sqlite.ledger import Ledger
from aviso_server.log.sqlite.reader import SqliteReader, handy_batch
from aviso_server.log.sqlite.writer import CommitOutcome, StreamTables, Work, Writer, load_records, save_records
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["SqliteLog"]

T = TypeVar("T")

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
        elapsed: Callable[[], int] | None = None,
        max_waiting: int = 65_536,
        keys: KeyPolicy = KeyPolicy(),  # noqa: B008  # frozen
        archived: Archived | None = None,
        patience: int = PATIENCE,
    ) -> None:
        self.records: Records = _Records(self)
        self._archived = archived  # with an archive only what it holds is let go of
        self._patience = patience
        self._keys = keys
        self._path = path
        self._policies = policies
        self._clock = clock
        if elapsed is None:  # a clock of the caller's own is believed
            elapsed = boot_time_ns if clock is time.time_ns else clock
        self._retention_clock = RetentionClock(clock, elapsed)
        self._max_waiting = max_waiting
        self._lock = DirectoryLock(path)
        self._followers = Followers()
        self._entries: dict[str, Entry] = {}
        self._trimmed: dict[str, int] = {}  # what readers have seen of retention; the writer's word may come later
        self._gathered: list[Work] = []
        self._alone = True  # the last commit was of one
        self._handed_over = 0  # so many are with the writer's thread
        self._waiting = 0
        self.commit_sizes = Histogram(COMMIT_SIZES)
        self._accepting = False
        self._opened: _Opened | None = None

    async def open(self) -> None:
        if self._opened is not None:
            raise LogUnavailable(f"the log in '{self._path}' is open already")
        loop = asyncio.get_running_loop()
        self._opened = await asyncio.to_thread(self._open, loop)
        self._accepting = True

    async def close(self) -> None:
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
        return self._waiting

    def append(self, draft: Draft) -> asyncio.Future[Notification]:
        try:
            return self._submit(lambda tables: tables.of(draft.stream).add(draft), 1)
        except LogUnavailable as refused:
            future: asyncio.Future[Notification] = asyncio.get_running_loop().create_future()
            future.set_exception(refused)
            return future

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        if not drafts:
            return []
        drafts = tuple(drafts)
        return await self._submit(lambda tables: tables.add_all(drafts), len(drafts))

    async def append_keyed(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None = None
    ) -> Sequence[Appended | KeyRefused]:
        if not entries:
            return []
        entries = tuple(entries)
        names = [entry.key.name for entry in entries if entry.key is not None]
        names += [] if batch is None else [batch.name]
        outcomes = await self._submit(lambda tables: tables.add_once(entries, whole, batch), len(entries), names)
        if isinstance(outcomes, KeyRefused):
            raise outcomes
        return outcomes

    async def indivisible(self, drafts: Sequence[Draft]) -> bool:
        """True: a commit is."""
        return True

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        return self._followers.add(stream, follower)

    async def state(self, stream: str) -> StreamState:
        self._reader()
        entry = self._entries.get(stream)
        if entry is None:
            return NEVER_USED
        state = entry.state()
        seen = self._trimmed.get(stream, 0)
        return state if seen <= state.trimmed else msgspec.structs.replace(state, trimmed=seen)

    async def streams(self) -> Sequence[str]:
        self._reader()
        return sorted(self._entries)

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
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

    async def read_in_thread(
        self, stream: str, start: int, end: int, limit: int, topics: bool, work: Callable[[Batch, int], T]
    ) -> T:
        reader = self._reader()
        entry = self._entries.get(stream)
        if entry is None or (low := max(start, entry.first)) > (high := min(end, entry.last)):
            return work(Batch((), max(start, end + 1)), (await self.state(stream)).trimmed)
        known = entry

        def read() -> tuple[T, int]:
            batch, trimmed = reader.read_here(known, low, high, min(limit, handy_batch(known)), topics)
            return work(batch if batch.next <= high else Batch(batch.notifications, end + 1), trimmed), trimmed

        result, trimmed = await reader.call(read)
        self._note_trimmed(entry, trimmed)
        return result

    def _note_trimmed(self, entry: Entry, trimmed: int) -> None:
        if trimmed > entry.trimmed:
            self._trimmed[entry.name] = max(trimmed, self._trimmed.get(entry.name, 0))

    async def first_since(self, stream: str, time: int) -> int:
        reader = self._reader()
        entry = self._entries.get(stream)
        return NEVER_USED.last + 1 if entry is None else await reader.first_from(entry, time)

    async def last_until(self, stream: str, time: int) -> int:
        reader = self._reader()
        entry = self._entries.get(stream)
        return NEVER_USED.first - 1 if entry is None else await reader.last_before(entry, time + 1)

    async def delete(self, stream: str, sequence: int) -> bool:
        def remove(tables: StreamTables) -> bool:
            table = tables.existing(stream)
            return table is not None and table.remove(sequence)

        return await self._submit(remove)

    async def wipe(self, stream: str) -> int | None:
        def wipe(tables: StreamTables) -> int | None:
            table = tables.existing(stream)
            return None if table is None else table.wipe()

        return await self._submit(wipe)

    async def advance(self, stream: str, last: int) -> None:
        await self._submit(lambda tables: tables.of(stream).advance(last))

    @property
    def held_back(self) -> frozenset[str]:
        return frozenset() if self._opened is None else self._opened.writer.held_back

    def _reader(self) -> SqliteReader:
        if not self._accepting or self._opened is None:
            raise LogUnavailable(f"the log in '{self._path}' is closed")
        return self._opened.reader

    def _submit(
        self, do: Callable[[StreamTables], T], drafts: int = 0, keys: Sequence[bytes] = ()
    ) -> asyncio.Future[T]:
        """Have the next transaction do this; it answers with what that returns."""
        opened = self._opened
        if not self._accepting or opened is None:
            raise LogUnavailable(f"the log in '{self._path}' is closed")
        if drafts and self._waiting + drafts > self._max_waiting and self._waiting:
            raise LogUnavailable(
                f"{self._waiting} notifications wait to be written and {self._max_waiting} may; publish again later"
            )
        self._waiting += drafts
        # What two turns of the event loop bring, and what comes while the last commit is on its way to the disk, is
        # committed together. Whoever was alone in the last commit waits for one turn only, which beside many watchers
        # takes long.
        loop = opened.loop
        if not self._gathered and not self._handed_over:
            if self._alone:
                loop.call_soon(self._hand_over)
            else:
                loop.call_soon(loop.call_soon, self._hand_over)
        future: asyncio.Future[T] = loop.create_future()
        self._gathered.append(Work(do, future, drafts, keys))
        return future

    def _hand_over(self) -> None:
        if not self._gathered or self._opened is None:
            return
        gathered, self._gathered = self._gathered, []
        self._alone = len(gathered) == 1
        self._handed_over += len(gathered)
        self._opened.writer.put(gathered)

    def _came_back(self, outcomes: Sequence[CommitOutcome]) -> None:
        for outcome in outcomes:
            self._handed_over -= len(outcome.answers)
            self._arrived(outcome)
        if self._gathered and not self._handed_over and self._opened is not None:
            self._opened.loop.call_soon(self._hand_over)

    def _arrived(self, outcome: CommitOutcome) -> None:
        """Take over a transaction in the event loop: followers hear of it first, then the publishers."""
        self._entries.update(outcome.entries)
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
        """Take the directory, check the files, conform to the policies; in a thread of its own."""
        try:
            self._path.mkdir(0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise LogDamaged(
                f"'{self._path}' is not a directory; set notification_backend.sqlite.path to a directory"
            ) from error
        except OSError as error:
            raise self._not_opened(error) from error
        held = contextlib.ExitStack()
        try:
            held.callback(self._lock.release)
            self._lock.take()
            file = prepare(self._path)
            refuse_damage(file, acknowledged_of(self._path))
            connection = connect_without_sync(file)
            held.callback(connection.close)
            upgrade(connection)
            entries = load_entries(connection)
            wal = WriteAheadFile(file)
            held.callback(wal.close)
            ledger = Ledger(self._path, {entry.id: (name, entry.last) for name, entry in entries.items()})
            held.callback(ledger.close)
            checkpoints = Checkpoints(file, ledger)

            def deliver(outcomes: Sequence[CommitOutcome]) -> None:
                # A loop that was closed over an open log has nobody left to tell.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._came_back, outcomes)

            writer = Writer(
                connection,
                entries,
                self._policies,
                self._clock,
                self._retention_clock,
                deliver,
                self._keys,
                checkpoints,
                wal.force,
                ledger,
                self._archived,
                self._patience,
            )
            self._entries = writer.apply_policies()
            preallocate_wal(file)
            reader = SqliteReader(file)
            checkpoints.start()
            writer.start()
            return _Opened(loop, connection, writer, reader, checkpoints, held)
        except BaseException as error:
            held.close()
            if isinstance(error, (sqlite3.Error, OSError)) and not isinstance(error, LogError):
                raise self._not_opened(error) from error
            raise

    def _not_opened(self, error: Exception) -> LogError:
        reason = as_log_error(error, "opening")
        if isinstance(reason, LogDamaged):
            return reason
        if is_full(error, self._path):
            return LogUnavailable(
                f"the disk of the log in '{self._path}' is full: make room there, or set "
                "notification_backend.sqlite.path to a directory on another disk"
            )
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
        with contextlib.suppress(OSError):  # the ledger is as good as it was
            opened.held.close()


class _Records:
    """The records in the log's database, written with its commits."""

    shared = False

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    async def load(self, prefix: str) -> Sequence[Record]:
        found = await self._log._reader().ask(lambda connection: load_records(connection, prefix, 0))
        return sorted(found, key=lambda record: record.key)

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        changes = tuple(changes)
        return await self._log._submit(lambda tables: save_records(tables.connection, changes))

    async def changed(self, after: int) -> Sequence[Record]:
        return await self._log._reader().ask(lambda connection: load_records(connection, "", after))


@dataclass(slots=True)
class _Opened:
    """What an open log holds on to."""

    loop: asyncio.AbstractEventLoop
    connection: sqlite3.Connection
    writer: Writer
    reader: SqliteReader
    checkpoints: Checkpoints
    held: contextlib.ExitStack  # the files
    closing: bool = False
    closed: asyncio.Future[None] | None = None
