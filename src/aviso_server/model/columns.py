"""Notifications as a table: which columns the notifications of an event type have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from aviso_server.model.fields import SpatialField
from aviso_server.model.schema import EventType, GenericType

__all__ = ["BOX", "STORED", "TIME_NS", "Column", "ColumnKind", "columns_of", "merge", "wire_columns"]

ColumnKind = Literal["integer", "number", "text", "instant", "shape"]
"""What a column holds: a whole number, a double, text, a point in time, or a shape as well-known binary."""


class Column(msgspec.Struct, frozen=True):
    """One column of the table."""

    name: str
    kind: ColumnKind
    field: str | None = None  # the identifier field it shows; None for what every notification has


_FIRST = (
    Column("sequence", "integer"),
    Column("time", "instant"),
    Column("event_type", "text"),
    Column("topic", "text"),
)
_LAST = (Column("identifier", "text"), Column("payload", "text"))

BOX = (
    Column("box_min_lat", "number"),
    Column("box_min_lon", "number"),
    Column("box_max_lat", "number"),
    Column("box_max_lon", "number"),
)
"""The box around the shape, in the order of its members."""

TIME_NS = Column("time_ns", "integer")
"""The stored time to the nanosecond: timestamps, which most programs read better, have microseconds."""

STORED = (_FIRST[0], TIME_NS, _FIRST[3], *BOX, *_LAST)
"""What a log keeps of a notification: enough to make every other column from."""

_TAKEN = frozenset(column.name for column in (*_FIRST, *_LAST, *BOX, TIME_NS))


def columns_of(event_type: EventType | GenericType) -> tuple[Column, ...]:
    """The columns of an event type: what every notification has, its identifier fields, and the box if it has shapes.

    Letter case does not make a name different, as in SQL. A field whose name is taken gets `identifier_` in front.
    """
    if isinstance(event_type, GenericType):
        return (*_FIRST, *_LAST)
    taken = set(_TAKEN)
    shown = []
    for name, field in event_type.fields.items():
        column = name if name.lower() not in taken else _free_name(f"identifier_{name}", taken, event_type.fields)
        taken.add(column.lower())
        shown.append(Column(column, "shape" if isinstance(field, SpatialField) else field.kind, name))
    boxes = BOX if any(column.kind == "shape" for column in shown) else ()
    return (*_FIRST, *shown, *boxes, *_LAST)


def wire_columns(event_type: EventType | GenericType) -> tuple[Column, ...]:
    """The columns that travel between a server and its readers: all there is to know."""
    return (*columns_of(event_type), TIME_NS)


def merge(tables: Sequence[Iterable[Column]]) -> tuple[Column, ...]:
    """The columns of a table that holds the rows of all these; where their kinds differ the column holds text."""
    merged: dict[str, Column] = {}
    for column in (column for table in tables for column in table if column not in _LAST):
        known = merged.setdefault(column.name.lower(), column)
        if known.kind != column.kind:
            merged[column.name.lower()] = Column(known.name, "text", known.field)
    return (*merged.values(), *_LAST)


def _free_name(wanted: str, taken: set[str], fields: Iterable[str]) -> str:
    others = taken | {name.lower() for name in fields}
    name, number = wanted, 2
    while name.lower() in others:
        name, number = f"{wanted}_{number}", number + 1
    return name
