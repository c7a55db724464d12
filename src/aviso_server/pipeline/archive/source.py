"""The streaming source of the archive: its rows are finished Parquet files, each covering a range of a stream.

The notifications themselves go from the server's Arrow stream into the files, on the workers; Spark carries only the
list of files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import httpx
import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from aviso_server.errors import PipelineError
from aviso_server.model.columns import columns_of
from aviso_server.pipeline.archive.columns import FileShape
from aviso_server.pipeline.archive.layout import stream_folder
from aviso_server.pipeline.archive.storage import is_local, local_path
from aviso_server.pipeline.archive.streams import LogStream, fetch_streams
from aviso_server.pipeline.archive.writer import Draft, RangeWriter
from aviso_server.pipeline.catalogue import event_types, fetch_catalogue
from aviso_server.pipeline.connection import connect, pause
from aviso_server.pipeline.options import Options, read_options
from aviso_server.pipeline.planning import SequenceRange, Stretch, split
from aviso_server.pipeline.reading import read_range

__all__ = ["FORMAT", "ArchiveSource", "ArchiveTask"]

FORMAT = "aviso-archive"
"""The name for `format(...)`."""

Offset = dict[str, int]
"""Stream -> the last sequence that has been handed out."""

_SCHEMA = "stream string, first bigint, last bigint, rows bigint, gone bigint, path string, content binary"
_ARROW = pa.schema(
    [
        ("stream", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("rows", pa.int64()),
        ("gone", pa.int64()),
        ("path", pa.string()),
        ("content", pa.binary()),
    ]
)
_CHUNK = 4 * 1024 * 1024
_NAP = 1.0  # seconds; a query that is to stop has to wait for it


class ArchiveTask(msgspec.Struct, frozen=True):
    """What one run of the job is told; travels to the source as one JSON option."""

    url: str
    root: str
    offsets: Offset  # stream -> the last sequence that the archive holds
    interval: float = 10.0  # seconds between two looks at the log when there is no backlog
    rows_per_file: int = 250_000
    rows_per_batch: int = 1_000_000
    token: str | None = None
    username: str | None = None
    password: str | None = None

    def connection(self) -> Options:
        """How to reach the server."""
        given = {"url": self.url, "token": self.token, "username": self.username, "password": self.password}
        return read_options({name: value for name, value in given.items() if value is not None})


class ArchiveSource(DataSource):
    """Spark makes one on the driver when the job starts a query, and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return FORMAT

    def schema(self) -> str:
        """One row per file; `content` is filled where workers cannot write to the archive. Called on the driver."""
        return _SCHEMA

    def reader(self, schema: StructType) -> ArchiveRound:
        """The reader of one micro-batch. Called on the driver; the reader is pickled."""
        return ArchiveRound(ArchiveReader(msgspec.json.decode(self.options["task"], type=ArchiveTask)))

    def streamReader(self, schema: StructType) -> ArchiveReader:  # noqa: N802  # Spark's name
        """The reader. Called on the driver when a query starts; the reader is pickled."""
        return ArchiveReader(msgspec.json.decode(self.options["task"], type=ArchiveTask))


class ArchiveRound(DataSourceReader):
    """One micro-batch as a batch read, for Spark Connect, where a streaming query would run away from us."""

    def __init__(self, reader: ArchiveReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        """The files of the next micro-batch. Called on the driver, once."""
        start = self._reader.initialOffset()
        return self._reader.partitions(start, self._reader.latestOffset(start, self._reader.getDefaultReadLimit()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the files of one range and say which. Called on a worker, once per attempt of a task."""
        return self._reader.read(partition)


class FileRange(InputPartition):
    """A partition: what becomes one file, as a rule. Pickles."""

    def __init__(self, stream: str, event_type: str, start: int, end: int, gone: int) -> None:
        super().__init__((stream, start, end))
        self.stream = stream
        self.event_type = event_type
        self.start = start
        self.end = end
        self.gone = gone  # how many sequences at its beginning the log did not hold any more


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds out what the log has beyond the archive. Lives on the driver; copies of it go to workers and write.

    Streams that appear while the query runs are taken up. Every file asks anew which columns its event type has, so a
    server may change its schema at any time.
    """

    def __init__(self, task: ArchiveTask) -> None:
        self._task = task
        self._client: httpx.Client | None = None
        self._known: dict[str, LogStream] = {}
        self._target: Offset | None = None
        self._asked = 0.0
        self._backlog = True

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection."""
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """The end of the archive: its files know best. Called on the driver, once per run of the job."""
        return self._task.offsets

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """How far the next micro-batch goes. Called on the driver, over and over.

        Between two looks at the log it says that there is nothing new.
        """
        rest = self._asked + self._task.interval - time.monotonic()
        if not self._backlog and rest > 0:
            time.sleep(min(rest, _NAP))
            return start
        self._known = self._look()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found, self._backlog = _share(self._limits(), start, most)
        self._asked = time.monotonic()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """So many sequences per micro-batch. Called on the driver."""
        rows = self._task.rows_per_batch
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember what there is now, for a job that archives that and stops. Called on the driver, once per run."""
        self._target = {name: each.last for name, each in self._look().items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The files of one micro-batch. Called on the driver."""
        if not self._known:
            self._known = self._look()
        ranges: list[InputPartition] = []
        for name, last in end.items():
            first = start.get(name, 0) + 1
            if first > last:
                continue
            stream = self._known[name]
            for low, high in split(Stretch(first, last), None, self._task.rows_per_file):
                gone = max(0, min(high, stream.first - 1) - low + 1)
                ranges.append(FileRange(name, stream.event_type, low, high, gone))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the files of one range and say which. Called on a worker, once per attempt of a task.

        An attempt that fails leaves nothing behind; one that is killed leaves a draft, which the next job removes.
        """
        if not isinstance(partition, FileRange):
            return  # Spark's stand-in for no partitions at all
        shared = is_local(self._task.root)
        folder = local_path(stream_folder(self._task.root, partition.stream)) if shared else Path(gettempdir())
        options = self._task.connection()
        known = event_types([partition.event_type], fetch_catalogue(options))
        shape = FileShape(partition.event_type, columns_of(known[partition.event_type]))
        writer = RangeWriter(folder, partition.start, partition.end, shape.schema)
        wanted = SequenceRange(partition.event_type, {}, partition.start, partition.end, bounded=True)
        try:
            for batch in read_range(options, wanted, (), minimal=True):
                for draft in writer.add(shape.batch(batch)):
                    yield from _told(partition, draft, shared)
            for draft in writer.finish():
                yield from _told(partition, draft, shared)
        except BaseException:
            writer.abandon()
            raise

    def commit(self, end: Offset) -> None:
        """Spark will not ask for anything up to `end` again. Called on the driver; the server need not know."""

    def stop(self) -> None:
        """Let go of the connection. Called on the driver when the query ends."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _limits(self) -> dict[str, int]:
        """How far each stream may be read; one whose log is behind the archive is not touched."""
        ends = {name: each.last for name, each in self._known.items()}
        if self._target is not None:
            ends = {name: min(last, self._target.get(name, 0)) for name, last in ends.items()}
        return ends

    def _look(self) -> dict[str, LogStream]:
        if self._client is None:
            self._client = connect(self._task.connection())
        failures = 0
        while True:
            try:
                return fetch_streams(self._client)
            except PipelineError:
                failures += 1
                if failures > 3:
                    raise
                time.sleep(pause(failures))


def _share(ends: Mapping[str, int], start: Offset, most: int | None) -> tuple[Offset, bool]:
    """Where each stream's part of a micro-batch ends, and whether something is left for the next one.

    Streams with little news come first, so that a large backlog in one does not hold up the others.
    """
    found, room, left = dict(start), most, False
    for name, end in sorted(ends.items(), key=lambda item: item[1] - start.get(item[0], 0)):
        begin = start.get(name, 0)
        news = max(0, end - begin)
        taken = news if room is None else min(news, room)
        left = left or taken < news
        if room is not None:
            room -= taken
        if taken or name in start:
            found[name] = begin + taken
    return found, left


def _told(partition: FileRange, draft: Draft, shared: bool) -> Iterator[pa.RecordBatch]:
    gone = partition.gone if draft.first == partition.start else 0
    facts = [partition.stream, draft.first, draft.last, draft.rows, gone, draft.path]
    if shared:
        yield _row([*facts, None])
        return
    file = Path(draft.path)
    try:
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                yield _row([*facts, chunk])
    finally:
        file.unlink(missing_ok=True)


def _row(values: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
