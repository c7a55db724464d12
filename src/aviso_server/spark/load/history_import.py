"""Rows as the past of a stream: in the order of their times, numbered from 1, straight into the archive.

The files of the stream come into its table in one commit, when everything is on disk. A process that is killed before
leaves nothing that anybody reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import TARGET
from aviso_server.lake.files import FileWriter, NewFile
from aviso_server.lake.previous import refuse_previous
from aviso_server.lake.schema import FileShape
from aviso_server.lake.storage import is_local, local_path
from aviso_server.lake.table import Table
from aviso_server.model.batch import columns_of
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.spark.load.blocks import HISTORY, Told
from aviso_server.spark.load.check_job import run_on_batches

__all__ = ["import_history", "refuse_if_archived"]

_ORDER = ("time_ns", "file", "block", "offset")
_MOST_PARTITIONS = 64
_SPARK = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "string", pa.float64(): "double"}


class _Past(msgspec.Struct, frozen=True):
    """What becomes the table of a stream. Pickles."""

    event_type: EventType | GenericType
    root: str  # of the archive
    sizes: list[int]  # rows of each stretch of time

    @property
    def table(self) -> Table:
        return Table(self.root, self.event_type.base)


def refuse_if_archived(root: str, stream: str) -> None:
    """Raise PipelineError if the stream has a past already."""
    refuse_previous(root)
    if last := Table(root, stream).snapshot().watermark:
        raise PipelineError(
            f"stream '{stream}' has notifications already, up to sequence {last} in the archive: history can be "
            "imported only before the first notification. Publish these rows instead, or choose another archive"
        )


def import_history(
    session: SparkSession, root: str, event_type: EventType | GenericType, work: Path, target: int | None = None,
    told: Told = lambda done, total: None,
) -> int:  # fmt: skip
    """Make the rows in `work` the past of their stream; return how many there are."""
    refuse_if_archived(root, event_type.base)
    if not any((work / "history").glob("*.parquet")):
        return 0
    schema = ", ".join(f"`{field.name}` {_SPARK[field.type]}" for field in HISTORY)
    rows = session.read.schema(schema).parquet(str(work / "history"))
    count = rows.count()
    if not count:
        return 0
    bucket, sizes = _buckets(rows, -(-count // (target or TARGET)))
    partitions = min(len(sizes), _MOST_PARTITIONS)
    spread = rows.withColumn("bucket", bucket).repartition(partitions, "bucket")
    ordered = spread.sortWithinPartitions("bucket", *_ORDER)
    past = _Past(event_type, str(local_path(root).resolve()) if is_local(root) else root, sizes)
    written = run_on_batches(session, ordered, partial(_write, past), work, told)
    past.table.commit(written, watermark=count, after=0)
    return int(count)


def _buckets(rows: DataFrame, wanted: int) -> tuple[Column, list[int]]:
    """Return which stretch of time a row belongs to, and how many rows each has; equal times are never parted."""
    shares = [place / wanted for place in range(1, wanted)]
    limits = sorted({int(limit) for limit in rows.approxQuantile("time_ns", shares, 0.001)}) if shares else []
    bucket = reduce(lambda number, limit: number + (F.col("time_ns") >= limit).cast("int"), limits, F.lit(0))
    sizes = {row.bucket: row["count"] for row in rows.groupBy(bucket.alias("bucket")).count().collect()}
    return bucket, [sizes.get(number, 0) for number in range(len(limits) + 1)]


def _write(past: _Past, batches: Iterator[pa.RecordBatch]) -> list[NewFile]:
    """Number rows that come sorted, each stretch of time as a whole, and write them. Runs on a worker."""
    shape = FileShape(past.event_type.name, columns_of(past.event_type))
    table = past.table
    written: list[NewFile] = []
    writer: FileWriter | None = None
    current, sequence = -1, 0
    for batch in batches:
        for bucket, piece in _runs(batch):
            if bucket != current:
                written += () if writer is None else writer.finish()
                current, sequence = bucket, sum(past.sizes[:bucket])
                first, last = sequence + 1, sequence + past.sizes[bucket]
                writer = FileWriter(table.folder, first, last, shape.schema)
            assert writer is not None
            written += writer.add(shape.batch(_numbered(piece, sequence)))
            sequence += piece.num_rows
    written += () if writer is None else writer.finish()
    return written


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each stretch of time, which are beside each other."""
    numbers = batch.column("bucket").to_numpy()
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[start]:
            yield int(numbers[start]), batch.slice(start, place - start)
            start = place


def _numbered(piece: pa.RecordBatch, before: int) -> pa.RecordBatch:
    sequences = pa.array(range(before + 1, before + piece.num_rows + 1), pa.int64())
    return piece.append_column("sequence", sequences)
