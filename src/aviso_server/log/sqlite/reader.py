"""Reading a sqlite log: its own connections, its own threads, never in the way of the writer.

A batch is fetched as one row. SQLite joins the values of each column with a separator that JSON cannot contain, and
Python takes them apart again. Stepping row by row would let go of Python's lock for each row, and beside a busy event
loop that is hundreds of times slower.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from aviso_server.log.base import Batch
from aviso_server.log.sqlite.files import as_log_error, connect
from aviso_server.log.sqlite.stream import PACKED_BOX, Entry
from aviso_server.model.notification import Box, Notification
from aviso_server.model.run import Run

__all__ = ["Reader"]

THREADS = 4
BATCH_BYTES = 16 * 1024 * 1024  # no batch takes more memory than about this, unless it is one large notification
SCAN_SEQUENCES = 65_536  # with a box, one read looks at so many sequences at most

T = TypeVar("T")

_SEPARATOR = "\x1f"
_JOINED = (
    "SELECT count(*), CAST(group_concat(sequence) AS BLOB), CAST(group_concat(time) AS BLOB), "
    f"group_concat(topic, '{_SEPARATOR}'), CAST(group_concat(identifier, '{_SEPARATOR}') AS BLOB), "
    f"CAST(group_concat(payload, '{_SEPARATOR}') AS BLOB)"
)
_JOINED_BOXES = ", group_concat(ifnull(hex(box), ''))"
_COLUMNS = "sequence, time, topic, identifier, payload"
_OVERLAPS = "AND min_lat <= ? AND max_lat >= ? AND min_lon <= ? AND max_lon >= ?"


class Reader:
    """A few threads with a connection each."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="aviso-log-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def read(self, entry: Entry, start: int, end: int, limit: int, box: Box | None) -> tuple[Batch, int]:
        """Up to `limit` notifications of start..end, which must lie within what the stream holds.

        Also the newest sequence that retention had removed at the moment of the read.
        """
        return await self._in_thread(lambda connection: _read(connection, entry, start, end, limit, box))

    async def first_from(self, entry: Entry, time: int) -> int:
        """The lowest held sequence stored at or after `time`; last + 1 if there is none."""
        return await self._in_thread(lambda connection: _first_from(connection, entry, time))

    async def last_before(self, entry: Entry, time: int) -> int:
        """The highest held sequence stored before `time`; first - 1 if there is none."""
        return await self._in_thread(lambda connection: _last_before(connection, entry, time))

    def close(self) -> None:
        """Wait for running reads and let go of the connections. Blocks."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    async def _in_thread(self, ask: Callable[[sqlite3.Connection], T]) -> T:
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


def _read(
    connection: sqlite3.Connection, entry: Entry, start: int, end: int, limit: int, box: Box | None
) -> tuple[Batch, int]:
    values: list[float]
    limit = max(1, min(limit, BATCH_BYTES // max(entry.largest, 1)))
    if box is None and entry.count == entry.last - entry.first + 1:
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
    boxes = _JOINED_BOXES if entry.boxed else ""
    trimmed = f", (SELECT trimmed FROM catalogue WHERE id = {entry.id:d})"
    *row, removed = connection.execute(f"{_JOINED}{boxes}{trimmed} FROM {source}", values).fetchone()
    if row[0] == 0:
        return Batch((), end + 1), removed
    run = _apart(*row)
    if run is not None:
        return Batch(run, int(run.sequences[-1]) + 1 if len(run) == limit else end + 1), removed
    notifications = _one_by_one(connection, entry, source, values)
    return Batch(notifications, notifications[-1].sequence + 1 if len(notifications) == limit else end + 1), removed


def _apart(
    count: int, sequences: bytes, times: bytes, topic: str, identifier: bytes, payload: bytes, boxes: str | None = None
) -> Run | None:
    """Take a joined batch apart; None if a value holds the separator."""
    identifiers = identifier.split(_SEPARATOR.encode())
    payloads = payload.split(_SEPARATOR.encode())
    if not topic.count(_SEPARATOR) + 1 == len(identifiers) == len(payloads) == count:
        return None
    places = None if boxes is None else [_unpack_hex(box) for box in boxes.split(",")]
    return Run(
        sequences.split(b","), times.split(b","), partial(topic.split, _SEPARATOR), identifiers, payloads, places
    )


def _one_by_one(connection: sqlite3.Connection, entry: Entry, source: str, values: list[float]) -> list[Notification]:
    columns = "sequence, time, topic, CAST(identifier AS BLOB), CAST(payload AS BLOB)"
    columns += ", box" if entry.boxed else ", NULL"
    rows = connection.execute(f"SELECT {columns} FROM {source} ORDER BY sequence", values).fetchall()
    return [
        Notification(sequence, time, topic, identifier, payload, packed and Box(*PACKED_BOX.unpack(packed)))
        for sequence, time, topic, identifier, payload, packed in rows
    ]


def _unpack_hex(text: str) -> Box | None:
    return Box(*PACKED_BOX.unpack(bytes.fromhex(text))) if text else None


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
