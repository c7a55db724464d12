"""What has changed in the archive since a stream was rolled up: new sequences, and old ones that are gone.

A mark that something was deleted is gone as soon as compaction has turned it into fact, and compaction gives files new
names. So what is gone is found by counting: how many notifications a range had when it was rolled up, and has now.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.insight.tables import Block, State
from aviso_server.pipeline.archive.compaction import without
from aviso_server.pipeline.archive.layout import DataFile
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import Tombstones

__all__ = ["compare"]


def compare(
    state: State, files: Sequence[DataFile], marks: Tombstones, storage: Storage
) -> tuple[tuple[Block, ...], list[tuple[int, int]]]:
    """The files as they are now, and the ranges of rolled up sequences in which something is gone."""
    known = {(block.first, block.last): block for block in state.blocks}
    blocks, changed = [], []
    for file in files:
        text = _marks_text(file, marks)
        before = known.get((file.first, file.last))
        if before is not None and (before.bytes, before.modified, before.marks) == (file.bytes, file.modified, text):
            blocks.append(before)
            continue
        past = min(file.last, state.through)
        rows = _rows(file, file.last, marks, storage)
        if file.first <= past:
            now = rows if past == file.last else _rows(file, past, marks, storage)
            if _counted(state.blocks, file.first, past) != now:
                changed.append((file.first, past))
        blocks.append(Block(file.first, file.last, file.bytes, file.modified, text, rows))
    return tuple(blocks), changed


def _marks_text(file: DataFile, marks: Tombstones) -> str:
    if not marks.touches(file.first, file.last):
        return ""
    wiped = min(file.last, marks.wiped_through) if marks.wiped_through >= file.first else 0
    return f"{wiped}/{zlib.crc32(repr(marks.within(file.first, file.last)).encode()):08x}"


def _counted(blocks: Sequence[Block], first: int, last: int) -> int | None:
    """How many a range had; None if the files were cut in another way."""
    inside = [block for block in blocks if first <= block.first and block.last <= last]
    if sum(block.last - block.first + 1 for block in inside) != last - first + 1:
        return None
    return sum(block.rows for block in inside)


def _rows(file: DataFile, last: int, marks: Tombstones, storage: Storage) -> int:
    """How many notifications a file has up to a sequence that are not deleted."""
    with storage.open(file.path) as content:
        parquet = pq.ParquetFile(content)
        if last == file.last and not marks.touches(file.first, file.last):
            rows: int = parquet.metadata.num_rows
            return rows
        count = 0
        for number in range(parquet.num_row_groups):
            left: pa.Table = without(parquet.read_row_group(number, columns=["sequence"]), marks)
            count += pc.sum(pc.less_equal(left["sequence"], last)).as_py() or 0
        return count
