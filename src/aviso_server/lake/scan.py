"""What a filter lets through of a table: window by window, each one a query of DataFusion, which delta-rs brings.

It needs no Java. Statistics of files, row groups and pages skip what cannot be wanted; then the columns of the filter
are read, and the others only on pages with a hit. A window is scanned in this process or in a task of Spark, by the
same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from aviso_server.errors import PipelineError
from aviso_server.lake.condition import DOUBT, WIDE, Sight, compile_filter, exact, sight_of
from aviso_server.lake.files import ROW_GROUP_ROWS, DataFile, read_rows
from aviso_server.lake.storage import open_file
from aviso_server.lake.table import Snapshot, Table
from aviso_server.model.filter import Filter

__all__ = ["Scan", "Share", "Window", "first_since", "last_until", "scan", "scan_share", "windows"]

_FIRST_ROWS = ROW_GROUP_ROWS  # of the first window: little, so that the first notification comes soon
_SMALL_ROWS, _SMALL_BYTES = 50_000, 8 * 1024 * 1024
"""Files that are small together are read together, because each window costs something by itself."""
_CHUNK_ROWS, _CHUNK_BYTES = 25_000, 16 * 1024 * 1024
_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_LONGEST_WORDS = 300


class Window(msgspec.Struct, frozen=True):
    """Neighbouring files that look the same to a filter, or a part of one file."""

    first: int  # sequence
    last: int
    sight: Sight
    files: tuple[DataFile, ...]


def windows(snapshot: Snapshot, wanted: Filter, start: int, end: int) -> Iterator[Window]:
    """Yield what to read for a filter between two sequences, in order: files with rows, the first one in two parts."""
    files = [each for each in snapshot.files if each.rows and each.first <= end and each.last >= start]
    place, position = 0, start
    while place < len(files):
        file = files[place]
        sight = sight_of(wanted, snapshot.columns, file.whole)
        first, last = max(position, file.first), min(end, file.last)
        if not place and position == start and _rows(file, first, last) > 2 * _FIRST_ROWS:
            last = first + _FIRST_ROWS * (file.last - file.first + 1) // file.rows - 1
            yield Window(first, last, sight, (file,))
            position = last + 1
            continue
        together = [file]
        while place + len(together) < len(files):
            another = files[place + len(together)]
            if not _small([*together, another]) or sight_of(wanted, snapshot.columns, another.whole) != sight:
                break
            together.append(another)
        yield Window(first, min(end, together[-1].last), sight, tuple(together))
        place += len(together)


def _rows(file: DataFile, first: int, last: int) -> int:
    """Return about how many rows of a file lie between two of its sequences."""
    return file.rows * (last - first + 1) // (file.last - file.first + 1)


def _small(files: Sequence[DataFile]) -> bool:
    return sum(each.rows for each in files) <= _SMALL_ROWS and sum(each.bytes for each in files) <= _SMALL_BYTES


class Scan:
    """A window that is being read: the columns `wide` of what the filter wants, ascending."""

    def __init__(self, query: QueryBuilder, wanted: Filter, window: Window, wide: Sequence[str] = WIDE) -> None:
        self._query = query
        self._wanted = wanted
        self._window = window
        self._wide = tuple(wide)
        self._condition = compile_filter(wanted, window.sight)
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._newest = window.first - 1

    def pull(self, stopped: Callable[[], bool] = lambda: False) -> pa.Table | None:
        """Return more of it, None after the last; less than there is when stopped. PipelineError if it cannot be read.

        Not for two threads at a time.
        """
        found: list[pa.Table] = []
        rows = size = 0
        several = len(self._window.files) > 1  # in any order, and small together
        with _clearly(self._window.files):
            if self._batches is None:
                self._batches = self._begin()
            for batch in self._batches:
                table = exact(self._wanted, self._window.sight, self._condition, _plain(batch)).select(self._wide)
                if table.num_rows:
                    found.append(table)
                rows, size = rows + table.num_rows, size + table.nbytes
                if stopped() or (not several and (rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES)):
                    break
        return self._ascending(pa.concat_tables(found)) if found else None

    def _begin(self) -> Iterator[pa.RecordBatch]:
        condition, window = self._condition, self._window
        names = dict.fromkeys([*self._wide, *condition.judging, *(() if condition.is_exact else WIDE)])
        select = [f'"{name}"' for name in names]
        if condition.doubt is not None:
            select.append(f'{condition.doubt} as "{DOUBT}"')
        tests = [f"sequence between {window.first} and {window.last}"]
        tests += [] if condition.sql is None else [condition.sql]
        return _asked(self._query, f"select {', '.join(select)} from notifications where {' and '.join(tests)}")

    def _ascending(self, table: pa.Table) -> pa.Table:
        """Return the rows in order; files of a table come in any."""
        sequences = table.column("sequence").to_numpy()
        if not bool(np.all(sequences[1:] > sequences[:-1])):
            table = table.take(pc.sort_indices(table.column("sequence")))
            sequences = table.column("sequence").to_numpy()
        if sequences[0] <= self._newest:
            raise PipelineError(f"the archive cannot be read: {self._window.files[0].path} is not in order")
        self._newest = int(sequences[-1])
        return table


def scan(table: Table, snapshot: Snapshot, wanted: Filter, start: int, end: int) -> Iterator[pa.Table]:
    """Yield what a filter wants of a snapshot that is held, ascending; PipelineError if something cannot be read."""
    snapshot.check_covered(table.stream, start, end)
    if start <= end:
        query = table.query(snapshot.version)
        for window in windows(snapshot, wanted, start, end):
            yield from iter(Scan(query, wanted, window).pull, None)


class Share(msgspec.Struct, frozen=True):
    """A window for a task of Spark. Pickles."""

    root: str
    stream: str
    version: int
    wanted: Filter
    window: Window
    wide: tuple[str, ...]


def scan_share(share: Share) -> Iterator[tuple[int, bytes]]:
    """Scan a whole window, on a worker; yields its first sequence and what was found, as an Arrow stream."""
    table = Table(share.root, share.stream)
    scan = Scan(table.query(share.version), share.wanted, share.window, share.wide)
    sink = pa.BufferOutputStream()
    if found := list(iter(scan.pull, None)):
        with pa.ipc.new_stream(sink, found[0].schema) as stream:
            for each in found:
                stream.write_table(each)
        yield share.window.first, sink.getvalue().to_pybytes()


def first_since(table: Table, snapshot: Snapshot, time: int) -> int:
    """Return the lowest sequence stored at or after a time; one beyond the last if there is none."""
    files = [each for each in snapshot.files if each.rows and (each.last_time is None or each.last_time >= time)]
    found = _extreme(table, snapshot, "min", f"time_ns >= {time}", files)
    return found if found is not None else (snapshot.files[-1].last if snapshot.files else 0) + 1


def last_until(table: Table, snapshot: Snapshot, time: int) -> int:
    """Return the highest sequence stored at or before a time; one before the first if there is none."""
    files = [each for each in snapshot.files if each.rows and (each.first_time is None or each.first_time <= time)]
    found = _extreme(table, snapshot, "max", f"time_ns <= {time}", files[::-1])
    return found if found is not None else (snapshot.files[0].first - 1 if snapshot.files else 0)


def _extreme(table: Table, snapshot: Snapshot, of: str, test: str, files: Sequence[DataFile]) -> int | None:
    """Return the lowest or highest sequence in the first of these files that has rows which pass."""
    query = table.query(snapshot.version) if files else None
    for file in files:
        with _clearly((file,)):
            between = f"sequence between {file.first} and {file.last}"
            (batch,) = _asked(query, f"select {of}(sequence) as found from notifications where {between} and {test}")
            found: int | None = batch.column("found")[0].as_py()
        if found is not None:
            return found
    return None


def _asked(query: Any, sql: str) -> Iterator[pa.RecordBatch]:
    return iter(pa.RecordBatchReader.from_stream(query.execute(sql)))


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Return rows that hold nothing but their own values; views would keep the whole pages that they are from."""
    schema = pa.schema([field.with_type(_PLAIN.get(field.type, field.type)) for field in batch.schema])
    return pa.Table.from_batches([batch]).cast(schema)


@contextmanager
def _clearly(files: Sequence[DataFile]) -> Iterator[None]:
    """Whatever DataFusion complains about, as an error of ours that names the file."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        words = " ".join(str(error).split())[:_LONGEST_WORDS]
        for file in files:
            try:
                with open_file(file.path) as content:
                    read_rows(content, WIDE)
            except (OSError, ValueError, KeyError) as problem:
                reason = f"{file.path} is not a file of the archive, or damaged: {problem}"
                raise PipelineError(f"the archive cannot be read: {reason}") from None
        raise PipelineError(f"the archive cannot be read: {words}") from None
