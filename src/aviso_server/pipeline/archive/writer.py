"""Writing the files that cover a range of sequences."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.pipeline.archive.columns import plain_columns, steady_columns
from aviso_server.pipeline.archive.layout import ROW_GROUP_ROWS

__all__ = ["Draft", "Maker", "RangeWriter", "is_draft"]

_GROUP_BYTES = 48 * 1024 * 1024  # uncompressed: large notifications make smaller groups
_PAGE_ROWS = 2_500  # single notifications are read without the whole group, and reading all of it takes little longer
_FILE_BYTES = 256 * 1024 * 1024  # compressed


class Draft(msgspec.Struct, frozen=True):
    """A finished file that has not got its name yet."""

    first: int
    last: int
    rows: int
    path: str


Maker = Literal["job", "merge"]
"""Who writes files: the job at the end of a stream, or compaction in the midst of it."""


def is_draft(name: str, maker: Maker) -> bool:
    """True for the name of a file that is being written, or was when its maker was killed."""
    return name.startswith(f"_draft-{maker}-")


class RangeWriter:
    """Takes the rows of a range in order and makes files of them that cover all of it, without a gap.

    One file, unless it becomes very large or the columns change on the way. Of a merge always one.
    """

    def __init__(self, folder: Path, first: int, last: int, empty: pa.Schema, maker: Maker = "job") -> None:
        self._folder = folder
        self._first = first  # of the file that is being written
        self._last = last
        self._empty = empty
        self._maker = maker
        self._most_bytes = sys.maxsize if maker == "merge" else _FILE_BYTES
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._written = 0
        self._newest = first - 1
        self._path: Path | None = None
        self._file: pq.ParquetWriter | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, batch: pa.RecordBatch) -> Iterator[Draft]:
        """Take more rows; yields a file if one became complete."""
        if not batch.num_rows:
            return
        if self._waiting and not batch.schema.equals(self._waiting[0].schema):
            self._flush(everything=True)
        if self._file is not None and not batch.schema.equals(self._file.schema):
            yield self._finish(self._newest)
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()
        if self._path is not None and self._path.stat().st_size >= self._most_bytes and not self._waiting:
            yield self._finish(self._newest)

    def finish(self) -> Iterator[Draft]:
        """All rows have been given: yields the last file, an empty one if there are no rows at all."""
        self._flush(everything=True)
        if self._first <= self._last:
            if self._file is None:
                self._open(self._empty)
            yield self._finish(self._last)

    def abandon(self) -> None:
        """Something went wrong: leave nothing behind."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _flush(self, everything: bool = False) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        large = self._bytes >= _GROUP_BYTES
        whole = table.num_rows if everything or large else table.num_rows - table.num_rows % ROW_GROUP_ROWS
        if self._file is None:
            self._open(table.schema)
        assert self._file is not None
        self._file.write_table(table.slice(0, whole), row_group_size=whole if large else ROW_GROUP_ROWS)
        self._written += whole
        self._newest = table.column("sequence")[whole - 1].as_py()
        rest = table.slice(whole)
        self._waiting = rest.to_batches()
        self._rows, self._bytes = rest.num_rows, rest.nbytes

    def _open(self, schema: pa.Schema) -> None:
        plain = set(plain_columns(schema))
        self._path = self._folder / f"_draft-{self._maker}-{uuid.uuid4().hex}.parquet"
        self._file = pq.ParquetWriter(
            self._path,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in plain],
            column_encoding=dict.fromkeys(steady_columns(schema), "DELTA_BINARY_PACKED"),
            write_statistics=[name for name in schema.names if name not in ("identifier", "payload")],
            write_page_index=True,
            max_rows_per_page=_PAGE_ROWS,
            sorting_columns=[pq.SortingColumn(schema.get_field_index("sequence"))],
        )

    def _finish(self, last: int) -> Draft:
        assert self._file is not None
        assert self._path is not None
        self._file.close()
        done = Draft(self._first, last, self._written, str(self._path))
        self._first, self._written = last + 1, 0
        self._file = self._path = None
        return done
