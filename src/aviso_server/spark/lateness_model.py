"""Learning from the archive which combinations of an event type arrive when, again and again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from aviso_server.lake.files import DataFile
from aviso_server.lake.storage import is_local, joined, list_folder, open_file, write_file
from aviso_server.lake.table import Tables
from aviso_server.model.lateness import (
    DAY,
    LATENESS_FOLDER,
    Learned,
    Rhythm,
    Watched,
    decode,
    encode,
    file_name,
    folded,
    learn_rhythm,
)
from aviso_server.model.times import SECOND
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.lake_files import read_files
from aviso_server.spark.session import arrow_function

__all__ = ["LearnedFiles", "keep_learning", "learn", "learn_if_old", "read_tasks"]

logger = logging.getLogger(__name__)


class LearnedFiles:
    """The files of one archive. `near` is the folder for copies that a server on this machine reads."""

    def __init__(self, root: str, near: Path) -> None:
        self._folder = joined(root, LATENESS_FOLDER)
        self._near = None if is_local(root) else near

    def put(self, learned: Learned) -> None:
        """Keep it, over what was there."""
        name, content = file_name(learned.event_type), encode(learned)
        write_file(joined(self._folder, name), content)
        self._copy(name, content)

    def get(self, event_type: str) -> Learned | None:
        """Return what was learned last; None if nothing was, or if it cannot be read."""
        name = file_name(event_type)
        for each in list_folder(self._folder):
            if each.name == name:
                with open_file(each.path) as file:
                    content = bytes(file.read())
                try:
                    found = decode(content)
                except ValueError:
                    return None
                self._copy(name, content)
                return found
        return None

    def _copy(self, name: str, content: bytes) -> None:
        if self._near is not None:
            write_file(str(self._near / name), content)


_STORED = "sequence bigint, time_ns bigint, identifier string"
_SETTINGS = {"spark.sql.caseSensitive": "true"}  # as the names of identifier fields are
_HOUR = 3600
_AHEAD = 31  # days that a date may lie ahead of its arrival
_NUMBERS = ("weekdays", "earliest", "expected", "overdue", "spread", "seen", "cut")
_RHYTHM = pa.struct([(name, pa.int64()) for name in _NUMBERS])
_RHYTHM_DDL = f"struct<{', '.join(f'{name}: bigint' for name in _NUMBERS)}>"


def learn(session: SparkSession, tables: Tables, watched: Watched, now: int) -> Learned:
    """Learn the rhythms of an event type from the archive; `now` is in seconds since 1970.

    The driver gets one row for each combination that has a rhythm, and of combinations at most `max_combinations` are
    looked at: those that came on the most days.
    """
    nothing = Learned(
        event_type=watched.event_type, learned_at=now, until=0, by=watched.by, date=watched.date
    )  # fmt: skip
    with tables.of(watched.stream).held() as snapshot:
        return _learned(session, snapshot.files, watched, nothing) if snapshot.files else nothing


def _learned(session: SparkSession, files: Sequence[DataFile], watched: Watched, nothing: Learned) -> Learned:
    now = nothing.learned_at
    own = session if not hasattr(session, "_jsparkSession") else session.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    begin = now - watched.learn_days * DAY
    stored = read_files(own, files, _STORED).where(f.col("time_ns") >= begin * SECOND)
    reached = stored.agg(f.max("time_ns")).first()
    if reached is None or reached[0] is None:
        return nothing
    until = int(reached[0]) // SECOND
    combinations = _combinations(stored, watched, begin).persist()
    try:
        found = combinations.count()
        order = [f.size("seen").desc(), *(f.col("values")[place] for place in range(len(watched.by)))]
        most = combinations.orderBy(*order).limit(watched.max_combinations)
        judge = arrow_function(_rhythms(watched, until), _RHYTHM_DDL)
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


def _combinations(stored: DataFrame, watched: Watched, begin: int) -> DataFrame:
    """Make a row for each combination that came often enough: its `values`, and in `seen` when it came.

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
    """Find the rhythm of each combination, null where there is none. Runs on a worker."""

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


_SHORTEST_WAIT = 1.0  # seconds
_FIRST_WAIT = 10.0  # seconds: the archive job starts first
_RETRY = 60.0  # seconds after a failure


def read_tasks(text: str) -> Sequence[Watched]:
    """Read the event types to learn, as a server hands them to the pipeline process."""
    return msgspec.json.decode(text, type=list[Watched])


def keep_learning(
    session: SparkSession,
    board: ArchiveStatus,
    files: LearnedFiles,
    tasks: Sequence[Watched],
    interval: float,
    stop: threading.Event,
) -> threading.Thread:
    """Learn every event type whenever what is known of it is older than the interval; the thread that does it."""

    def work() -> None:
        wait = min(_FIRST_WAIT, interval)
        while not stop.wait(max(wait, _SHORTEST_WAIT)):
            wait = interval
            for watched in tasks:
                try:
                    wait = min(wait, learn_if_old(session, board, files, watched, interval, time.time()))
                except Exception as error:  # Spark has many ways to fail; the next round may work
                    logger.warning(
                        "lateness of '%s' was not learned: %s", watched.event_type, error,
                        extra={"event": "lateness.learning.failed"},
                    )  # fmt: skip
                    wait = min(wait, _RETRY)

    thread = threading.Thread(target=work, name="lateness", daemon=True)
    thread.start()
    return thread


def learn_if_old(
    session: SparkSession, board: ArchiveStatus, files: LearnedFiles, watched: Watched, interval: float, now: float
) -> float:
    """Learn an event type unless that was done lately; seconds until it is due again."""
    known = files.get(watched.event_type)
    if known is not None and known.fits(watched) and 0 <= now - known.learned_at < interval:
        return known.learned_at + interval - now
    learned = learn(session, board.tables, watched, int(now))
    files.put(learned)
    if learned.left_out:
        logger.warning(
            "lateness of '%s': %d combinations are not watched, there are more than max_combinations (%d)",
            watched.event_type, learned.left_out, watched.max_combinations,
            extra={"event": "lateness.learning.bounded"},
        )  # fmt: skip
    return interval
