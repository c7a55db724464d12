"""Reading a sqlite log: its own connections, its own threads, never in the way of the writer.

A batch is fetched as one row. SQLite joins all its values with a separator that JSON cannot contain, and
Python takes them apart again. Stepping row by row would let go of Python's lock for each row, and beside a busy event
loop that is hundreds of times slower.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from aviso_server.log.base import Batch
from aviso_server.log.sqlite.files import as_log_error, connect
from aviso_server.log.sqlite.stream import PACKED_BOX, SEPARATOR, Entry
from aviso_server.model.notification import Box, Notification

__all__ = ["Reader", "handy_batch"]

THREADS = 4
BATCH_BYTES = 16 * 1024 * 1024  # no batch takes more memory than about this, unless it is one large notification
HANDY_BYTES = 1024 * 1024  # what batches have that are sent as they are, if notifications are of similar size
SCAN_SEQUENCES = 65_536  # with a box, one read looks at so many sequences at most

T = TypeVar("T")

_IDENTIFIERS, _PAYLOADS, _TIMES, _SEQUENCES = (
    f"group_concat({name}, '{SEPARATOR}') || '{SEPARATOR}'" for name in ("identifier", "payload", "time", "sequence")
)
_JOINED_TOPICS = f", group_concat(topic, '{SEPARATOR}')"
_JOINED_BOXES = f", group_concat(ifnull(hex(box), ''), '{SEPARATOR}')"
_COLUMNS = "sequence, time, topic, identifier, payload"
_OVERLAPS = "AND min_lat <= ? AND max_lat >= ? AND min_lon <= ? AND max_lon >= ?"


class Reader:
    """A few threads with a connection each."""

    def __init__(self, file: Path) -> None:
        import aviso_server.log.sqlite.columns  # noqa: F401  # now, so that the first read need not wait for it

        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="aviso-log-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def read(self, entry: Entry, start: int, end: int, limit: int, box: Box | None) -> tuple[Batch, int]:
        """Up to `limit` notifications of start..end, which must lie within what the stream holds.

        Also the newest sequence that retention had removed at the moment of the read.
        """
        return await self._ask(lambda connection: _read(connection, entry, start, end, limit, box))

    async def call(self, work: Callable[[], None]) -> None:
        """Call `work` in one of the threads."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def read_here(self, entry: Entry, start: int, end: int, limit: int, topics: bool) -> tuple[Batch, int]:
        """What `read` answers, in this thread, which must be one of those of `call`; topics may be left empty."""
        return self._answer(lambda connection: _read(connection, entry, start, end, limit, None, topics))

    async def first_from(self, entry: Entry, time: int) -> int:
        """The lowest held sequence stored at or after `time`; last + 1 if there is none."""
        return await self._ask(lambda connection: _first_from(connection, entry, time))

    async def last_before(self, entry: Entry, time: int) -> int:
        """The highest held sequence stored before `time`; first - 1 if there is none."""
        return await self._ask(lambda connection: _last_before(connection, entry, time))

    def close(self) -> None:
        """Wait for running reads and let go of the connections. Blocks."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    async def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, ask)

    def _answer(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = connect(self._file)
                self._connections.append(connection)
                connection.execute("PRAGMA query_only=ON")
                self._local.connection = connection
            connection.execute("BEGIN")
            try:
                return ask(connection)
            finally:
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise as_log_error(error, "reading") from error


def handy_batch(entry: Entry) -> int:
    """How many notifications of a stream make a batch of a handy size."""
    average = entry.bytes // max(entry.count, 1)
    return max(1, min(_at_once(entry), HANDY_BYTES // max(average, 1)))


def _at_once(entry: Entry) -> int:
    """How many notifications of a stream fit into a batch."""
    return max(1, BATCH_BYTES // max(entry.largest, 1))


def _read(
    connection: sqlite3.Connection,
    entry: Entry,
    start: int,
    end: int,
    limit: int,
    box: Box | None = None,
    topics: bool = True,
) -> tuple[Batch, int]:
    values: list[float]
    limit = min(limit, _at_once(entry))
    gapless = box is None and entry.count == entry.last - entry.first + 1
    if gapless:
        # Without gaps the range itself is the limit.
        end = min(end, start + limit - 1)
        source, values = f"{entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ?", [start, end]
    else:
        overlaps = ""
        values = [start, end]
        if box is not None:
            values[1] = end = min(end, start + SCAN_SEQUENCES - 1)
            overlaps = _OVERLAPS
            values += [box.max_lat, box.min_lat, box.max_lon, box.min_lon]
        columns = f"{_COLUMNS}, box" if entry.boxed else _COLUMNS
        source = (
            f"(SELECT {columns} FROM {entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ? {overlaps} "
            "ORDER BY sequence LIMIT ?)"
        )
        values.append(limit)
    more = (_JOINED_TOPICS if topics else ", NULL") + (_JOINED_BOXES if entry.boxed else "")
    more += f", (SELECT trimmed FROM catalogue WHERE id = {entry.id:d}) FROM {source}"
    row: list[Any] = [0]
    if gapless:
        time = _one_time(connection, entry, start, end)
        columns = f"{_IDENTIFIERS} || {_PAYLOADS}" + (f" || {_TIMES}" if time is None else "")
        statement = f"SELECT count(*), CAST({columns} AS BLOB), ?, 0{more}"
        *row, removed = connection.execute(statement, [time, *values]).fetchone()
    if row[0] != end - start + 1:  # it has gaps, perhaps only by now: sequences have to be read too
        columns = f"{_IDENTIFIERS} || {_PAYLOADS} || {_TIMES} || {_SEQUENCES}"
        statement = f"SELECT count(*), CAST({columns} AS BLOB), NULL, 1{more}"
        *row, removed = connection.execute(statement, values).fetchone()
    if row[0] == 0:
        return Batch((), end + 1), removed
    from aviso_server.log.sqlite.columns import apart  # brings Arrow, which is large: only servers wait for it

    run = apart(start, *row)
    if run is not None:
        return Batch(run, run.last + 1 if len(run) == limit else end + 1), removed
    notifications = _one_by_one(connection, entry, source, values)
    return Batch(notifications, notifications[-1].sequence + 1 if len(notifications) == limit else end + 1), removed


def _one_time(connection: sqlite3.Connection, entry: Entry, start: int, end: int) -> int | None:
    """When all from `start` to `end` were stored, if that was at one time: it need not be read for each of them."""
    # Times never fall as sequences rise, so the ends of the range tell.
    statement = f"SELECT min(time), max(time) FROM {entry.table} WHERE sequence IN (?, ?)"
    first, last = connection.execute(statement, (start, end)).fetchone()
    return first if first == last else None


def _one_by_one(connection: sqlite3.Connection, entry: Entry, source: str, values: list[float]) -> list[Notification]:
    columns = "sequence, time, topic, CAST(identifier AS BLOB), CAST(payload AS BLOB)"
    columns += ", box" if entry.boxed else ", NULL"
    rows = connection.execute(f"SELECT {columns} FROM {source} ORDER BY sequence", values).fetchall()
    return [
        Notification(sequence, time, topic, identifier, payload, packed and Box(*PACKED_BOX.unpack(packed)))
        for sequence, time, topic, identifier, payload, packed in rows
    ]


def _first_from(connection: sqlite3.Connection, entry: Entry, time: int) -> int:
    # Times never fall as sequences rise, so halving the range finds the place without an index on time.
    low, high = entry.first, entry.last + 1
    found = entry.last + 1
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            f"SELECT sequence, time FROM {entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ? "
            "ORDER BY sequence LIMIT 1",
            (middle, entry.last),
        ).fetchone()
        if row is None:
            high = middle
        elif row[1] >= time:
            high, found = middle, row[0]
        else:
            low = row[0] + 1
    return found


def _last_before(connection: sqlite3.Connection, entry: Entry, time: int) -> int:
    row = connection.execute(
        f"SELECT max(sequence) FROM {entry.table} WHERE sequence < ?", (_first_from(connection, entry, time),)
    ).fetchone()
    return entry.first - 1 if row[0] is None else int(row[0])
