"""Writing to a sqlite log: one thread, one form of transaction, group commit.

Everything that arrived while the last commit was on its way to the disk goes into the next one. The thread writes it,
forces it to disk, and then makes one call into the event loop, however many publishers wait for it.

Keys stand in the order of their times, so the oldest are found without an index. Each transaction that adds keys
removes a few more than it adds, if they are due. The key of a batch is one row: its name is shorter than the others,
and in the place of a sequence it has a blob with the sequences of all places.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from aviso_server.errors import KeyRefused, LogError, LogUnavailable
from aviso_server.log.base import (
    PATIENCE,
    Appended,
    Archived,
    BatchKey,
    Change,
    HeldBack,
    Key,
    Keyed,
    KeyPolicy,
    KnownBatch,
    KnownKey,
    Record,
    StoragePolicy,
    append_once,
    exceeded,
    has_limits,
    horizon,
    pack_places,
    unpack_places,
)
from aviso_server.log.sqlite.database import (
    Checkpoints,
    Entry,
    add_absent,
    as_log_error,
    create_stream,
    first_held,
    save_entry,
)
from aviso_server.log.sqlite.ledger import PACKED_BOX, Ledger, chain
from aviso_server.model.notification import Draft, Notification

__all__ = ["CommitOutcome", "StreamTables", "Work", "Writer", "load_records", "save_records"]

KEEP_ALL = StoragePolicy()
ROWS_PER_INSERT = 1024
# JSON is kept as text: SQLite joins text without copying it first. It also goes in as text, and a box as a bytearray:
# for bytes and None, but not for these, the sqlite3 module looks for an adapter, which takes longer than all else.
_PLAIN = ("size", "sums", "topic", "identifier", "payload")
_BOXED = (*_PLAIN, "box")
_STATEMENTS = 256  # texts that are remembered; the longest has some forty thousand characters
_HIGHEST = 2**63 - 1


_TABLE = """
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY,
    name BLOB NOT NULL UNIQUE,
    content BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    time INTEGER NOT NULL
)
"""
_AT_ONCE = 256  # rows of a statement
_TRIM_ROWS = 1000  # that leave in one transaction, besides twice as many as come


class StreamTable:
    """A stream inside one transaction. What it says becomes true with the commit, or is dropped with the rollback."""

    def __init__(self, connection: sqlite3.Connection, entry: Entry, policy: StoragePolicy, now: int) -> None:
        self._connection = connection
        self._entry = entry
        self.policy = policy
        self._table = entry.table
        self._time = max(now, entry.last_time)
        self._waiting: list[Notification] = []
        self._oldest_may_be_gone = False
        self.added: list[Notification] = []
        self.last = entry.last
        self.trimmed = entry.trimmed
        self.count = entry.count
        self.bytes = entry.bytes
        self.largest = entry.largest
        self.boxed = entry.boxed
        self._sums = entry.sums

    def add(self, draft: Draft) -> Notification:
        """Number a draft; `flush` brings it into the table."""
        self.last += 1
        notification = Notification(self.last, self._time, draft.topic, draft.identifier, draft.payload, draft.box)
        self._waiting.append(notification)
        return notification

    def add_all(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Number drafts that are all of this stream; `flush` brings them into the table."""
        time = self._time
        added = [
            Notification(sequence, time, draft.topic, draft.identifier, draft.payload, draft.box)
            for sequence, draft in enumerate(drafts, self.last + 1)
        ]
        self.last += len(added)
        self._waiting += added
        return added

    def flush(self) -> None:
        """Insert what was added and remove what the policy does not keep beside it."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._insert(waiting)
        self.added += waiting
        if self.policy.allow_duplicates is False:
            self._supersede(waiting[0].sequence)
        self.trim(self.policy)

    def trim(
        self, policy: StoragePolicy, archived: int = _HIGHEST, horizon: int | None = None, at_most: int = _HIGHEST
    ) -> bool:
        """Remove the oldest that the policy does not keep, as far as they are archived; True if more may be left.

        `archived` is the newest sequence that the archive holds, and what is older than `horizon` has expired.
        """
        keep = 0
        if horizon is not None:
            keep = self._after_expired(horizon, at_most)
        if policy.max_messages is not None and self.count > policy.max_messages:
            keep = max(keep, self._after_oldest(min(self.count - policy.max_messages, at_most)))
        if policy.max_bytes is not None and self.bytes > policy.max_bytes:
            keep = max(keep, self._after_bytes(self.bytes - policy.max_bytes, at_most))
        before = self.count
        if keep:
            self._remove_by_policy("sequence < ?", (min(keep, archived + 1),))
        return before - self.count >= at_most

    def trim_superseded(self, archived: int, since: int, at_most: int) -> bool:
        """Remove what a newer notification of its topic, at or after `since`, supersedes; else as `trim`."""
        before = self.count
        self._supersede(since, archived, at_most)
        return before - self.count >= at_most

    def advance(self, last: int) -> None:
        """Go on numbering after `last`: everything up to there was given out, and is to be found in the archive."""
        self.flush()
        if last > self.last:
            self.last = self.trimmed = last
            self._oldest_may_be_gone = True

    def keep_newest_per_topic(self) -> None:
        """Remove all but the newest notification of each topic."""
        self._remove_by_policy(f"sequence NOT IN (SELECT max(sequence) FROM {self._table} GROUP BY topic)", ())

    def remove(self, sequence: int) -> bool:
        """Remove one notification; False if it is not there."""
        self.flush()
        if not self._entry.first <= sequence <= self.last:
            return False
        row = self._connection.execute(f"SELECT size FROM {self._table} WHERE sequence = ?", (sequence,)).fetchone()
        if row is None:
            return False
        self._connection.execute(f"DELETE FROM {self._table} WHERE sequence = ?", (sequence,))
        add_absent(self._connection, self._entry.id, sequence, sequence)
        self.count -= 1
        self.bytes -= row[0]
        self._oldest_may_be_gone = True
        return True

    def wipe(self) -> int:
        """Remove all notifications and return how many there were."""
        self.flush()
        self._connection.execute(f"DELETE FROM {self._table}")
        self._connection.execute("DELETE FROM absent WHERE stream = ?", (self._entry.id,))
        add_absent(self._connection, self._entry.id, 1, self.last)
        removed, self.count, self.bytes = self.count, 0, 0
        self._oldest_may_be_gone = True
        return removed

    def save(self) -> Entry:
        """Write the stream's catalogue line and return it."""
        first = self._entry.first
        if self._oldest_may_be_gone:
            first = first_held(self._connection, self._table, self.last)
        elif self._entry.count == 0 and self.added:
            first = self.added[0].sequence
        time = self.added[-1].time if self.added else self._entry.last_time
        entry = Entry(
            self._entry.id, self._entry.name, first, self.last, time,
            self.trimmed, self.count, self.bytes, self.largest, self.boxed, self._entry.checked_from, self._sums,
        )  # fmt: skip
        save_entry(self._connection, entry)
        return entry

    def _insert(self, notifications: Sequence[Notification]) -> None:
        """Insert notifications whose sequences follow each other without a gap."""
        boxed = [one.box for one in notifications].count(None) < len(notifications)
        for start in range(0, len(notifications), ROWS_PER_INSERT):
            run = notifications[start : start + ROWS_PER_INSERT]
            topics = [one.topic for one in run]
            identifiers = [one.identifier for one in run]
            payloads = [one.payload for one in run]
            topic_sizes = map(len, topics if "".join(topics).isascii() else [topic.encode() for topic in topics])
            sizes = list(map(sum, zip(topic_sizes, map(len, identifiers), map(len, payloads), strict=True)))
            self.bytes += sum(sizes)
            self.largest = max(self.largest, *sizes)
            sums, self._sums = chain(self._sums, run)
            texts = map(bytes.decode, identifiers), map(bytes.decode, payloads)
            rows = zip(sizes, sums, topics, *texts, strict=True)
            values: list[object] = [run[0].sequence, self._time]
            if boxed:
                for row, one in zip(rows, run, strict=True):
                    values += row
                    values.append(None if one.box is None else bytearray(PACKED_BOX.pack(*one.box)))
            else:
                values += itertools.chain.from_iterable(rows)
            # Empty rows fill it up to a power of two, so that there are few different statements to prepare.
            statement, count = _insertion(self._table, 1 << (len(run) - 1).bit_length(), boxed)
            values += (0,) * (count - len(values))
            self._connection.execute(statement, values)
        self.count += len(notifications)
        self.boxed = self.boxed or boxed

    def _after_oldest(self, number: int) -> int:
        """Return the sequence after so many of the oldest."""
        row = self._connection.execute(
            f"SELECT sequence FROM {self._table} ORDER BY sequence LIMIT 1 OFFSET ?", (number,)
        ).fetchone()
        return self.last + 1 if row is None else int(row[0])

    def _after_bytes(self, excess: int, at_most: int) -> int:
        """Return the sequence after as many of the oldest as take up so many bytes."""
        keep = 0
        rows = self._connection.execute(
            f"SELECT sequence, size FROM {self._table} ORDER BY sequence LIMIT ?", (at_most,)
        )
        for sequence, size in rows:
            if excess <= 0:
                break
            excess -= size
            keep = sequence + 1
        rows.close()
        return keep

    def _after_expired(self, horizon: int, at_most: int) -> int:
        """Return the sequence after those of the oldest `at_most` stored before `horizon`; 0 if there are none."""
        newest: int | None = self._connection.execute(
            f"SELECT max(sequence) FROM (SELECT sequence, time FROM {self._table} ORDER BY sequence LIMIT ?) "
            "WHERE time < ?",
            (at_most, horizon),
        ).fetchone()[0]
        return 0 if newest is None else newest + 1

    def _supersede(self, since: int, through: int = _HIGHEST, at_most: int | None = None) -> None:
        some = "" if at_most is None else f" ORDER BY older.sequence LIMIT {at_most:d}"
        self._remove_by_policy(
            f"sequence IN (SELECT older.sequence FROM (SELECT topic, max(sequence) AS newest FROM {self._table} "
            f"NOT INDEXED WHERE sequence >= ? GROUP BY topic) AS fresh CROSS JOIN {self._table} AS older "
            f"ON older.topic = fresh.topic AND older.sequence < fresh.newest AND older.sequence <= ?{some})",
            (since, through),
        )

    def _remove_by_policy(self, which: str, values: tuple[int, ...]) -> None:
        newest, count, size = self._connection.execute(
            f"SELECT max(sequence), count(*), sum(size) FROM {self._table} WHERE {which}", values
        ).fetchone()
        if not count:
            return
        self._connection.execute(f"DELETE FROM {self._table} WHERE {which}", values)
        self.trimmed = max(self.trimmed, newest)
        self._connection.execute("DELETE FROM absent WHERE stream = ? AND last <= ?", (self._entry.id, self.trimmed))
        self.count -= count
        self.bytes -= size
        self._oldest_may_be_gone = True


@lru_cache(_STATEMENTS)
def _insertion(table: str, rows: int, boxed: bool) -> tuple[str, int]:
    """Build the statement that inserts up to so many rows, and count the values it takes; rows of size 0 are left out.

    All rows are in one statement: SQLite lets go of Python's lock several times per statement, and beside a busy event
    loop each time may cost milliseconds. Values are handed over under that lock, so what follows from the first two,
    the sequence of the first row and the time, is not given for each row.
    """
    columns = _BOXED if boxed else _PLAIN
    values = ",?" * len(columns)
    listed = ",".join([f"(?1+{place},?2{values})" for place in range(rows)])
    names = ", ".join(columns)
    return (
        f"INSERT INTO {table} (sequence, time, {names}) SELECT * FROM (VALUES {listed}) WHERE column3 > 0",
        2 + rows * len(columns),
    )


class StreamTables:
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
        self.keys: KeyTable | None = None  # if something has keys
        self.connection = connection
        self.touched: dict[str, StreamTable] = {}

    def of(self, stream: str) -> StreamTable:
        """Return the stream's table, made if it is new."""
        table = self.touched.get(stream)
        if table is None and (table := self.existing(stream)) is None:
            entry = create_stream(self._connection, stream)
            table = self._open(entry)
            self._index(entry)
        return table

    def add_all(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Number drafts, each in its stream."""
        if len(drafts) > 1 and len({draft.stream for draft in drafts}) == 1:
            return self.of(drafts[0].stream).add_all(drafts)
        return [self.of(draft.stream).add(draft) for draft in drafts]

    def add_once(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None
    ) -> list[Appended | KeyRefused] | KeyRefused:
        """Number what was not stored under its key before; return where each of them is."""
        assert self.keys is not None  # whoever has keys names them
        try:
            store = self.add_all
            new = append_once(
                entries, whole, self.keys, lambda drafts: [each.sequence for each in store(drafts)], batch
            )
            return list(new)
        except KeyRefused as error:
            return error

    def existing(self, stream: str) -> StreamTable | None:
        table = self.touched.get(stream)
        if table is None and (entry := self._entries.get(stream)) is not None:
            table = self._open(entry)
        return table

    def save(self) -> dict[str, Entry]:
        """Insert everything that waits and save the catalogue; the streams that were touched as they are now."""
        for table in self.touched.values():
            table.flush()
        return {name: table.save() for name, table in self.touched.items()}

    def added(self) -> list[tuple[str, Sequence[Notification]]]:
        return [(name, table.added) for name, table in self.touched.items() if table.added]

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


_RECORDS = """
CREATE TABLE IF NOT EXISTS records (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL
)
"""  # a revision that a removed record had is not given out again


def save_records(connection: sqlite3.Connection, changes: Sequence[Change]) -> list[int | None]:
    connection.execute(_RECORDS)
    revisions: list[int | None] = []
    for change in changes:
        found = connection.execute("SELECT revision FROM records WHERE key = ?", (change.key,)).fetchone()
        if (found[0] if found else 0) != change.expected:
            revisions.append(None)
            continue
        if found:
            connection.execute("DELETE FROM records WHERE revision = ?", found)
        if change.value:
            row = connection.execute("INSERT INTO records (key, value) VALUES (?, ?)", (change.key, change.value))
            revisions.append(row.lastrowid)
        else:
            revisions.append(change.expected)
    return revisions


def load_records(connection: sqlite3.Connection, prefix: str, after: int) -> list[Record]:
    """Load the records whose keys begin like this and whose revision is higher, in order of revisions."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone() is None:
        return []  # nobody has ever saved one
    rows = connection.execute(
        "SELECT key, revision, value FROM records WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision",
        (after, prefix, f"{prefix}~"),  # no key has a tilde, and whatever a key may have comes before it
    )
    return [Record(*row) for row in rows]


class KeyTable:
    """The keys while a transaction is open; `names` are those that are asked for in it."""

    def __init__(self, connection: sqlite3.Connection, names: Sequence[bytes], policy: KeyPolicy, now: int) -> None:
        self._connection = connection
        self._policy = policy
        self._now = now
        self._added: list[tuple[bytes, bytes, int | bytes]] = []  # name, content, and where it is
        connection.execute(_TABLE)
        self._known: dict[bytes, KnownKey] = {}
        self._batches: dict[bytes, KnownBatch] = {}
        for start in range(0, len(names), _AT_ONCE):
            run = names[start : start + _AT_ONCE]
            marks = ",".join("?" * _padded(len(run)))
            rows = connection.execute(
                f"SELECT name, content, sequence FROM keys WHERE time >= ? AND name IN ({marks})",
                [now - policy.retention_ns, *run, *[None] * (_padded(len(run)) - len(run))],
            )
            for name, content, place in rows:
                if isinstance(place, bytes):
                    self._batches[name] = KnownBatch(content, dict(unpack_places(place)))
                else:
                    self._known[name] = KnownKey(content, place)

    def get(self, name: bytes) -> KnownKey | None:
        return self._known.get(name)

    def add(self, key: Key, sequence: int) -> None:
        """Note what was stored just now; `save` brings it into the table."""
        self._known[key.name] = KnownKey(key.content, sequence)
        self._added.append((key.name, key.content, sequence))

    def get_batch(self, name: bytes) -> KnownBatch | None:
        return self._batches.get(name)

    def add_batch(self, name: bytes, known: KnownBatch) -> None:
        """Note what was stored just now, or some of it earlier; `save` brings it into the table."""
        self._batches[name] = known
        self._added.append((name, known.content, pack_places(known.sequences)))

    def save(self) -> None:
        """Write what was added, and remove the oldest if they are due."""
        if not self._added:
            return
        for start in range(0, len(self._added), _AT_ONCE):
            run = self._added[start : start + _AT_ONCE]
            values: list[object] = []
            for each in run:
                values += (*each, self._now)
            rows = _padded(len(run))
            values += (None,) * (4 * (rows - len(run)))
            # a key that was forgotten, but whose row is still there, is replaced
            self._connection.execute(
                "INSERT OR REPLACE INTO keys (name, content, sequence, time) "
                f"SELECT * FROM (VALUES {','.join(['(?,?,?,?)'] * rows)}) WHERE column1 IS NOT NULL",
                values,
            )
        self._trim(2 * len(self._added) + _TRIM_ROWS)

    def _trim(self, at_most: int) -> None:
        oldest, newest = self._connection.execute("SELECT min(number), max(number) FROM keys").fetchone()
        expired = self._connection.execute(
            "SELECT max(number) FROM (SELECT number, time FROM keys ORDER BY number LIMIT ?) WHERE time < ?",
            (at_most, self._now - self._policy.retention_ns),
        ).fetchone()[0]
        surplus = min(newest - self._policy.max_keys, oldest + at_most)
        last = max(surplus, oldest - 1 if expired is None else expired)
        if last >= oldest:
            self._connection.execute("DELETE FROM keys WHERE number <= ?", (last,))


def _padded(count: int) -> int:
    """Round up to a power of two, so that there are few different statements to prepare."""
    return 1 << (count - 1).bit_length()


class SqliteRetention:
    """Applies storage policies a little at a time, beside the publishers and never ahead of the archive.

    Without an archive all but the age is a matter of each commit.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        policies: Mapping[str, StoragePolicy],
        archived: Archived | None,
        patience: int,
    ) -> None:
        self._connection = connection
        if archived is None:
            policies = {name: StoragePolicy(retention_ns=policy.retention_ns) for name, policy in policies.items()}
        self._policies = {name: policy for name, policy in policies.items() if has_limits(policy)}
        self._archived: Archived = archived or (lambda _: _HIGHEST)
        self._patience = patience
        self._swept: dict[str, tuple[int, int]] = {}  # how far the archive and the stream were at the last sweep
        self._held_back = HeldBack("sqlite")

    @property
    def held_back(self) -> frozenset[str]:
        return self._held_back.streams

    @property
    def needed(self) -> bool:
        return bool(self._policies)

    def is_due(self, entry: Entry, now: int) -> bool:
        """Return whether there is something to remove; note whether the archive keeps it from being removed."""
        policy = self._policies.get(entry.name.lower(), KEEP_ALL)
        due = late = False
        if policy is not KEEP_ALL and entry.count:
            archived, oldest = self._archived(entry.name), horizon(policy, now)
            too_much = exceeded(policy, entry.count, entry.bytes)
            if too_much or oldest is not None:
                found = f"SELECT sequence, time FROM {entry.table} ORDER BY sequence LIMIT 1"
                for sequence, time in self._connection.execute(found).fetchall():  # none if the table is damaged
                    beyond = too_much or (oldest is not None and time < oldest)
                    due = beyond and sequence <= archived
                    late = beyond and not due and now - time > self._patience
            if policy.allow_duplicates is False and archived:
                due = due or self._swept.get(entry.name) != (archived, entry.last)
        self._held_back.note(entry.name, late)
        return due

    def trim(self, table: StreamTable, name: str, now: int, at_most: int) -> bool:
        """Remove some of what is due, within a transaction; True if more may be left."""
        policy, archived = self._policies[name.lower()], self._archived(name)
        if table.trim(policy, archived, horizon(policy, now), at_most):
            return True
        if policy.allow_duplicates is False:
            since = self._swept.get(name, (0, 0))[0] + 1
            if table.trim_superseded(archived, since, at_most):
                return True
            self._swept[name] = (archived, table.last)
        return False


TRIM_SECONDS = 1.0
TRIM_ROWS = 20_000  # removed at most in one transaction, so that publishers never wait long

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
            table.trim(table.policy)


def _failed(work: Sequence[Work], error: LogError) -> CommitOutcome:
    """Answer that nothing of this was stored."""
    return CommitOutcome({}, [], [(one.future, None) for one in work], sum([one.drafts for one in work]), error)
