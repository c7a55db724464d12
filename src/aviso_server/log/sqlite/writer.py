"""Writing to a sqlite log, with group commit.

Everything that arrived while the last commit was on its way to the disk goes into the next one. A small commit is
written by the event loop itself, which also waits for the disk as long as that is quick. All else is for a thread. It
then makes one call into the event loop, however many publishers wait for it.
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
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import KeyPolicy, StoragePolicy
from aviso_server.log.retention import PATIENCE, Archived
from aviso_server.log.sqlite.checkpoints import Checkpoints
from aviso_server.log.sqlite.files import as_log_error
from aviso_server.log.sqlite.keys import KeyedAppend, KeyTable
from aviso_server.log.sqlite.retention import ArchivedRetention
from aviso_server.log.sqlite.stream import KEEP_ALL, ROWS_PER_INSERT, Entry, StreamTable, create_stream, save_entry
from aviso_server.log.sqlite.work import Advance, Append, Outcome, Remove, Work, drafts_of, failed, is_small
from aviso_server.model.notification import Draft, Notification

__all__ = ["Writer"]

TRIM_SECONDS = 1.0
TRIM_ROWS = 20_000  # at most so many leave in one transaction, so that publishers never wait long
SLOW_COMMIT = 0.005  # seconds that a small commit should not take
CAUTION = 1.0  # seconds for which the event loop does not wait for the disk after a slow one
UNSAVED_ROWS = 20_000  # the catalogue may be behind by, to be counted again after a crash

_logger = logging.getLogger(__name__)


class Writer:
    """Owns the writing connection and the thread that uses it."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        entries: Mapping[str, Entry],
        policies: Mapping[str, StoragePolicy],
        clock: Callable[[], int],
        deliver: Callable[[Sequence[Outcome]], None],
        keys: KeyPolicy,
        archived: Archived | None = None,
        patience: int = PATIENCE,
        checkpoints: Checkpoints | None = None,
        force: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._entries = dict(entries)
        self._saved = {stream: entry.last for stream, entry in entries.items()}  # up to where the catalogue goes
        self._policies = {stream.lower(): policy for stream, policy in policies.items()}
        self._retention: ArchivedRetention | None = None
        self._retains = any(policy.retention_ns is not None for policy in policies.values())
        if archived is not None:
            self._retention = ArchivedRetention(connection, self._policies, archived, patience)
            self._retains = self._retention.needed
        self._clock = clock
        self._deliver = deliver
        self._force = force  # all that was committed to disk; OSError if it may not be there
        self._checkpoints = checkpoints
        self._queue: queue.SimpleQueue[Sequence[Work] | _Written | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="aviso-log-writer", daemon=True)
        self._writing = threading.Lock()  # whoever uses the connection
        self._slow_until = 0.0
        self._number = 0  # of the newest transaction
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

    def write_now(self, work: Sequence[Work]) -> Sequence[Outcome] | None:
        """Write this in the thread of the caller, if that takes no longer than to hand it over and to be told.

        None if it would, or if the connection is in use: then `put` is the way, and nothing is done yet. Nothing that
        was put before may still be waiting. No outcomes if the disk was slow lately: then they come later, as those of
        `put` do, and it is only the thread that waits for the disk.
        """
        began = time.monotonic()
        if self.failing or not is_small(work) or not self._is_one_insert(work):
            return None
        if not self._writing.acquire(blocking=False):
            return None
        try:
            outcomes: Sequence[Outcome] = self._outcomes(work)
            if began < self._slow_until:
                self._queue.put(_Written(outcomes))
                return ()
            outcomes = self._on_disk(outcomes)
        finally:
            self._writing.release()
        ended = time.monotonic()
        if ended - began > SLOW_COMMIT:
            self._slow_until = ended + CAUTION
        if self._checkpoints is not None:
            self._checkpoints.note_commit()
            if self._checkpoints.rest_is_small:
                self._queue.put(())  # the thread does it
        return outcomes

    def stop(self) -> None:
        """Finish all work handed over before, then end the thread and wait for it. Blocks."""
        self._queue.put(None)
        self._thread.join()
        # If this fails, the next start counts what is missing.
        with contextlib.suppress(sqlite3.Error):
            self._save_catalogue()

    def _save_catalogue(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for entry in self._entries.values():
            save_entry(self._connection, entry)
        self._connection.execute("COMMIT")

    def _run(self) -> None:
        due = time.monotonic() + TRIM_SECONDS
        stopping = False
        while not stopping:
            work: list[Work] = []
            try:
                wait = max(0.0, due - time.monotonic()) if self._retains or self.failing else None
                batches = [self._queue.get(timeout=wait)]
                batches += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            except queue.Empty:
                batches = []
            outcomes: list[Outcome] = []
            for batch in batches:
                if batch is None:
                    stopping = True
                elif isinstance(batch, _Written):
                    outcomes += batch.outcomes
                else:
                    work += batch
            if work:
                with self._writing:
                    outcomes += self._outcomes(work)
            if outcomes:
                self._deliver(self._on_disk(outcomes))
                if self._checkpoints is not None:
                    self._checkpoints.note_commit()
            if self._checkpoints is not None and self._checkpoints.rest_is_small:
                with self._writing:
                    self._checkpoints.finish(self._connection)
            if not stopping and (self._retains or self.failing) and time.monotonic() >= due:
                with self._writing:
                    more = self._tidy()
                due = time.monotonic() + (0.0 if more else TRIM_SECONDS)

    def _on_disk(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """The outcomes once they are on disk, or that they may not be.

        What a disk has failed to take is gone from memory too, so trying again would say nothing. Nothing more is
        stored then: only a new start finds out what is there.
        """
        try:
            self._force()
        except OSError as error:
            self._broken = LogUnavailable(f"the log's disk has failed, nothing is stored until a restart: {error}")
            self.failing = True
            _logger.error(
                "what was published may not be on disk, publishing is refused until the server is started again: %s",
                error,
                extra={"event": "backend.sqlite.disk.failed"},
            )
        if self._broken is None:
            return outcomes
        return [Outcome({}, [], each.answers, each.drafts, self._broken) for each in outcomes]

    def _outcomes(self, work: Sequence[Work]) -> list[Outcome]:
        if self._broken is not None:
            return [failed(work, self._broken)]
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        try:
            changed, added = self._transact(lambda tables: self._do(tables, work, answers), self._is_one_insert(work))
        except (sqlite3.OperationalError, OSError, MemoryError) as error:
            return [failed(work, as_log_error(error, "writing"))]
        except Exception as error:  # whatever it is, publishers must get an answer
            if len(work) > 1:
                # One of them cannot be stored at all: find it, and let the others through.
                return [outcome for one in work for outcome in self._outcomes([one])]
            if isinstance(error, sqlite3.DatabaseError):
                return [failed(work, as_log_error(error, "writing"))]
            return [failed(work, LogError(f"this cannot be stored: {error}"))]
        return [Outcome(changed, added, answers, drafts_of(work), number=self._number)]

    def _do(self, tables: _Tables, work: Sequence[Work], answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        answers.clear()
        keys: KeyTable | None = None
        for one in work:
            if isinstance(one, Append):
                stored = tables.add_all(one.drafts)
                answers.append((one.future, stored[0] if one.single else stored))
                continue
            if isinstance(one, KeyedAppend):
                if keys is None:
                    keyed = [each for each in work if isinstance(each, KeyedAppend)]
                    keys = KeyTable(self._connection, keyed, self._keys, self._clock())
                answer = keys.append(one, lambda drafts: [each.sequence for each in tables.add_all(drafts)])
                answers.append((one.future, answer))
                continue
            tables.flush()
            if isinstance(one, Advance):
                tables.of(one.stream).advance(one.last)
                answers.append((one.future, None))
                continue
            table = tables.existing(one.stream)
            if isinstance(one, Remove):
                answers.append((one.future, table is not None and table.remove(one.sequence)))
            else:
                answers.append((one.future, None if table is None else table.wipe()))
        if keys is not None:
            keys.save()

    def _is_one_insert(self, work: Sequence[Work]) -> bool:
        """True if all of this is rows for one table and leaves everything else alone."""
        streams: set[str] = set()
        rows = 0
        for one in work:
            if not isinstance(one, Append):
                return False
            rows += len(one.drafts)
            streams.update([draft.stream for draft in one.drafts])
        if rows > ROWS_PER_INSERT or len(streams) != 1:
            return False
        (stream,) = streams
        entry = self._entries.get(stream)
        if entry is None or entry.last - self._saved.get(stream, 0) >= UNSAVED_ROWS:
            return False
        policy = KEEP_ALL if self._retention is not None else self._policies.get(stream.lower(), KEEP_ALL)
        return StreamTable.only_grows(policy)

    def _transact(
        self, change: Callable[[_Tables], None], one_insert: bool = False
    ) -> tuple[dict[str, Entry], list[tuple[str, Sequence[Notification]]]]:
        tables = _Tables(self._connection, self._entries, self._policies, self._clock(), trims=self._retention is None)
        try:
            if one_insert:
                # A statement by itself is a transaction: three statements fewer, for each of which this thread would
                # have to wait for a busy event loop several times. The catalogue is saved later. What it lacks can be
                # counted, since rows leave only in transactions that save it.
                change(tables)
                tables.flush()
                changed = {name: table.entry() for name, table in tables.touched.items()}
            else:
                self._connection.execute("BEGIN IMMEDIATE")
                change(tables)
                tables.flush()
                changed = {name: table.save() for name, table in tables.touched.items()}
                self._connection.execute("COMMIT")
                self._saved.update({name: entry.last for name, entry in changed.items()})
        except BaseException as error:
            self._roll_back()
            if isinstance(error, (sqlite3.OperationalError, OSError)):
                self._note_failure(error)
            raise
        if self.failing:
            self.failing = False
            _logger.warning("the log can be written again", extra={"event": "backend.sqlite.write.recovered"})
        self._entries.update(changed)
        self._number += 1
        return changed, [(name, table.added) for name, table in tables.touched.items() if table.added]

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
            self._queue.put(())  # the thread tries from now on whether it can be written again
            _logger.error(
                "the log cannot be written, publishing is refused until it can: %s",
                error,
                extra={"event": "backend.sqlite.write.failed"},
            )

    def _tidy(self) -> bool:
        if self._broken is not None:
            return False
        before = dict(self._entries)
        more = False
        try:
            if self.failing:
                self._transact(_Tables.probe)
            more = self._trim()
        except Exception as error:  # the thread must live on: publishers wait for it
            self._note_failure(error)
        changed = {name: entry for name, entry in self._entries.items() if before.get(name) is not entry}
        if changed:
            self._queue.put(_Written([Outcome(changed, [], [], number=self._number)]))  # after what was written before
        return more

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that hold more than their policy says, because the archive does not have it yet."""
        return frozenset() if self._retention is None else self._retention.held_back

    def _trim_archived(self, retention: ArchivedRetention) -> bool:
        now = self._clock()
        more: list[bool] = []
        for name in list(self._entries):
            if retention.is_due(self._entries[name], now):

                def let_go(tables: _Tables, name: str = name) -> None:
                    more.append(retention.let_go(tables.of(name), name, now, TRIM_ROWS))

                self._transact(let_go)
        return any(more)

    def _trim(self) -> bool:
        if self._retention is not None:
            return self._trim_archived(self._retention)
        now = self._clock()
        more = False
        for name, entry in list(self._entries.items()):
            retention = self._policies.get(name.lower(), KEEP_ALL).retention_ns
            if retention is None or not entry.count:
                continue
            horizon = now - retention
            oldest = self._connection.execute(f"SELECT time FROM {entry.table} ORDER BY sequence LIMIT 1").fetchone()
            if oldest is not None and oldest[0] < horizon:
                left: list[bool] = []

                def expire(tables: _Tables, name: str = name, horizon: int = horizon, left: list[bool] = left) -> None:
                    left.append(tables.of(name).expire(horizon, TRIM_ROWS))

                self._transact(expire)
                more = more or any(left)
        return more

    def _conform(self, tables: _Tables) -> None:
        for name in self._entries:
            table = tables.of(name)
            if tables.conform_index(name) and self._retention is None:
                table.keep_newest_per_topic()
            table.apply_limits()


class _Written(msgspec.Struct, frozen=True, gc=False):
    """What was written, to be forced to disk."""

    outcomes: Sequence[Outcome]


class _Tables:
    """The streams one transaction touches."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        entries: Mapping[str, Entry],
        policies: Mapping[str, StoragePolicy],
        now: int,
        trims: bool,
    ) -> None:
        self._connection = connection
        self._entries = entries
        self._policies = policies
        self._now = now
        self._trims = trims  # while something is added; else that is done beside
        self.touched: dict[str, StreamTable] = {}

    def of(self, stream: str) -> StreamTable:
        """The stream's table, made if it is new."""
        table = self.touched.get(stream) or self.existing(stream)
        if table is None:
            entry = create_stream(self._connection, stream)
            table = self._open(entry)
            self._index(entry)
        return table

    def add_all(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Number drafts, each in its stream."""
        streams = {draft.stream for draft in drafts}
        if len(streams) == 1:
            return self.of(streams.pop()).add_all(drafts)
        return [self.of(draft.stream).add(draft) for draft in drafts]

    def existing(self, stream: str) -> StreamTable | None:
        """The stream's table, or None if it has none."""
        table = self.touched.get(stream)
        if table is None and (entry := self._entries.get(stream)) is not None:
            table = self._open(entry)
        return table

    def flush(self) -> None:
        """Insert everything that waits."""
        for table in self.touched.values():
            table.flush()

    def probe(self) -> None:
        """Write a little and leave nothing: finds out whether there is room again."""
        self._connection.execute("CREATE TABLE probe (room INTEGER)")
        self._connection.execute("DROP TABLE probe")

    def conform_index(self, stream: str) -> bool:
        """Make or drop the index on topics as the policy needs it; True if it was made."""
        entry = self._entries[stream]
        has = self._connection.execute(
            "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?", (f"{entry.table}_topic",)
        ).fetchone()
        wanted = self._policy(stream).allow_duplicates is False
        if has and not wanted:
            self._connection.execute(f"DROP INDEX {entry.table}_topic")
        return wanted and not has and self._index(entry)

    def _policy(self, stream: str) -> StoragePolicy:
        return self._policies.get(stream.lower(), KEEP_ALL)

    def _open(self, entry: Entry) -> StreamTable:
        policy = self._policy(entry.name) if self._trims else KEEP_ALL
        table = self.touched[entry.name] = StreamTable(self._connection, entry, policy, self._now)
        return table

    def _index(self, entry: Entry) -> bool:
        if self._policy(entry.name).allow_duplicates is not False:
            return False
        self._connection.execute(f"CREATE INDEX {entry.table}_topic ON {entry.table} (topic)")
        return True
