"""Insight: what Spark counts in the archive, kept up to date step by step.

Hours are made anew as a whole, those with new notifications and those from which some are gone: so the tables are
always what they would be if they were made from nothing, and only touched hours cost anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from aviso_server.errors import AvisoError, InvalidRequest
from aviso_server.insight.answers import BITS
from aviso_server.insight.counts import (
    FOLDER,
    HOUR,
    STATE,
    TABLES,
    VALUES,
    Day,
    State,
    folder_of,
    stored_state,
    stream_of,
    table_name,
    table_names,
)
from aviso_server.lake.files import DataFile
from aviso_server.lake.ranges import Range, clipped
from aviso_server.lake.storage import joined, list_folder, open_file, remove, write_file
from aviso_server.lake.table import Snapshot, Tables
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.fields import DateField, Field, IntField, PointCloudField, SpatialField, TimeField
from aviso_server.model.times import SECOND
from aviso_server.spark.archiver import ArchiveSettings, ArchiveStatus
from aviso_server.spark.catalogue import fetch_catalogue
from aviso_server.spark.lake_files import read_files
from aviso_server.spark.session import reason

__all__ = ["SCHEMAS", "Rollup", "Subject", "keep_insight", "roll_up", "subject_of", "subjects"]

logger = logging.getLogger(__name__)

_VERSION = 1  # of the rules by which rows become tables


class Subject(msgspec.Struct, frozen=True):
    """A stream and the fields that matter."""

    stream: str
    event_type: str
    fields: tuple[str, ...] | None  # whose values are counted; None: whatever an identifier has
    date: str | None = None  # the fields that make up the nominal time
    time: str | None = None
    step: str | None = None
    polygon: bool = False
    points: str | None = None  # the field with the points

    @property
    def rules(self) -> str:
        """Stands for how rows are made: with other rules all of them have to be made anew."""
        return msgspec.json.encode([_VERSION, VALUES, self]).decode()


def subject_of(stream: str, event_type: EventType | GenericType) -> Subject:
    """What to count in a stream of this event type.

    The nominal time comes from the field `date` (or the first DateHandler), the field `time` (or the first
    TimeHandler) and an IntHandler named `step`, in hours. Without a date there is none.
    """
    if isinstance(event_type, GenericType):
        return Subject(stream, event_type.name, None)
    fields = event_type.fields
    step = "step" if isinstance(fields.get("step"), IntField) else None
    points = [name for name, field in fields.items() if isinstance(field, PointCloudField)]
    shapes = [name for name, field in fields.items() if isinstance(field, SpatialField)]
    date = _one("date", DateField, fields)
    return Subject(
        stream,
        event_type.name,
        tuple(name for name in fields if name not in shapes),
        date,
        _one("time", TimeField, fields) if date else None,
        step if date else None,
        polygon=bool(shapes) and not points,
        points=points[0] if points else None,
    )


def _one(name: str, kind: type[Field], fields: dict[str, Field]) -> str | None:
    if isinstance(fields.get(name), kind):
        return name
    return next((each for each, field in fields.items() if isinstance(field, kind)), None)


_SCHEMA = (
    "sequence bigint, time_ns bigint, identifier string, "
    "box_min_lat float, box_min_lon float, box_max_lat float, box_max_lon float"
)
_MOST_FIELDS = 20  # of an identifier that nobody configured
_LONGEST_VALUE = 200  # characters
_MOST_STEPS = 1_000_000  # hours

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

    def __init__(self, session: SparkSession, subject: Subject, files: Sequence[DataFile]) -> None:
        self._subject = subject
        frame = read_files(session, files, _SCHEMA)
        self._rows = frame.withColumn("hour", f.expr(f"time_ns div {HOUR}"))

    def presence(self, after: int, ranges: Sequence[Range]) -> pa.Table:
        """Which hours have notifications beyond a sequence or in some ranges, and which."""
        wanted = f.col("sequence") > after
        for first, last in ranges:
            wanted |= f.col("sequence").between(first, last)
        return _by_hour(self._rows.where(wanted)).toArrow()

    def tables(self, hours: Collection[int], first: int, last: int) -> dict[str, pa.Table]:
        """All tables of these hours, from the notifications between two sequences."""
        low, high = min(hours), max(hours)
        rows = self._rows.where(
            f.col("sequence").between(first, last)
            & f.col("time_ns").between(low * HOUR, high * HOUR + HOUR - 1)
            & f.col("hour").isin(sorted(hours))
        )
        found = {"hours": _by_hour(rows).toArrow(), "fields": self._fields(rows).toArrow()}
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


def _by_hour(rows: DataFrame) -> DataFrame:
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


_MOST_DAYS = 4  # at once: bounds the memory
_MOST_ROWS = 500_000


class _Hour(msgspec.Struct, frozen=True):
    """An hour to be made anew, and the sequences among which its notifications are."""

    first: int
    last: int
    count: int  # about


class Rollup:
    """Keeps the tables of one archive."""

    def __init__(self, session: SparkSession, tables: Tables, clock: Callable[[], int] = time.time_ns) -> None:
        self._session = session
        self._tables = tables
        self._root = tables.root
        self._clock = clock

    def state(self, stream: str) -> State | None:
        """How far a stream is; None if it has no tables."""
        return stored_state(self._root, stream)

    def step(self, subject: Subject) -> int:
        """Bring the tables of a stream up to date; how many hours had to be made."""
        with self._tables.of(subject.stream).held() as snapshot:
            return self._step(subject, snapshot)

    def _step(self, subject: Subject, snapshot: Snapshot) -> int:
        table, files, known = self._tables.of(subject.stream), snapshot.files, self.state(subject.stream)
        state = known or State(subject.stream, subject.event_type, subject.rules)
        changed: list[Range] | None = None
        if (state.event_type, state.rules) == (subject.event_type, subject.rules) and _last(files) >= state.through:
            changed = table.changed(state.version, state.stamp, snapshot.version)
        if changed is None:
            state = State(subject.stream, subject.event_type, subject.rules, generation=state.generation)
        elif state.version == snapshot.version:
            return 0
        hours = self._touched(state, subject, files, clipped(changed or [], 1, state.through))
        days = {day.day: day for day in state.days}
        generation = state.generation + 1
        for chunk in _chunks(hours):
            made = self._made(subject, files, chunk)
            for number in sorted({hour // 24 for hour in chunk}):
                days.pop(number, None)
                today = {hour for hour in chunk if hour // 24 == number}
                if (day := self._write(state, number, today, made, generation)) is not None:
                    days[number] = day
        now = msgspec.structs.replace(
            state,
            through=_last(files),
            updated=self._clock(),
            generation=generation,
            days=tuple(days[number] for number in sorted(days)),
            version=snapshot.version,
            stamp=table.stamp(snapshot.version),
        )
        folder = folder_of(self._root, subject.stream)
        write_file(joined(folder, STATE), msgspec.json.encode(now))
        self._sweep(folder, now, known)
        return len(hours)

    def forget(self, stream: str) -> None:
        remove(folder_of(self._root, stream))

    def _touched(
        self, state: State, subject: Subject, files: Sequence[DataFile], changed: Sequence[Range]
    ) -> dict[int, _Hour]:
        """The hours of new notifications, of those that were replaced, and of those that were there and may be gone."""
        fresh = [
            file
            for file in files
            if file.last > state.through or any(file.first <= last and first <= file.last for first, last in changed)
        ]
        rows: list[Mapping[str, int]] = []
        if fresh:
            rows = Questions(self._session, subject, fresh).presence(state.through, changed).to_pylist()
        new = {row["hour"]: row for row in rows}
        touched = {hour: _Hour(row["first_sequence"], row["last_sequence"], row["count"]) for hour, row in new.items()}
        for day in state.days:
            gone = any(day.first_sequence <= last and day.last_sequence >= first for first, last in changed)
            if not gone and not any(hour // 24 == day.day for hour in new):
                continue
            for row in self._old(state, "hours", day).to_pylist():
                hour, first, last = row["hour"], row["first_sequence"], row["last_sequence"]
                if hour in touched:
                    more = touched[hour]
                    touched[hour] = _Hour(min(first, more.first), max(last, more.last), row["count"] + more.count)
                elif any(first <= end and last >= start for start, end in changed):
                    touched[hour] = _Hour(first, last, row["count"])
        return touched

    def _made(self, subject: Subject, files: Sequence[DataFile], chunk: Mapping[int, _Hour]) -> dict[str, pa.Table]:
        first, last = min(hour.first for hour in chunk.values()), max(hour.last for hour in chunk.values())
        wanted = [file for file in files if file.first <= last and file.last >= first]
        return Questions(self._session, subject, wanted).tables(chunk.keys(), first, last) if wanted else {}

    def _old(self, state: State, table: str, day: Day) -> pa.Table:
        if table not in day.tables:
            return SCHEMAS[table].empty_table()
        path = joined(folder_of(self._root, state.stream), table_name(table, day.day, day.generation))
        with open_file(path) as content:
            return pq.read_table(content)

    def _write(
        self, state: State, number: int, hours: set[int], made: Mapping[str, pa.Table], generation: int
    ) -> Day | None:
        """The files of a day: its old rows, but for these hours the new ones. None if nothing is left."""
        before = next((day for day in state.days if day.day == number), None)
        tables: dict[str, pa.Table] = {}
        for name in TABLES[:-1]:
            parts = [_of(made[name], hours)] if name in made else []
            if before is not None:
                parts.append(_not_of(self._old(state, name, before), hours))
            if parts and (table := pa.concat_tables(parts)).num_rows:
                tables[name] = _sorted(table)
        if "hours" not in tables:
            return None
        if "cells" in tables:
            daily = tables["cells"].group_by(["lat", "lon"]).aggregate([("count", "sum")])
            tables["coverage"] = _sorted(daily.rename_columns(["lat", "lon", "count"]).cast(SCHEMAS["coverage"]))
        for name, table in tables.items():
            self._put(state.stream, table_name(name, number, generation), table)
        counts = tables["hours"]
        return Day(
            day=number,
            generation=generation,
            tables=tuple(tables),
            count=pc.sum(counts["count"]).as_py(),
            first_sequence=pc.min(counts["first_sequence"]).as_py(),
            last_sequence=pc.max(counts["last_sequence"]).as_py(),
            first_time=pc.min(counts["first_time"]).as_py(),
            last_time=pc.max(counts["last_time"]).as_py(),
        )

    def _put(self, stream: str, name: str, table: pa.Table) -> None:
        content = pa.BufferOutputStream()
        pq.write_table(table, content, compression="zstd")
        write_file(joined(folder_of(self._root, stream), name), content.getvalue().to_pybytes())

    def _sweep(self, folder: str, now: State, before: State | None) -> None:
        """Remove files that no reader looks for: not of this state, and not of the one before."""
        kept = {STATE, *table_names(now.days), *table_names(before.days if before else ())}
        for each in list_folder(folder):
            if each.name not in kept:
                remove(each.path)


def _last(files: Sequence[DataFile]) -> int:
    return files[-1].last if files else 0


def _chunks(hours: Mapping[int, _Hour]) -> Iterator[dict[int, _Hour]]:
    """Whole days in order, so many that they are not too much at once."""
    chunk: dict[int, _Hour] = {}
    for number in sorted({hour // 24 for hour in hours}):
        today = {hour: each for hour, each in hours.items() if hour // 24 == number}
        rows = sum(each.count for each in (*chunk.values(), *today.values()))
        if chunk and (rows > _MOST_ROWS or number >= min(chunk) // 24 + _MOST_DAYS):
            yield chunk
            chunk = {}
        chunk |= today
    if chunk:
        yield chunk


def _of(table: pa.Table, hours: set[int]) -> pa.Table:
    return table.filter(pc.is_in(table["hour"], pa.array(sorted(hours), pa.int64())))


def _not_of(table: pa.Table, hours: set[int]) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["hour"], pa.array(sorted(hours), pa.int64()))))


def _sorted(table: pa.Table) -> pa.Table:
    keys = [name for name in ("hour", "field", "since", "value", "seconds", "lat", "lon") if name in table.column_names]
    return table.sort_by([(key, "ascending") for key in keys])


_SOON = 5.0  # seconds until the first look: the archive comes first


def keep_insight(
    session: SparkSession,
    board: ArchiveStatus,
    task: ArchiveSettings,
    interval: float,
    stop: threading.Event,
) -> threading.Thread:
    """Roll up in a thread until told to stop, every so many seconds."""
    rollup = Rollup(session, board.tables)

    def look() -> None:
        wait = min(_SOON, interval)
        while not stop.wait(wait):
            wait = interval
            if board.state == "standby":
                continue  # another server does it
            try:
                if hasattr(session, "_jsparkSession"):
                    session.sparkContext.setLocalProperty("spark.scheduler.pool", "insight")
                names = _names(board, rollup)
                roll_up(rollup, board, subjects(names, names, fetch_catalogue(task.connection())))
            except Exception as error:  # the next round may work; the tables are right as they are
                words = str(error) if isinstance(error, AvisoError) else reason(error)
                logger.warning("insight failed: %s", words, extra={"event": "insight.failed"})

    thread = threading.Thread(target=look, name="insight", daemon=True)
    thread.start()
    return thread


def _names(board: ArchiveStatus, rollup: Rollup) -> dict[str, str]:
    """The event type of every archived stream: as the log has it, else as it was. Of others nothing is known yet."""
    log, found = board.log_streams(), {}
    for stream in board.watermarks():
        if stream in log:
            found[stream] = log[stream].event_type
        elif (state := rollup.state(stream)) is not None:
            found[stream] = state.event_type
    return found


def subjects(streams: Iterable[str], names: Mapping[str, str], event_types: Mapping[str, EventType]) -> list[Subject]:
    """What to count in each stream; `names` says which event type a stream has. Those nobody can read are left out."""
    found = []
    for stream in sorted(streams):
        name = names.get(stream, stream)
        try:
            found.append(subject_of(stream, event_types[name] if name in event_types else GenericType(name)))
        except InvalidRequest:
            continue
    return found


def roll_up(rollup: Rollup, board: ArchiveStatus, wanted: Iterable[Subject]) -> dict[str, int]:
    """One step for every stream: how many hours of each had to be made. Streams that are gone are forgotten."""
    made = {}
    for subject in wanted:
        made[subject.stream] = rollup.step(subject)
    archived = board.watermarks()
    for each in list_folder(joined(board.tables.root, FOLDER)):
        stream = stream_of(each.name)
        if stream is not None and stream not in archived:
            rollup.forget(stream)
    return made
