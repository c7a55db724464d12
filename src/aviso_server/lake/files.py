"""Data files of a table: sorted row groups with page index, and a footer that says what the file covers.

A file covers every sequence from its first to its last. Sequences without a row are explained in the footer, under the
key `aviso`: deleted, wiped, or removed by the log's own limits before they could be archived.
"""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.lake.ranges import Range, joined_ranges
from aviso_server.lake.schema import (
    conformed,
    delta_types,
    geo_footer,
    joined_schema,
    plain_columns,
    steady_columns,
)
from aviso_server.lake.storage import create_file, joined, open_file, remove, settle

__all__ = [
    "ROW_GROUP_ROWS",
    "Covered",
    "DataFile",
    "Explain",
    "FileWriter",
    "NewFile",
    "covered_by",
    "discard",
    "explained",
    "read_rows",
    "rewrite",
    "statistics",
]

ROW_GROUP_ROWS = 25_000
"""How many rows are read at once at least: what statistics can skip."""

_GROUP_BYTES = 48 * 1024 * 1024  # uncompressed: large notifications make smaller groups
_PAGE_ROWS = 2_500  # single notifications are read without the whole group, and reading all of it takes little longer
# A page is ended after so many rows, however small it is; older versions of pyarrow know no other limit of rows.
_PAGES: dict[str, Any] = {"write_batch_size": _PAGE_ROWS, "data_page_size": 1}
_FILE_BYTES = 256 * 1024 * 1024  # compressed
_FOOTER = b"aviso"
_GEO = "geo"
_LONGEST_TEXT = 64  # characters of a text in the statistics
_WITHOUT_STATISTICS = ("identifier", "payload")


class DataFile(msgspec.Struct, frozen=True, order=True):
    """One file of a table; in order of their sequences when sorted."""

    first: int  # the first sequence that it covers
    last: int  # the last one
    path: str
    bytes: int = 0
    modified: float = 0.0  # when it was written: seconds since 1970
    rows: int = 0
    first_time: int | None = None  # of its rows; None if the table does not say it
    last_time: int | None = None
    whole: frozenset[str] = frozenset()  # columns of which the table says that they have no nulls

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Covered(msgspec.Struct, frozen=True):
    """What the footer of a file says: the sequences that it answers for, and why some have no row."""

    first: int
    last: int
    deleted: tuple[Range, ...] = ()  # one by one, by an administrator
    wiped: tuple[Range, ...] = ()
    overtaken: tuple[Range, ...] = ()  # the log's own limits may have removed some of these before they were archived


class NewFile(msgspec.Struct, frozen=True):
    """A finished file that no commit has brought into its table yet. Travels from workers as JSON."""

    first: int
    last: int
    rows: int
    path: str
    bytes: int
    statistics: str  # as Delta wants them, JSON
    columns: dict[str, str]  # the types of its columns, as Delta names them

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


Explain = Callable[[int, int], Covered]
"""Called with the range of a file in which rows are missing; why."""


class FileWriter:
    """Takes the rows of a range in order and makes files of them that cover all of it, without a gap.

    One file, unless it becomes very large; with `whole` always one.
    """

    def __init__(
        self,
        folder: str,
        first: int,
        last: int,
        schema: pa.Schema,
        explain: Explain = Covered,
        whole: bool = False,
    ) -> None:
        self._folder = folder
        self._first = first  # of the file that is being written
        self._last = last
        self._schema = schema
        self._explain = explain
        self._most_bytes = sys.maxsize if whole else _FILE_BYTES
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._written = 0
        self._newest = first - 1
        self._path = ""
        self._sink: pa.NativeFile | None = None
        self._file: pq.ParquetWriter | None = None
        self._footer: list[pq.FileMetaData] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[NewFile]:
        """Take more rows; yields a file if one became complete."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()
        if self._sink is not None and self._sink.tell() >= self._most_bytes and not self._waiting:
            yield self._finish(self._newest)

    def finish(self) -> Iterator[NewFile]:
        """All rows have been given: yields the last file, an empty one if there are no rows at all."""
        self._flush(everything=True)
        if self._first <= self._last:
            if self._file is None:
                self._open()
            yield self._finish(self._last)

    def abandon(self) -> None:
        """Something went wrong: leave nothing behind."""
        with suppress(Exception):  # whatever it is, it comes after what went wrong
            if self._file is not None:
                self._file.close()
            if self._sink is not None:
                self._sink.close()
        self._file = self._sink = None
        if self._path:
            remove(self._path)

    def _flush(self, everything: bool = False) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        large = self._bytes >= _GROUP_BYTES
        whole = table.num_rows if everything or large else table.num_rows - table.num_rows % ROW_GROUP_ROWS
        if self._file is None:
            self._open()
        assert self._file is not None
        self._file.write_table(table.slice(0, whole), row_group_size=whole if large else ROW_GROUP_ROWS)
        self._written += whole
        self._newest = table.column("sequence")[whole - 1].as_py()
        rest = table.slice(whole)
        self._waiting = rest.to_batches()
        self._rows, self._bytes = rest.num_rows, rest.nbytes

    def _open(self) -> None:
        schema, plain = self._schema, set(plain_columns(self._schema))
        self._path = joined(self._folder, f"part-{uuid.uuid4().hex}.parquet")
        self._sink = create_file(self._path)
        self._file = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            use_dictionary=[".".join(path) for path in _leaves(schema) if path[0] not in plain],
            column_encoding=dict.fromkeys(steady_columns(schema), "DELTA_BINARY_PACKED"),
            write_statistics=[".".join(path) for path in _leaves(schema) if path[0] not in _WITHOUT_STATISTICS],
            write_page_index=True,
            **_PAGES,
            sorting_columns=[pq.SortingColumn(schema.get_field_index("sequence"))],
            metadata_collector=self._footer,
        )

    def _finish(self, last: int) -> NewFile:
        assert self._file is not None
        assert self._sink is not None
        missing = self._written < last - self._first + 1
        covered = self._explain(self._first, last) if missing else Covered(self._first, last)
        geo = geo_footer(self._schema)
        words = {_FOOTER.decode(): msgspec.json.encode(covered).decode(), **({_GEO: geo} if geo is not None else {})}
        self._file.add_key_value_metadata(words)
        self._file.close()
        size = self._sink.tell()
        self._sink.close()
        settle(self._path)
        done = NewFile(
            first=self._first,
            last=last,
            rows=self._written,
            path=self._path,
            bytes=size,
            statistics=statistics(self._footer.pop(), self._schema),
            columns=delta_types(self._schema),
        )
        self._first, self._written = last + 1, 0
        self._file = self._sink = None
        self._path = ""
        return done


def read_rows(content: pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a whole file, also one without any row group, which older versions of pyarrow refuse to read."""
    parquet = pq.ParquetFile(content)
    schema = parquet.schema_arrow.remove_metadata()
    names = schema.names if columns is None else list(columns)
    groups = [parquet.read_row_group(number, columns=names) for number in range(parquet.num_row_groups)]
    found = [each.select(names).replace_schema_metadata(None) for each in groups]
    return pa.concat_tables([schema.empty_table().select(names), *found])


def covered_by(metadata: pq.FileMetaData) -> Covered | None:
    """What a footer says; None of a file that others have written."""
    text = (metadata.metadata or {}).get(_FOOTER)
    return None if text is None else msgspec.json.decode(text, type=Covered)


def explained(first: int, last: int, parts: Iterable[Covered], **more: Iterable[Range]) -> Covered:
    """What parts of a range say, together, with more reasons; each in as few ranges as possible."""
    known = list(parts)
    reasons = {
        name: tuple(joined_ranges([*(one for each in known for one in getattr(each, name)), *more.get(name, ())]))
        for name in ("deleted", "wiped", "overtaken")
    }
    return Covered(first, last, **reasons)


def rewrite(
    folder: str,
    files: Sequence[DataFile | NewFile],
    keep: Callable[[pa.Table], pa.Table] = lambda table: table,
    **more: Iterable[Range],
) -> NewFile:
    """Make one file of neighbours, with the rows that `keep` lets through and more reasons why some are missing."""
    schemas, covers = [], []
    for file in files:
        with open_file(file.path) as content:
            parquet = pq.ParquetFile(content)
            schemas.append(parquet.schema_arrow.remove_metadata())
            covers.append(covered_by(parquet.metadata) or Covered(file.first, file.last))
    first, last, schema = covers[0].first, covers[-1].last, joined_schema(schemas)
    writer = FileWriter(folder, first, last, schema, lambda low, high: explained(low, high, covers, **more), whole=True)
    try:
        for file in files:
            with open_file(file.path) as content:
                parquet = pq.ParquetFile(content)
                for number in range(parquet.num_row_groups):
                    for batch in conformed(keep(parquet.read_row_group(number)), schema).to_batches():
                        list(writer.add(batch))
        (made,) = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return made


def discard(files: Iterable[NewFile]) -> None:
    """Remove files that no commit has brought into their table."""
    for file in files:
        remove(file.path)


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """What Delta keeps of a file: the number of rows, and of each column the limits and the number of nulls."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for place, path in enumerate(_leaves(schema)):
        if path[0] in _WITHOUT_STATISTICS or not metadata.num_row_groups:
            continue
        found = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
        if any(each is None for each in found):
            continue
        _keep(nulls, path, sum(each.null_count for each in found))
        limits = [(each.min, each.max) for each in found if each.has_min_max]
        if limits and not isinstance(limits[0][0], bytes):
            low, high = min(each[0] for each in limits), max(each[1] for each in limits)
            if isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT:
                continue
            if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
                continue  # JSON has no word for it
            _keep(lows, path, _text(low))
            _keep(highs, path, _text(high, up=True))
    members: dict[str, Any] = {"numRecords": metadata.num_rows}
    if metadata.num_rows:
        members |= {"minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(members)


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, ...]]:
    """The columns as Parquet counts them: each member of a struct is one."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from ((field.name, member.name) for member in field.type)
        else:
            yield (field.name,)


def _keep(found: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        found = found.setdefault(name, {})
    found[path[-1]] = value


def _text(value: Any, up: bool = False) -> Any:
    """Times as Delta writes them, in milliseconds and rounded outward; all other values as they are."""
    if not isinstance(value, datetime):
        return value
    if up:
        value += timedelta(milliseconds=1)
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
