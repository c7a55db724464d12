"""Is a notification in the archive?"""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import look

__all__ = ["holds"]


def holds(folder: str, sequence: int, storage: Storage) -> bool:
    """True if a replay of the stream in this folder would find the notification."""
    marks, files = look(folder, storage)
    if marks.hides(sequence):
        return False
    for each in files:
        if each.first <= sequence <= each.last:
            with storage.open(each.path) as content:
                return _in_file(pq.ParquetFile(content), sequence)
    return False


def _in_file(file: pq.ParquetFile, sequence: int) -> bool:
    place = file.schema_arrow.get_field_index("sequence")
    for number in range(file.num_row_groups):
        statistics = file.metadata.row_group(number).column(place).statistics
        if statistics is not None and not statistics.min <= sequence <= statistics.max:
            continue
        column = file.read_row_group(number, columns=["sequence"]).column("sequence")
        if pc.index(column, sequence).as_py() >= 0:
            return True
    return False
