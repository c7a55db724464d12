"""One slice of a stream: log and archive side by side, compared by Spark in one pass. Only what matters comes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from aviso_server.pipeline.audit.findings import Defect, Hour, hour_text
from aviso_server.pipeline.audit.forms import FORM, FormCheck, forms_of
from aviso_server.pipeline.audit.gaps import BUCKET, Presence, edges, presence, row_before
from aviso_server.pipeline.audit.suspects import compared, in_doubt, judged

__all__ = ["Found", "Slice", "examine"]

_HOUR_NS = 3600 * 1_000_000_000
_TEXTS = ("time_ns", "topic", "identifier", "payload")


class Slice(msgspec.Struct, frozen=True):
    """A range of sequences, and how far log and archive should have it."""

    first: int
    last: int
    log_from: int  # gaps in the log count from here on
    log_to: int  # lower than `first` if the log is not read
    archive_to: int

    @property
    def warm(self) -> bool:
        """True if the log is read."""
        return self.log_to >= self.first


class Found(msgspec.Struct, frozen=True):
    """What a slice has."""

    log: Presence
    archive: Presence
    same: int
    hours: tuple[Hour, ...]
    defects: tuple[Defect, ...]
    foreign: int  # rows that fit another schema than today's


def examine(part: Slice, log: DataFrame | None, archive: DataFrame | None, check: FormCheck) -> Found:
    """Compare; the frames have the columns of a notification, that of the archive `misplaced` too."""
    sides = []
    if log is not None:
        sides.append(_side(log.withColumn("misplaced", f.lit(False)), check, in_log=True))
    if archive is not None:
        # what is the same in the log has been checked there
        sides.append(_side(archive, None if log is not None else check, in_log=False))
    if not sides:
        return _found(part, [], (), 0)
    table = _summary(part, _sequences(part, reduce(DataFrame.unionByName, sides))).toArrow()
    parts = table.drop_columns("suspects").to_pylist()
    foreign = sum(each["foreign"] for each in parts)
    if not table.num_rows:
        return _found(part, parts, (), foreign)
    suspects = pa.Table.from_struct_array(table["suspects"].combine_chunks().flatten())
    defects = list(compared(suspects, part.warm))
    if part.warm and archive is not None:
        doubtful = in_doubt(suspects)
        if doubtful.num_rows:
            looked = _looked_at(archive, doubtful, check)
            defects += judged(looked)
            foreign += pc.sum(pc.and_(looked["foreign"], pc.equal(looked["log"], 0))).as_py() or 0
    return _found(part, parts, defects, foreign)


def _side(rows: DataFrame, check: FormCheck | None, in_log: bool) -> DataFrame:
    """The rows of one side as they are compared: what they are stands in two hashes of different kinds."""
    placed = ~f.col("misplaced")
    fault, foreign = f.lit(None).cast("string"), f.lit(False)
    if check is not None:
        rows = rows.withColumn("form", _form(check))
        fault, foreign = f.col("form.fault"), f.col("form.foreign")
    return rows.select(
        "sequence",
        "time_ns",
        "misplaced",
        f.lit(int(in_log)).alias("log"),
        (f.lit(0) if in_log else placed.cast("int")).alias("archive"),
        f.when(placed, f.xxhash64(*_TEXTS)).alias("digest"),
        f.when(placed, f.hash(*reversed(_TEXTS))).alias("second"),
        f.when(placed, fault).alias("fault"),
        (placed & foreign).cast("int").alias("foreign"),
    )


def _form(check: FormCheck) -> Column:
    form = arrow_udf(forms_of(check), FORM)  # type: ignore[call-overload]  # Spark sees its kind by the annotations
    found: Column = form("topic", "identifier", "payload")
    return found


def _sequences(part: Slice, rows: DataFrame) -> DataFrame:
    """A row for each sequence. Neighbours are brought together first, and stay together from then on."""
    time = f.coalesce(f.min(f.when(~f.col("misplaced"), f.col("time_ns"))), f.min("time_ns"))
    differs = (f.min("digest") != f.max("digest")) | (f.min("second") != f.max("second"))
    return (
        rows.withColumn("bucket", f.expr(f"(sequence - {part.first}) div {BUCKET}"))
        .repartition("bucket")
        .groupBy("bucket", "sequence")
        .agg(
            time.alias("time_ns"),
            f.sum("log").alias("log"),
            f.sum("archive").alias("archive"),
            f.sum(f.col("misplaced").cast("int")).alias("misplaced"),
            f.coalesce(differs, f.lit(False)).alias("differs"),
            f.min("fault").alias("fault"),
            f.sum("foreign").alias("foreign"),
        )
    )


def _summary(part: Slice, sequences: DataFrame) -> DataFrame:
    """A row for each hour of a bucket: counts, edges and gaps of both sides, and the sequences that are suspect."""
    in_log, in_archive, differs = f.col("log") > 0, f.col("archive") > 0, f.col("differs")
    suspect = (
        (f.col("log") > 1) | (f.col("archive") > 1) | (f.col("misplaced") > 0) | f.col("fault").isNotNull()
    )  # fmt: skip
    if part.warm:
        suspect |= in_archive & (~in_log | differs)
    members = f.struct("sequence", "time_ns", "log", "archive", "misplaced", "differs", "fault")
    log_counts = in_log & f.col("sequence").between(part.log_from, part.log_to)
    archive_counts = in_archive & f.col("sequence").between(part.first, part.archive_to)
    looked = sequences.withColumns(
        {"log_before": row_before(log_counts), "archive_before": row_before(archive_counts)}
    ).withColumn("hour", f.expr(f"time_ns div {_HOUR_NS}"))
    return looked.groupBy("bucket", "hour").agg(
        f.count_if(in_log).alias("log"),
        f.count_if(in_archive).alias("archive"),
        f.count_if(in_log & in_archive & ~differs).alias("same"),
        f.sum("foreign").alias("foreign"),
        edges(log_counts, f.col("log_before")).alias("log_edges"),
        edges(archive_counts, f.col("archive_before")).alias("archive_edges"),
        f.collect_list(f.when(suspect, members)).alias("suspects"),
    )


def _looked_at(archive: DataFrame, doubtful: pa.Table, check: FormCheck) -> pa.Table:
    """The archived rows of these sequences, checked."""
    low, high = pc.min_max(doubtful["sequence"]).as_py().values()
    wanted = archive.sparkSession.createDataFrame(doubtful)
    rows = archive.where(~f.col("misplaced") & f.col("sequence").between(low, high))
    looked = rows.join(f.broadcast(wanted), "sequence").withColumn("form", _form(check))
    return looked.select("sequence", "time_ns", "log", "single", "form.fault", "form.foreign").toArrow()


def _found(part: Slice, parts: Sequence[Mapping[str, Any]], defects: Sequence[Defect], foreign: int) -> Found:
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in parts:
        if each["log"] or each["archive"]:
            known = counts[each["hour"]]
            counts[each["hour"]] = [known[0] + each["log"], known[1] + each["archive"], known[2] + each["same"]]
    return Found(
        presence(((each["bucket"], each["log_edges"]) for each in parts), part.log_from, part.log_to),
        presence(((each["bucket"], each["archive_edges"]) for each in parts), part.first, part.archive_to),
        sum(same for _, _, same in counts.values()),
        tuple(Hour(hour_text(hour * _HOUR_NS), *counts[hour]) for hour in sorted(counts)),
        tuple(defects),
        foreign,
    )
