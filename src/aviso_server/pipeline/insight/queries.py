"""The questions to Spark: rows of the archive in, counts by hour out. What leaves Spark is small."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aviso_server.insight.delay import BITS
from aviso_server.insight.tables import HOUR, VALUES
from aviso_server.model.timestamp import SECOND
from aviso_server.pipeline.archive.layout import DataFile
from aviso_server.pipeline.archive.ranges import Range
from aviso_server.pipeline.archive.tombstones import Tombstones
from aviso_server.pipeline.insight.subject import Subject

__all__ = ["SCHEMAS", "Questions"]

_SCHEMA = (
    "sequence bigint, time_ns bigint, identifier string, "
    "box_min_lat float, box_min_lon float, box_max_lat float, box_max_lon float"
)
_MOST_FIELDS = 20  # of an identifier that nobody configured
_LONGEST_VALUE = 200  # characters
_MOST_STEPS = 1_000_000  # hours
_MANY = 500  # sequences that are too many for a list

SCHEMAS = {
    "hours": pa.schema(
        [
            ("hour", pa.int64()),
            ("count", pa.int64()),
            ("first_sequence", pa.int64()),
            ("last_sequence", pa.int64()),
            ("first_time", pa.int64()),
            ("last_time", pa.int64()),
        ]
    ),
    "fields": pa.schema(
        [
            ("hour", pa.int64()),
            ("field", pa.string()),
            ("value", pa.string()),  # null: all others together
            ("count", pa.int64()),
            ("values", pa.int64()),  # how many are counted together
            ("first_time", pa.int64()),
            ("last_time", pa.int64()),
        ]
    ),
    "delays": pa.schema([("hour", pa.int64()), ("since", pa.string()), ("seconds", pa.int64()), ("count", pa.int64())]),
    "cells": pa.schema([("hour", pa.int64()), ("lat", pa.int16()), ("lon", pa.int16()), ("count", pa.int64())]),
    "coverage": pa.schema([("lat", pa.int16()), ("lon", pa.int16()), ("count", pa.int64())]),
}
"""The columns of every table. Hours are counted since 1970; `lat` and `lon` are the lower edges of a cell."""


class Questions:
    """What can be asked about some files of a stream."""

    def __init__(self, session: SparkSession, subject: Subject, files: Sequence[DataFile], marks: Tombstones) -> None:
        self._subject = subject
        frame = session.read.schema(_SCHEMA).parquet(*[file.path for file in files])
        frame = frame.withColumn("hour", f.expr(f"time_ns div {HOUR}"))
        self._rows = _without(session, frame, marks)

    def presence(self, after: int, ranges: Sequence[Range]) -> pa.Table:
        """Which hours have notifications beyond a sequence or in some ranges, and which."""
        wanted = f.col("sequence") > after
        for first, last in ranges:
            wanted |= f.col("sequence").between(first, last)
        return _hours(self._rows.where(wanted)).toArrow()

    def tables(self, hours: Collection[int], first: int, last: int) -> dict[str, pa.Table]:
        """All tables of these hours, from the notifications between two sequences."""
        low, high = min(hours), max(hours)
        rows = self._rows.where(
            f.col("sequence").between(first, last)
            & f.col("time_ns").between(low * HOUR, high * HOUR + HOUR - 1)
            & f.col("hour").isin(sorted(hours))
        )
        found = {"hours": _hours(rows).toArrow(), "fields": self._fields(rows).toArrow()}
        if self._subject.date is not None:
            found["delays"] = self._delays(rows).toArrow()
        if self._subject.polygon or self._subject.points is not None:
            areas = self._points(rows) if self._subject.points is not None else _boxes(rows)
            found["cells"] = _filled(_changes(areas).toArrow())
        return {name: table.select(SCHEMAS[name].names).cast(SCHEMAS[name]) for name, table in found.items()}

    def _fields(self, rows: DataFrame) -> DataFrame:
        fields = self._subject.fields
        pairs = rows.select("hour", "time_ns", f.explode(_values()).alias("field", "value"))
        if fields is not None:
            pairs = pairs.where(f.col("field").isin(list(fields)))
        pairs = pairs.where(f.col("value").isNotNull())
        counted = pairs.groupBy("hour", "field", f.substring("value", 1, _LONGEST_VALUE).alias("value")).agg(
            f.count("*").alias("count"), f.min("time_ns").alias("first_time"), f.max("time_ns").alias("last_time")
        )
        if fields is None:
            counted = _most_used(counted)
        order = Window.partitionBy("hour", "field").orderBy(f.col("count").desc(), "value")
        ranked = counted.withColumn("rank", f.row_number().over(order))
        kept = f.when(f.col("rank") <= VALUES, f.col("value"))
        return ranked.groupBy("hour", "field", kept.alias("value")).agg(
            f.sum("count").alias("count"),
            f.count("*").alias("values"),
            f.min("first_time").alias("first_time"),
            f.max("last_time").alias("last_time"),
        )

    def _delays(self, rows: DataFrame) -> DataFrame:
        subject = self._subject
        assert subject.date is not None
        values = rows.select("hour", f.expr(f"time_ns div {SECOND}").alias("published"), _values().alias("v"))
        date = f.regexp_replace(_value(subject.date), "-", "")
        midnight = f.when(date.rlike(r"^\d{8}$"), f.try_to_timestamp(date, f.lit("yyyyMMdd")).cast("bigint"))
        clock = f.lit(0)
        if subject.time is not None:
            text = _value(subject.time)
            minutes = f.substring(text, 1, 2).try_cast("bigint") * 60 + f.substring(text, 3, 2).try_cast("bigint")
            clock = f.when(text.rlike(r"^\d{4}$"), minutes * 60).otherwise(0)
        run = midnight + clock
        kinds = [f.struct(f.lit("run").alias("since"), (f.col("published") - run).alias("seconds"))]
        if subject.step is not None:
            hours = _value(subject.step).try_cast("bigint")
            step = f.when(hours.between(-_MOST_STEPS, _MOST_STEPS), hours * 3600)
            kinds.append(f.struct(f.lit("valid").alias("since"), (f.col("published") - run - step).alias("seconds")))
        each = values.select("hour", f.inline(f.array(*kinds))).where(f.col("seconds").isNotNull())
        return each.groupBy("hour", "since", _rounded("seconds").alias("seconds")).agg(f.count("*").alias("count"))

    def _points(self, rows: DataFrame) -> DataFrame:
        """Cells with points, each once per notification, as corners of areas."""
        assert self._subject.points is not None
        text = f.try_element_at(_values(), f.lit(self._subject.points))
        pairs = f.from_json(text, "array<array<double>>")
        cells = f.array_distinct(
            f.transform(
                pairs,
                lambda pair: f.struct(
                    _edge(f.try_element_at(pair, f.lit(1)), 90).alias("lat"),
                    _edge(f.try_element_at(pair, f.lit(2)), 180).alias("lon"),
                ),
            )
        )
        places = rows.select("hour", f.inline(cells)).where(f.col("lat").isNotNull() & f.col("lon").isNotNull())
        return places.select(
            "hour", f.col("lat").alias("south"), f.col("lat").alias("north"),
            f.col("lon").alias("west"), f.col("lon").alias("east"),
        )  # fmt: skip


def _without(session: SparkSession, frame: DataFrame, marks: Tombstones) -> DataFrame:
    """The rows that are not deleted."""
    if marks.wiped_through:
        frame = frame.where(f.col("sequence") > marks.wiped_through)
    if len(marks.deleted) > _MANY:
        gone = session.createDataFrame(pa.table({"sequence": pa.array(marks.deleted, pa.int64())}))
        return frame.join(f.broadcast(gone), "sequence", "left_anti")
    return frame.where(~f.col("sequence").isin(list(marks.deleted))) if marks.deleted else frame


def _hours(rows: DataFrame) -> DataFrame:
    return rows.groupBy("hour").agg(
        f.count("*").alias("count"),
        f.min("sequence").alias("first_sequence"),
        f.max("sequence").alias("last_sequence"),
        f.min("time_ns").alias("first_time"),
        f.max("time_ns").alias("last_time"),
    )


def _values() -> Column:
    """The identifier as it is stored: canonical text by field."""
    return f.from_json(f.col("identifier"), "map<string,string>")


def _value(field: str) -> Column:
    return f.try_element_at(f.col("v"), f.lit(field))


def _rounded(name: str) -> Column:
    """The highest binary digits of a whole number, as `insight.delay.rounded` has it."""
    size = f.abs(f.col(name))
    spare = f.greatest(f.lit(0), f.length(f.bin(size)) - BITS)
    kept = f.call_function("shiftleft", f.call_function("shiftright", size, spare), spare)
    return f.when(f.col(name) < 0, -kept).otherwise(kept)


def _most_used(counted: DataFrame) -> DataFrame:
    """Only the fields that most notifications of an hour have."""
    order = Window.partitionBy("hour").orderBy(f.col("total").desc(), "field")
    totals = counted.groupBy("hour", "field").agg(f.sum("count").alias("total"))
    used = totals.withColumn("rank", f.row_number().over(order)).where(f.col("rank") <= _MOST_FIELDS)
    return counted.join(used.select("hour", "field"), ["hour", "field"], "left_semi")


def _boxes(rows: DataFrame) -> DataFrame:
    """The cells at the corners of the boxes around shapes. What only touches the edge of a cell is not in it."""
    south, west = _edge(f.col("box_min_lat"), 90), _edge(f.col("box_min_lon"), 180)
    return rows.where(f.col("box_min_lat").isNotNull()).select(
        "hour",
        south.alias("south"),
        f.greatest(south, _edge(f.ceil(f.col("box_max_lat").cast("double")) - 1, 90)).alias("north"),
        west.alias("west"),
        f.greatest(west, _edge(f.ceil(f.col("box_max_lon").cast("double")) - 1, 180)).alias("east"),
    )


def _edge(degrees: Column, limit: int) -> Column:
    """The lower edge of the cell that a coordinate is in; the last cell has both of its edges."""
    whole = f.floor(degrees.cast("double")).cast("int")
    return f.greatest(f.lit(-limit), f.least(f.lit(limit - 1), whole))


def _changes(areas: DataFrame) -> DataFrame:
    """Where areas begin and end, summed up; the sums over those are what covers a cell, however large areas are."""
    south, west, n = f.col("south"), f.col("west"), f.col("n")
    north, east = f.col("north") + 1, f.col("east") + 1
    corners = [(south, west, n), (south, east, -n), (north, west, -n), (north, east, n)]
    structs = [f.struct(lat.alias("lat"), lon.alias("lon"), d.alias("d")) for lat, lon, d in corners]
    return (
        areas.groupBy("hour", "south", "north", "west", "east")
        .agg(f.count("*").alias("n"))
        .select("hour", f.inline(f.array(*structs)))
        .groupBy("hour", "lat", "lon")
        .agg(f.sum("d").alias("d"))
        .where("d <> 0")
    )


def _filled(changes: pa.Table) -> pa.Table:
    """How many areas cover each cell."""
    hours = changes["hour"].to_numpy()
    lat, lon, change = (changes[name].to_numpy() for name in ("lat", "lon", "d"))
    parts = []
    for hour in np.unique(hours):
        here = hours == hour
        grid = np.zeros((181, 361), np.int64)
        np.add.at(grid, (lat[here] + 90, lon[here] + 180), change[here])
        grid = grid.cumsum(axis=0).cumsum(axis=1)
        rows, columns = np.nonzero(grid)
        names = {
            "hour": np.full(len(rows), hour, np.int64),
            "lat": (rows - 90).astype(np.int16),
            "lon": (columns - 180).astype(np.int16),
            "count": grid[rows, columns],
        }
        parts.append(pa.table(names, schema=SCHEMAS["cells"]))
    return pa.concat_tables([SCHEMAS["cells"].empty_table(), *parts])
