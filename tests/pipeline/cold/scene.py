"""An archive in a folder, written as the archive's own writer does, and what a replay of it must bring."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.model.arrow import record_batch
from aviso_server.model.columns import BOX, wire_columns
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.archive.layout import data_path
from aviso_server.pipeline.cold.replay import SCHEMA, ColdReplay

__all__ = ["FIRST_TIME", "SECOND", "Row", "numbered", "read", "rows_of", "store", "wanted_rows"]

SECOND = 10**9
FIRST_TIME = 1_700_000_000 * SECOND

Row = tuple[int, int, str, bytes, bytes]


def numbered(drafts: Iterable[Draft], first: int = 1) -> list[Notification]:
    """Drafts as a log would store them, one per second."""
    return [
        Notification(sequence, FIRST_TIME + sequence * SECOND, each.topic, each.identifier, each.payload, each.box)
        for sequence, each in enumerate(drafts, start=first)
    ]


def store(
    root: Path,
    archived_as: EventType | GenericType,
    notifications: Sequence[Notification],
    first: int | None = None,
    last: int | None = None,
    group_rows: int = 40,
) -> Path:
    """One file of the stream, with the columns that the event type has now."""
    table = pa.Table.from_batches([record_batch(wire_columns(archived_as), archived_as.name, notifications)])
    for place, column in enumerate(BOX):
        if column.name in table.column_names:
            at = table.column_names.index(column.name)
            table = table.set_column(at, column.name, outward(table.column(column.name), upward=place >= 2))
    first = notifications[0].sequence if first is None else first
    last = notifications[-1].sequence if last is None else last
    path = Path(data_path(str(root), archived_as.base, first, last))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        row_group_size=group_rows,
        compression="zstd",
        write_page_index=True,
        max_rows_per_page=10,
    )
    return path


def outward(column: pa.ChunkedArray, upward: bool) -> pa.Array:
    """The nearest float32 that makes no box smaller."""
    found = []
    for exact in column.to_pylist():
        near = None if exact is None else np.float32(exact)
        if near is not None and (near < exact if upward else near > exact):
            near = np.nextafter(near, np.float32(np.inf if upward else -np.inf))
        found.append(near)
    return pa.array(found, pa.float32())


def wanted_rows(notifications: Iterable[Notification], wanted: Filter) -> list[Row]:
    """What the filter itself lets through."""
    return [
        (each.sequence, each.time, each.topic, each.identifier, each.payload)
        for each in notifications
        if wanted.matches(each)
    ]


def read(cold: ColdReplay, wanted: Filter, start: int = 1, end: int = 2**62) -> list[Row]:
    """What cold replay brings."""
    return rows_of(cold.read(wanted, start, end, threading.Event()))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of a replay."""
    rows: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA)
        columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
        rows += [
            (sequence, time, topic, identifier.encode(), payload.encode())
            for sequence, time, topic, identifier, payload in zip(*columns, strict=True)
        ]
    return rows
