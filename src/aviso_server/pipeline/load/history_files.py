"""The files of an imported past: written by workers from sorted rows, and made to appear all at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from aviso_server.disk import force_to_disk
from aviso_server.model.columns import columns_of
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.archive.columns import FileShape
from aviso_server.pipeline.archive.layout import file_name
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.writer import Draft, RangeWriter

__all__ = ["Files", "FilesWritten"]

FilesWritten = list[Draft]
"""Finished files that have not got their names yet."""


class Files(msgspec.Struct, frozen=True):
    """What becomes the folder of a stream. Pickles."""

    event_type: EventType | GenericType
    folder: str  # where files are while others are still being written
    target: str  # the folder of the stream
    sizes: list[int]  # rows of each stretch of time

    def write(self, batches: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Number rows that come sorted, each stretch of time as a whole, and write them."""
        shape = FileShape(self.event_type.name, columns_of(self.event_type))
        written: list[Draft] = []
        writer: RangeWriter | None = None
        current, sequence = -1, 0
        for batch in batches:
            for bucket, piece in _runs(batch):
                if bucket != current:
                    written += () if writer is None else writer.finish()
                    current, sequence = bucket, sum(self.sizes[:bucket])
                    writer = RangeWriter(Path(self.folder), sequence + 1, sequence + self.sizes[bucket], shape.schema)
                assert writer is not None
                written += writer.add(shape.batch(_numbered(piece, sequence)))
                sequence += piece.num_rows
        written += () if writer is None else writer.finish()
        return written

    def appear(self, written: Sequence[FilesWritten]) -> None:
        """Give the files their names, and then the folder the name under which everybody finds it."""
        folder, target = Path(self.folder), Path(self.target)
        for draft in sorted((draft for some in written for draft in some), key=lambda draft: draft.first):
            LOCAL.put(Path(draft.path), str(folder / file_name(draft.first, draft.last)))
        if target.exists():
            shutil.rmtree(target)  # it has no notifications: words about an earlier error at most
        folder.rename(target)
        force_to_disk(target.parent)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each stretch of time, which are beside each other."""
    numbers = batch.column("bucket").to_numpy()
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[start]:
            yield int(numbers[start]), batch.slice(start, place - start)
            start = place


def _numbered(piece: pa.RecordBatch, before: int) -> pa.RecordBatch:
    sequences = pa.array(range(before + 1, before + piece.num_rows + 1), pa.int64())
    return piece.append_column("sequence", sequences)
