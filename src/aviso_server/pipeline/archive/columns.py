"""The columns of the archive's files: what a server sends, in the order and the types that replays read best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.model.arrow import arrow_schema, field_arrays, field_texts
from aviso_server.model.columns import BOX, TIME_NS, Column

__all__ = ["FileShape", "conformed", "file_schema", "ordered", "plain_columns", "steady_columns"]

_FIRST = ("sequence", "time_ns", "time", "event_type", "topic")
_LAST = (*(column.name for column in BOX), "identifier", "payload")
_STEADY = ("sequence", "time_ns", "time")
_LOWER = frozenset({"box_min_lat", "box_min_lon"})
_UPPER = frozenset({"box_max_lat", "box_max_lon"})
_BOXES = _LOWER | _UPPER


def file_schema(columns: Iterable[Column]) -> pa.Schema:
    """The schema of files with the notifications of an event type."""
    return ordered(arrow_schema({column.name: column for column in (*columns, TIME_NS)}.values()))


class FileShape:
    """What rows of an event type look like in a file."""

    def __init__(self, event_type: str, columns: Sequence[Column]) -> None:
        self.schema = file_schema(columns)
        self._columns = columns
        self._event_type = event_type

    def batch(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """What the log keeps, with the typed columns that are made of it.

        Boxes become smaller numbers and, because they are rounded outward, never smaller boxes.
        """
        made = field_arrays(self._columns, stored.column("identifier").cast(pa.binary()).to_pylist())
        made["event_type"] = pa.repeat(self._event_type, stored.num_rows)
        made["time"] = pc.divide(stored.column("time_ns"), 1000).cast(self.schema.field("time").type)
        for name in _BOXES & set(self.schema.names):
            made[name] = _outward(stored.column(name), name)
        arrays = [made[name] if name in made else stored.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def plain_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values repeat seldom, so that a dictionary of them would only cost time."""
    plain = {*_STEADY, *_LAST}
    return [field.name for field in schema if field.name in plain or pa.types.is_binary(field.type)]


def steady_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values rise from row to row: their steps are smaller and quicker to read than they are."""
    return [name for name in schema.names if name in _STEADY]


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of an older file with the columns of a newer one.

    A column that did not exist then is null. One of another type is cast; where that fails its values are taken from
    the identifiers once more, and those that do not fit are null.
    """
    if table.schema.equals(schema):
        return table
    arrays = []
    for field in schema:
        if field.name not in table.schema.names:
            arrays.append(pa.nulls(table.num_rows, field.type))
        elif (found := table.column(field.name)).type == field.type:
            arrays.append(found)
        else:
            arrays.append(_cast(found, field.type, table, field.name))
    return pa.table(arrays, schema=schema)


def ordered(schema: pa.Schema) -> pa.Schema:
    """The columns in the order and, for boxes, of the type that files have."""
    names = [*_FIRST, *(name for name in schema.names if name not in _FIRST and name not in _LAST), *_LAST]
    return pa.schema(
        [
            pa.field(name, pa.float32() if name in _BOXES else schema.field(name).type)
            for name in names
            if name in schema.names
        ]
    )


def _outward(array: pa.Array, name: str) -> pa.Array:
    exact = array.to_numpy(zero_copy_only=False)  # a missing box is not a number there
    rounded = exact.astype(np.float32)
    if name in _LOWER:
        widened = np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    else:
        widened = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    return pa.array(widened, pa.float32(), mask=array.is_null().to_numpy(zero_copy_only=False))


def _cast(found: pa.ChunkedArray, kind: pa.DataType, table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    try:
        return pc.cast(found, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    texts = field_texts(table.column("identifier").to_pylist(), name)
    values = []
    for text in texts:
        try:
            values.append(pc.cast(text, kind).as_py())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            values.append(None)
    return pa.array(values, kind)
