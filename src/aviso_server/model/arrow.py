"""Notifications as Arrow record batches: the one place where columns get their Arrow types and values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from aviso_server.model.columns import BOX, Column, ColumnKind
from aviso_server.model.geometry import ShapeError, parse_point_cloud, parse_polygon
from aviso_server.model.geometry.wkb import wkb
from aviso_server.model.geometry.wkb_array import polygons_as_wkb
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Notification

__all__ = [
    "END_OF_STREAM",
    "arrow_schema",
    "arrow_type",
    "batch_message",
    "field_arrays",
    "field_texts",
    "last_message",
    "record_batch",
]

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The mark after the last message of a complete Arrow stream."""

_MICROSECOND = 1000  # nanoseconds

_TYPES: dict[ColumnKind, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "instant": pa.timestamp("us", tz="UTC"),
    "shape": pa.binary(),
}

_identifiers = msgspec.json.Decoder(list[dict[str, Any]]).decode


def arrow_type(kind: ColumnKind) -> pa.DataType:
    """The Arrow type of a kind of column."""
    return _TYPES[kind]


def arrow_schema(columns: Iterable[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The Arrow schema of a table, with words about it for its readers."""
    return pa.schema([pa.field(column.name, _TYPES[column.kind]) for column in columns], metadata=metadata or None)


def record_batch(columns: Sequence[Column], event_type: str, notifications: Sequence[Notification]) -> pa.RecordBatch:
    """Notifications of one event type as a batch, built column by column."""
    fields = field_arrays(columns, [each.identifier for each in notifications])
    arrays = [
        fields[column.name] if column.name in fields else _array(column, event_type, notifications)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def field_arrays(columns: Iterable[Column], identifiers: Sequence[bytes]) -> dict[str, pa.Array]:
    """The columns that show a field, by name, out of identifiers as JSON text."""
    shown = {column.field: column for column in columns if column.field is not None}
    if not shown:
        return {}
    texts = _texts_at_once(list(shown), identifiers)
    if texts is None:
        values = _identifiers(b"[" + b",".join(identifiers) + b"]")
        return {column.name: _field_array(column, values) for column in shown.values()}
    return {column.name: _typed(texts[field], column.kind) for field, column in shown.items()}


def field_texts(identifiers: Sequence[str], field: str) -> pa.Array:
    """The canonical text of a field, out of identifiers as JSON text."""
    values = _identifiers(f"[{','.join(identifiers)}]")
    return pa.array([_text(each.get(field)) for each in values], pa.string())


def _texts_at_once(fields: Sequence[str], identifiers: Sequence[bytes]) -> dict[str, pa.Array] | None:
    """The texts of fields, without touching each value; None if some are no texts, as with point clouds."""
    lines = b"\n".join(identifiers)
    try:
        table = pj.read_json(
            pa.BufferReader(lines),
            pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pj.ParseOptions(pa.schema([(field, pa.string()) for field in fields]), unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(identifiers):
        return None
    return {field: table.column(field).combine_chunks() for field in fields}


def batch_message(batch: pa.RecordBatch) -> bytes:
    """A batch as a message of an Arrow stream; the schema must have gone out before."""
    message: bytes = batch.serialize().to_pybytes()
    return message


def last_message(columns: Sequence[Column], words: Mapping[str, str]) -> bytes:
    """A batch without rows that carries words for readers, as a message of an Arrow stream."""
    schema = arrow_schema(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(_empty(schema), custom_metadata=words)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream[len(schema.serialize().to_pybytes()) :].removesuffix(END_OF_STREAM)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _array(column: Column, event_type: str, notifications: Sequence[Notification]) -> pa.Array:
    kind = _TYPES[column.kind]
    match column.name:
        case "sequence":
            return pa.array([each.sequence for each in notifications], kind)
        case "time":
            return pa.array([each.time // _MICROSECOND for each in notifications], kind)
        case "time_ns":
            return pa.array([each.time for each in notifications], kind)
        case "event_type":
            return pa.repeat(pa.scalar(event_type, kind), len(notifications))
        case "topic":
            return pa.array([each.topic for each in notifications], kind)
        case "identifier":
            return pa.array([each.identifier for each in notifications], kind)
        case "payload":
            return pa.array([each.payload for each in notifications], kind)
    place = BOX.index(column)
    return pa.array([None if each.box is None else each.box[place] for each in notifications], kind)


def _field_array(column: Column, values: list[dict[str, Any]]) -> pa.Array:
    field = column.field or ""
    if column.kind == "shape":
        return pa.array([_shape(each.get(field)) for each in values], pa.binary())
    return _typed(pa.array([_text(each.get(field)) for each in values], pa.string()), column.kind)


def _typed(texts: pa.Array, kind: ColumnKind) -> pa.Array:
    """The texts of a field as what its column holds; null where a text is none of that."""
    if kind == "text":
        return texts
    if kind == "shape":
        shapes = polygons_as_wkb(texts)
        return pa.array([_shape(text) for text in texts.to_pylist()], pa.binary()) if shapes is None else shapes
    try:
        return pc.cast(texts, _TYPES[kind])
    except pa.ArrowInvalid:  # some were stored when the field had another type
        return pa.array([_number(text, kind) for text in texts.to_pylist()], _TYPES[kind])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return compact(value).decode()


def _number(text: str | None, kind: ColumnKind) -> float | None:
    try:
        number: float | None = pc.cast(pa.array([text], pa.string()), _TYPES[kind])[0].as_py()
    except pa.ArrowInvalid:
        return None
    return number


def _shape(value: Any) -> bytes | None:
    try:
        if isinstance(value, str):
            return wkb(parse_polygon(value, sys.maxsize))
        if isinstance(value, list):
            return wkb(parse_point_cloud(value, sys.maxsize))
    except ShapeError:
        pass
    return None
