"""Which sequences are missing, found by Spark: rows are compared with their neighbours, and only the gaps come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from aviso_server.pipeline.archive.ranges import Range, clipped, without_ranges

__all__ = ["Gap", "Presence", "cut", "outside", "presence"]

_BUCKET = 65_536  # sequences that one task puts in order


class Gap(msgspec.Struct, frozen=True):
    """Sequences without a row, and the times of the rows before and after; None where there are none."""

    first: int
    last: int
    before: int | None = None
    after: int | None = None


class Presence(msgspec.Struct, frozen=True):
    """What is there of a range of sequences."""

    rows: int  # different sequences
    gaps: tuple[Gap, ...]

    @property
    def missing(self) -> list[Range]:
        """The gaps as ranges."""
        return [(each.first, each.last) for each in self.gaps]


def presence(rows: DataFrame, first: int, last: int) -> Presence:
    """What rows with `sequence` and `time_ns` have of a range."""
    if first > last:
        return Presence(0, ())
    bucket = f.expr(f"(sequence - {first}) div {_BUCKET}")
    inside = rows.where(f.col("sequence").between(first, last)).select("sequence", "time_ns", bucket.alias("bucket"))
    order = Window.partitionBy("bucket").orderBy("sequence")
    steps = inside.select(
        "bucket",
        "sequence",
        "time_ns",
        f.lag("sequence").over(order).alias("before"),
        f.lag("time_ns").over(order).alias("before_time"),
    )
    edges = steps.groupBy("bucket").agg(
        f.min("sequence").alias("low"),
        f.max("sequence").alias("high"),
        f.min_by("time_ns", "sequence").alias("low_time"),
        f.max_by("time_ns", "sequence").alias("high_time"),
        f.sum(f.when(f.col("before") == f.col("sequence"), 0).otherwise(1)).alias("rows"),
        f.collect_list(
            f.when(
                f.col("sequence") > f.col("before") + 1,
                f.struct(f.col("before"), f.col("sequence").alias("next"), f.col("before_time"), f.col("time_ns")),
            )
        ).alias("gaps"),
    )
    gaps: list[Gap] = []
    position, time, count = first, None, 0
    for each in sorted(edges.collect(), key=lambda row: row.bucket):
        if each.low > position:
            gaps.append(Gap(position, each.low - 1, time, each.low_time))
        gaps += [Gap(one.before + 1, one.next - 1, one.before_time, one.time_ns) for one in each.gaps]
        position, time = each.high + 1, each.high_time
        count += each.rows
    if position <= last:
        gaps.append(Gap(position, last, time, None))
    return Presence(count, tuple(sorted(gaps, key=lambda gap: gap.first)))


def cut(gaps: Iterable[Gap], left: Sequence[Range]) -> list[Gap]:
    """The parts of gaps that lie in the ranges, with the times of the whole."""
    return [Gap(low, high, gap.before, gap.after) for gap in gaps for low, high in clipped(left, gap.first, gap.last)]


def outside(gaps: Iterable[Gap], ranges: Sequence[Range]) -> list[Gap]:
    """The parts of gaps that lie in none of the ranges."""
    found = list(gaps)
    return cut(found, without_ranges([(each.first, each.last) for each in found], ranges))
