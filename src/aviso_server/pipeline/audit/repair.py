"""Mending the archive out of the log: a file with defects is written anew, and takes the place of the old one at once.

Whoever does this must be the keeper of the archive, and do it where compaction is done: between two of its steps. So a
file never changes under the hands of compaction, and the job, which only adds files at the end, is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.model.columns import columns_of
from aviso_server.pipeline.archive.columns import FileShape, conformed, ordered
from aviso_server.pipeline.archive.compaction import without
from aviso_server.pipeline.archive.layout import DataFile, data_path, stream_folder
from aviso_server.pipeline.archive.ranges import Range, clipped, joined_ranges, without_ranges
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import is_local, local_path
from aviso_server.pipeline.archive.tombstones import Tombstones, look
from aviso_server.pipeline.archive.writer import RangeWriter
from aviso_server.pipeline.audit.log_side import LogView, ServerLog
from aviso_server.pipeline.catalogue import event_types, fetch_catalogue
from aviso_server.pipeline.insight.recounts import ask_recount
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.planning import SequenceRange
from aviso_server.pipeline.reading import read_range

__all__ = ["Mended", "Repairer"]

_MOST_ATTEMPTS = 3


class Mended(msgspec.Struct, frozen=True):
    """What came of one range."""

    stream: str
    first: int
    last: int
    reason: str | None = None  # why it was left as it is; None if it was written anew


class Repairer:
    """Writes files of one archive anew, with what its server's log still has."""

    def __init__(self, board: Board, work: Path, options: Options) -> None:
        self._board = board
        self._storage = board.storage
        self._work = work
        self._options = options

    def run(self, wanted: dict[str, list[Range]]) -> Iterator[Mended]:
        """Mend these sequences by stream, a file at a time; comes back after each."""
        server = ServerLog(self._options, ())
        views = server.streams(())
        for stream, ranges in wanted.items():
            view = views.get(stream)
            if view is None:
                yield Mended(stream, ranges[0][0], ranges[-1][1], "the log has no such stream")
                continue
            for files, (first, last) in self._places(stream, joined_ranges(ranges)):
                try:
                    yield self._mend(stream, view, files, first, last)
                except (pa.ArrowException, OSError) as error:
                    yield Mended(stream, first, last, f"the old file cannot be read: {error}")

    def _places(self, stream: str, wanted: Sequence[Range]) -> Iterator[tuple[list[DataFile], Range]]:
        """The files to write: those that are touched, joined where they overlap, and new ones where none is."""
        _, files = look(stream_folder(self._board.root, stream), self._storage)
        covers = joined_groups(files)
        for group in covers:
            first, last = group[0].first, max(each.last for each in group)
            if clipped(wanted, first, last):
                yield group, (first, last)
        watermark = max((each.last for each in files), default=0)
        uncovered = without_ranges([(1, watermark)], [(each.first, each.last) for each in files])
        for first, last in uncovered:
            for low, high in clipped(wanted, first, last):
                yield [], (low, high)

    def _mend(self, stream: str, view: LogView, files: list[DataFile], first: int, last: int) -> Mended:
        for _ in range(_MOST_ATTEMPTS):
            start = max(first, view.start)
            if not files:
                first = start
            if first > min(last, view.last):
                return Mended(stream, first, last, "the log does not hold it any more")
            if self._written(stream, view, files, first, last, start):
                return Mended(stream, first, last)
            view = ServerLog(self._options, ()).again(view)
        return Mended(stream, first, last, "the log let go of it while it was read")

    def _written(self, stream: str, view: LogView, files: list[DataFile], first: int, last: int, start: int) -> bool:
        """Write one file; False if the log let go of something meanwhile, so that it was not the log that answered."""
        root = self._board.root
        marks, _ = look(stream_folder(root, stream), self._storage)
        kind = event_types([view.event_type], fetch_catalogue(self._options))[view.event_type]
        shape = FileShape(view.event_type, columns_of(kind))
        schema = self._schema(files, shape)
        folder = local_path(stream_folder(root, stream)) if is_local(root) else self._work
        writer = RangeWriter(folder, first, last, schema, maker="merge")
        try:
            for batch in self._rows(view, files, last, start, shape, schema, marks).to_batches():
                list(writer.add(batch))
            (draft,) = writer.finish()
            if ServerLog(self._options, ()).again(view).start > start:
                Path(draft.path).unlink(missing_ok=True)
                return False
        except BaseException:
            writer.abandon()
            raise
        ask_recount(root, stream, first, last, self._storage)
        self._storage.put(Path(draft.path), data_path(root, stream, first, last))
        ask_recount(root, stream, first, last, self._storage)
        self._board.refresh(stream)
        return True

    def _schema(self, files: Sequence[DataFile], shape: FileShape) -> pa.Schema:
        """The columns of the old files and of today; where they differ in type, today's are right."""
        fields: dict[str, pa.Field] = {}
        for file in files:
            try:
                with self._storage.open(file.path) as content:
                    fields |= {field.name: field for field in pq.read_schema(content)}
            except (pa.ArrowException, OSError):
                continue  # what is in it is read later, or not needed
        fields |= {field.name: field for field in shape.schema}
        return ordered(pa.schema(fields.values()))

    def _rows(
        self,
        view: LogView,
        files: Sequence[DataFile],
        last: int,
        start: int,
        shape: FileShape,
        schema: pa.Schema,
        marks: Tombstones,
    ) -> pa.Table:
        """What the log has, and what only the files have: the log may have lost something itself."""
        tables = [schema.empty_table()]
        wanted = SequenceRange(view.event_type, {}, start, min(last, view.last), bounded=True)
        if start <= wanted.end:
            found = read_range(self._options, wanted, (), minimal=True)
            tables += [conformed(pa.Table.from_batches([shape.batch(each)]), schema) for each in found]
        log = pa.concat_tables(tables)
        others = []
        for file in files:
            table = self._content(file, start)
            if table is not None:
                others.append(conformed(table, schema))
        if not others:
            return without(log, marks)
        old = pa.concat_tables(others)
        kept = old.filter(pc.invert(pc.is_in(old["sequence"], value_set=log["sequence"].combine_chunks())))
        return without(_once(pa.concat_tables([kept, log])), marks)

    def _content(self, file: DataFile, start: int) -> pa.Table | None:
        """The rows of a file that it covers; None of one that cannot be read and that the log has all of."""
        try:
            with self._storage.open(file.path) as content:
                table = pq.ParquetFile(content).read()
        except (OSError, pa.ArrowException):
            if file.first >= start:
                return None
            raise
        sequences = table["sequence"]
        return table.filter(pc.and_(pc.greater_equal(sequences, file.first), pc.less_equal(sequences, file.last)))


def joined_groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files in order, those that overlap together."""
    found: list[list[DataFile]] = []
    for each in files:
        if found and each.first <= max(one.last for one in found[-1]):
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _once(table: pa.Table) -> pa.Table:
    """The rows in order; of rows that are the same only one."""
    table = table.take(pc.sort_indices(table["sequence"]))
    sequences = table.column("sequence").to_numpy()
    doubles = np.flatnonzero(np.diff(sequences) == 0) + 1
    if not len(doubles):
        return table
    kept = np.ones(table.num_rows, dtype=np.bool_)
    for place in doubles.tolist():
        kept[place] = table.slice(place, 1).to_pylist() != table.slice(place - 1, 1).to_pylist()
    return table.filter(pa.array(kept))
