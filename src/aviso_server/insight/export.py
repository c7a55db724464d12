"""The tables of all streams as one Parquet file each, for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.insight.reading import Reader
from aviso_server.insight.tables import HOUR, State

__all__ = ["export"]


def export(reader: Reader, states: Sequence[State], days: int, folder: Path) -> list[Path]:
    """Write hours, fields, delays, coverage and seen, as far as there are any; the files that were written.

    Every table has the event type in front. Times are timestamps in UTC.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[pa.Table]] = {}
    for state in states:
        if not state.days:
            continue
        last = state.days[-1].last_time // HOUR
        first = last - days * 24 + 1
        for name in ("hours", "fields", "delays", "cells"):
            table = reader.table(state, name, first, last)
            if table is not None and table.num_rows:
                found.setdefault(name, []).append(_labelled(state, table))
    written = []
    if "cells" in found:
        cells = pa.concat_tables(found.pop("cells")).group_by(["event_type", "lat", "lon"])
        found["coverage"] = [cells.aggregate([("count", "sum")]).rename_columns(["event_type", "lat", "lon", "count"])]
    if "fields" in found:
        found["seen"] = [_seen(pa.concat_tables(found["fields"]))]
    for name, tables in found.items():
        path = folder / f"{name}.parquet"
        draft = path.with_name(f".{path.name}")
        pq.write_table(_timed(pa.concat_tables(tables)), draft, compression="zstd")
        written.append(draft.replace(path))
    return written


def _labelled(state: State, table: pa.Table) -> pa.Table:
    return table.add_column(0, "event_type", pa.repeat(state.event_type, table.num_rows))


def _seen(fields: pa.Table) -> pa.Table:
    named = fields.filter(pc.is_valid(fields["value"]))
    grouped = named.group_by(["event_type", "field", "value"])
    table = grouped.aggregate([("count", "sum"), ("first_time", "min"), ("last_time", "max")])
    return table.rename_columns(["event_type", "field", "value", "count", "first_time", "last_time"])


def _timed(table: pa.Table) -> pa.Table:
    """Hours and nanoseconds as timestamps: in microseconds, which every program can read."""
    for name in ("hour", "first_time", "last_time"):
        if name in table.column_names:
            place = table.column_names.index(name)
            micros = pc.multiply(table[name], HOUR // 1000) if name == "hour" else pc.divide(table[name], 1000)
            table = table.set_column(place, name, micros.cast(pa.timestamp("us", "UTC")))
    return table
