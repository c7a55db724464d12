"""What the footers of the archive's files tell: which columns they have, and which rows lie where."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.layout import DataFile

__all__ = ["WIDE", "Facts", "Footers", "RowGroup"]

WIDE = ("sequence", "time_ns", "topic", "identifier", "payload")
"""The columns that make a notification."""

_REMEMBERED = 4096  # files
_TYPES = {
    pa.int64(): "long",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}

Numbers = npt.NDArray[np.int64]


class RowGroup(msgspec.Struct, frozen=True):
    """Neighbouring rows of a file that are read together."""

    number: int  # in its file
    first: int  # sequence
    last: int
    first_time: int
    last_time: int
    rows: int
    bytes: int  # of the columns that make a notification, not compressed


class Facts(msgspec.Struct, frozen=True):
    """What is known about a file without reading its rows."""

    types: Mapping[str, str]  # of the columns that have a type of ours
    whole: frozenset[str]  # columns without nulls
    groups: tuple[RowGroup, ...]
    paged: bool  # single pages can be picked out


class Footers:
    """The facts of files, each read once. Safe for threads."""

    def __init__(self, open_file: Callable[[DataFile], pa.NativeFile]) -> None:
        self._open = open_file
        self._known: OrderedDict[DataFile, Facts] = OrderedDict()
        self._lock = threading.Lock()

    def facts(self, file: DataFile) -> Facts:
        """What is known about a file; a file that was written anew is another file."""
        with self._lock:
            if file in self._known:
                self._known.move_to_end(file)
                return self._known[file]
        with self._opened(file) as parquet:
            facts = _facts(parquet, file.path)
        with self._lock:
            self._known[file] = facts
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return facts

    def times(self, file: DataFile, group: int) -> tuple[Numbers, Numbers]:
        """The sequences and the times of one row group."""
        with self._opened(file) as parquet:
            table = parquet.read_row_group(group, columns=["sequence", "time_ns"], use_threads=False)
        return table.column("sequence").to_numpy(), table.column("time_ns").to_numpy()

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        with self._open(file) as content:
            try:
                yield pq.ParquetFile(content)
            except pa.ArrowInvalid as error:
                raise PipelineError(f"{file.path} is not a file of the archive: {error}") from None


def _facts(parquet: pq.ParquetFile, path: str) -> Facts:
    schema: pa.Schema = parquet.schema_arrow
    metadata = parquet.metadata
    types = {field.name: _TYPES[field.type] for field in schema if field.type in _TYPES}
    missing = [name for name in WIDE if name not in types]
    if missing:
        raise PipelineError(f"{path} is not a file of the archive: it has no column '{missing[0]}'")
    # Columns are plain values, so that each has one place in a row group.
    place = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    groups, partly, paged = [], set(), True
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        partly |= {name for name in types if _nulls(group.column(place[name]).statistics)}
        paged = paged and bool(group.column(place["sequence"]).has_offset_index)
        first, last = _limits(group.column(place["sequence"]).statistics, path, "sequence")
        earliest, latest = _limits(group.column(place["time_ns"]).statistics, path, "time_ns")
        size = sum(group.column(place[name]).total_uncompressed_size for name in WIDE)
        groups.append(RowGroup(number, first, last, earliest, latest, group.num_rows, size))
    return Facts(types, frozenset(types) - partly, tuple(groups), paged)


def _nulls(statistics: Any) -> bool:
    """True if there are nulls, or might be."""
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def _limits(statistics: Any, path: str, name: str) -> tuple[int, int]:
    if statistics is None or not statistics.has_min_max:
        raise PipelineError(f"{path} is not a file of the archive: it does not say between what '{name}' lies")
    return statistics.min, statistics.max
