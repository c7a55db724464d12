"""Pushdown: a filter as a condition in SQL for the scan, and the exact test of what it lets through.

The condition lets every row through that the filter wants, and hardly any other. Where a row's columns leave doubt, the
row says so, and the filter itself decides: files may be older than a field, than its type, or than both. Areas are
decided for whole columns of shapes at once, by exact signs only. Where rounding leaves a doubt, or a shape touches the
area in a corner, the model's exact test has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.lake.schema import MADE_UP
from aviso_server.model import topic
from aviso_server.model.batch import BOX, TIME_NS, columns_of
from aviso_server.model.event_type import GenericType
from aviso_server.model.fields import Constraint
from aviso_server.model.filter import Area, Filter
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Notification
from aviso_server.model.predicates import certain_sides
from aviso_server.model.shapes import Point, Polygon

__all__ = ["DOUBT", "NO", "UNSURE", "WIDE", "YES", "Condition", "Sight", "compile_filter", "exact", "reach", "sight_of"]

WIDE = ("sequence", "time_ns", "topic", "identifier", "payload")
"""The columns that make a notification."""

DOUBT = "_doubt"
"""The column that says which rows are in doubt."""

NO, UNSURE, YES = 0, 1, 2

Answers = npt.NDArray[np.int8]
Numbers = npt.NDArray[np.float64]
Side = tuple[Numbers, Numbers, Numbers, Numbers]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_POLYGON, _CLOUD = 3, 4
_RING_HEAD, _CLOUD_HEAD, _PLACE = 13, 9, 21  # bytes; a place of a cloud brings a head of 5

_RESERVED = frozenset(column.name for column in (*columns_of(GenericType("any")), *BOX, TIME_NS))
_NUMBERS = {"long": pa.int64(), "double": pa.float64()}
_SQL_NUMBERS = {"integer": "bigint", "number": "double"}
_HEXADECIMAL = "-?0[xX]"  # Arrow reads such integers, Python does not


class Place(msgspec.Struct, frozen=True):
    """Where the value of a field stands in a file."""

    field: str
    column: str | None = None  # None: in the identifier only
    type: str = "string"
    whole: bool = True  # no nulls


class Sight(msgspec.Struct, frozen=True):
    """What a filter sees of a file. Files that look the same are read together."""

    fields: tuple[Place, ...] = ()
    boxes: Literal["none", "some", "all"] = "none"  # which rows have one
    box_type: str = "float"
    shapes: tuple[str, ...] = ()  # the columns with shapes, the one that boxes are around first


def sight_of(wanted: Filter, columns: Mapping[str, str], whole: Collection[str]) -> Sight:
    """Return what the filter sees of files in a table with these columns and types, of which some have no nulls."""
    names = () if wanted.positional else (*(name for name, _ in wanted.equals), *(name for name, _ in wanted.tests))
    fields = tuple(_place(name, columns, whole) for name in dict.fromkeys(names))
    if wanted.area is None:
        return Sight(fields)
    shapes = sorted(name for name, kind in columns.items() if kind == "binary")
    shapes.sort(key=lambda name: name != "polygon")
    kinds = {columns.get(column.name) for column in BOX}
    if kinds not in ({"float"}, {"double"}):
        return Sight(fields, shapes=tuple(shapes))
    boxes: Literal["some", "all"] = "all" if BOX[0].name in whole else "some"
    return Sight(fields, boxes, columns[BOX[0].name], tuple(shapes))


def _place(name: str, columns: Mapping[str, str], whole: Collection[str]) -> Place:
    column: str | None = name
    if name.startswith("identifier_") or MADE_UP in name:
        column = None  # may be another field's column in an older file
    elif name.lower() in _RESERVED or name not in columns:
        column = f"identifier_{name}"
        if f"{column}_2" in columns:
            column = None
    if column is None or columns.get(column) not in ("long", "double", "string"):
        return Place(name)
    return Place(name, column, columns[column], column in whole)


class Condition(msgspec.Struct, frozen=True):
    """A filter for files that look the same. Pickles."""

    sql: str | None  # None: every row passes
    doubt: str | None  # SQL: which of those that pass only the filter itself can decide on; None: none
    judging: tuple[str, ...]  # the columns that `exact` needs besides those that make a notification
    members: tuple[str, ...]  # texts that must stand in the identifier of what passes
    odd: tuple[str, ...]  # expressions for identifiers that leave doubt
    is_exact: bool  # all that passes is wanted


def compile_filter(wanted: Filter, sight: Sight) -> Condition:
    """Return the filter as a condition on files that look like this."""
    building = _Building()
    if wanted.positional:
        _positional(wanted, building)
    places = {place.field: place for place in sight.fields}
    for name, text in () if wanted.positional else wanted.equals:
        _equal(places[name], text, building)
    for name, constraint in wanted.tests:
        _constrained(places[name], constraint, building)
    judging: tuple[str, ...] = ()
    if wanted.area is not None:
        _reached(wanted.area, sight, building)
        judging = (*sight.shapes, *(() if sight.boxes == "none" else (BOX[0].name,)))
    return Condition(
        sql=_all(building.conditions) if building.conditions else None,
        doubt=_any(building.doubts) if building.doubts else None,
        judging=judging,
        members=tuple(building.members),
        odd=tuple(building.odd),
        is_exact=wanted.area is None and not (building.doubts or building.members or building.odd),
    )


class _Building:
    """The parts of a condition while it is put together."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.doubts: list[str] = []
        self.members: list[str] = []
        self.odd: list[str] = []


def _named(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: object) -> str:
    """Return a value in SQL, numbers of any size as what they are."""
    text = "'" + str(value).replace("'", "''") + "'"
    if isinstance(value, str):
        return text
    return f"cast({text} as {'bigint' if isinstance(value, int) else 'double'})"


def _in_identifier(text: str) -> str:
    return f"contains(identifier, {_literal(text)})"


def _equal(place: Place, text: str, building: _Building) -> None:
    member = (compact(place.field) + b":" + compact(text)).decode()
    if place.column is None:
        building.conditions.append(_in_identifier(member))
        return
    column = _named(place.column)
    if place.type == "string":
        passed = f"{column} = {_literal(text)}"
    else:
        building.members.append(member)  # another text may stand for the same number
        try:
            number = pc.cast(pa.scalar(text), _NUMBERS[place.type]).as_py()
            passed = _compared(column, "eq", (number,))
        except pa.ArrowInvalid:
            passed = "false"
    if not place.whole:
        # Merged files have rows of times when the field had another type, and so another column or none.
        passed = f"({passed} or ({column} is null and {_in_identifier(member)}))"
    building.conditions.append(passed)


def _constrained(place: Place, constraint: Constraint, building: _Building) -> None:
    if place.column is None:
        # The text of a field out of the identifier; null if it is written with escapes, or is no text.
        pattern = re.escape(compact(place.field).decode()) + r':"([^"\\]*)"'
        text = f"regexp_match(identifier, {_literal(pattern)})[1]"
        value = text if constraint.kind == "text" else f"try_cast({text} as {_SQL_NUMBERS[constraint.kind]})"
        named = _in_identifier(f"{compact(place.field).decode()}:")
        building.conditions.append(f"({named} and ({value} is null or {_tested(value, constraint)}))")
        building.doubts.append("true")
        return
    column = _named(place.column)
    numeric = {"long": "integer", "double": "number"}.get(place.type, "text")
    if numeric == constraint.kind:
        passed = _tested(column, constraint)
        if constraint.kind == "text":
            building.doubts.append(_foreign(column))
        elif constraint.kind == "integer":
            building.odd.append(f'{re.escape(compact(place.field).decode())}:"{_HEXADECIMAL}')
    elif constraint.kind == "number" and place.type == "long":
        passed = _tested(f"cast({column} as double)", constraint)
        building.doubts.append("true")
    else:
        _constrained(Place(place.field), constraint, building)
        return
    if not place.whole:
        # Not there, or there and written as only Python reads it.
        building.doubts.append(f"{column} is null")
        named = _in_identifier(f"{compact(place.field).decode()}:")
        passed = f"({passed} or ({column} is null and {named}))"
    building.conditions.append(passed)


def _tested(value: str, constraint: Constraint) -> str:
    if constraint.kind == "text":
        # Letters beyond ASCII have no case that all agree on.
        among = ", ".join(map(_literal, constraint.operands))
        return f"(lower({value}) in ({among}) or {_foreign(value)})"
    return _compared(value, constraint.operator, constraint.operands)


def _foreign(value: str) -> str:
    return f"character_length({value}) <> octet_length({value})"


def _compared(value: str, operator: str, operands: tuple[Any, ...]) -> str:
    """Compare numbers as Python does: the two zeros are equal, and what is no number passes nothing.

    In SQL the numbers have one order, with -0.0 before 0.0 and what is no number at both ends.
    """
    if operator in ("eq", "in"):
        zero = any(isinstance(each, float) and each == 0 for each in operands)
        among = f"{value} in ({', '.join(map(_literal, operands))})"
        return f"({among} or {value} between {_literal(-0.0)} and {_literal(0.0)})" if zero else among
    low, high = (operands[0], operands[-1])
    if isinstance(low, float):
        low = (0.0 if operator == "gt" else -0.0) if low == 0 else low
        high = (-0.0 if operator == "lt" else 0.0) if high == 0 else high
    passed = {
        "gt": f"{value} > {_literal(low)}",
        "gte": f"{value} >= {_literal(low)}",
        "lt": f"{value} < {_literal(high)}",
        "lte": f"{value} <= {_literal(high)}",
        "between": f"{value} between {_literal(low)} and {_literal(high)}",
    }[operator]
    return f"({passed} and not isnan({value}))" if isinstance(low, float) else passed


def _positional(wanted: Filter, building: _Building) -> None:
    if not wanted.equals:
        return
    tests = []
    for name, token in wanted.equals:
        if name == "#":
            tests.append(f"character_length(topic) - character_length(replace(topic, '.', '')) = {int(token) - 1}")
        else:
            tests.append(f"split_part(topic, '.', {int(name) + 1}) = {_literal(topic.encode(token))}")
    # One token may be written in several ways if some of it is encoded.
    encoded = "contains(topic, '%')"
    building.conditions.append(f"({_all(tests)} or {encoded})")
    building.doubts.append(encoded)


def _reached(area: Area, sight: Sight, building: _Building) -> None:
    if isinstance(area, Point):
        limits = (area.lat, area.lon, area.lat, area.lon)
    elif sight.boxes == "none":
        building.conditions.append("false")  # only what has a box can be in a polygon
        return
    else:
        limits = (area.box.max_lat, area.box.max_lon, area.box.min_lat, area.box.min_lon)
    near: list[str] = []
    boxless = "true"
    if sight.boxes != "none":
        signs = ("<=", "<=", ">=", ">=")
        # Boxes are rounded outward, so that the nearest number is good enough for the limits.
        kind = "Float32" if sight.box_type == "float" else "Float64"
        sides = [
            f"{column.name} {sign} arrow_cast({limit!r}, '{kind}')"
            for column, sign, limit in zip(BOX, signs, limits, strict=True)
        ]
        near.append(_all(sides))
        boxless = f"{BOX[0].name} is null"
    if isinstance(area, Point) and sight.boxes != "all":
        told = _any(["contains(payload, '\"spatial_geometry\"')", _in_identifier('"polygon":')])
        near.append(f"{boxless} and {told}")
    building.conditions.append(_any(near))


def _all(tests: Iterable[str]) -> str:
    return " and ".join(tests)


def _any(tests: Iterable[str]) -> str:
    return "(" + " or ".join(f"({each})" for each in tests) + ")"


def exact(wanted: Filter, sight: Sight, condition: Condition, rows: pa.Table) -> pa.Table:
    """Return the rows that the filter wants of those that the condition lets through.

    They have the columns that make a notification, those of `judging`, and `DOUBT` if the condition knows doubts.
    """
    if condition.is_exact or not rows.num_rows:
        return rows
    kept, doubt = np.ones(rows.num_rows, dtype=np.bool_), np.zeros(rows.num_rows, dtype=np.bool_)
    if condition.doubt is not None:
        doubt |= pc.fill_null(rows.column(DOUBT), True).to_numpy(zero_copy_only=False)
    if wanted.area is not None:
        answers = _reach_of_rows(rows, sight, wanted.area)
        kept &= answers != NO
        doubt |= answers == UNSURE
    identifiers = rows.column("identifier")
    for member in condition.members:
        kept &= pc.match_substring(identifiers, member).to_numpy(zero_copy_only=False)
    for odd in condition.odd:
        doubt |= pc.match_substring_regex(identifiers, odd).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(kept & doubt).tolist():
        sequence, time, topic_, identifier, payload = (rows.column(name)[place].as_py() for name in WIDE)
        box = None if wanted.area is None else _box(rows, sight, place)
        kept[place] = wanted.matches(Notification(sequence, time, topic_, identifier.encode(), payload.encode(), box))
    return rows if kept.all() else rows.filter(pa.array(kept))


def _reach_of_rows(rows: pa.Table, sight: Sight, area: Area) -> Answers:
    """Where the first shape column has the shape that filters look at, it can be settled for all rows at once."""
    unsure = np.full(rows.num_rows, UNSURE, dtype=np.int8)
    shape = next((name for name in sight.shapes if name in ("polygon", "point_cloud")), None)
    if shape is None or sight.shapes[0] != shape or sight.boxes == "none" or not rows.num_rows:
        return unsure
    answers = reach(rows.column(shape).combine_chunks(), area)
    boxed = pc.is_valid(rows.column(BOX[0].name)).to_numpy(zero_copy_only=False)
    return np.where(boxed, answers, unsure)


def _box(rows: pa.Table, sight: Sight, place: int) -> Box | None:
    if sight.boxes == "none" or not rows.column(BOX[0].name)[place].is_valid:
        return None
    shapes = (rows.column(name)[place].as_py() for name in sight.shapes)
    return next((_box_around(shape) for shape in shapes if shape is not None), None)


def _box_around(shape: bytes) -> Box:
    """Return the box around a shape as well-known binary, which says x before y."""
    if shape[1] == _POLYGON:
        pairs = np.frombuffer(shape, dtype="<f8", offset=_RING_HEAD).reshape(-1, 2)
    else:
        places = np.frombuffer(shape, dtype=np.uint8, offset=_CLOUD_HEAD).reshape(-1, _PLACE)
        pairs = places[:, 5:].copy().view("<f8")
    (left, bottom), (right, top) = pairs.min(axis=0).tolist(), pairs.max(axis=0).tolist()
    return Box(bottom, left, top, right)


class Places(NamedTuple):
    """The places of many shapes, one after the other."""

    x: Numbers
    y: Numbers
    row: Rows  # whose place it is


class Edges(NamedTuple):
    """The edges of many rings."""

    x1: Numbers
    y1: Numbers
    x2: Numbers
    y2: Numbers
    row: Rows


def reach(shapes: pa.Array, area: Area) -> Answers:
    """Say of each shape, as well-known binary, whether it reaches the area."""
    answers = np.full(len(shapes), UNSURE, dtype=np.int8)
    data, starts, sizes, kinds, counts = _heads(shapes)
    rings = np.flatnonzero((kinds == _POLYGON) & (counts > 1) & (sizes == _RING_HEAD + 16 * counts))
    clouds = np.flatnonzero((kinds == _CLOUD) & (counts > 0) & (sizes == _CLOUD_HEAD + _PLACE * counts))
    if len(rings):
        edges = _edges(_places(data, starts[rings] + _RING_HEAD, counts[rings], 16))
        found = _around(edges, len(rings), area) if isinstance(area, Point) else _meeting(edges, len(rings), area)
        answers[rings] = found
    if len(clouds):
        if isinstance(area, Point):
            answers[clouds] = NO  # only polygons contain something
        else:
            places = _places(data, starts[clouds] + _CLOUD_HEAD + 5, counts[clouds], _PLACE)
            answers[clouds] = _per_row(_inside(places.x, places.y, area), places.row, len(clouds))
    return answers


def _heads(shapes: pa.Array) -> tuple[npt.NDArray[np.uint8], Rows, Rows, Rows, Rows]:
    """All bytes, and of each shape: where it starts, its size, its kind and how many places it has."""
    width = np.int64 if pa.types.is_large_binary(shapes.type) else np.int32
    _, offsets, content = shapes.buffers()
    ends = np.frombuffer(offsets, dtype=width)[shapes.offset : shapes.offset + len(shapes) + 1].astype(np.intp)
    data = np.frombuffer(content, dtype=np.uint8) if content is not None else np.zeros(0, dtype=np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    filled = np.flatnonzero((sizes >= _RING_HEAD) & shapes.is_valid().to_numpy(zero_copy_only=False))
    kinds, counts = np.zeros(len(shapes), dtype=np.intp), np.zeros(len(shapes), dtype=np.intp)
    if len(filled):
        heads = data[starts[filled, None] + np.arange(_RING_HEAD)]
        little = heads[:, 0] == 1
        kind, second, third = (heads[:, at : at + 4].copy().view("<u4")[:, 0].astype(np.intp) for at in (1, 5, 9))
        ring, cloud = little & (kind == _POLYGON) & (second == 1), little & (kind == _CLOUD)
        kinds[filled] = np.where(ring, _POLYGON, np.where(cloud, _CLOUD, 0))
        counts[filled] = np.where(ring, third, np.where(cloud, second, 0))
    return data, starts, sizes, kinds, counts


def _places(data: npt.NDArray[np.uint8], starts: Rows, counts: Rows, stride: int) -> Places:
    row = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = starts[row] + nth * stride
    pairs = data[at[:, None] + np.arange(16)].view("<f8").astype(np.float64)
    return Places(pairs[:, 0], pairs[:, 1], row)


def _edges(places: Places) -> Edges:
    """The rings are closed: each place but the last of its ring begins an edge."""
    begins = np.flatnonzero(places.row[:-1] == places.row[1:])
    return Edges(places.x[begins], places.y[begins], places.x[begins + 1], places.y[begins + 1], places.row[begins])


def _meeting(edges: Edges, rows: int, area: Polygon) -> Answers:
    """Rings that share a point with the polygon: a corner inside, edges that cross, or one around the other."""
    answers = _per_row(_inside(edges.x1, edges.y1, area), edges.row, rows)
    left = np.flatnonzero(answers[edges.row] == NO)
    if not len(left):
        return answers
    rest = Edges(edges.x1[left], edges.y1[left], edges.x2[left], edges.y2[left], edges.row[left])
    crossing = _per_row(_crossing(rest, area), rest.row, rows)
    around = _around(rest, rows, Point(area.lats[0], area.lons[0]))
    undecided = answers == NO
    answers[undecided] = np.maximum(crossing, around)[undecided]
    return answers


def _inside(x: Numbers, y: Numbers, polygon: Polygon) -> Answers:
    """Places in the polygon, by its winding number; those on its boundary are not certain."""
    order = np.argsort(y, kind="stable")
    sx, sy = x[order], y[order]
    windings, unsure = np.zeros(len(x), dtype=np.int64), np.zeros(len(x), dtype=np.bool_)
    for ring, (x1, y1, x2, y2) in _sides(polygon):
        low, high = (y1, y2) if y1 <= y2 else (y2, y1)
        start, upper = np.searchsorted(sy, low, "left"), np.searchsorted(sy, high, "left")
        end = np.searchsorted(sy, high, "right")
        if start == end:
            continue
        level = sy[start:end]
        at_height = (level == y1) & (sx[start:end] == x1)
        if y1 == y2:
            at_height |= (sx[start:end] >= min(x1, x2)) & (sx[start:end] <= max(x1, x2))
        unsure[start:end] |= at_height
        if start == upper:
            continue
        # From the lower end on, up to the upper end without it.
        sides = certain_sides(*ring, sx[start:upper], sy[start:upper])
        unsure[start:upper] |= sides == 0
        windings[start:upper] += np.where(sides > 0, 1, 0) if y1 < y2 else -np.where(sides < 0, 1, 0)
    answers = np.empty(len(x), dtype=np.int8)
    answers[order] = np.where(unsure, UNSURE, np.where(windings != 0, YES, NO))
    return answers


def _around(edges: Edges, rows: int, point: Point) -> Answers:
    """Rings around the point; not certain if it lies on their boundary."""
    lat, lon = point
    x1, y1, x2, y2, row = edges
    up, down = (y1 <= lat) & (y2 > lat), (y1 > lat) & (y2 <= lat)
    sides = certain_sides(x1, y1, x2, y2, np.array([lon]), np.array([lat]))
    corner = (y1 == lat) & (x1 == lon)
    flat = (y1 == lat) & (y2 == lat) & (np.minimum(x1, x2) <= lon) & (np.maximum(x1, x2) >= lon)
    unsure = _any_per_row(((up | down) & (sides == 0)) | corner | flat, row, rows)
    turns = (up & (sides > 0)).astype(np.int64) - (down & (sides < 0))
    windings = np.bincount(row, weights=turns, minlength=rows)
    answers: Answers = np.where(unsure, UNSURE, np.where(windings != 0, YES, NO)).astype(np.int8)
    return answers


def _crossing(edges: Edges, polygon: Polygon) -> Answers:
    """Edges that have a point in common with an edge of the polygon."""
    x1, y1, x2, y2, _ = edges
    left, right, bottom, top = np.minimum(x1, x2), np.maximum(x1, x2), np.minimum(y1, y2), np.maximum(y1, y2)
    answers = np.zeros(len(x1), dtype=np.int8)
    for (p, q, r, s), (x3, y3, x4, y4) in _sides(polygon):
        near = np.flatnonzero(
            (left <= max(x3, x4)) & (right >= min(x3, x4)) & (bottom <= max(y3, y4)) & (top >= min(y3, y4))
        )
        if not len(near):
            continue
        a, b, c, d = x1[near], y1[near], x2[near], y2[near]
        ours = certain_sides(a, b, c, d, p, q) * certain_sides(a, b, c, d, r, s)
        theirs = certain_sides(p, q, r, s, a, b) * certain_sides(p, q, r, s, c, d)
        apart = (ours > 0) | (theirs > 0)
        found = np.where(apart, NO, np.where((ours < 0) & (theirs < 0), YES, UNSURE))
        answers[near] = np.maximum(answers[near], found)
    return answers


def _sides(polygon: Polygon) -> Iterator[tuple[Side, tuple[float, float, float, float]]]:
    """The edges of the polygon, as arrays of one number each and as numbers."""
    x, y = polygon.arrays
    for place in range(polygon.vertices - 1):
        here, there = slice(place, place + 1), slice(place + 1, place + 2)
        numbers = (polygon.lons[place], polygon.lats[place], polygon.lons[place + 1], polygon.lats[place + 1])
        yield (x[here], y[here], x[there], y[there]), numbers


def _per_row(answers: Answers, row: Rows, rows: int) -> Answers:
    """The strongest answer of each row."""
    found = np.zeros(rows, dtype=np.int8)
    np.maximum.at(found, row, answers)
    return found


def _any_per_row(flags: Flags, row: Rows, rows: int) -> Flags:
    found = np.zeros(rows, dtype=np.bool_)
    found[row[flags]] = True
    return found
