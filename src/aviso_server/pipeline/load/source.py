"""The two ends of a load in Spark: a source whose partitions check pieces of the input, and a sink for sorted rows.

Both carry only a few rows through Spark itself: what workers make goes into files.
"""

from __future__ import annotations

import base64
import gc
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aviso_server.pipeline.load.history_files import Files, FilesWritten
from aviso_server.pipeline.load.piece import CheckTask, check_split
from aviso_server.pipeline.load.splits import Split

__all__ = ["CHECK", "HISTORY_SINK", "CheckSource", "HistorySink", "packed"]

CHECK = "aviso-load-check"
"""The name of the source for `format(...)`."""

HISTORY_SINK = "aviso-load-history"
"""The name of the sink."""

_ARROW = pa.schema([("number", pa.int64()), ("summary", pa.binary())])


def packed(value: Any) -> str:
    """A value as the text of an option; both ends are one program."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


class CheckSource(DataSource):
    """The check of all pieces; one row for each. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return CHECK

    def schema(self) -> str:
        """The number of a piece, and what came of its rows. Called on the driver."""
        return "number bigint, summary binary"

    def reader(self, schema: StructType) -> _CheckReader:
        """The reader. Called on the driver; the reader is pickled."""
        return _CheckReader(*_unpacked(self.options["task"]))


class _Piece(InputPartition):
    """A partition: one piece of the input. Pickles."""

    def __init__(self, split: Split) -> None:
        super().__init__(split.number)
        self.split = split


class _CheckReader(DataSourceReader):
    """Made on the driver; copies of it go to workers and check."""

    def __init__(self, splits: Sequence[Split], task: CheckTask) -> None:
        self._splits = splits
        self._task = task

    def partitions(self) -> Sequence[InputPartition]:
        """One for each piece. Called on the driver."""
        return [_Piece(split) for split in self._splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Check a piece. Called on a worker, once per attempt of a task; a repetition writes the same files again."""
        assert isinstance(partition, _Piece)
        gc.disable()  # rows come and go by the thousand and are in no circles
        try:
            summary = msgspec.json.encode(check_split(partition.split, self._task))
        finally:
            gc.enable()
        number = pa.array([partition.split.number], pa.int64())
        yield pa.RecordBatch.from_arrays([number, pa.array([summary], pa.binary())], schema=_ARROW)


class HistorySink(DataSource):
    """Takes rows in order and makes the files of a stream. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return HISTORY_SINK

    def writer(self, schema: StructType, overwrite: bool) -> _HistoryWriter:
        """The writer. Called on the driver; the writer is pickled."""
        return _HistoryWriter(_unpacked(self.options["task"]))


class _Message(WriterCommitMessage):
    """The files that one task has written. Pickles."""

    def __init__(self, written: FilesWritten) -> None:
        self.written = written


class _HistoryWriter(DataSourceArrowWriter):
    """Made on the driver; copies of it go to workers and write."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Write the sorted rows of a partition. Called on a worker; an attempt that fails leaves only drafts."""
        return _Message(self._files.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the stream appear. Called on the driver, once, after all tasks."""
        self._files.appear([each.written for each in messages if isinstance(each, _Message)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed. Called on the driver: nothing has appeared."""
