"""Learning from the archive: which combinations of an event type arrive when. Spark aggregates, workers judge."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from aviso_server.model.lateness.learned import Learned
from aviso_server.model.lateness.rhythm import Rhythm, folded, learn_rhythm
from aviso_server.model.lateness.watched import DAY, Watched
from aviso_server.model.timestamp import SECOND
from aviso_server.pipeline.archive.layout import stream_folder
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import Tombstones, look

__all__ = ["learn"]

_STORED = "sequence bigint, time_ns bigint, identifier string"
_SETTINGS = {"spark.sql.caseSensitive": "true"}  # as the names of identifier fields are
_HOUR = 3600
_AHEAD = 31  # days that a date may lie ahead of its arrival
_NUMBERS = ("weekdays", "earliest", "expected", "overdue", "spread", "seen", "cut")
_RHYTHM = pa.struct([(name, pa.int64()) for name in _NUMBERS])
_RHYTHM_DDL = f"struct<{', '.join(f'{name}: bigint' for name in _NUMBERS)}>"


def learn(session: SparkSession, root: str, storage: Storage, watched: Watched, now: int) -> Learned:
    """The rhythms of an event type as the archive shows them; `now` is in seconds since 1970.

    The driver gets one row for each combination that has a rhythm, and of combinations at most `max_combinations` are
    looked at: those that came on the most days.
    """
    nothing = Learned(
        event_type=watched.event_type, learned_at=now, until=0, by=watched.by, date=watched.date
    )  # fmt: skip
    marks, files = look(stream_folder(root, watched.stream), storage)
    if not files:
        return nothing
    own = session if not hasattr(session, "_jsparkSession") else session.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    begin = now - watched.learn_days * DAY
    stored = own.read.schema(_STORED).parquet(*[file.path for file in files])
    stored = _visible(stored, marks, own).where(f.col("time_ns") >= begin * SECOND)
    reached = stored.agg(f.max("time_ns")).first()
    if reached is None or reached[0] is None:
        return nothing
    until = int(reached[0]) // SECOND
    combinations = _combinations(stored, watched, begin).persist()
    try:
        found = combinations.count()
        order = [f.size("seen").desc(), *(f.col("values")[place] for place in range(len(watched.by)))]
        most = combinations.orderBy(*order).limit(watched.max_combinations)
        judge = arrow_udf(_rhythms(watched, until), _RHYTHM_DDL)  # type: ignore[call-overload]  # stubs lack this form
        rhythm = judge("values", "seen").alias("rhythm")
        rows = most.select("values", rhythm).where("rhythm is not null").toArrow().to_pylist()
    finally:
        combinations.unpersist()
    rhythms = [Rhythm(values=tuple(row["values"]), **row["rhythm"]) for row in rows]
    return Learned(
        event_type=watched.event_type,
        learned_at=now,
        until=until,
        by=watched.by,
        date=watched.date,
        rhythms=tuple(sorted(rhythms, key=lambda rhythm: rhythm.values)),
        irregular=min(found, watched.max_combinations) - len(rhythms),
        left_out=max(0, found - watched.max_combinations),
    )


def _visible(stored: DataFrame, marks: Tombstones, session: SparkSession) -> DataFrame:
    if marks.wiped_through:
        stored = stored.where(f.col("sequence") > marks.wiped_through)
    if marks.deleted:
        deleted = session.createDataFrame([(sequence,) for sequence in marks.deleted], "sequence bigint")
        stored = stored.join(f.broadcast(deleted), "sequence", "left_anti")
    return stored


def _combinations(stored: DataFrame, watched: Watched, begin: int) -> DataFrame:
    """A row for each combination that came often enough: its `values`, and in `seen` when it came.

    With a date, `seen` has each day's number and first arrival. Without one it has arrivals, the first of each hour,
    and the day is found when all are known.
    """
    names = [*watched.by, *([] if watched.date is None else [watched.date])]
    fields = f.from_json("identifier", StructType([StructField(name, StringType()) for name in names]))
    rows = stored.select(f.floor(f.col("time_ns") / SECOND).alias("second"), fields.alias("fields"))
    values = f.array(*[f.col("fields").getField(name) for name in watched.by])
    period = _hour() if watched.date is None else _day(f.col("fields").getField(watched.date))
    rows = rows.select(values.alias("values"), "second", period.alias("period"))
    rows = rows.where(f.col("period").isNotNull() & ~f.exists("values", lambda value: value.isNull()))
    if watched.date is not None:
        # the past, made anew, says nothing about today; of the first day the beginning may be missing
        today = f.floor(f.col("second") / DAY)
        rows = rows.where((f.col("period") > begin // DAY) & (f.col("period") <= today + _AHEAD))
    first = rows.groupBy("values", "period").agg(f.min("second").alias("second"))
    seen = f.collect_list(f.struct("period", "second"))
    return first.groupBy("values").agg(seen.alias("seen")).where(f.size("seen") >= watched.min_seen)


def _hour() -> Column:
    return f.floor(f.col("second") / _HOUR)


def _day(text: Column) -> Column:
    moment = f.try_to_timestamp(f.regexp_replace(text, "-", ""), f.lit("yyyyMMdd"))
    return f.floor(f.unix_seconds(moment) / DAY)


def _rhythms(watched: Watched, until: int) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """What a worker does with the combinations that it is given: a rhythm for each, null where there is none."""

    def judged(values: pa.Array, seen: pa.Array) -> pa.Array:
        found = [
            _numbers(_rhythm(tuple(of), [(each["period"], each["second"]) for each in when], until, watched))
            for of, when in zip(values.to_pylist(), seen.to_pylist(), strict=True)
        ]
        return pa.array(found, _RHYTHM)

    return judged


def _rhythm(values: tuple[str, ...], seen: list[tuple[int, int]], until: int, watched: Watched) -> Rhythm | None:
    if watched.date is not None:
        return learn_rhythm(values, [(day, second - day * DAY) for day, second in seen], until, watched)
    split = folded([second for _, second in seen])
    return None if split is None else learn_rhythm(values, split[1], until, watched, split[0])


def _numbers(rhythm: Rhythm | None) -> dict[str, int | None] | None:
    return None if rhythm is None else {name: getattr(rhythm, name) for name in _NUMBERS}
