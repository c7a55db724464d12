"""Reading a sqlite log: its own connections, its own threads, never in the way of the writer.

A batch is fetched as one row. SQLite joins all its values with a separator that JSON cannot contain, and
Python takes them apart again. Stepping row by row would let go of Python's lock for each row, and beside a busy event
loop that is hundreds of times slower.
"""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import adler32

import msgspec

from aviso_server.log.base import Batch
from aviso_server.log.sqlite.damage import ROW, damaged, expected, gaps, intact, spans
from aviso_server.log.sqlite.database import Entry, as_log_error, connect
from aviso_server.log.sqlite.ledger import PACKED_BOX, SEPARATOR, SUMS_SIZE, Sums, has_time, unpack_sums
from aviso_server.model.notification import Box, Notification, Run

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["SqliteReader", "handy_batch"]

THREADS = 4
BATCH_BYTES = 16 * 1024 * 1024  # no batch takes more memory than about this, unless it is one large notification
HANDY_BYTES = 1024 * 1024  # what batches have that are sent as they are, if notifications are of similar size
SCAN_SEQUENCES = 65_536  # with a box, one read looks at so many sequences at most

T = TypeVar("T")

_JOINED = {
    name: f"CAST(group_concat({name}, '{SEPARATOR}') || '{SEPARATOR}' AS BLOB)"
    for name in ("identifier", "payload", "time", "sequence", "topic")
}
_JOINED["box"] = f"CAST(group_concat(ifnull(hex(box), ''), '{SEPARATOR}') || '{SEPARATOR}' AS BLOB)"
_JOINED_SUMS = "CAST(group_concat(sums, '') AS BLOB)"
_COLUMNS = "sequence, time, sums, topic, identifier, payload, box"
_END = SEPARATOR.encode()
_NOWHERE = "F" * 64  # a box of no numbers: it overlaps none


class SqliteReader:
    """A few threads with a connection each."""

    def __init__(self, file: Path) -> None:
        import aviso_server.model.batch  # noqa: F401  # now, so that the first read need not wait for it

        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="aviso-log-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def read(self, entry: Entry, start: int, end: int, limit: int, box: Box | None) -> tuple[Batch, int]:
        """Read up to `limit` notifications of start..end, which must lie within what the stream holds.

        Also the newest sequence that retention had removed at the moment of the read.
        """
        return await self.ask(lambda connection: _read(connection, self._file, entry, start, end, limit, box))

    async def call(self, work: Callable[[], T]) -> T:
        """Call `work` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def read_here(self, entry: Entry, start: int, end: int, limit: int, topics: bool) -> tuple[Batch, int]:
        """Do what `read` does in this thread, which must be one of those of `call`; topics may be left empty."""
        return self._answer(lambda connection: _read(connection, self._file, entry, start, end, limit, None, topics))

    async def first_from(self, entry: Entry, time: int) -> int:
        """Return the lowest held sequence stored at or after `time`; last + 1 if there is none."""
        return await self.ask(lambda connection: _first_from(connection, self._file, entry, time))

    async def last_before(self, entry: Entry, time: int) -> int:
        """Return the highest held sequence stored before `time`; first - 1 if there is none."""
        return await self.ask(lambda connection: _last_before(connection, self._file, entry, time))

    def close(self) -> None:
        """Wait for running reads and close the connections. Blocks."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    async def ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Call `ask` in one of the threads with its connection, within one read transaction."""
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
    """Return how many notifications of a stream make a batch of a handy size."""
    average = entry.bytes // max(entry.count, 1)
    return max(1, min(_at_once(entry), HANDY_BYTES // max(average, 1)))


def _at_once(entry: Entry) -> int:
    """Return how many notifications of a stream fit into a batch."""
    return max(1, BATCH_BYTES // max(entry.largest, 1))


def _read(
    connection: sqlite3.Connection,
    file: Path,
    entry: Entry,
    start: int,
    end: int,
    limit: int,
    box: Box | None = None,
    topics: bool = True,
) -> tuple[Batch, int]:
    limit = min(limit, _at_once(entry))
    if start < entry.checked_from:
        end = min(end, entry.checked_from - 1)  # checksums are there for all of a batch or for none
    (removed,) = connection.execute("SELECT trimmed FROM catalogue WHERE id = ?", (entry.id,)).fetchone()
    if box is not None:
        end = min(end, start + SCAN_SEQUENCES - 1)
        found = _read_overlapping(connection, file, entry, start, end, limit, box)
    else:
        gapless: Sequence[Notification] | None = None
        if entry.count == entry.last - entry.first + 1:
            end = min(end, start + limit - 1)  # without gaps the range itself is the limit
            gapless = _read_gapless(connection, file, entry, start, end, topics)
        if gapless is not None:
            found = gapless
        else:  # it has gaps, perhaps only by now
            source = f"(SELECT {_COLUMNS} FROM {entry.table} WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?)"
            found = _read_numbered(connection, file, entry, source, [start, end, limit], topics)
            following = _last(found) + 1 if len(found) == limit else end + 1
            required = expected(connection, entry.id, start, following - 1)
            if missing := gaps([each.sequence for each in found], required):
                raise damaged(file, {entry.name: missing}, "missing")
    return Batch(found, _last(found) + 1 if len(found) == limit else end + 1), removed


def _last(found: Sequence[Notification]) -> int:
    return found.last if isinstance(found, Run) else found[-1].sequence


def _read_gapless(
    connection: sqlite3.Connection, file: Path, entry: Entry, start: int, end: int, topics: bool
) -> Sequence[Notification] | None:
    """Read a range of which nothing is missing; None if something is."""
    rows = connection.execute(
        f"SELECT time, sums FROM {entry.table} WHERE sequence IN (?, ?) ORDER BY sequence", (start, end)
    ).fetchall()
    if len(rows) != 1 + (end > start):
        return None
    (first_time, first), (last_time, last) = rows[0], rows[-1]
    # Times never fall as sequences rise, so the ends of the range tell whether all have one.
    time = first_time if first_time == last_time and isinstance(first_time, int) else None
    source = f"{entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ?"
    names = ["identifier", "payload"]
    names += [name for name, wanted in (("time", time is None), ("topic", topics), ("box", entry.boxed)) if wanted]
    count, joined, _ = _read_joined(connection, source, [start, end], names)
    if count != end - start + 1:
        return None
    try:
        whole = []
        if start >= entry.checked_from:
            whole = [_Chain(0, count, unpack_sums(first, start)[0], unpack_sums(last, end)[1])]
        return _split(count, joined, lambda _: whole, start, time)
    except (ValueError, struct.error):
        return _one_by_one(connection, file, entry, source, [start, end])


def _read_numbered(
    connection: sqlite3.Connection, file: Path, entry: Entry, source: str, values: list[Any], topics: bool = True
) -> Sequence[Notification]:
    """Read rows that need not follow each other."""
    names = ["identifier", "payload", "time", "sequence", "box", *(["topic"] if topics else [])]
    count, joined, sums = _read_joined(connection, source, values, names, _JOINED_SUMS)
    if not count:
        return ()

    def chains(numbers: Sequence[int]) -> Sequence[_Chain]:
        return _chains(sums, numbers) if numbers[0] >= entry.checked_from else ()

    try:
        return _split(count, joined, chains)
    except (ValueError, struct.error):
        return _one_by_one(connection, file, entry, source, values)


def _read_joined(
    connection: sqlite3.Connection, source: str, values: Sequence[Any], names: Sequence[str], sums: str = "NULL"
) -> tuple[int, dict[str, bytes], bytes | None]:
    """Return how many rows there are, their columns, each joined by itself, and their checksums."""
    columns = ", ".join([_JOINED[name] for name in names])
    count, sums_found, *found = connection.execute(
        f"SELECT count(*), {sums}, {columns} FROM {source}", values
    ).fetchone()
    return count, dict(zip(names, found, strict=True)), sums_found


def _read_overlapping(
    connection: sqlite3.Connection, file: Path, entry: Entry, start: int, end: int, limit: int, box: Box
) -> Sequence[Notification]:
    """Read those of a range whose boxes overlap another one. The boxes of all are verified, so none is hidden."""
    source = f"{entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ?"
    count, sums, numbers, boxes = connection.execute(
        f"SELECT count(*), {_JOINED_SUMS}, CAST(group_concat(sequence, ',') AS TEXT), {_JOINED['box']} FROM {source}",
        (start, end),
    ).fetchone()
    sequences = [int(number) for number in numbers.split(",")] if count else []
    if missing := gaps(sequences, expected(connection, entry.id, start, end)):
        raise damaged(file, {entry.name: missing}, "missing")
    if not count:
        return ()
    try:
        ends = _ends(boxes, count)
        for part in _chains(sums, sequences) if start >= entry.checked_from else ():
            _verify(part, "box", _values(part, boxes, ends))
        overlapping = _overlapping(boxes, box)
    except (ValueError, struct.error):
        found = _one_by_one(connection, file, entry, source, [start, end])
        return [one for one in found if one.box is not None and one.box.overlaps(box)][:limit]
    wanted = msgspec.json.encode([sequences[place] for place in overlapping[:limit]]).decode()
    source = (
        f"(SELECT {_COLUMNS} FROM {entry.table} WHERE sequence IN (SELECT value FROM json_each(?)) ORDER BY sequence)"
    )
    return _read_numbered(connection, file, entry, source, [wanted])


def _one_by_one(
    connection: sqlite3.Connection, file: Path, entry: Entry, source: str, values: Sequence[Any]
) -> list[Notification]:
    """Read and verify each row by itself; LogDamaged names those that are not as they were stored."""
    notifications: list[Notification] = []
    broken: list[int] = []
    for row in connection.execute(f"SELECT {ROW} FROM {source} ORDER BY sequence", values).fetchall():
        notification = intact(row, checked=row[0] >= entry.checked_from)
        if notification is None:
            broken.append(row[0])
        else:
            notifications.append(notification)
    if broken:
        raise damaged(file, {entry.name: spans(broken)}, "not as they were stored")
    return notifications


def _first_from(connection: sqlite3.Connection, file: Path, entry: Entry, time: int) -> int:
    # Times never fall as sequences rise, so halving the range finds the place without an index on time.
    low, high = entry.first, entry.last + 1
    found = entry.last + 1
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(
            f"SELECT sequence, time, sums FROM {entry.table} NOT INDEXED WHERE sequence BETWEEN ? AND ? "
            "ORDER BY sequence LIMIT 1",
            (middle, entry.last),
        ).fetchone()
        if row is None:
            high = middle
        elif row[0] >= entry.checked_from and not has_time(*row):
            raise damaged(file, {entry.name: [(row[0], row[0])]}, "not as they were stored")
        elif row[1] >= time:
            high, found = middle, row[0]
        else:
            low = row[0] + 1
    return found


def _last_before(connection: sqlite3.Connection, file: Path, entry: Entry, time: int) -> int:
    row = connection.execute(
        f"SELECT max(sequence) FROM {entry.table} WHERE sequence < ?", (_first_from(connection, file, entry, time),)
    ).fetchone()
    return entry.first - 1 if row[0] is None else int(row[0])


class _Chain(msgspec.Struct, frozen=True):
    """Rows of a batch whose checksums continue each other: from one place up to another."""

    start: int
    end: int
    before: Sequence[int]
    after: Sequence[int]


def _chains(sums: bytes | None, sequences: Sequence[int]) -> list[_Chain]:
    """Find the rows whose checksums continue each other; ValueError if there are not as many as rows."""
    import numpy as np

    if sums is None or len(sums) != SUMS_SIZE * len(sequences):
        raise ValueError("checksums are missing")
    every = np.frombuffer(sums, "<u4").reshape(len(sequences), 2, 5).copy()
    every[:, :, Sums._fields.index("time")] ^= np.array(sequences).astype(np.uint32)[:, None]
    breaks = np.flatnonzero((every[1:, 0] != every[:-1, 1]).any(axis=1)) + 1
    edges = [0, *breaks.tolist(), len(sequences)]
    return [_Chain(start, end, every[start, 0].tolist(), every[end - 1, 1].tolist()) for start, end in pairwise(edges)]


def _verify(part: _Chain, column: str, data: bytes | memoryview) -> None:
    """Raise ValueError unless the values of a chain lead from one checksum to the other."""
    place = Sums._fields.index(column)
    if adler32(data, part.before[place]) != part.after[place]:
        raise ValueError(f"{column}: not as it was stored")


def _values(part: _Chain, joined: bytes, ends: np.ndarray[Any, Any]) -> memoryview:
    """Return the values of a chain, and their separators, out of joined ones."""
    start = int(ends[part.start - 1]) + 1 if part.start else 0
    return memoryview(joined)[start : int(ends[part.end - 1]) + 1]


def _split(
    count: int,
    joined: Mapping[str, bytes],
    find_chains: Callable[[Sequence[int]], Sequence[_Chain]],
    first: int | None = None,
    time: int | None = None,
) -> Run:
    """Take joined columns apart and verify them; ValueError if a value holds the separator or is not as it was stored.

    Sequences are missing if they are numbered from the `first` one on, times if all have one, topics if nobody needs
    them, boxes if there are none. The chains are found by the sequences.
    """
    import numpy as np  # large, as is Arrow: only servers wait for it
    import pyarrow as pa

    from aviso_server.model.batch import ArrowRun

    ends = {name: _ends(text, count) for name, text in joined.items()}
    arrays = {
        name: _without_separators(joined[name], ends[name])
        for name in ("identifier", "payload", "time", "sequence")
        if name in joined
    }
    constant: dict[str, bytes] = {}
    if time is not None:
        arrays["time"] = pa.repeat(pa.scalar(b"%d" % time, pa.binary()), count)
        constant["time"] = b"%d\x1f" % time
    if "box" not in joined:
        constant["box"] = _END
    if first is None:
        numbers = arrays["sequence"].cast(pa.string()).cast(pa.int64()).to_numpy()
    else:
        numbers = np.arange(first, first + count)
        arrays["sequence"] = pa.array(numbers).cast(pa.string()).cast(pa.binary())
    for part in find_chains(numbers):
        for name in joined.keys() - {"sequence"}:
            _verify(part, name, _values(part, joined[name], ends[name]))
        for name, text in constant.items():
            _verify(part, name, text * (part.end - part.start))
    boxes = partial(_unpacked, joined["box"]) if "box" in joined else None
    topic = joined["topic"].decode()[:-1] if "topic" in joined else SEPARATOR * (count - 1)
    topics = partial(topic.split, SEPARATOR)
    return ArrowRun(arrays["sequence"], arrays["time"], topics, arrays["identifier"], arrays["payload"], boxes)


def _overlapping(boxes: bytes, box: Box) -> list[int]:
    """Return which of some joined boxes overlap another one."""
    import numpy as np

    texts = boxes.decode().split(SEPARATOR)[:-1]
    corners = np.frombuffer(bytes.fromhex("".join([text or _NOWHERE for text in texts])), "<f8").reshape(len(texts), 4)
    min_lat, min_lon, max_lat, max_lon = corners.T
    overlap = (min_lat <= box.max_lat) & (max_lat >= box.min_lat) & (min_lon <= box.max_lon) & (max_lon >= box.min_lon)
    return np.flatnonzero(overlap).tolist()


def _ends(joined: bytes, count: int) -> np.ndarray[Any, Any]:
    """Find the separators; ValueError if there are not as many as values."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord(SEPARATOR))
    if len(ends) != count:
        raise ValueError("a value holds the separator")
    return ends


def _without_separators(joined: bytes, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.empty(len(ends) + 1, np.int32)
    offsets[0] = 0
    np.add(ends, 1, out=offsets[1:], casting="same_kind")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    values = pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
    return pc.binary_slice(values, 0, -1)  # a copy, but one that Python's lock is not held for


def _unpacked(boxes: bytes) -> list[Box | None]:
    return [_unpack_hex(box) for box in boxes.decode().split(SEPARATOR)[:-1]]


def _unpack_hex(text: str) -> Box | None:
    return Box(*PACKED_BOX.unpack(bytes.fromhex(text))) if text else None
