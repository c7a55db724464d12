"""An archive in a folder, written as the archive's own writer does, and what a replay of it must bring."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.lake.files import Covered, NewFile, statistics
from aviso_server.lake.schema import delta_types, table_columns
from aviso_server.lake.table import Table
from aviso_server.model.batch import BOX, record_batch, wire_columns
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from aviso_server.spark.cold_replay import ColdReplay
from aviso_server.spark.flight import REPLAY_SCHEMA, Selection

__all__ = ["FIRST_TIME", "SECOND", "Row", "never", "numbered", "read", "rows_of", "store", "wanted_rows"]

SECOND = 10**9
FIRST_TIME = 1_700_000_000 * SECOND

Row = tuple[int, int, str, bytes, bytes]


def never() -> bool:
    """Nobody cancels."""
    return False


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
    """One more file of the stream's table, with the columns that the event type has now."""
    folder = Table(str(root), archived_as.base)
    columns = table_columns(wire_columns(archived_as), folder.snapshot().columns)
    table = pa.Table.from_batches([record_batch(columns, archived_as.name, notifications)])
    for place, column in enumerate(BOX):
        if column.name in table.column_names:
            at = table.column_names.index(column.name)
            table = table.set_column(at, column.name, outward(table.column(column.name), upward=place >= 2))
    first = notifications[0].sequence if first is None else first
    last = notifications[-1].sequence if last is None else last
    path = Path(folder.folder) / f"part-{uuid.uuid4().hex}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = table.schema
    pq.write_table(
        table.replace_schema_metadata({"aviso": msgspec.json.encode(Covered(first, last))}),
        path,
        row_group_size=group_rows,
        compression="zstd",
        write_page_index=True,
        max_rows_per_page=10,
    )
    facts = statistics(pq.read_metadata(path), schema)
    file = NewFile(first, last, len(notifications), str(path), path.stat().st_size, facts, delta_types(schema))
    folder.commit([file], watermark=last)
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


def read(cold: ColdReplay, wanted: Filter, start: int = 1, end: int | None = None) -> list[Row]:
    """What cold replay brings, of all that is archived if nothing else is said."""
    end = cold._tables.of(wanted.stream).snapshot().watermark if end is None else end
    return rows_of(cold.read(Selection(wanted, start, end), never))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of a replay."""
    rows: list[Row] = []
    for batch in batches:
        assert batch.schema.equals(REPLAY_SCHEMA)
        columns = [batch.column(name).to_pylist() for name in REPLAY_SCHEMA.names]
        rows += [
            (sequence, time, topic, identifier.encode(), payload.encode())
            for sequence, time, topic, identifier, payload in zip(*columns, strict=True)
        ]
    return rows
