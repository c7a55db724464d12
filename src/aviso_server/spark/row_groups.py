"""Which rows lie where: what the footers of data files tell, and the way through the row groups of a stream."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.lake.files import DataFile
from aviso_server.lake.schema import MADE_UP
from aviso_server.model.batch import BOX, TIME_NS, columns_of
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Box

__all__ = [
    "WIDE",
    "Budget",
    "Facts",
    "Footers",
    "Found",
    "Group",
    "Part",
    "Place",
    "RowGroup",
    "Sight",
    "first_since",
    "last_until",
    "next_group",
    "parts",
    "sight_of",
]

WIDE = ("sequence", "time_ns", "topic", "identifier", "payload")
"""The columns that make a notification."""

_REMEMBERED = 4096  # files whose facts are kept
_PARSED = 32  # files whose whole footers are kept
_TYPES = {
    pa.int64(): "long",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}

_RESERVED = frozenset(column.name for column in (*columns_of(GenericType("any")), *BOX, TIME_NS))
_MOST_PICKED = 1024
"""Notifications that are picked out by their sequences in one go: each costs a look at every row group, and each go
costs something by itself."""
_FEW_PER_GROUP = 16
"""Up to so many hits in a row group it pays to look for their pages; beyond, nearly every page has one."""
_WORTH_PICKING = 128 * 1024 * 1024
"""Bytes of row groups that are read in less time than a Spark job takes to pick pages out of them."""

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class RowGroup(msgspec.Struct, frozen=True):
    """Neighbouring rows of a file that are read together."""

    file: DataFile
    number: int  # in its file
    first: int  # sequence
    last: int
    first_time: int
    last_time: int
    rows: int
    bytes: int  # of the columns that make a notification, not compressed
    shape_bytes: int = 0  # of the columns with shapes


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
        self._parsed: OrderedDict[DataFile, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def facts(self, file: DataFile) -> Facts:
        """What is known about a file; a file that was written anew is another file."""
        with self._lock:
            if file in self._known:
                self._known.move_to_end(file)
                return self._known[file]
        with self._opened(file) as parquet:
            facts = _facts(parquet, file)
        with self._lock:
            _remember(self._known, file, facts, _REMEMBERED)
        return facts

    def read(self, group: RowGroup, columns: Sequence[str] = WIDE) -> pa.Table:
        """Read columns of one row group."""
        with self._opened(group.file) as parquet:
            return parquet.read_row_group(group.number, columns=list(columns), use_threads=False)

    def times(self, group: RowGroup) -> tuple[Numbers, Numbers]:
        """Return the sequences and the times of one row group."""
        table = self.read(group, ("sequence", "time_ns"))
        return table.column("sequence").to_numpy(), table.column("time_ns").to_numpy()

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        with self._lock:
            parsed = self._parsed.get(file)
        with self._open(file) as content:
            try:
                parquet = pq.ParquetFile(content, metadata=parsed, pre_buffer=True)
                with self._lock:
                    _remember(self._parsed, file, parquet.metadata, _PARSED)
                yield parquet
            except (pa.ArrowInvalid, OSError) as error:
                raise PipelineError(f"{file.path} is not a file of the archive, or damaged: {error}") from None


def _remember(known: OrderedDict[DataFile, Any], file: DataFile, facts: Any, most: int) -> None:
    known[file] = facts
    known.move_to_end(file)
    while len(known) > most:
        known.popitem(last=False)


def _facts(parquet: pq.ParquetFile, file: DataFile) -> Facts:
    schema: pa.Schema = parquet.schema_arrow
    path = file.path
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
        shapes = sum(
            group.column(place[name]).total_uncompressed_size for name, kind in types.items() if kind == "binary"
        )
        groups.append(RowGroup(file, number, first, last, earliest, latest, group.num_rows, size, shapes))
    return Facts(types, frozenset(types) - partly, tuple(groups), paged)


def _nulls(statistics: Any) -> bool:
    """True if there are nulls, or might be."""
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def _limits(statistics: Any, path: str, name: str) -> tuple[int, int]:
    if statistics is None or not statistics.has_min_max:
        raise PipelineError(f"{path} is not a file of the archive: it does not say between what '{name}' lies")
    return statistics.min, statistics.max


class Place(msgspec.Struct, frozen=True):
    """Where the value of a field stands in a file."""

    field: str
    column: str | None = None  # None: in the identifier only
    type: str = "string"
    whole: bool = True  # no nulls


class Sight(msgspec.Struct, frozen=True):
    """What a filter sees of a file. Files that look the same are read together."""

    fields: tuple[Place, ...] = ()
    boxes: Literal["none", "some", "all"] = "none"  # which rows have one
    box_type: str = "float"
    shapes: tuple[str, ...] = ()  # the columns with shapes, the one that boxes are around first


def sight_of(wanted: Filter, facts: Facts) -> Sight:
    """Return what the filter sees of a file."""
    names = () if wanted.positional else (*(name for name, _ in wanted.equals), *(name for name, _ in wanted.tests))
    fields = tuple(_place(name, facts) for name in dict.fromkeys(names))
    if wanted.area is None:
        return Sight(fields)
    shapes = sorted(name for name, kind in facts.types.items() if kind == "binary")
    shapes.sort(key=lambda name: name != "polygon")
    kinds = {facts.types.get(column.name) for column in BOX}
    if kinds not in ({"float"}, {"double"}):
        return Sight(fields, shapes=tuple(shapes))
    boxes: Literal["some", "all"] = "all" if BOX[0].name in facts.whole else "some"
    return Sight(fields, boxes, facts.types[BOX[0].name], tuple(shapes))


def _place(name: str, facts: Facts) -> Place:
    column: str | None = name
    if name.startswith("identifier_") or MADE_UP in name:
        column = None  # may be another field's column in an older file
    elif name.lower() in _RESERVED or name not in facts.types:
        column = f"identifier_{name}"
        if f"{column}_2" in facts.types:
            column = None
    if column is None or facts.types.get(column) not in ("long", "double", "string"):
        return Place(name)
    return Place(name, column, facts.types[column], column in facts.whole)


class Budget(msgspec.Struct, frozen=True):
    """How much may be searched at once: whole files, one at least, unless their shapes are too large.

    Whole files need no bounds, so that all searches are alike and Spark compiles one piece of code for them.
    """

    rows: int
    shape_bytes: int
    files: int = sys.maxsize  # small ones: the footer of each is looked at before anything is read


class Group(msgspec.Struct, frozen=True):
    """Neighbouring row groups of files that look the same to a filter."""

    first: int  # the first sequence that it covers
    last: int
    sight: Sight
    files: tuple[DataFile, ...] = ()
    row_groups: tuple[RowGroup, ...] = ()
    paged: bool = True

    @property
    def rows(self) -> int:
        """How many rows it has, those outside of what is asked for included."""
        return sum(group.rows for group in self.row_groups)


class Found(msgspec.Struct, frozen=True):
    """What a search has found: ascending sequences, and which of them only the filter itself can decide on."""

    sequences: Numbers
    doubtful: Flags
    boxes: Mapping[int, Box | None] = {}  # around the shapes of doubtful ones, if the filter has an area

    def slice(self, start: int, end: int) -> Found:
        """Return those in these places."""
        return Found(self.sequences[start:end], self.doubtful[start:end], self.boxes)


class Part(msgspec.Struct, frozen=True):
    """What is fetched at once: hits in one row group, or few hits that are picked out of many."""

    row_groups: tuple[RowGroup, ...]
    found: Found | None = None  # None: everything between two sequences
    limits: tuple[int, int] = (0, 0)
    picked: bool = False


def next_group(
    files: Sequence[DataFile], footers: Footers, wanted: Filter, start: int, end: int, budget: Budget
) -> Group | None:
    """Return what to read next from `start` on, at least one row group; None if there is nothing more."""
    if start > end:
        return None  # a file may cover more than is asked for
    sight: Sight | None = None
    used: list[DataFile] = []
    taken: list[RowGroup] = []
    covered, rows, size, paged = start - 1, 0, 0, True
    for file in islice(files, bisect_left(files, start, key=lambda each: each.last), None):
        if file.first > end or len(used) == budget.files:
            break
        facts = footers.facts(file)
        seen = sight_of(wanted, facts)
        if sight is not None and seen != sight:
            break
        sight = seen
        if taken and rows + sum(group.rows for group in facts.groups) > budget.rows:
            break
        for group in facts.groups:
            if group.last < start or group.first > end:
                continue
            if taken and size + group.shape_bytes > budget.shape_bytes:
                return Group(start, group.first - 1, sight, tuple(used), tuple(taken), paged)
            if not used or used[-1] is not file:
                used.append(file)
                paged = paged and facts.paged
            taken.append(group)
            rows, size = rows + group.rows, size + group.shape_bytes
        covered = min(end, file.last)
    return None if sight is None else Group(start, covered, sight, tuple(used), tuple(taken), paged)


def parts(group: Group, found: Found | None) -> Iterator[Part]:
    """Yield the parts of a group that have hits, in order; all of it if nothing was searched for."""
    if found is None:
        yield from (Part((each,), limits=(group.first, group.last)) for each in group.row_groups)
        return
    edges = np.searchsorted(found.sequences, [*(each.first for each in group.row_groups), group.last + 1])
    filled = np.flatnonzero(np.diff(edges)).tolist()
    few = group.paged and len(found.sequences) <= _FEW_PER_GROUP * len(filled)
    if not few or sum(group.row_groups[number].bytes for number in filled) < _WORTH_PICKING:
        for number in filled:
            yield Part((group.row_groups[number],), found.slice(edges[number], edges[number + 1]))
        return
    for start in range(0, len(found.sequences), _MOST_PICKED):
        end = min(start + _MOST_PICKED, len(found.sequences))
        touched = [number for number in filled if edges[number] < end and edges[number + 1] > start]
        yield Part(tuple(group.row_groups[number] for number in touched), found.slice(start, end), picked=True)


def first_since(files: Sequence[DataFile], footers: Footers, time: int) -> int:
    """Return the lowest sequence stored at or after a time; one beyond the last if there is none."""
    found = _first(files, footers, time)
    return _last(files) + 1 if found is None else found


def last_until(files: Sequence[DataFile], footers: Footers, time: int) -> int:
    """Return the highest sequence stored at or before a time; one before the first if there is none."""
    later = _first(files, footers, time + 1)
    if later is None:
        later = _last(files) + 1
    # Between two notifications there may be sequences of deleted ones, so look for the notification before.
    for file in reversed(files[: bisect_right(files, later - 1, key=lambda each: each.first)]):
        groups = footers.facts(file).groups
        place = bisect_left(groups, later, key=lambda each: each.first)
        if not place:
            continue
        if groups[place - 1].last < later:
            return groups[place - 1].last
        sequences, _ = footers.times(groups[place - 1])
        return int(sequences[np.searchsorted(sequences, later) - 1])
    return files[0].first - 1 if files else 0


def _first(files: Sequence[DataFile], footers: Footers, time: int) -> int | None:
    """Return the lowest sequence stored at or after a time. Times rise with sequences, so halving finds it."""
    low, high = 0, len(files)
    while low < high:
        middle = filled = (low + high) // 2
        while filled < high and not footers.facts(files[filled]).groups:
            filled += 1
        if filled == high or footers.facts(files[filled]).groups[-1].last_time >= time:
            high = middle
        else:
            low = filled + 1
    for file in files[low:]:
        groups = footers.facts(file).groups
        place = bisect_left(groups, time, key=lambda each: each.last_time)
        if place == len(groups):
            continue
        if groups[place].first_time >= time:
            return groups[place].first
        sequences, times = footers.times(groups[place])
        return int(sequences[np.searchsorted(times, time)])
    return None


def _last(files: Sequence[DataFile]) -> int:
    return files[-1].last if files else 0
