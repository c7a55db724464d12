"""One slice of a stream: log and archive side by side, compared by Spark as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from aviso_server.pipeline.audit.findings import Defect, Hour, Kind, Where, hour_text
from aviso_server.pipeline.audit.forms import FORM, FormCheck, forms_of
from aviso_server.pipeline.audit.gaps import Gap, Presence, presence

__all__ = ["Found", "Slice", "examine"]

_HOUR_NS = 3600 * 1_000_000_000
_TEXTS = ("time_ns", "topic", "identifier", "payload")
_LOG: Where = "log"
_ARCHIVE: Where = "archive"
_ALIKE = "the rows are the same"
_FOREIGN, _UNPROVEN = "foreign", "unproven"  # no defects: rows to be counted, and rows to be looked at again
_NARROW = ("sequence", "time_ns", "digest", "second", "misplaced")


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
    kept: list[DataFrame] = []
    try:
        hot = None if log is None else _kept(_checked(log.withColumn("misplaced", f.lit(False)), check), kept)
        cold = None
        if archive is not None:
            # what is the same in the log has been checked there
            cold = _kept(_unchecked(archive) if hot is not None else _checked(archive, check), kept)
        return _compared(part, hot, cold, archive, check)
    finally:
        for frame in kept:
            frame.unpersist()


def _compared(
    part: Slice, hot: DataFrame | None, cold: DataFrame | None, archive: DataFrame | None, check: FormCheck
) -> Found:
    placed = None if cold is None else cold.where(~f.col("misplaced"))
    hot_side = Presence(0, ()) if hot is None else presence(hot, part.log_from, part.log_to)
    cold_side = (
        _nothing(part.first, part.archive_to) if placed is None else presence(placed, part.first, part.archive_to)
    )
    sides = [side for side in (_side(hot, True), _side(placed, False)) if side is not None]
    if not sides:
        return Found(hot_side, cold_side, 0, (), (), 0)
    pairs = reduce(DataFrame.unionByName, sides).groupBy("sequence").agg(
        f.sum("log").alias("log"),
        f.sum("archive").alias("archive"),
        f.min("time_ns").alias("time_ns"),
        f.min("mark").alias("low"),
        f.max("mark").alias("high"),
    )  # fmt: skip
    differs = f.col("low") != f.col("high")
    suspects = [
        _suspects(pairs.where("log > 1"), "duplicate", "log", _doubled(differs)),
        _suspects(pairs.where("archive > 1"), "duplicate", "archive", _doubled(differs)),
    ]
    checked = [
        (frame, where) for frame, where in ((hot, _LOG), (None if part.warm else placed, _ARCHIVE)) if frame is not None
    ]
    for frame, where in checked:
        suspects.append(_suspects(frame.where("fault is not null"), "form", where, f.col("fault")))
        suspects.append(_suspects(frame.where("foreign"), _FOREIGN, where, f.lit("")))
    if cold is not None:
        suspects.append(_suspects(cold.where("misplaced"), "misplaced", "archive", f.lit("")))
    unproven = pairs.where((f.col("archive") > 0) & ((f.col("log") == 0) | differs))
    if part.warm and archive is not None:
        suspects.append(_suspects(unproven, _UNPROVEN, "archive", f.lit("")))
    found = _collected(suspects, part.warm)
    if found.unproven and archive is not None:
        found = found.joined(_vouched(unproven, archive, check))
    hours = tuple(_hours(pairs, differs))
    same = sum(each.same for each in hours)
    return Found(hot_side, cold_side, same, hours, tuple(found.defects), found.foreign)


def _vouched(unproven: DataFrame, archive: DataFrame, check: FormCheck) -> _Collected:
    """Archived rows that no row of the log vouches for: a wrong form says more than that they differ."""
    known = unproven.select("sequence", "log", (f.col("archive") == 1).alias("single"))
    rows = archive.where(~f.col("misplaced")).join(known.select("sequence"), "sequence", "left_semi")
    looked = _checked(rows, check).join(known, "sequence").persist()
    try:
        wrong = looked.where("fault is not null").dropDuplicates(["sequence"])
        other = looked.where("fault is null and log = 1 and single")
        suspects = [
            _suspects(wrong, "form", "archive", f.col("fault")),
            _suspects(other, "content", "archive", f.lit("log and archive differ")),
            _suspects(looked.where("foreign and log = 0"), _FOREIGN, "archive", f.lit("")),
        ]
        return _collected(suspects, in_log=True)
    finally:
        looked.unpersist()


def _kept(frame: DataFrame, kept: list[DataFrame]) -> DataFrame:
    kept.append(frame.persist())
    return kept[-1]


def _digested(rows: DataFrame) -> DataFrame:
    return rows.withColumns({"digest": f.xxhash64(*_TEXTS), "second": f.hash(*reversed(_TEXTS))})


def _checked(rows: DataFrame, check: FormCheck) -> DataFrame:
    form = arrow_udf(forms_of(check), FORM)  # type: ignore[call-overload]  # Spark sees its kind by the annotations
    looked = _digested(rows).withColumn("form", form("topic", "identifier", "payload"))
    return looked.select(*_NARROW, "form.fault", "form.foreign")


def _unchecked(rows: DataFrame) -> DataFrame:
    return _digested(rows).select(*_NARROW)


def _side(rows: DataFrame | None, log: bool) -> DataFrame | None:
    if rows is None:
        return None
    return rows.select(
        "sequence",
        "time_ns",
        f.lit(int(log)).alias("log"),
        f.lit(int(not log)).alias("archive"),
        f.struct("digest", "second").alias("mark"),
    )


def _doubled(differs: Column) -> Column:
    return f.when(differs, f.lit("the rows differ")).otherwise(f.lit(_ALIKE))


def _hours(pairs: DataFrame, differs: Column) -> Iterator[Hour]:
    def number(condition: Column) -> Column:
        return f.sum(f.when(condition, 1).otherwise(0))

    in_log, in_archive = f.col("log") > 0, f.col("archive") > 0
    hour = f.expr(f"time_ns div {_HOUR_NS}").alias("hour")
    counted = pairs.groupBy(hour).agg(
        number(in_log).alias("log"),
        number(in_archive).alias("archive"),
        number(in_log & in_archive & ~differs).alias("same"),
    )
    for row in sorted(counted.collect(), key=lambda each: each.hour):
        yield Hour(hour_text(row.hour * _HOUR_NS), row["log"], row.archive, row.same)


def _suspects(rows: DataFrame, kind: str, where: Where, why: Column) -> DataFrame:
    """Rows that have something of a kind."""
    return rows.select(
        "sequence", "time_ns", why.alias("reason"), f.lit(kind).alias("kind"), f.lit(where).alias("where")
    )


class _Collected(msgspec.Struct, frozen=True):
    """Suspects, brought together."""

    defects: tuple[Defect, ...]
    foreign: int
    unproven: int

    def joined(self, other: _Collected) -> _Collected:
        """Both."""
        return _Collected(self.defects + other.defects, self.foreign + other.foreign, self.unproven)


def _collected(suspects: Sequence[DataFrame], in_log: bool) -> _Collected:
    """All of them with one question to Spark; neighbours of a kind become one defect."""
    table = reduce(DataFrame.unionByName, suspects).toArrow()
    defects: list[Defect] = []
    for kind in get_args(Kind):
        for where in get_args(Where):
            own = table.filter(pc.and_(pc.equal(table["kind"], kind), pc.equal(table["where"], where)))
            defects += _runs(own.take(pc.sort_indices(own["sequence"])), kind, where, in_log) if own.num_rows else ()
    counts = {each["values"]: each["counts"] for each in table["kind"].value_counts().to_pylist()}
    return _Collected(tuple(defects), counts.get(_FOREIGN, 0), counts.get(_UNPROVEN, 0))


def _runs(table: pa.Table, kind: Kind, where: Where, in_log: bool) -> list[Defect]:
    """Rows in order as defects, neighbours together."""
    sequences, times = table["sequence"].to_numpy(), table["time_ns"].to_numpy()
    found: list[Defect] = []
    for run in np.split(np.arange(len(sequences)), np.flatnonzero(np.diff(sequences) > 1) + 1):
        low, high = int(run[0]), int(run[-1])
        reason = str(table["reason"][low].as_py())
        found.append(
            Defect(
                kind=kind,
                where=where,
                first=int(sequences[low]),
                last=int(sequences[high]),
                hours=(hour_text(int(times[low])), hour_text(int(times[high]))),
                reason=reason,
                repairable=where == "archive" and (in_log or reason == _ALIKE),
            )
        )
    return found


def _nothing(first: int, last: int) -> Presence:
    return Presence(0, (Gap(first, last),) if first <= last else ())
