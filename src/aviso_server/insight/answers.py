"""What the tables say about a span of time, as JSON values."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.errors import InvalidRequest
from aviso_server.insight.counts import HOUR, QUESTIONS, Reader, State, hour_text
from aviso_server.model.times import event_time

__all__ = ["BITS", "DAYS", "MOST_DAYS", "PERCENTILES", "answer", "hours_of", "overview", "percentiles", "rounded"]

DAYS = 7
"""The days before the newest hour, if nothing else is asked for."""

MOST_DAYS = 366
_HOURLY_DAYS = 31  # up to here answers are by hour, then by day


class Hours(msgspec.Struct, frozen=True):
    """Hours since 1970, both included."""

    first: int
    last: int

    @property
    def step(self) -> int:
        """Hours that are shown together."""
        return 1 if self.last - self.first < _HOURLY_DAYS * 24 else 24


def hours_of(state: State, start: int | None = None, end: int | None = None, days: int = DAYS) -> Hours:
    """The hours that touch a time; without a start, so many days up to the end; without an end, up to the newest.

    Times are nanoseconds. InvalidRequest says what is wrong with them.
    """
    newest = state.days[-1].last_time if state.days else 0
    last = (newest if end is None else end) // HOUR
    first = max(0, last - days * 24 + 1) if start is None else start // HOUR
    if start is not None and end is None:
        last = max(first, min(last, first + MOST_DAYS * 24 - 1))
    if first > last or (start is not None and end is not None and start > end):
        raise InvalidRequest("'from' must not be after 'to'", field="from")
    if last - first >= MOST_DAYS * 24:
        message = f"'from' and 'to' are more than {MOST_DAYS} days apart; ask for at most {MOST_DAYS} days"
        raise InvalidRequest(message, field="from")
    return Hours(first, last)


BITS = 6
"""How many binary digits of a delay are kept: it is never more than 1/32 too small."""

PERCENTILES = (5, 25, 50, 75, 95, 99)


def rounded(seconds: int) -> int:
    """A delay as it is counted: its highest binary digits, towards zero."""
    size = abs(seconds)
    spare = max(0, size.bit_length() - BITS)
    size = size >> spare << spare
    return -size if seconds < 0 else size


def percentiles(counts: Mapping[int, int], wanted: Iterable[int] = PERCENTILES) -> dict[int, int]:
    """For each percentage the smallest delay that so many notifications do not exceed; nothing if there are none."""
    total = sum(counts.values())
    if not total:
        return {}
    found: dict[int, int] = {}
    ascending = sorted(counts.items())
    for percentage in wanted:
        rest = -(-total * percentage // 100)  # rounded up: at least so many
        for seconds, count in ascending:
            rest -= count
            if rest <= 0:
                found[percentage] = seconds
                break
    return found


_MOST_VALUES = 100  # of a field
_MOST_BINS = 15
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # 0600 is a time
_MOST_LINES = 10  # values of a field that are shown over time
_MOST_FIELDS = 32
_ATTEMPTS = 5

Answer = Callable[[Reader, State, Hours, str | None], dict[str, Any]]


def overview(state: State) -> dict[str, Any]:
    """What there is of an event type, and how fresh it is."""
    first, last = (state.days[0].first_time, state.days[-1].last_time) if state.days else (None, None)
    tables = [name for name in QUESTIONS if any(name in day.tables for day in state.days)]
    return {
        "event_type": state.event_type,
        "notifications": state.count,
        "through": state.through,
        "updated": event_time(state.updated),
        "first": None if first is None else event_time(first),
        "last": None if last is None else event_time(last),
        "tables": [*tables, "seen"] if tables else [],
    }


def answer(
    reader: Reader, stream: str, name: str, start: int | None, end: int | None, field: str | None
) -> dict[str, Any] | None:
    """What one of ANSWERS says of a stream; None if there is nothing. InvalidRequest if it asks too much."""
    for attempt in range(_ATTEMPTS):
        state = reader.state(stream)
        if state is None or not state.days:
            return None
        hours = hours_of(state, start, end, MOST_DAYS) if name == "seen" else hours_of(state, start, end)
        try:
            members = ANSWERS[name](reader, state, hours, field)
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue  # the tables were made anew meanwhile
        return {**overview(state), "from": hour_text(hours.first), "to": hour_text(hours.last + 1), **members}
    return None


def _hours(reader: Reader, state: State, hours: Hours, field: str | None) -> dict[str, Any]:
    """How many were published."""
    rows = _summed(reader.table(state, "hours", hours.first, hours.last), hours, [])
    return {**_step(hours), "rows": [{"time": hour_text(row["hour"]), "count": row["count"]} for row in rows]}


def _fields(reader: Reader, state: State, hours: Hours, field: str | None) -> dict[str, Any]:
    """How often each value of a field was published; for one field also when."""
    table = _of_field(reader.table(state, "fields", hours.first, hours.last), field)
    shown = [{"field": name, **_values(name, rows, with_times=False)} for name, rows in _by_field(table).items()][
        :_MOST_FIELDS
    ]
    members: dict[str, Any] = {**_step(hours), "fields": shown}
    if field is not None:
        wanted = [each["value"] for each in shown[0]["values"][:_MOST_LINES]] if shown else []
        if table is not None:
            table = table.filter(pc.is_in(table["value"], pa.array(wanted, pa.string())))
        members["rows"] = [
            {"time": hour_text(row["hour"]), "value": row["value"], "count": row["count"]}
            for row in _summed(table, hours, ["value"])
        ]
    return members


def _seen(reader: Reader, state: State, hours: Hours, field: str | None) -> dict[str, Any]:
    """When each value of a field was seen first and last."""
    table = _of_field(reader.table(state, "fields", hours.first, hours.last), field)
    shown = [{"field": name, **_values(name, rows, with_times=True)} for name, rows in _by_field(table).items()]
    return {"fields": shown[:_MOST_FIELDS]}


def _delays(reader: Reader, state: State, hours: Hours, field: str | None) -> dict[str, Any]:
    """How long after their nominal time notifications were published, in seconds."""
    table = reader.table(state, "delays", hours.first, hours.last)
    every: dict[str, dict[int, int]] = {}
    steps: dict[str, dict[int, dict[int, int]]] = {}
    for row in _summed(table, hours, ["since", "seconds"]):
        since, seconds = row["since"], row["seconds"]
        counts = every.setdefault(since, defaultdict(int))
        counts[seconds] += row["count"]
        steps.setdefault(since, {}).setdefault(row["hour"], {})[seconds] = row["count"]
    shown = {since: {**_spread(counts), "rows": _rows(steps[since])} for since, counts in every.items()}
    return {**_step(hours), "run": shown.get("run"), "valid": shown.get("valid")}


def _coverage(reader: Reader, state: State, hours: Hours, field: str | None) -> dict[str, Any]:
    """How many notifications touch each cell of one degree, on the days of the span."""
    table = reader.table(state, "coverage", hours.first, hours.last)
    grid = np.zeros((180, 360), np.int64)
    if table is not None:
        places = table["lat"].to_numpy() + 90, table["lon"].to_numpy() + 180
        np.add.at(grid, places, table["count"].to_numpy())
    rows, columns = np.nonzero(grid)
    cells = np.stack([rows - 90, columns - 180, grid[rows, columns]], axis=1)
    first, last = hours.first // 24 * 24, hours.last // 24 * 24 + 24
    return {
        "from": hour_text(first),
        "to": hour_text(last),
        "highest": int(grid.max()),
        "cells": cells.tolist(),
    }


ANSWERS: Mapping[str, Answer] = dict(zip(QUESTIONS, (_hours, _fields, _delays, _coverage, _seen), strict=True))
"""What can be asked, by name."""


def _step(hours: Hours) -> dict[str, str]:
    return {"step": "hour" if hours.step == 1 else "day"}


def _summed(table: pa.Table | None, hours: Hours, keys: list[str]) -> list[dict[str, Any]]:
    """Counts by step of time and by these columns, in order."""
    if table is None:
        return []
    if hours.step > 1:
        whole = pa.array(table["hour"].to_numpy() // hours.step * hours.step)
        table = table.set_column(table.column_names.index("hour"), "hour", whole)
    keys = ["hour", *keys]
    summed = table.group_by(keys).aggregate([("count", "sum")]).rename_columns([*keys, "count"])
    rows: list[dict[str, Any]] = summed.sort_by([(key, "ascending") for key in keys]).to_pylist()
    return rows


def _of_field(table: pa.Table | None, field: str | None) -> pa.Table | None:
    return table if table is None or field is None else table.filter(pc.equal(table["field"], field))


def _by_field(table: pa.Table | None) -> dict[str, list[dict[str, Any]]]:
    """The values of each field over the whole time, the most frequent first."""
    found: dict[str, list[dict[str, Any]]] = {}
    if table is None:
        return found
    aggregates: list[Any] = [("count", "sum"), ("first_time", "min"), ("last_time", "max")]
    summed = table.group_by(["field", "value"]).aggregate(aggregates)
    summed = summed.rename_columns(["field", "value", "count", "first_time", "last_time"])
    for row in summed.sort_by([("field", "ascending"), ("count", "descending"), ("value", "ascending")]).to_pylist():
        found.setdefault(row["field"], []).append(row)
    return found


def _values(name: str, rows: list[dict[str, Any]], with_times: bool) -> dict[str, Any]:
    named = [row for row in rows if row["value"] is not None]
    shown, rest = named[:_MOST_VALUES], named[_MOST_VALUES:]
    other = sum(row["count"] for row in rows if row["value"] is None) + sum(row["count"] for row in rest)
    values = [{"value": row["value"], "count": row["count"]} for row in shown]
    if with_times:
        for value, row in zip(values, shown, strict=True):
            value["first"], value["last"] = event_time(row["first_time"]), event_time(row["last_time"])
    bins = None if with_times else _bins(named)
    return {"values": values, "other": other} if bins is None else {"values": values, "other": other, "bins": bins}


def _bins(named: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Count many numbers in ranges of a round width; None if there are few values, or others than numbers."""
    if len(named) <= _MOST_BINS or not all(_NUMBER.fullmatch(row["value"]) for row in named):
        return None
    numbers = [float(row["value"]) for row in named]
    least = (max(numbers) - min(numbers)) / (_MOST_BINS - 2)
    if not least:
        return None  # one number in many forms
    unit = 10.0 ** math.floor(math.log10(least))
    width = next(unit * each for each in (1, 2, 5, 10) if unit * each >= least * 0.999999)
    counts: dict[int, int] = defaultdict(int)
    for number, row in zip(numbers, named, strict=True):
        counts[math.floor(number / width + 1e-9)] += row["count"]
    return [
        {"from": float(f"{place * width:.12g}"), "to": float(f"{(place + 1) * width:.12g}"), "count": counts[place]}
        for place in range(min(counts), max(counts) + 1)
    ]


def _spread(counts: Mapping[int, int]) -> dict[str, Any]:
    return {
        "count": sum(counts.values()),
        "minimum": min(counts),
        "maximum": max(counts),
        "percentiles": {str(percentage): seconds for percentage, seconds in percentiles(counts).items()},
    }


def _rows(steps: Mapping[int, Mapping[int, int]]) -> list[dict[str, Any]]:
    return [{"time": hour_text(hour), **_spread(counts)} for hour, counts in sorted(steps.items())]
