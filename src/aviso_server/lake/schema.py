"""The columns of a stream's table: what an event type has, in the order and the types that replays read best.

A table keeps every column that it ever had. A new field becomes a new column, a field that is gone leaves its column
empty from then on, and a field that changes its type goes on in a column of its own, `<field>__<type>`: a column of a
Delta table has one type. The identifier has every field whatever happens, and filters fall back on it.

Files with shapes are GeoParquet 1.1: shapes are well-known binary in degrees of WGS 84, longitude first, and `bbox` has
the box around each row's shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.errors import PipelineError
from aviso_server.model.batch import BOX, TIME_NS, Column, arrow_schema, canonical_identifiers, field_arrays

__all__ = [
    "BBOX",
    "BBOX_KIND",
    "CORNERS",
    "MADE_UP",
    "FileShape",
    "conformed",
    "delta_types",
    "file_schema",
    "geo_footer",
    "joined_schema",
    "plain_columns",
    "steady_columns",
    "table_columns",
    "with_bbox",
]

BBOX = "bbox"
"""The column with the box around a shape, as GeoParquet names it."""

CORNERS = {"xmin": "box_min_lon", "ymin": "box_min_lat", "xmax": "box_max_lon", "ymax": "box_max_lat"}
"""Its members, and the columns that have the same numbers."""

_STEPS = 4.0  # of a degree
_BBOX_TYPE = pa.struct([(name, pa.float32()) for name in CORNERS])
BBOX_KIND = f"struct<{','.join(f'{name}:float' for name in CORNERS)}>"

_FIRST = ("sequence", "time_ns", "time", "event_type", "topic")
_LAST = (*(column.name for column in BOX), BBOX, "identifier", "payload")
_STEADY = ("sequence", "time_ns", "time")
_LOWER = frozenset({"box_min_lat", "box_min_lon"})
_UPPER = frozenset({"box_max_lat", "box_max_lon"})
_BOXES = _LOWER | _UPPER
MADE_UP = "__"
"""Stands in names of columns that are not those of their fields, and in no others that filters may rely on."""

_UNWANTED = re.compile(r"[ ,;{}()\n\t=`]")  # Delta does not take these in names of columns
_DELTA: dict[pa.DataType, str] = {
    pa.int64(): "long",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
    _BBOX_TYPE: BBOX_KIND,
}
_GEOMETRIES = {"polygon": ["Polygon"], "point_cloud": ["MultiPoint"]}


def file_schema(columns: Sequence[Column], known: Mapping[str, str] | None = None) -> pa.Schema:
    """The schema of files with the notifications of an event type, in a table with the columns `known`."""
    schema = arrow_schema({column.name: column for column in (*columns, TIME_NS)}.values())
    return with_bbox(_ordered(schema), known or {})


def with_bbox(schema: pa.Schema, known: Mapping[str, str]) -> pa.Schema:
    """The schema with `bbox` if it has boxes, unless the table has had another column of that name."""
    taken = {name.lower(): kind for name, kind in known.items()}.get(BBOX, BBOX_KIND) != BBOX_KIND
    if taken or BBOX in schema.names or not set(schema.names) >= _BOXES:
        return schema
    return _ordered(schema.append(pa.field(BBOX, _BBOX_TYPE)))


def delta_types(schema: pa.Schema) -> dict[str, str]:
    """The columns and their types as Delta names them."""
    return {field.name: _DELTA[field.type] for field in schema}


def table_columns(columns: Sequence[Column], known: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns of an event type under the names that they have in a table with the columns `known`.

    `known` says the type of each, as Delta names it. Letter case does not make a name different.
    """
    lower = {name.lower(): name for name in known}
    taken = {*(column.name.lower() for column in columns), BBOX}
    found = []
    for column in columns:
        if column.field is None:
            found.append(column)
            continue
        kind = _DELTA[arrow_schema([column]).field(0).type]
        for name in _candidates(_UNWANTED.sub(MADE_UP, column.name), kind):
            there = lower.get(name.lower())
            fits = there is None or (there == name and known[name] == kind)
            free = name.lower() not in taken or (name == column.name and name.lower() != BBOX)
            if fits and free:
                break
        taken.add(name.lower())
        found.append(msgspec.structs.replace(column, name=name))
    return tuple(found)


def _candidates(name: str, kind: str) -> Iterator[str]:
    yield name
    yield f"{name}{MADE_UP}{kind}"
    for number in count(2):
        yield f"{name}{MADE_UP}{kind}_{number}"


class FileShape:
    """What rows of an event type look like in a file of a table that has the columns `known`."""

    def __init__(self, event_type: str, columns: Sequence[Column], known: Mapping[str, str] | None = None) -> None:
        self._columns = table_columns(columns, known or {})
        self.schema = file_schema(self._columns, known)
        self._event_type = event_type

    def batch(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """What the log keeps, with the typed columns that are made of it.

        Boxes become smaller numbers and, because they are rounded outward, never smaller boxes.
        """
        given = stored.column("identifier").cast(pa.binary()).to_pylist()
        identifiers = canonical_identifiers(self._columns, given)
        made = field_arrays(self._columns, identifiers)
        if identifiers is not given:
            made["identifier"] = pa.array(identifiers, pa.string())
        made["event_type"] = pa.repeat(self._event_type, stored.num_rows)
        made["time"] = pc.divide(stored.column("time_ns"), 1000).cast(self.schema.field("time").type)
        for name in _BOXES & set(self.schema.names):
            made[name] = _outward(stored.column(name), name)
        if BBOX in self.schema.names:
            made[BBOX] = _bbox(made)
        arrays = [made[name] if name in made else stored.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def plain_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values repeat seldom, so that a dictionary of them would only cost time."""
    plain = {*_STEADY, *_LAST} - {BBOX}
    return [field.name for field in schema if field.name in plain or pa.types.is_binary(field.type)]


def steady_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values rise from row to row: their steps are smaller and quicker to read than they are."""
    return [name for name in schema.names if name in _STEADY]


def joined_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all files; PipelineError if a column has several types, which none of ours has."""
    fields: dict[str, pa.Field] = {}
    for field in (field for schema in schemas for field in schema):
        known = fields.setdefault(field.name, field)
        if known.type != field.type:
            raise PipelineError(f"column '{field.name}' is {known.type} in one file and {field.type} in another")
    return _ordered(pa.schema(fields.values()))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a wider schema; columns that they do not have are null."""
    if table.schema.equals(schema):
        return table
    here = {name: table.column(name) for name in table.schema.names}
    if BBOX in schema.names and BBOX not in here and here.keys() >= _BOXES:
        here[BBOX] = _bbox({name: here[name].combine_chunks() for name in _BOXES})
    arrays = [here[field.name] if field.name in here else pa.nulls(table.num_rows, field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def geo_footer(schema: pa.Schema) -> str | None:
    """What GeoParquet wants in the footer of a file; None if it has no shapes.

    The box of a row is that of `polygon`, else of the first shape: that is the primary column, and the only one whose
    shapes are certain to lie in it. Without a word about it, coordinates are those of WGS 84, longitude first.
    """
    names = sorted(
        (each.name for each in schema if pa.types.is_binary(each.type)), key=lambda name: (name != "polygon", name)
    )
    if not names:
        return None
    columns: dict[str, dict[str, Any]] = {
        name: {"encoding": "WKB", "geometry_types": _GEOMETRIES.get(name, [])} for name in names
    }
    if BBOX in schema.names and schema.field(BBOX).type == _BBOX_TYPE:
        columns[names[0]]["covering"] = {"bbox": {corner: [BBOX, corner] for corner in CORNERS}}
    return json.dumps({"version": "1.1.0", "primary_column": names[0], "columns": columns})


def _ordered(schema: pa.Schema) -> pa.Schema:
    """The columns in the order and, for boxes, of the type that files have."""
    names = [*_FIRST, *(name for name in schema.names if name not in _FIRST and name not in _LAST), *_LAST]
    return pa.schema(
        [
            pa.field(name, pa.float32() if name in _BOXES else schema.field(name).type)
            for name in names
            if name in schema.names
        ]
    )


def _bbox(boxes: Mapping[str, pa.Array]) -> pa.Array:
    """The boxes as GeoParquet has them, rounded outward to quarters of a degree: rough numbers take little room."""
    fields = []
    for name in CORNERS.values():
        steps = pc.multiply(boxes[name], pa.scalar(_STEPS, pa.float32()))
        whole = pc.floor(steps) if name in _LOWER else pc.ceil(steps)
        fields.append(pc.divide(whole, pa.scalar(_STEPS, pa.float32())))
    return pa.StructArray.from_arrays(fields, fields=list(_BBOX_TYPE), mask=fields[0].is_null())


def _outward(array: pa.Array, name: str) -> pa.Array:
    exact = array.to_numpy(zero_copy_only=False)  # a missing box is not a number there
    rounded = exact.astype(np.float32)
    if name in _LOWER:
        widened = np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    else:
        widened = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    return pa.array(widened, pa.float32(), mask=array.is_null().to_numpy(zero_copy_only=False))
