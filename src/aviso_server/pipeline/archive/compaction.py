"""Compaction: small files become large ones, and what has been deleted leaves the disk.

Every step makes one file and gives it a name under which it hides its parts, at once for all readers. The parts go
later, when nobody can be reading them any more. A crash at any moment leaves something that is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.pipeline.archive.columns import conformed, ordered
from aviso_server.pipeline.archive.layout import (
    DataFile,
    data_path,
    every_file,
    hidden,
    listing,
    stream_folder,
    streams,
    watermark,
)
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import is_local, local_path
from aviso_server.pipeline.archive.tombstones import Tombstones, forget, look
from aviso_server.pipeline.archive.writer import RangeWriter, is_draft

__all__ = ["GRACE", "TARGET", "Compactor", "mergeable"]

TARGET = 250_000
"""Sequences that a file covers when it is large enough."""

GRACE = 600.0
"""Seconds after which nobody reads files any more that others hide."""

_STEP = 8  # a file becomes part of a larger one when there is so much beside it
_MOST_BYTES = 256 * 1024 * 1024
_MOST_FILES = 512

Merged = Callable[[str, int], None]
"""Called with a stream and the number of files that one has taken the place of."""


class Compactor:
    """Compacts one archive, a step at a time."""

    def __init__(self, board: Board, work: Path, grace: float = GRACE, target: int = TARGET) -> None:
        self._board = board
        self._storage = board.storage
        self._work = work
        self._grace = grace
        self._target = target
        self._clean: dict[str, Tombstones] = {}  # path -> the marks under which it was written

    def run(self, everything: bool = False, merged: Merged = lambda stream, count: None) -> Iterator[None]:
        """Do all there is to do; comes back after each step, so that the caller can look around.

        With `everything`, neighbours are merged as far as they go, not only when it pays.
        """
        for stream in streams(self._board.root, self._storage):
            for count in self._stream(stream, everything):
                merged(stream, count)
                yield

    def _stream(self, stream: str, everything: bool) -> Iterator[int]:
        folder = stream_folder(self._board.root, stream)
        self._sweep(stream, folder)
        marks, files = look(folder, self._storage)
        for file in [each for each in files if self._is_touched(each, marks)]:
            self._merge(stream, [file], marks)
            yield 1
        forget(folder, marks, watermark(files), self._storage)
        while group := mergeable(listing(folder, self._storage), self._target, everything):
            self._merge(stream, group, marks)
            yield len(group)

    def _is_touched(self, file: DataFile, marks: Tombstones) -> bool:
        """True if the file may still have rows that are deleted."""
        return marks.touches(file.first, file.last) and self._clean.get(file.path) != marks

    def _sweep(self, stream: str, folder: str) -> None:
        """Remove what others have been hiding for long enough, and what a killed compaction left."""
        latest = time.time() - self._grace
        entries = self._storage.list(folder)
        for each in entries:
            if is_draft(each.name, "merge"):
                self._storage.remove(each.path)
        for file, wide in hidden(every_file(entries)):
            if wide.modified <= latest:
                self._storage.remove(file.path)
                self._clean.pop(file.path, None)

    def _merge(self, stream: str, group: Sequence[DataFile], marks: Tombstones) -> None:
        root, first, last = self._board.root, group[0].first, group[-1].last
        folder = local_path(stream_folder(root, stream)) if is_local(root) else self._work
        schema = self._schema(group)
        writer = RangeWriter(folder, first, last, schema, maker="merge")
        try:
            for file in group:
                if file.last > marks.wiped_through:
                    for table in self._rows(file, marks):
                        for batch in conformed(table, schema).to_batches():
                            list(writer.add(batch))
            (draft,) = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        path = data_path(root, stream, first, last)
        self._storage.put(Path(draft.path), path)
        self._clean[path] = marks
        self._board.refresh(stream)

    def _schema(self, group: Sequence[DataFile]) -> pa.Schema:
        """The columns of all of them; where they differ in type the newest is right."""
        fields: dict[str, pa.Field] = {}
        for file in group:
            with self._storage.open(file.path) as content:
                for field in pq.read_schema(content):
                    fields[field.name] = field
        return ordered(pa.schema(fields.values()))

    def _rows(self, file: DataFile, marks: Tombstones) -> Iterator[pa.Table]:
        with self._storage.open(file.path) as content:
            parquet = pq.ParquetFile(content)
            for number in range(parquet.num_row_groups):
                yield without(parquet.read_row_group(number), marks)


def without(table: pa.Table, marks: Tombstones) -> pa.Table:
    """The rows that are not deleted."""
    sequences = table.column("sequence")
    if not table.num_rows or not marks.touches(sequences[0].as_py(), sequences[-1].as_py()):
        return table
    gone = pc.or_(
        pc.less_equal(sequences, marks.wiped_through),
        pc.is_in(sequences, value_set=pa.array(marks.deleted, pa.int64())),
    )
    return table.filter(pc.invert(gone))


def mergeable(files: Sequence[DataFile], target: int = TARGET, everything: bool = False) -> list[DataFile]:
    """Neighbours that should become one file; none if all is well.

    Sizes are counted in steps, each several times the one before. Neighbours are merged when together they reach the
    next step: so a row is rewritten once per step, and of each size only a few files are left.
    """
    if everything:
        return _fullest(files, target)
    step = _STEP
    while step < target * _STEP:
        for run in _runs(files, min(step, target)):
            if len(run) > 1 and sum(map(_span, run)) >= min(step, target):
                return run
        step *= _STEP
    return []


def _fullest(files: Sequence[DataFile], target: int) -> list[DataFile]:
    return next((run for run in _runs(files, target) if len(run) > 1), [])


def _runs(files: Sequence[DataFile], limit: int) -> Iterator[list[DataFile]]:
    """Neighbours that are each smaller than the limit, cut so that no run becomes too large."""
    run: list[DataFile] = []
    for each in files:
        fits = _span(each) < limit and (not run or each.first == run[-1].last + 1)
        room = sum(map(_span, run)) < limit and sum(file.bytes for file in run) + each.bytes <= _MOST_BYTES
        if run and (not fits or not room or len(run) == _MOST_FILES):
            yield run
            run = []
        if _span(each) < limit:
            run.append(each)
    if run:
        yield run


def _span(file: DataFile) -> int:
    return file.last - file.first + 1
