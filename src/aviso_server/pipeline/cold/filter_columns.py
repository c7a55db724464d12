"""A filter as Spark columns.

The condition lets every row through that the filter wants, and hardly any other. Where a row's columns leave doubt, the
row says so, and the filter itself decides: files may be older than a field, than its type, or than both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as f

from aviso_server.model import topic
from aviso_server.model.columns import BOX, TIME_NS, columns_of
from aviso_server.model.constraint import Constraint
from aviso_server.model.filter import Area, Filter
from aviso_server.model.geometry import Point
from aviso_server.model.json_value import compact
from aviso_server.model.schema import GenericType
from aviso_server.pipeline.cold.footers import Facts

__all__ = ["Condition", "Place", "Sight", "compile_filter", "sight_of"]

_RESERVED = frozenset(column.name for column in (*columns_of(GenericType("any")), *BOX, TIME_NS))
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NUMBERS = {"long": pa.int64(), "double": pa.float64()}
_SPARK_NUMBERS = {"integer": "bigint", "number": "double"}
_SHORT_LIST = 8
"""Up to so many values it is quicker to go through a list of them than to make an object of each row's for a set."""
_HEXADECIMAL = "-?0[xX]"  # Arrow reads such integers, Python does not


class Place(msgspec.Struct, frozen=True):
    """Where the value of a field stands in a file."""

    field: str
    column: str | None = None  # None: in the identifier only
    type: str = "string"
    whole: bool = True  # no nulls


class Sight(msgspec.Struct, frozen=True):
    """What a filter sees of a file. Files that look the same can be read together."""

    fields: tuple[Place, ...] = ()
    boxes: Literal["none", "some", "all"] = "none"  # which rows have one
    box_type: str = "float"
    shapes: tuple[str, ...] = ()  # the columns with shapes, the one that boxes are around first


class Condition(msgspec.Struct, frozen=True):
    """A filter for files that look the same."""

    column: Column | None  # None: every row passes
    reads: dict[str, str]  # the columns that it looks at, and their types
    doubt: Column | None  # None: what passes is right
    judging: dict[str, str]  # what has to be read besides, to settle doubts and areas
    members: tuple[str, ...]  # texts that must stand in the identifier of what passes
    odd: tuple[str, ...]  # expressions for identifiers that leave doubt


def sight_of(wanted: Filter, facts: Facts) -> Sight:
    """What the filter sees of a file."""
    names = () if wanted.positional else (*(name for name, _ in wanted.equals), *(name for name, _ in wanted.tests))
    fields = tuple(_place(name, facts) for name in dict.fromkeys(names))
    if wanted.area is None:
        return Sight(fields)
    shapes = sorted(name for name, kind in facts.types.items() if kind == "binary")
    shapes.sort(key=lambda name: name != "polygon")
    kinds = {facts.types.get(column.name) for column in BOX}
    if kinds not in ({"float"}, {"double"}):
        return Sight(fields, shapes=tuple(shapes))
    boxes: Literal["some", "all"] = "all" if BOX[0].name in facts.whole else "some"
    return Sight(fields, boxes, facts.types[BOX[0].name], tuple(shapes))


def compile_filter(wanted: Filter, sight: Sight) -> Condition:
    """The filter as columns of files that look like this."""
    building = _Building()
    if wanted.positional:
        _positional(wanted, building)
    places = {place.field: place for place in sight.fields}
    for name, text in () if wanted.positional else wanted.equals:
        _equal(places[name], text, building)
    for name, constraint in wanted.tests:
        _constrained(places[name], constraint, building)
    if wanted.area is not None:
        _reached(wanted.area, sight, building)
        building.judging |= dict.fromkeys(sight.shapes, "binary")
        if sight.boxes != "none":
            building.judging[BOX[0].name] = sight.box_type
    return Condition(
        column=_all(building.conditions) if building.conditions else None,
        reads=building.reads,
        doubt=_any(building.doubts) if building.doubts else None,
        judging=building.judging,
        members=tuple(building.members),
        odd=tuple(building.odd),
    )


class _Building:
    """The parts of a condition while it is put together."""

    def __init__(self) -> None:
        self.conditions: list[Column] = []
        self.doubts: list[Column] = []
        self.reads: dict[str, str] = {}
        self.judging: dict[str, str] = {}
        self.members: list[str] = []
        self.odd: list[str] = []

    def column(self, name: str, kind: str = "string") -> Column:
        self.reads[name] = kind
        return f.col(f"`{name.replace('`', '``')}`")


def _place(name: str, facts: Facts) -> Place:
    column: str | None = name
    if name.startswith("identifier_"):
        column = None  # may be another field's column in an older file
    elif name.lower() in _RESERVED or name not in facts.types:
        column = f"identifier_{name}"
        if f"{column}_2" in facts.types:
            column = None
    if column is None or facts.types.get(column) not in ("long", "double", "string"):
        return Place(name)
    return Place(name, column, facts.types[column], column in facts.whole)


def _equal(place: Place, text: str, building: _Building) -> None:
    member = (compact(place.field) + b":" + compact(text)).decode()
    if place.column is None:
        building.conditions.append(f.contains(building.column("identifier"), f.lit(member)))
        return
    column = building.column(place.column, place.type)
    if place.type == "string":
        building.conditions.append(column == f.lit(text))
        return
    building.members.append(member)  # another text may stand for the same number
    try:
        number = pc.cast(pa.scalar(text), _NUMBERS[place.type]).as_py()
    except pa.ArrowInvalid:
        building.conditions.append(f.lit(False) if place.whole else column.isNull())
        return
    building.conditions.append(_compared(column, "eq", (number,)))


def _constrained(place: Place, constraint: Constraint, building: _Building) -> None:
    if place.column is None:
        text = _json_text(place.field, building)
        building.doubts.append(f.lit(True))
        if text is not None:
            value = text if constraint.kind == "text" else text.try_cast(_SPARK_NUMBERS[constraint.kind])
            unread = f.lit(False) if constraint.kind == "text" else value.isNull()
            building.conditions.append(text.isNotNull() & (unread | _tested(value, constraint)))
        return
    column = building.column(place.column, place.type)
    numeric = {"long": "integer", "double": "number"}.get(place.type, "text")
    if numeric == constraint.kind:
        passed = _tested(column, constraint)
        if constraint.kind == "text":
            building.doubts.append(_foreign(column))
        elif constraint.kind == "integer":
            odd = f'{re.escape(compact(place.field).decode())}:"{_HEXADECIMAL}'
            building.doubts.append(f.col("identifier").rlike(odd))
    elif constraint.kind == "number" and place.type == "long":
        passed = _tested(column.cast("double"), constraint)
        building.doubts.append(f.lit(True))
    else:
        _constrained(Place(place.field), constraint, building)
        return
    if not place.whole:
        # Not there, or there and written as only Python reads it.
        missing = column.isNull()
        building.doubts.append(missing)
        named = f.contains(building.column("identifier"), f.lit(f"{compact(place.field).decode()}:"))
        passed = passed | (missing & named)
    building.conditions.append(passed)


def _tested(value: Column, constraint: Constraint) -> Column:
    if constraint.kind == "text":
        # Letters beyond ASCII have no case that Java and Python agree on.
        return f.lower(value).isin(list(constraint.operands)) | _foreign(value)
    return _compared(value, constraint.operator, constraint.operands)


def _foreign(value: Column) -> Column:
    return f.length(value) != f.octet_length(value)


def _compared(value: Column, operator: str, operands: tuple[Any, ...]) -> Column:
    """For Spark what is no number is the largest one, and in a set the two zeros differ; for Python neither is so."""
    if operator in ("eq", "in"):
        zero = any(isinstance(each, float) and each == 0 for each in operands)
        # A set, even of one: its values are no part of the code that Spark compiles, so that it does for all filters
        # of this kind. The null, which equals nothing, keeps Spark from taking it apart.
        among = value.isin([*operands, None])
        if len(operands) <= _SHORT_LIST:
            among = f.array_contains(f.lit(list(operands)), value) & among
        return among | value.between(f.lit(-0.0), f.lit(0.0)) if zero else among
    if operator == "between":
        return value.between(f.lit(operands[0]), f.lit(operands[1]))
    operand = f.lit(operands[0])
    if operator in ("gt", "gte"):
        passed = value > operand if operator == "gt" else value >= operand
        return passed & ~f.isnan(value) if isinstance(operands[0], float) else passed
    return value < operand if operator == "lt" else value <= operand


def _json_text(field: str, building: _Building) -> Column | None:
    """The text of a field out of the identifier; None if its name cannot be written in a path."""
    if _PLAIN_NAME.fullmatch(field) is None:
        named = f.contains(building.column("identifier"), f.lit(f"{compact(field).decode()}:"))
        building.conditions.append(named)
        return None
    return f.get_json_object(building.column("identifier"), f"$.{field}")


def _positional(wanted: Filter, building: _Building) -> None:
    if not wanted.equals:
        return
    text = building.column("topic")
    tests = []
    for name, token in wanted.equals:
        if name == "#":
            dots = f.length(text) - f.length(f.replace(text, f.lit("."), f.lit("")))
            tests.append(dots == f.lit(int(token) - 1))
        else:
            tests.append(f.split_part(text, f.lit("."), f.lit(int(name) + 1)) == f.lit(topic.encode(token)))
    # One token may be written in several ways if some of it is encoded.
    encoded = f.contains(text, f.lit("%"))
    building.conditions.append(_all(tests) | encoded)
    building.doubts.append(encoded)


def _reached(area: Area, sight: Sight, building: _Building) -> None:
    if isinstance(area, Point):
        limits = (area.lat, area.lon, area.lat, area.lon)
    elif sight.boxes == "none":
        building.conditions.append(f.lit(False))  # only what has a box can be in a polygon
        return
    else:
        limits = (area.box.max_lat, area.box.max_lon, area.box.min_lat, area.box.min_lon)
    near: list[Column] = []
    boxless: Column = f.lit(True)
    if sight.boxes != "none":
        south, west, north, east = (building.column(column.name, sight.box_type) for column in BOX)
        # Boxes are rounded outward, so that the nearest number is good enough for the limits.
        up, right, down, left = (f.lit(limit).cast(sight.box_type) for limit in limits)
        near.append((south <= up) & (west <= right) & (north >= down) & (east >= left))
        boxless = south.isNull()
    if isinstance(area, Point) and sight.boxes != "all":
        told = f.contains(building.column("payload"), f.lit('"spatial_geometry"'))
        told |= f.contains(building.column("identifier"), f.lit('"polygon":'))
        near.append(boxless & told)
    building.conditions.append(_any(near))


def _all(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one & other, columns)


def _any(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, columns)
