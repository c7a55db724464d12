"""Writing to a sqlite log: one thread, one form of transaction, group commit.

Everything that arrived while the last commit was on its way to the disk goes into the next one. The thread writes it,
forces it to disk, and then makes one call into the event loop, however many publishers wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import PATIENCE, Archived, KeyPolicy, StoragePolicy
from aviso_server.log.sqlite.database import WAL_PAGES, Entry, as_log_error, connect
from aviso_server.log.sqlite.ledger import Ledger
from aviso_server.log.sqlite.transaction import KeyTable, SqliteRetention, StreamTables
from aviso_server.model.notification import Notification

__all__ = ["Checkpoints", "CommitOutcome", "Work", "Writer"]

TRIM_SECONDS = 1.0
TRIM_ROWS = 20_000  # removed at most in one transaction, so that publishers never wait long
CHECKPOINT_SECONDS = 0.1
_RESTART_PAGES = WAL_PAGES // 2

_logger = logging.getLogger(__name__)


class Work(msgspec.Struct, gc=False):
    """A change within a transaction, and who waits for what it returns."""

    do: Callable[[StreamTables], Any]
    future: asyncio.Future[Any]
    drafts: int = 0  # notifications in it
    keys: Sequence[bytes] = ()  # the names of keys that it asks for


_Answers = list[tuple[asyncio.Future[Any], Any]]


class CommitOutcome(msgspec.Struct, gc=False):
    """What one transaction did: streams as they are now, what is new, and the answers that are due."""

    entries: dict[str, Entry]
    added: list[tuple[str, Sequence[Notification]]]
    answers: _Answers
    drafts: int = 0  # so many no longer wait
    error: LogError | None = None  # nothing was stored, all of `answers` get this


class Writer:
    """Owns the writing connection and the thread that uses it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        entries: Mapping[str, Entry],
        policies: Mapping[str, StoragePolicy],
        clock: Callable[[], int],
        retention_clock: Callable[[], int],
        deliver: Callable[[Sequence[CommitOutcome]], None],
        keys: KeyPolicy,
        checkpoints: Checkpoints,
        force: Callable[[], None],
        ledger: Ledger,
        archived: Archived | None = None,
        patience: int = PATIENCE,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._entries = dict(entries)
        self._policies = {stream.lower(): policy for stream, policy in policies.items()}
        self._retention = SqliteRetention(connection, self._policies, archived, patience)
        self._retains = self._retention.needed
        self._trims = archived is None  # with each commit
        self._clock = clock
        self._retention_clock = retention_clock
        self._deliver = deliver
        self._force = force  # all that was committed to disk; OSError if it may not be there
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._queue: queue.SimpleQueue[Sequence[Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="aviso-log-writer", daemon=True)
        self._unforced = False  # the last commit may not be on disk
        self._broken: LogError | None = None  # the disk has lost something that was written, and said so
        self.failing = False  # the last attempt to write failed

    def apply_policies(self) -> dict[str, Entry]:
        """Bring all streams in line with their policies, which may have changed since the last run."""
        self._transact(self._conform)
        while self._trim():
            pass
        return dict(self._entries)

    def start(self) -> None:
        """Begin to take work from `put`."""
        self._thread.start()

    def put(self, work: Sequence[Work]) -> None:
        """Hand over work; it is done in the order it came."""
        self._queue.put(work)

    def stop(self) -> None:
        """Finish all work handed over before, then end the thread and wait for it. Blocks."""
        self._queue.put(None)
        self._thread.join()

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that hold more than their policy says, because the archive does not have it yet."""
        return self._retention.held_back

    def _run(self) -> None:
        due = time.monotonic() + TRIM_SECONDS
        stopping = False
        while not stopping:
            try:
                wait = max(0.0, due - time.monotonic()) if self._retains or self.failing else None
                batches = [self._queue.get(timeout=wait)]
                batches += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            except queue.Empty:
                batches = []
            stopping = None in batches
            work = [one for batch in batches if batch is not None for one in batch]
            if work:
                self._finish(self._outcomes(work))
            self._checkpoints.restart(self._connection)
            if not stopping and (self._retains or self.failing) and time.monotonic() >= due:
                due = time.monotonic() + (0.0 if self._tidy() else TRIM_SECONDS)

    def _finish(self, outcomes: Sequence[CommitOutcome]) -> None:
        """Force what was committed to disk and deliver the outcomes, or that they may not be there."""
        self._settle(outcomes)
        if self._broken is not None:
            outcomes = [CommitOutcome({}, [], each.answers, each.drafts, self._broken) for each in outcomes]
        self._deliver(outcomes)
        self._checkpoints.note_commit()

    def _settle(self, outcomes: Sequence[CommitOutcome] = ()) -> None:
        """Force what was committed to disk and note it in the ledger.

        What a disk has failed to take is gone from memory too, so trying again would say nothing. Nothing more is
        stored then: only a new start finds out what is there.
        """
        try:
            if self._unforced:
                self._force()
                self._unforced = False
            for outcome in outcomes:
                for entry in outcome.entries.values():
                    self._ledger.note(entry.id, entry.last)
        except OSError as error:
            self._broken = LogUnavailable(f"the log's disk has failed, nothing is stored until a restart: {error}")
            self.failing = True
            _logger.error(
                "what was published may not be on disk, publishing is refused until the server is started again: %s",
                error,
                extra={"event": "backend.sqlite.disk.failed"},
            )

    def _outcomes(self, work: Sequence[Work]) -> list[CommitOutcome]:
        if self._broken is not None:
            return [_failed(work, self._broken)]
        answers: _Answers = []
        try:
            changed, added = self._transact(partial(self._do, work, answers))
        except (sqlite3.OperationalError, OSError, MemoryError) as error:
            return [_failed(work, as_log_error(error, "writing"))]
        except Exception as error:  # whatever it is, publishers must get an answer
            if len(work) > 1:
                # One of them cannot be stored at all: find it, and let the others through.
                return [outcome for one in work for outcome in self._outcomes([one])]
            if isinstance(error, sqlite3.DatabaseError):
                return [_failed(work, as_log_error(error, "writing"))]
            return [_failed(work, LogError(f"this cannot be stored: {error}"))]
        return [CommitOutcome(changed, added, answers, sum([one.drafts for one in work]))]

    def _do(self, work: Sequence[Work], answers: _Answers, tables: StreamTables) -> None:
        if names := [name for one in work for name in one.keys]:
            tables.keys = KeyTable(self._connection, names, self._keys, self._clock())
        answers += [(one.future, one.do(tables)) for one in work]
        if tables.keys is not None:
            tables.keys.save()

    def _transact(
        self, change: Callable[[StreamTables], None]
    ) -> tuple[dict[str, Entry], list[tuple[str, Sequence[Notification]]]]:
        self._settle()  # each transaction begins when the last one is on disk: `damage` relies on it
        if self._broken is not None:
            raise self._broken
        tables = StreamTables(self._connection, self._entries, self._policies, self._clock(), self._trims)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            change(tables)
            changed = tables.save()
            for name, entry in changed.items():
                self._ledger.make_room(entry.id, name)
            self._connection.commit()  # waits for Python's lock once, `execute` three times
            self._unforced = True
        except BaseException as error:
            self._roll_back()
            if isinstance(error, (sqlite3.OperationalError, OSError)):
                self._note_failure(error)
            raise
        if self.failing:
            self.failing = False
            _logger.warning("the log can be written again", extra={"event": "backend.sqlite.write.recovered"})
        self._entries.update(changed)
        return changed, tables.added()

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors.
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                _logger.warning("rolling back failed: %s", error, extra={"event": "backend.sqlite.rollback.failed"})

    def _note_failure(self, error: Exception) -> None:
        if not self.failing:
            self.failing = True
            _logger.error(
                "the log cannot be written, publishing is refused until it can: %s",
                error,
                extra={"event": "backend.sqlite.write.failed"},
            )

    def _tidy(self) -> bool:
        """Apply retention, and try whether a failing log can be written again; True if more is to be removed."""
        if self._broken is not None:
            return False
        before = dict(self._entries)
        more = False
        try:
            if self.failing:
                self._transact(StreamTables.probe)
            more = self._trim()
        except Exception as error:  # the thread must live on: publishers wait for it
            self._note_failure(error)
        changed = {name: entry for name, entry in self._entries.items() if before.get(name) is not entry}
        if changed:
            self._finish([CommitOutcome(changed, [], [])])
        return more

    def _trim(self) -> bool:
        """Remove some of what no stream has to keep, in one transaction; True if more is left."""
        now = self._retention_clock()
        due = [name for name, entry in self._entries.items() if self._retention.is_due(entry, now)]
        more: list[bool] = []
        if due:
            self._transact(partial(self._remove_due, due, now, more))
        return any(more)

    def _remove_due(self, due: Sequence[str], now: int, more: list[bool], tables: StreamTables) -> None:
        room = TRIM_ROWS
        for name in due:
            table = tables.of(name)
            before = table.count
            more.append(self._retention.trim(table, name, now, room))
            room -= before - table.count
            if room <= 0:
                more.append(True)
                return

    def _conform(self, tables: StreamTables) -> None:
        for name in self._entries:
            table = tables.of(name)
            if tables.conform_index(name) and self._trims:
                table.keep_newest_per_topic()
            table.apply_limits()


class Checkpoints:
    """A thread that moves commits from the write-ahead file into the database, beside the commits.

    SQLite would do that in the middle of a later commit, and all publishers would wait for it: tens of milliseconds,
    about once a second. When the thread has caught up but for the last moment, the writer moves that rest, so that
    SQLite starts the file from its front again. What cannot be done now is tried again later; nothing depends on it.
    """

    def __init__(self, file: Path, ledger: Ledger) -> None:
        self._file = file
        self._ledger = ledger
        self._committed = threading.Event()
        self._stopping = threading.Event()
        self._restart_due = False
        self._thread = threading.Thread(target=self._run, name="aviso-log-checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to look after the commits."""
        self._thread.start()

    def note_commit(self) -> None:
        """Hear of a commit; the writer calls this after each."""
        if not self._committed.is_set():
            self._committed.set()

    def restart(self, writing: sqlite3.Connection) -> None:
        """Move the rest, if it is small, over the connection that nobody else can write with meanwhile."""
        if self._restart_due:
            self._restart_due = False
            with contextlib.suppress(sqlite3.Error):
                writing.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def stop(self) -> None:
        """End the thread and wait for it. Blocks."""
        self._stopping.set()
        self._committed.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(connect(self._file)) as connection:
            while True:
                self._committed.wait()
                if self._stopping.wait(CHECKPOINT_SECONDS):
                    return
                if self._restart_due:  # the writer is about to do it
                    continue
                self._committed.clear()
                if self._stopping.is_set():  # it may be `stop` whose call was cleared
                    return
                self._force_ledger()
                with contextlib.suppress(sqlite3.Error):  # no room, say: the commits stay where they are
                    _, ahead, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self._restart_due = ahead >= _RESTART_PAGES

    def _force_ledger(self) -> None:
        try:
            self._ledger.force()
        except OSError as error:
            _logger.error(
                "the ledger of the log may not be on disk: %s", error, extra={"event": "backend.sqlite.ledger.failed"}
            )


def _failed(work: Sequence[Work], error: LogError) -> CommitOutcome:
    """Answer that nothing of this was stored."""
    return CommitOutcome({}, [], [(one.future, None) for one in work], sum([one.drafts for one in work]), error)
