"""Which sequences are missing: Spark compares rows with their neighbours, and only the gaps come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, Window
from pyspark.sql import functions as f

from aviso_server.pipeline.archive.ranges import Range, clipped, without_ranges

__all__ = ["BUCKET", "Gap", "Presence", "cut", "edges", "outside", "presence", "row_before"]

BUCKET = 65_536
"""Sequences that one task puts in order."""


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


def row_before(present: Column) -> Column:
    """Sequence and time of the nearest earlier row of the `bucket` that is present."""
    order = Window.partitionBy("bucket").orderBy("sequence").rowsBetween(Window.unboundedPreceding, -1)
    return f.last(_here(present), ignorenulls=True).over(order)


def edges(present: Column, before: Column) -> Column:
    """An aggregate over rows of one bucket: how many are present, the first and the last, and the gaps before them."""
    gap = f.struct(
        (before["sequence"] + 1).alias("first"),
        (f.col("sequence") - 1).alias("last"),
        before["time_ns"].alias("before"),
        f.col("time_ns").alias("after"),
    )
    return f.struct(
        f.count(f.when(present, 1)).alias("rows"),
        f.min(_here(present)).alias("low"),
        f.max(_here(present)).alias("high"),
        f.collect_list(f.when(present & (f.col("sequence") > before["sequence"] + 1), gap)).alias("gaps"),
    )


def presence(parts: Iterable[tuple[int, Mapping[str, Any]]], first: int, last: int) -> Presence:
    """What there is of a range; a part is the number of its bucket and what `edges` says of some of its rows."""
    if first > last:
        return Presence(0, ())
    count, gaps = 0, list[Gap]()
    ends: dict[int, list[tuple[int, int]]] = {}
    for bucket, part in parts:
        if part["rows"]:
            count += part["rows"]
            gaps += [Gap(**each) for each in part["gaps"]]
            ends.setdefault(bucket, []).extend((part[end]["sequence"], part[end]["time_ns"]) for end in ("low", "high"))
    position, time = first, None
    for bucket in sorted(ends):
        low, low_time = min(ends[bucket])
        if low > position:
            gaps.append(Gap(position, low - 1, time, low_time))
        high, time = max(ends[bucket])
        position = high + 1
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


def _here(present: Column) -> Column:
    return f.when(present, f.struct("sequence", "time_ns"))
