"""One step: what has changed in a stream of the archive since the last step comes into its tables.

Hours are made anew as a whole, those with new notifications and those from which some are gone: so the tables are
always what they would be if they were made from nothing, and only touched hours cost anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from aviso_server.insight.tables import (
    STATE,
    TABLES,
    Day,
    State,
    folder_of,
    read_state,
    table_name,
    table_names,
)
from aviso_server.pipeline.archive.layout import DataFile, stream_folder, watermark
from aviso_server.pipeline.archive.ranges import Range, joined_ranges
from aviso_server.pipeline.archive.storage import Storage, joined
from aviso_server.pipeline.archive.tombstones import Tombstones, look
from aviso_server.pipeline.insight.changes import compare
from aviso_server.pipeline.insight.queries import SCHEMAS, Questions
from aviso_server.pipeline.insight.recounts import asked_recounts, is_recount
from aviso_server.pipeline.insight.subject import Subject

__all__ = ["Rollup"]

_MOST_DAYS = 4  # at once: bounds the memory
_MOST_ROWS = 500_000


class _Hour(msgspec.Struct, frozen=True):
    """An hour to be made anew, and the sequences among which its notifications are."""

    first: int
    last: int
    count: int  # about


class Rollup:
    """Keeps the tables of one archive."""

    def __init__(
        self,
        session: SparkSession,
        root: str,
        storage: Storage,
        work: Path,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._session = session
        self._root = root
        self._storage = storage
        self._work = work
        self._clock = clock

    def state(self, stream: str) -> State | None:
        """How far a stream is; None if it has no tables."""
        folder = folder_of(self._root, stream)
        for each in self._storage.list(folder):
            if each.name == STATE:
                with self._storage.open(each.path) as file:
                    return read_state(file.read())
        return None

    def step(self, subject: Subject) -> int:
        """Bring the tables of a stream up to date; how many hours had to be made."""
        recounts = asked_recounts(self._root, subject.stream, self._storage)  # first: files may be replaced any time
        marks, files = look(stream_folder(self._root, subject.stream), self._storage)
        known = self.state(subject.stream)
        state = known or State(subject.stream, subject.event_type, subject.rules)
        if (state.event_type, state.rules) != (subject.event_type, subject.rules) or watermark(files) < state.through:
            state = State(subject.stream, subject.event_type, subject.rules, generation=state.generation)
        blocks, changed = compare(state, files, marks, self._storage)
        if state == known and blocks == state.blocks and not recounts:
            return 0
        hours = self._touched(state, subject, files, marks, changed, joined_ranges(recounts.values()))
        days = {day.day: day for day in state.days}
        generation = state.generation + 1
        for chunk in _chunks(hours):
            made = self._made(subject, files, marks, chunk)
            for number in sorted({hour // 24 for hour in chunk}):
                days.pop(number, None)
                today = {hour for hour in chunk if hour // 24 == number}
                if (day := self._write(state, number, today, made, generation)) is not None:
                    days[number] = day
        now = msgspec.structs.replace(
            state,
            through=watermark(files),
            updated=self._clock(),
            generation=generation,
            days=tuple(days[number] for number in sorted(days)),
            blocks=blocks,
        )
        folder = folder_of(self._root, subject.stream)
        self._storage.write(joined(folder, STATE), msgspec.json.encode(now))
        for path in recounts:
            self._storage.remove(path)
        self._sweep(folder, now, known)
        return len(hours)

    def forget(self, stream: str) -> None:
        """Remove the tables of a stream that is not in the archive any more."""
        self._storage.remove(folder_of(self._root, stream))

    def _touched(
        self,
        state: State,
        subject: Subject,
        files: Sequence[DataFile],
        marks: Tombstones,
        changed: Sequence[Range],
        recounts: Sequence[Range],
    ) -> dict[int, _Hour]:
        """The hours of new notifications, of those that were replaced, and of those that were there and may be gone."""
        changed = [*changed, *recounts]
        fresh = [
            file
            for file in files
            if file.last > state.through or any(file.first <= last and first <= file.last for first, last in recounts)
        ]
        rows: list[Mapping[str, int]] = []
        if fresh:
            rows = Questions(self._session, subject, fresh, marks).presence(state.through, recounts).to_pylist()
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

    def _made(
        self, subject: Subject, files: Sequence[DataFile], marks: Tombstones, chunk: Mapping[int, _Hour]
    ) -> dict[str, pa.Table]:
        first, last = min(hour.first for hour in chunk.values()), max(hour.last for hour in chunk.values())
        wanted = [file for file in files if file.first <= last and file.last >= first]
        return Questions(self._session, subject, wanted, marks).tables(chunk.keys(), first, last) if wanted else {}

    def _old(self, state: State, table: str, day: Day) -> pa.Table:
        if table not in day.tables:
            return SCHEMAS[table].empty_table()
        path = joined(folder_of(self._root, state.stream), table_name(table, day.day, day.generation))
        with self._storage.open(path) as content:
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
        self._work.mkdir(parents=True, exist_ok=True)
        draft = self._work / f"_insight-{name}"
        pq.write_table(table, draft, compression="zstd")
        self._storage.put(draft, joined(folder_of(self._root, stream), name))

    def _sweep(self, folder: str, now: State, before: State | None) -> None:
        """Remove files that no reader looks for: not of this state, and not of the one before."""
        kept = {STATE, *table_names(now.days), *table_names(before.days if before else ())}
        for each in self._storage.list(folder):
            if each.name not in kept and not is_recount(each.name):
                self._storage.remove(each.path)


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
