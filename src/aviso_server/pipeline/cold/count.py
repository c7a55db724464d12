"""Counting what a filter lets through: Spark adds up, and only sums come back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from aviso_server.errors import AvisoError
from aviso_server.model.columns import BOX
from aviso_server.model.filter import Filter
from aviso_server.model.geometry.cell import LAST_LAT, LAST_LON
from aviso_server.model.tally import Tally
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import Tombstones, look
from aviso_server.pipeline.cold.filter_columns import Condition, Sight, compile_filter
from aviso_server.pipeline.cold.footers import WIDE, Footers
from aviso_server.pipeline.cold.judge import DOUBT, Judge
from aviso_server.pipeline.cold.scan import Scanner, reason
from aviso_server.pipeline.cold.walk import Budget, Group, next_group

__all__ = ["Counting"]

_WHOLE = Budget(rows=sys.maxsize, bytes=sys.maxsize, files=True)
"""Files that look the same are counted in one job, however many: nothing but sums is held."""
_MOST_ATTEMPTS = 3

_BY_TIME, _BY_CELL, _IN_DOUBT = 0, 1, 2
"""Kinds of sums: of an interval of time, of a cell of the map (latitude and longitude), or of rows in doubt."""

_TYPES = {"sequence": "long", "time_ns": "long", "topic": "string", "identifier": "string", "payload": "string"}
_BOX = tuple(column.name for column in BOX)


class Counting:
    """Counts what a filter wants of a stream, from one sequence to another."""

    def __init__(
        self,
        wanted: Filter,
        start: int,
        end: int,
        unit: int,
        hidden: Tombstones,
        folder: str,
        storage: Storage,
        footers: Footers,
        scanner: Scanner,
        tagged: Callable[[], AbstractContextManager[None]],
        stopped: threading.Event,
    ) -> None:
        self._wanted = wanted
        self._start = max(1, start)
        self._end = end
        self._unit = unit
        self._hidden = hidden  # besides what is marked as deleted
        self._folder = folder
        self._storage = storage
        self._footers = footers
        self._scanner = scanner
        self._tagged = tagged
        self._stopped = stopped

    def tally(self) -> Tally:
        """The counts; of a part only when it is stopped. PipelineError if something cannot be read."""
        tally, position, attempts = Tally(self._unit), self._start, 1
        while position <= self._end and not self._stopped.is_set():
            marks, files = look(self._folder, self._storage)
            position = max(position, marks.wiped_through + 1, self._hidden.wiped_through + 1)
            try:
                group = next_group(files, self._footers, self._wanted, position, self._end, _WHOLE)
                if group is None:
                    break
                if group.files:
                    with self._tagged():
                        tally.merge(self._count(group, marks))
            except AvisoError:
                raise
            except Exception as error:
                if self._stopped.is_set():
                    break
                # Merging takes the place of files; whoever was counting in them begins again where it was.
                merged = set(files).difference(look(self._folder, self._storage)[1])
                if attempts == _MOST_ATTEMPTS or not merged:
                    raise reason(error) from error
                attempts += 1
            else:
                position, attempts = group.last + 1, 1
        return tally

    def _count(self, group: Group, marks: Tombstones) -> Tally:
        condition = compile_filter(self._wanted, group.sight)
        tests = [f.expr(f"sequence between {group.first} and {group.last}")]
        gone = {*marks.within(group.first, group.last), *self._hidden.within(group.first, group.last)}
        if gone:
            tests.append(~f.expr(f"sequence in ({','.join(map(str, sorted(gone)))})"))
        tests += [] if condition.column is None else [condition.column]
        tests += [f.contains(f.col("identifier"), f.lit(member)) for member in condition.members]
        if self._wanted.area is not None or condition.odd:
            return self._summed(group, self._judged(group, condition, tests))[0]
        tally, doubtful = self._summed(group, self._plain(group, condition, tests), condition.doubt)
        if doubtful:
            in_doubt = [*tests, _or_null(condition.doubt)]
            tally.merge(self._summed(group, self._judged(group, condition, in_doubt))[0])
        return tally

    def _plain(self, group: Group, condition: Condition, tests: list[Column]) -> DataFrame:
        """The rows that Spark lets through."""
        columns = {"sequence": "long", "time_ns": "long", **condition.reads, **self._boxes(group)}
        if condition.members or condition.doubt is not None:
            columns["identifier"] = "string"
        return self._scanner.frame(group.files, columns, _all(tests))

    def _judged(self, group: Group, condition: Condition, tests: list[Column]) -> DataFrame:
        """The rows among them that the filter itself lets through; it decides where Spark's workers are."""
        columns = {**_TYPES, **condition.judging, **condition.reads, **self._boxes(group)}
        looked_at: list[str | Column] = [*dict.fromkeys([*WIDE, *condition.judging])]
        if condition.doubt is not None:
            looked_at.append(condition.doubt.alias(DOUBT))
        bare = msgspec.structs.replace(condition, column=None, doubt=None)  # columns cannot travel
        judging = _verdict(self._wanted, group.sight, bare)
        verdict = arrow_udf(judging, "boolean")  # type: ignore[call-overload]  # Spark sees its kind by the annotations
        return self._scanner.frame(group.files, columns, _all(tests)).where(verdict(f.struct(*looked_at)))

    def _summed(self, group: Group, rows: DataFrame, doubt: Column | None = None) -> tuple[Tally, int]:
        """The sums of rows that leave no doubt, and how many do."""
        sums = [_sum(_BY_TIME, f.expr(f"time_ns div {self._unit}"), f.lit(0))]
        if self._boxes(group):
            south, west, north, east = (f.col(name).cast("double") for name in _BOX)
            sums.append(_sum(_BY_CELL, _middle(south, north, LAST_LAT), _middle(west, east, LAST_LON)))
        entries = f.array(*sums)
        if doubt is not None:
            entries = f.when(_or_null(doubt), f.array(_sum(_IN_DOUBT, f.lit(0), f.lit(0)))).otherwise(entries)
        summed = rows.select(f.inline(entries)).groupBy("kind", "one", "other").agg(f.count(f.lit(1)).alias("many"))
        tally, doubtful = Tally(self._unit), 0
        for row in summed.toArrow().to_pylist():
            if row["kind"] == _BY_TIME:
                tally.times[row["one"]] += row["many"]
            elif row["kind"] == _IN_DOUBT:
                doubtful = row["many"]
            elif row["one"] is not None:
                tally.cells[row["one"], row["other"]] += row["many"]
        return tally, doubtful

    def _boxes(self, group: Group) -> dict[str, str]:
        """The columns with the boxes, and their type; none if no file of the group has them."""
        kinds = {self._footers.facts(file).types.get(_BOX[0]) for file in group.files} - {None}
        if not kinds or not kinds <= {"float", "double"}:
            return {}
        return dict.fromkeys(_BOX, "float" if kinds == {"float"} else "double")


def _verdict(wanted: Filter, sight: Sight, condition: Condition) -> Callable[[pa.Array], pa.Array]:
    """What runs in a worker of Spark: which rows the filter wants."""

    def verdict(rows: pa.Array) -> pa.Array:
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
        passed = Judge(wanted, sight, condition).passed(table)
        return pa.array(np.isin(table.column("sequence").to_numpy(), passed.column("sequence").to_numpy()))

    return verdict


def _sum(kind: int, one: Column, other: Column) -> Column:
    return f.struct(f.lit(kind).alias("kind"), one.cast("long").alias("one"), other.cast("long").alias("other"))


def _middle(low: Column, high: Column, last: int) -> Column:
    """The whole degree below the middle; null if there is no box, which `least` alone would pass over."""
    return f.when(low.isNotNull(), f.least(f.floor((low + high) / 2), f.lit(last).cast("long")))


def _or_null(doubt: Column | None) -> Column:
    """What is not known is in doubt too."""
    return f.lit(True) if doubt is None else f.coalesce(doubt, f.lit(True))


def _all(tests: list[Column]) -> Column:
    return reduce(lambda one, other: one & other, tests)
