"""The archive as an audit sees it: its files, read by Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aviso_server.pipeline.archive.layout import DataFile, stream_folder, watermark
from aviso_server.pipeline.archive.ranges import Range
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import look
from aviso_server.pipeline.audit.log_side import ROW

__all__ = ["ArchiveFiles"]

_COLUMNS = ("sequence", "time_ns", "topic", "identifier", "payload")
_DIGITS = 20


class ArchiveFiles:
    """The files of one stream, as they were listed last; files come and go while somebody reads."""

    def __init__(self, session: SparkSession, root: str, stream: str, storage: Storage) -> None:
        self._session = session
        self._folder = stream_folder(root, stream)
        self._storage = storage
        self._marks, self._files = look(self._folder, storage)
        self._broken: dict[DataFile, str] = {}

    @property
    def last(self) -> int:
        """The newest sequence that they cover."""
        return watermark(self._files)

    @property
    def broken(self) -> dict[DataFile, str]:
        """Those that cannot be read, and why."""
        return dict(self._broken)

    def look_again(self) -> bool:
        """List them anew; True if that has changed anything."""
        before = self._marks, self._files
        self._marks, self._files = look(self._folder, self._storage)
        return (self._marks, self._files) != before

    def uncovered(self, last: int) -> list[Range]:
        """The ranges up to a sequence that no file covers."""
        found, position = [], 1
        for each in self._files:
            if each.first > position:
                found.append((position, min(each.first - 1, last)))
            position = max(position, each.last + 1)
        return [each for each in found if each[0] <= each[1]]

    def rows(self, first: int, last: int) -> DataFrame | None:
        """The visible notifications from one sequence to another; `misplaced` if their file covers others.

        A row in a file that is named otherwise is looked for only in files of this range.
        """
        files = [each for each in self._within(first, last) if each not in self._broken]
        if not files:
            return None
        name = f.col("_metadata.file_name")
        covered = f.col("sequence").between(
            f.substring(name, 1, _DIGITS).cast("bigint"), f.substring(name, _DIGITS + 2, _DIGITS).cast("bigint")
        )
        rows = self._session.read.schema(ROW).parquet(*[each.path for each in files])
        rows = rows.select(*_COLUMNS, (~covered).alias("misplaced"))
        rows = rows.where(f.col("sequence").between(first, last) | f.col("misplaced"))
        rows = rows.where(f.col("sequence") > self._marks.wiped_through)
        gone = self._marks.within(first, last)
        return rows.where(~f.col("sequence").isin(*gone)) if gone else rows

    def find_broken(self, first: int, last: int) -> bool:
        """Read the files one by one; True if some cannot be read that could before."""
        before = len(self._broken)
        for each in self._within(first, last):
            if each not in self._broken and (reason := self._complaint(each)) is not None:
                self._broken[each] = reason
        return len(self._broken) > before

    def _within(self, first: int, last: int) -> Sequence[DataFile]:
        return [each for each in self._files if each.first <= last and first <= each.last]

    def _complaint(self, file: DataFile) -> str | None:
        try:
            with self._storage.open(file.path) as content:
                parquet = pq.ParquetFile(content)
                for number in range(parquet.num_row_groups):
                    parquet.read_row_group(number, columns=list(_COLUMNS))
        except FileNotFoundError:
            return None  # another one has taken its place
        except (OSError, pa.ArrowException) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return None
