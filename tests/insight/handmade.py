"""Tables of insight written by hand, as the documentation describes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.insight.counts import HOUR, Day, State, day_text

__all__ = ["NOON", "write"]

NOON = 495_660  # 2026-07-18T12:00:00Z in hours since 1970
_COLUMNS = {
    "hours": ("hour", "count", "first_sequence", "last_sequence", "first_time", "last_time"),
    "fields": ("hour", "field", "value", "count", "values", "first_time", "last_time"),
    "delays": ("hour", "since", "seconds", "count"),
    "cells": ("hour", "lat", "lon", "count"),
    "coverage": ("lat", "lon", "count"),
}
_KINDS = {"field": pa.string(), "value": pa.string(), "since": pa.string(), "lat": pa.int16(), "lon": pa.int16()}


def write(
    root: Path, stream: str, tables: dict[str, Iterable[tuple[Any, ...]]], event_type: str = "", generation: int = 1
) -> State:
    """The tables of a stream; rows of `coverage` have the day in front, all others begin with their hour.

    Counts by hour are made of `hours`, whose rows are pairs of an hour and a count.
    """
    folder = root / "_insight" / f"stream={stream}"
    folder.mkdir(parents=True, exist_ok=True)
    by_day: dict[int, dict[str, list[tuple[Any, ...]]]] = {}
    for table, rows in tables.items():
        for row in rows:
            day = row[0] if table == "coverage" else row[0] // 24
            shown = row[1:] if table == "coverage" else row
            if table == "hours":
                shown = (*row, row[0], row[0] + 1, row[0] * HOUR, row[0] * HOUR + 5)
            by_day.setdefault(day, {}).setdefault(table, []).append(shown)
    days = []
    for day, content in sorted(by_day.items()):
        for table, rows in content.items():
            columns = dict(zip(_COLUMNS[table], zip(*rows, strict=True), strict=True))
            arrays = {name: pa.array(values, _KINDS.get(name, pa.int64())) for name, values in columns.items()}
            pq.write_table(pa.table(arrays), folder / f"{table}-{day_text(day)}-{generation:08d}.parquet")
        hours = content["hours"]
        first, last = min(row[0] for row in hours) * HOUR, max(row[0] for row in hours) * HOUR + 5
        days.append(Day(day, generation, tuple(content), sum(row[1] for row in hours), 1, 99, first, last))
    state = State(stream, event_type or stream, "rules", 99, NOON * HOUR, generation, tuple(days))
    (folder / "state.json").write_bytes(msgspec.json.encode(state))
    return state
