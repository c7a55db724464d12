"""One stream's table while a transaction is open: adding, removing, and the limits of its storage policy."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import msgspec

from aviso_server.log.base import StoragePolicy, StreamState
from aviso_server.model.notification import Draft, Notification

__all__ = [
    "KEEP_ALL",
    "PACKED_BOX",
    "ROWS_PER_INSERT",
    "SEPARATOR",
    "Entry",
    "StreamTable",
    "create_stream",
    "first_held",
    "load_entries",
    "save_entry",
]

KEEP_ALL = StoragePolicy()
PACKED_BOX = struct.Struct("<4d")
ROWS_PER_INSERT = 1024
SEPARATOR = "\x1f"  # between values that SQLite joins: JSON cannot contain it
# JSON is kept as text: SQLite joins text without copying it first. It also goes in as text, and a box as a bytearray:
# for bytes and None, but not for these, the sqlite3 module looks for an adapter, which takes longer than all else.
_PLAIN = ("size", "topic", "identifier", "payload")
_BOXED = (*_PLAIN, "min_lat", "min_lon", "max_lat", "max_lon", "box")
_NO_BOX = (None,) * 5
_STATEMENTS = 256  # texts that are remembered; the longest has some forty thousand characters
_HIGHEST = 2**63 - 1


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stream's line in the catalogue, plus the oldest sequence it holds."""

    id: int
    name: str
    first: int
    last: int
    last_time: int
    trimmed: int
    count: int
    bytes: int
    largest: int  # the biggest notification it ever held: bounds the memory one read may take
    boxed: bool  # it ever held a notification with a box

    @property
    def table(self) -> str:
        """The name of the stream's table."""
        return f"stream_{self.id:d}"

    def state(self) -> StreamState:
        """What the stream holds, as the log shows it."""
        return StreamState(self.first, self.last, self.count, self.bytes, self.trimmed)


def load_entries(connection: sqlite3.Connection) -> dict[str, Entry]:
    """All streams of the database by name.

    The catalogue may be behind: rows that were only added since it was last saved are counted here.
    """
    entries = {}
    rows = connection.execute(
        "SELECT id, name, last_sequence, last_time, trimmed, count, bytes, largest, boxed FROM catalogue"
    )
    for number, name, last, last_time, trimmed, count, size, largest, boxed in rows.fetchall():
        table = f"stream_{number:d}"
        newest, newest_time, more, more_bytes, more_largest, more_boxed = connection.execute(
            "SELECT ifnull(max(sequence), 0), ifnull(max(time), 0), count(*), ifnull(sum(size), 0), "
            f"ifnull(max(size), 0), ifnull(max(box IS NOT NULL), 0) FROM {table} WHERE sequence > ?",
            (last,),
        ).fetchone()
        last, last_time = max(last, newest), max(last_time, newest_time)
        largest, boxed = max(largest, more_largest), bool(boxed or more_boxed)
        first = first_held(connection, table, last)
        entries[name] = Entry(
            number, name, first, last, last_time, trimmed, count + more, size + more_bytes, largest, boxed
        )
    return entries


def save_entry(connection: sqlite3.Connection, entry: Entry) -> None:
    """Write a stream's line of the catalogue."""
    connection.execute(
        "UPDATE catalogue SET last_sequence = ?, last_time = ?, trimmed = ?, count = ?, bytes = ?, largest = ?, "
        "boxed = ? WHERE id = ?",
        (entry.last, entry.last_time, entry.trimmed, entry.count, entry.bytes, entry.largest, entry.boxed, entry.id),
    )


def first_held(connection: sqlite3.Connection, table: str, last: int) -> int:
    """The oldest sequence in the table, or last + 1 if it is empty."""
    first: int | None = connection.execute(f"SELECT min(sequence) FROM {table}").fetchone()[0]
    return last + 1 if first is None else first


def create_stream(connection: sqlite3.Connection, name: str) -> Entry:
    """Make the table and the catalogue line of a new stream."""
    number = connection.execute(
        "INSERT INTO catalogue (name, last_sequence, last_time, trimmed, count, bytes, largest, boxed) "
        "VALUES (?, 0, 0, 0, 0, 0, 0, 0)",
        (name,),
    ).lastrowid
    assert number is not None  # an INSERT that did not raise has a row id
    # Small columns first: tests on them need not walk the overflow pages of a large payload.
    connection.execute(
        f"CREATE TABLE stream_{number:d} (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, size INTEGER NOT NULL, "
        "min_lat REAL, min_lon REAL, max_lat REAL, max_lon REAL, box BLOB, "
        "topic TEXT NOT NULL, identifier TEXT NOT NULL, payload TEXT NOT NULL)"
    )
    return Entry(number, name, 1, 0, 0, 0, 0, 0, 0, False)


class StreamTable:
    """A stream inside one transaction. What it says becomes true with the commit, or is dropped with the rollback."""

    def __init__(self, connection: sqlite3.Connection, entry: Entry, policy: StoragePolicy, now: int) -> None:
        self._connection = connection
        self._entry = entry
        self._policy = policy
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
        if self._policy.allow_duplicates is False:
            self._supersede(waiting[0].sequence)
        self.apply_limits()

    def apply_limits(self) -> None:
        """Remove the oldest until the policy's count and size are kept."""
        if self._policy.max_messages is not None and self.count > self._policy.max_messages:
            self._trim_below(self._after_oldest(self.count - self._policy.max_messages))
        if self._policy.max_bytes is not None and self.bytes > self._policy.max_bytes:
            self._trim_below(self._after_bytes(self.bytes - self._policy.max_bytes))

    def expire(self, horizon: int, at_most: int) -> bool:
        """Remove the oldest stored before `horizon`, `at_most` of them at a time; True if more are left."""
        before = self.count
        self._trim_below(self._after_expired(horizon, at_most))
        return before - self.count == at_most

    def let_go(self, policy: StoragePolicy, archived: int, horizon: int | None, at_most: int) -> bool:
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
        self._trim_below(min(keep, archived + 1))
        return before - self.count >= at_most

    def let_go_of_superseded(self, archived: int, since: int, at_most: int) -> bool:
        """Remove what a newer notification of its topic, at or after `since`, has superseded; else as `let_go`."""
        before = self.count
        self._supersede(since, archived, at_most)
        return before - self.count >= at_most

    def advance(self, last: int) -> None:
        """Go on numbering after `last`: everything up to there was given out, and is to be found in the archive."""
        if last > self.last:
            self.last = self.trimmed = last
            self._oldest_may_be_gone = True

    def keep_newest_per_topic(self) -> None:
        """Remove all but the newest notification of each topic."""
        self._remove_by_policy(f"sequence NOT IN (SELECT max(sequence) FROM {self._table} GROUP BY topic)", ())

    def remove(self, sequence: int) -> bool:
        """Remove one notification; False if it is not there."""
        if not self._entry.first <= sequence <= self.last:
            return False
        row = self._connection.execute(f"SELECT size FROM {self._table} WHERE sequence = ?", (sequence,)).fetchone()
        if row is None:
            return False
        self._connection.execute(f"DELETE FROM {self._table} WHERE sequence = ?", (sequence,))
        self.count -= 1
        self.bytes -= row[0]
        self._oldest_may_be_gone = True
        return True

    def wipe(self) -> int:
        """Remove all notifications and return how many there were."""
        self._connection.execute(f"DELETE FROM {self._table}")
        removed, self.count, self.bytes = self.count, 0, 0
        self._oldest_may_be_gone = True
        return removed

    @staticmethod
    def only_grows(policy: StoragePolicy) -> bool:
        """True if adding to a stream with this policy never removes anything from it."""
        return policy.max_messages is None and policy.max_bytes is None and policy.allow_duplicates is not False

    def entry(self) -> Entry:
        """The stream's catalogue line as it is now."""
        first = self._entry.first
        if self._oldest_may_be_gone:
            first = first_held(self._connection, self._table, self.last)
        elif self._entry.count == 0 and self.added:
            first = self.added[0].sequence
        time = self.added[-1].time if self.added else self._entry.last_time
        return Entry(
            self._entry.id, self._entry.name, first, self.last, time,
            self.trimmed, self.count, self.bytes, self.largest, self.boxed,
        )  # fmt: skip

    def save(self) -> Entry:
        """Write the stream's catalogue line and return it."""
        entry = self.entry()
        save_entry(self._connection, entry)
        return entry

    def _insert(self, notifications: Sequence[Notification]) -> None:
        """Insert notifications whose sequences follow each other without a gap."""
        boxed = any(one.box is not None for one in notifications)
        for start in range(0, len(notifications), ROWS_PER_INSERT):
            run = notifications[start : start + ROWS_PER_INSERT]
            topics = [one.topic for one in run]
            identifiers = [one.identifier for one in run]
            payloads = [one.payload for one in run]
            topic_sizes = map(len, topics if "".join(topics).isascii() else [topic.encode() for topic in topics])
            sizes = list(map(sum, zip(topic_sizes, map(len, identifiers), map(len, payloads), strict=True)))
            self.bytes += sum(sizes)
            self.largest = max(self.largest, *sizes)
            rows = zip(sizes, topics, map(bytes.decode, identifiers), map(bytes.decode, payloads), strict=True)
            values: list[object] = [run[0].sequence, self._time]
            if boxed:
                for row, one in zip(rows, run, strict=True):
                    values += row
                    values += _NO_BOX if one.box is None else (*one.box, bytearray(PACKED_BOX.pack(*one.box)))
            else:
                values += chain.from_iterable(rows)
            # Empty rows fill it up to a power of two, so that there are few different statements to prepare.
            statement, count = _insertion(self._table, 1 << (len(run) - 1).bit_length(), boxed)
            values += (0,) * (count - len(values))
            self._connection.execute(statement, values)
        self.count += len(notifications)
        self.boxed = self.boxed or boxed

    def _after_oldest(self, number: int) -> int:
        """The sequence after so many of the oldest."""
        row = self._connection.execute(
            f"SELECT sequence FROM {self._table} ORDER BY sequence LIMIT 1 OFFSET ?", (number,)
        ).fetchone()
        return self.last + 1 if row is None else int(row[0])

    def _after_bytes(self, excess: int, at_most: int = -1) -> int:
        """The sequence after as many of the oldest as take up so many bytes."""
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
        """The sequence after those of the oldest `at_most` that were stored before `horizon`; 0 if there are none."""
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

    def _trim_below(self, sequence: int) -> None:
        self._remove_by_policy("sequence < ?", (sequence,))

    def _remove_by_policy(self, which: str, values: tuple[int, ...]) -> None:
        newest, count, size = self._connection.execute(
            f"SELECT max(sequence), count(*), sum(size) FROM {self._table} WHERE {which}", values
        ).fetchone()
        if not count:
            return
        self._connection.execute(f"DELETE FROM {self._table} WHERE {which}", values)
        self.trimmed = max(self.trimmed, newest)
        self.count -= count
        self.bytes -= size
        self._oldest_may_be_gone = True


@lru_cache(_STATEMENTS)
def _insertion(table: str, rows: int, boxed: bool) -> tuple[str, int]:
    """The statement that inserts up to so many rows, and how many values it takes; rows of size 0 are left out.

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
