"""Rows as the past of a stream: in the order of their times, numbered from 1, straight into the archive.

The files of the stream appear all at once, when everything is on disk. A process that is killed before leaves nothing
that anybody reads.
"""

from __future__ import annotations

import shutil
import uuid
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

from aviso_server.errors import PipelineError
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.archive.compaction import TARGET
from aviso_server.pipeline.archive.layout import TOMBSTONES, listing, stream_folder, watermark
from aviso_server.pipeline.archive.storage import LOCAL, is_local, local_path
from aviso_server.pipeline.load.history_files import Files
from aviso_server.pipeline.load.job import Told, run_watched
from aviso_server.pipeline.load.parts import HISTORY
from aviso_server.pipeline.load.source import HISTORY_SINK, HistorySink, packed

__all__ = ["import_history", "refuse_if_archived"]

_ORDER = ("time_ns", "file", "offset")
_MOST_PARTITIONS = 64
_IMPORT = "_import-"


def refuse_if_archived(root: str, stream: str) -> None:
    """PipelineError if the stream has a past already, or if the archive is not on this machine."""
    if not is_local(root):
        raise PipelineError(f"history can be imported only into an archive on this machine; '{root}' is elsewhere")
    folder = stream_folder(root, stream)
    last = watermark(listing(folder))
    if last:
        raise PipelineError(
            f"stream '{stream}' has notifications already, up to sequence {last} in the archive: history can be "
            "imported only before the first notification. Publish these rows instead, or choose another archive"
        )
    if LOCAL.list(f"{folder}/{TOMBSTONES}"):
        raise PipelineError(
            f"stream '{stream}' had notifications that were deleted: its sequences cannot be used again"
        )


def import_history(
    session: SparkSession, root: str, event_type: EventType | GenericType, work: Path, target: int | None = None,
    told: Told = lambda done, total: None,
) -> int:  # fmt: skip
    """Make the rows in `work` the past of their stream; how many there are."""
    refuse_if_archived(root, event_type.base)
    schema = ", ".join(f"`{field.name}` {_SPARK[field.type]}" for field in HISTORY)
    rows = session.read.schema(schema).parquet(str(work / "history"))
    count = rows.count()
    if not count:
        return 0
    bucket, sizes = _buckets(rows, -(-count // (target or TARGET)))
    folder = (local_path(root) / f"{_IMPORT}{uuid.uuid4().hex}").resolve()
    folder.mkdir(parents=True)
    try:
        partitions = min(len(sizes), _MOST_PARTITIONS)
        spread = rows.withColumn("bucket", bucket).repartition(partitions, "bucket")
        ordered = spread.sortWithinPartitions("bucket", *_ORDER)
        target_folder = local_path(stream_folder(root, event_type.base)).resolve()
        files = Files(event_type, str(folder), str(target_folder), sizes)
        session.dataSource.register(HistorySink)
        sink = ordered.write.format(HISTORY_SINK).mode("append").option("task", packed(files))
        run_watched(session, sink.save, partitions, told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(count)


_SPARK = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.float64(): "double",
}


def _buckets(rows: DataFrame, wanted: int) -> tuple[Column, list[int]]:
    """Which stretch of time a row belongs to, and how many rows each stretch has; equal times are never parted."""
    shares = [place / wanted for place in range(1, wanted)]
    limits = sorted({int(limit) for limit in rows.approxQuantile("time_ns", shares, 0.001)}) if shares else []
    bucket = reduce(lambda number, limit: number + (F.col("time_ns") >= limit).cast("int"), limits, F.lit(0))
    sizes = {row.bucket: row["count"] for row in rows.groupBy(bucket.alias("bucket")).count().collect()}
    return bucket, [sizes.get(number, 0) for number in range(len(limits) + 1)]
