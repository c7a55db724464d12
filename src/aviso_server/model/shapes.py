"""Shapes on the map: points, polygons and point clouds, read from and written as text, JSON and well-known binary."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
import shapely

from aviso_server.model.json_text import NUMBER, parse, quoted, shortest
from aviso_server.model.notification import Box

__all__ = [
    "ARRAY_MARK",
    "CLOUD_TEXT_MARK",
    "LAST_LAT",
    "LAST_LON",
    "MAX_LAT",
    "MAX_LON",
    "MAX_VERTICES",
    "MIN_VERTICES",
    "POINT_TEXT",
    "POLYGON_TEXT",
    "TEXT_MARK",
    "Boxes",
    "Numbers",
    "Point",
    "PointCloud",
    "Polygon",
    "PolygonForm",
    "Runs",
    "ShapeError",
    "TooManyVertices",
    "box_of",
    "cells_of",
    "geometry_problem",
    "parse_point",
    "parse_point_cloud",
    "parse_polygon",
    "payload_polygon",
    "point_from_pair",
    "point_of",
    "polygon_from_pairs",
    "polygon_json",
    "polygon_of",
    "polygon_text",
    "stored_shape",
    "with_array",
    "with_text",
    "wkb",
]


Numbers = npt.NDArray[np.float64]
Boxes = Numbers  # left, bottom, right, top along the first axis


class ShapeError(ValueError):
    """This is not a shape; the message says why, without naming the field."""


class TooManyVertices(ShapeError):
    """A polygon is larger than allowed; its vertices were not checked."""


class Point(NamedTuple):
    """A place on the map, in degrees."""

    lat: float
    lon: float


class _Places(msgspec.Struct, frozen=True, dict=True):
    lats: tuple[float, ...]
    lons: tuple[float, ...]
    box: Box

    @cached_property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """The longitudes and latitudes as arrays, built on first use and not pickled."""
        return np.array(self.lons, dtype=np.float64), np.array(self.lats, dtype=np.float64)


class Polygon(_Places, frozen=True, dict=True):
    """A closed ring of vertices in degrees: the last vertex equals the first."""

    @classmethod
    def closed(cls, pairs: Iterable[tuple[float, float]]) -> Polygon:
        """Build a polygon from (lat, lon) pairs, at least one; the ring is closed if it is still open."""
        ring = list(pairs)
        if ring[0] != ring[-1] or len(ring) == 1:
            ring.append(ring[0])
        lats, lons = zip(*ring, strict=True)
        return cls(lats, lons, box_around(lats, lons))

    @property
    def vertices(self) -> int:
        """The number of vertices, the closing one included."""
        return len(self.lats)

    @cached_property
    def runs(self) -> Runs:
        """The edges in runs of neighbours, built on first use and not pickled."""
        return _runs_of(*self.arrays)


class PointCloud(_Places, frozen=True, dict=True):
    """A list of places; order and duplicates are kept."""

    canonical: bytes  # compact JSON, [[lat,lon],...], every number a float

    @property
    def points(self) -> int:
        return len(self.lats)


_EDGES = 32  # in a run


class Runs(NamedTuple):
    """The edges of a ring in runs; a run has one vertex more than edges."""

    x: Numbers  # (runs, edges + 1)
    y: Numbers
    edge_boxes: Boxes  # (4, runs, edges)
    boxes: Boxes  # (4, runs)


def _runs_of(x: Numbers, y: Numbers) -> Runs:
    """Cut the ring with these vertices into runs; edges of no length at its end fill up the last one."""
    last = len(x) - 1
    starts = np.arange(0, max(last, 1), _EDGES)
    vertices = np.minimum(starts[:, None] + np.arange(_EDGES + 1), last)
    x, y = x[vertices], y[vertices]
    edge_boxes = np.stack(
        (
            np.minimum(x[:, :-1], x[:, 1:]),
            np.minimum(y[:, :-1], y[:, 1:]),
            np.maximum(x[:, :-1], x[:, 1:]),
            np.maximum(y[:, :-1], y[:, 1:]),
        )
    )
    boxes = np.concatenate((edge_boxes[:2].min(axis=2), edge_boxes[2:].max(axis=2)))
    return Runs(x, y, edge_boxes, boxes)


def box_around(lats: tuple[float, ...], lons: tuple[float, ...]) -> Box:
    return Box(min(lats), min(lons), max(lats), max(lons))


MAX_LAT = 90.0
MAX_LON = 180.0
MIN_VERTICES = 4
MAX_VERTICES = 10_000
MAX_CLOUD_BYTES = 61_440

# Blanks of Unicode. str.strip() without an argument would also take the separators U+001C to U+001F.
_BLANKS = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

_BLANK = r"[\s\u0085]*"
_ITEM = f"{_BLANK}{NUMBER}{_BLANK}"
_ARRAY = rf"{_BLANK}\[[\s\S]*"  # text that holds an array, which only reading it can tell
POINT_TEXT = rf"^(?:{_BLANK}(?:{_ITEM},{_ITEM}|\({_ITEM},{_ITEM}\)){_BLANK}|{_ARRAY})$"
"""A regular expression for the text of points, for JSON schemas."""
_RING = f"(?:{_ITEM},){{{2 * MIN_VERTICES - 1},}}{_ITEM}"
POLYGON_TEXT = rf"^(?:{_BLANK}(?:{_RING}|\({_RING}\)){_BLANK}|{_ARRAY})$"
"""A regular expression for the text of polygons, for JSON schemas."""

# JSON knows a part of our number grammar, with the same meaning, and is read many times faster.
_JSON_NUMBERS = msgspec.json.Decoder(tuple[float, ...])


def parse_polygon(text: str, max_vertices: int = MAX_VERTICES) -> Polygon:
    """Read a polygon from text such as `(0,0,0,2,2,2,0,0)`, latitude first, parentheses optional."""
    inner = _without_parentheses(text)
    if not inner:
        raise ShapeError("polygon coordinate string is empty; write lat,lon,lat,lon,...")
    count = inner.count(",") + 1
    if count % 2:
        raise ShapeError(f"odd number of values ({count}); each latitude needs a longitude")
    _check_size(count // 2, max_vertices)
    values = _numbers(inner)
    lats, lons = values[0::2], values[1::2]
    box = box_around(lats, lons)
    # A nan may hide from min and max, but not from the sum.
    if not _is_on_map(box) or math.isnan(sum(values)):
        for lat, lon in zip(lats, lons, strict=True):
            _check_range(lat, lon)
    _check_ring(lats, lons)
    return Polygon(lats, lons, box)


def parse_point(text: str) -> Point:
    """Read a point from `lat,lon` or `(lat,lon)`."""
    inner = _without_parentheses(text)
    if not inner:
        raise ShapeError("point is empty; write lat,lon")
    count = inner.count(",") + 1
    if count != 2:
        raise ShapeError(f"point has {count} values; write exactly two, lat,lon")
    lat, lon = _numbers(inner)
    _check_range(lat, lon)
    return Point(lat, lon)


def polygon_text(polygon: Polygon) -> str:
    """Write a polygon as `(lat,lon,lat,lon,...)`; reading it back gives an equal polygon."""
    values = [value for pair in zip(polygon.lats, polygon.lons, strict=True) for value in pair]
    text = msgspec.json.encode(values)[1:-1].decode()
    if "e" in text:  # JSON may write very small numbers with an exponent
        return f"({','.join(map(shortest, values))})"
    return f"({text.replace('.0,', ',').removesuffix('.0')})"


def _check_range(lat: float, lon: float) -> None:
    """Refuse a place that is not on the map; the limits belong to it."""
    if not -MAX_LAT <= lat <= MAX_LAT:
        raise ShapeError(f"latitude {_number_text(lat)} is outside the valid range [-90, 90]")
    if not -MAX_LON <= lon <= MAX_LON:
        raise ShapeError(f"longitude {_number_text(lon)} is outside the valid range [-180, 180]")


def _check_size(vertices: int, most: int) -> None:
    if vertices > most:
        raise TooManyVertices(f"polygon has {vertices} coordinate pairs, maximum is {most}")


def _check_ring(lats: tuple[float, ...], lons: tuple[float, ...]) -> None:
    if len(lats) < MIN_VERTICES:
        raise ShapeError(f"a polygon needs at least 4 coordinate pairs, the closing one included; found {len(lats)}")
    if lats[0] != lats[-1] or lons[0] != lons[-1]:
        first = f"{_number_text(lats[0])},{_number_text(lons[0])}"
        last = f"{_number_text(lats[-1])},{_number_text(lons[-1])}"
        raise ShapeError(f"polygon is not closed: the last pair ({last}) must equal the first ({first})")


def _without_parentheses(text: str) -> str:
    """Return the list of numbers; refuse half a pair of parentheses and any inside the list."""
    inner = text.strip(_BLANKS)
    opened, closed = inner.startswith("("), inner.endswith(")")
    if opened and not closed:
        raise ShapeError("missing the closing parenthesis; use both parentheses or none")
    if closed and not opened:
        raise ShapeError("missing the opening parenthesis; use both parentheses or none")
    if opened:
        inner = inner[1:-1].strip(_BLANKS)
    if "(" in inner or ")" in inner:
        raise ShapeError("parentheses inside the list; use one pair around the whole list or none")
    return inner


def _numbers(inner: str) -> tuple[float, ...]:
    """Read the numbers of a list."""
    try:
        return _JSON_NUMBERS.decode(f"[{inner}]")
    except ValueError:  # not JSON, or a lone surrogate
        items = inner.split(",")
    values = tuple(value for item in items if (value := parse(item.strip(_BLANKS))) is not None)
    if len(values) < len(items):
        _refuse(items)
    return values


def _refuse(items: list[str]) -> NoReturn:
    """Name the first item that is not a number."""
    for index, item in enumerate(items):
        trimmed = item.strip(_BLANKS)
        if parse(trimmed) is None:
            name = "longitude" if index % 2 else "latitude"
            raise ShapeError(f"could not parse {name} {quoted(trimmed)}; a decimal number is expected")
    raise AssertionError("every item is a number")


def _is_on_map(box: Box) -> bool:
    return box.min_lat >= -MAX_LAT and box.max_lat <= MAX_LAT and box.min_lon >= -MAX_LON and box.max_lon <= MAX_LON


def _number_text(value: float) -> str:
    return shortest(value) if math.isfinite(value) else str(value)


_PAIRS = msgspec.json.Decoder(list[tuple[float, float]])


def polygon_of(value: str | list[object], max_vertices: int = MAX_VERTICES) -> Polygon:
    """Read a polygon in any of its forms: `(lat,lon,...)`, an array of [lat, lon] pairs, or text that holds one."""
    if not isinstance(value, str):
        return polygon_from_pairs(value, max_vertices)
    if _holds_array(value):
        return polygon_from_pairs(_decoded(value), max_vertices)
    return parse_polygon(value, max_vertices)


def point_of(value: str | list[object]) -> Point:
    """Read a point in any of its forms: `lat,lon`, a pair [lat, lon], or text that holds one."""
    if not isinstance(value, str):
        return point_from_pair(value)
    return point_from_pair(_decoded(value)) if _holds_array(value) else parse_point(value)


def polygon_json(polygon: Polygon) -> bytes:
    """Write a polygon as compact JSON, `[[lat,lon],...]` with every number a float."""
    return msgspec.json.encode(list(zip(polygon.lats, polygon.lons, strict=True)))


def polygon_from_pairs(value: object, max_vertices: int = MAX_VERTICES) -> Polygon:
    """Read a polygon from a JSON array of [lat, lon] pairs, the last equal to the first."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"expected an array of [lat, lon] pairs, found {_kind(value)}")
    if not value:
        raise ShapeError("polygon coordinate string is empty; write [[lat, lon], ...]")
    _check_size(len(value), max_vertices)
    lats, lons = _coordinates(value)
    _check_ring(lats, lons)
    return Polygon(lats, lons, box_around(lats, lons))


def point_from_pair(value: object) -> Point:
    lat, lon = _pair(value)
    _check_range(lat, lon)
    return Point(lat, lon)


def parse_point_cloud(value: object, max_points: int = MAX_VERTICES) -> PointCloud:
    """Read a point cloud from a JSON array of [lat, lon] pairs; text is not accepted."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"must be an array of [lat, lon] pairs; got {_kind(value)}")
    if not value:
        raise ShapeError("point cloud contains 0 points, minimum is 1")
    if len(value) > max_points:
        raise ShapeError(f"point cloud contains {len(value)} points, maximum is {max_points}")
    lats, lons = _coordinates(value)
    canonical = msgspec.json.encode(list(zip(lats, lons, strict=True)))
    if len(canonical) > MAX_CLOUD_BYTES:
        raise ShapeError(f"point cloud canonical JSON is {len(canonical)} bytes, maximum is {MAX_CLOUD_BYTES} bytes")
    return PointCloud(lats, lons, box_around(lats, lons), canonical)


def payload_polygon(payload: object, max_vertices: int = MAX_VERTICES) -> Polygon | None:
    """Return the polygon a payload carries as its member `spatial_geometry`; None if there is no usable one.

    It may be text, as `polygon_of` reads it, or `{"type": "Polygon", "coordinates": [[[lat, lon], ...]]}`, latitude
    first. Of the object only the first ring counts; pairs that are not places are skipped and the ring is closed.
    """
    geometry = payload.get("spatial_geometry") if isinstance(payload, dict) else None
    if isinstance(geometry, str):
        try:
            return polygon_of(geometry, max_vertices)
        except ShapeError:
            return None
    if not isinstance(geometry, dict) or geometry.get("type") != "Polygon":
        return None
    rings = geometry.get("coordinates")
    if not isinstance(rings, list) or not rings or not isinstance(rings[0], list):
        return None
    pairs = [(float(pair[0]), float(pair[1])) for pair in rings[0] if _is_place(pair)]
    if not 3 <= len(pairs) <= max_vertices:
        return None
    return Polygon.closed(pairs)


def _holds_array(text: str) -> bool:
    return text.lstrip(_BLANKS).startswith("[")


def _decoded(text: str) -> object:
    """Decode the JSON array that a text holds."""
    try:
        return _PAIRS.decode(text)
    except ValueError:  # no pairs of numbers: the reader of the array says what is there instead
        pass
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"the text begins like a JSON array and is none: {error}") from None


def _coordinates(pairs: list[object] | tuple[object, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        numbers = msgspec.convert(pairs, list[tuple[float, float]])
    except msgspec.ValidationError:
        return _checked_one_by_one(pairs)
    lats, lons = zip(*numbers, strict=True)
    box = box_around(lats, lons)
    # A nan may hide from min and max, but not from the sum.
    if not _is_on_map(box) or math.isnan(sum(lats) + sum(lons)):
        return _checked_one_by_one(pairs)
    return lats, lons


def _checked_one_by_one(pairs: list[object] | tuple[object, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check the pairs slowly and say which is wrong."""
    lats: list[float] = []
    lons: list[float] = []
    for number, value in enumerate(pairs):
        try:
            lat, lon = _pair(value)
            _check_range(lat, lon)
        except ShapeError as error:
            raise ShapeError(f"point {number} is invalid: {error}") from None
        lats.append(lat)
        lons.append(lon)
    return tuple(lats), tuple(lons)


def _pair(value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple):
        raise ShapeError(f"expected [lat, lon], found {_kind(value)}")
    if len(value) != 2:
        raise ShapeError(f"expected exactly two numbers [lat, lon], found {len(value)} values")
    return _number(value[0], "latitude"), _number(value[1], "longitude")


def _number(value: object, name: str) -> float:
    if not _is_number(value):
        raise ShapeError(f"could not parse {name}: a JSON number is expected, found {_kind(value)}")
    assert isinstance(value, int | float)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ShapeError(f"{name} must be a finite number and is outside the valid range")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_place(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(map(_is_number, pair))
        and -MAX_LAT <= pair[0] <= MAX_LAT
        and -MAX_LON <= pair[1] <= MAX_LON
    )


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    return "an array" if isinstance(value, list | tuple) else "an object"


def wkb(shape: Polygon | PointCloud) -> bytes:
    """Write a polygon as a Polygon with one ring, a point cloud as a MultiPoint; little-endian, longitude first."""
    pairs = np.column_stack(shape.arrays)
    made = shapely.multipoints(pairs) if isinstance(shape, PointCloud) else shapely.polygons(pairs)
    data: bytes = shapely.to_wkb(made, byte_order=1)
    return data


LAST_LAT, LAST_LON = 89, 179
"""The squares in the far north and the far east; the poles and the date line belong to them."""


def cells_of(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the south-western corners of the squares around the centres of boxes (rows in the order of `Box`).

    Boxes are rounded outward to what files keep of them, so that log and archive agree on every one.
    """
    low = boxes[:, :2].astype(np.float32)
    high = boxes[:, 2:].astype(np.float32)
    low = np.where(low > boxes[:, :2], np.nextafter(low, np.float32(-np.inf)), low)
    high = np.where(high < boxes[:, 2:], np.nextafter(high, np.float32(np.inf)), high)
    middles = (low.astype(np.float64) + high.astype(np.float64)) / 2
    return np.minimum(np.floor(middles).astype(np.int64), np.array([LAST_LAT, LAST_LON], dtype=np.int64))


def stored_shape(field: str, value: object) -> Polygon | PointCloud | None:
    """Read a shape as an identifier holds it; None for a text field of that name or another writer's mistake."""
    try:
        if field == "point_cloud":
            return parse_point_cloud(value, sys.maxsize)
        return polygon_of(value, sys.maxsize) if isinstance(value, str | list) else None
    except ShapeError:
        return None


def box_of(identifier: Mapping[str, Any], shapes: Sequence[str]) -> Box | None:
    """Return the box around the field `polygon` or else the first of these fields, as a publish has it."""
    for name in sorted(shapes, key=lambda name: (name != "polygon", name)):
        if (shape := stored_shape(name, identifier.get(name))) is not None:
            return shape.box
    return None


PolygonForm = Literal["array", "text"]

# Quotes inside of values are escaped, so these bytes occur only where the field begins.
TEXT_MARK = b'"polygon":"'
"""Bytes in every identifier whose polygon is text."""
ARRAY_MARK = b'"polygon":['
"""Bytes in every identifier whose polygon is an array."""
CLOUD_TEXT_MARK = b'"point_cloud":"'
"""Bytes in every identifier whose point cloud is text, which only other servers store."""


def with_array(identifier: bytes) -> bytes:
    """Rewrite the polygon of an identifier as an array; unchanged if it has none, or a text that is not a polygon."""
    start = identifier.find(TEXT_MARK)
    if start < 0:
        return identifier
    begin = start + len(TEXT_MARK) - 1
    end = identifier.find(b'"', begin + 1) + 1  # no polygon has quotes inside
    try:
        shape = polygon_json(polygon_of(msgspec.json.decode(identifier[begin:end], type=str), sys.maxsize))
    except (ShapeError, msgspec.DecodeError):
        return identifier
    return identifier[:begin] + shape + identifier[end:]


def with_text(identifier: bytes) -> bytes:
    """Rewrite the polygon of an identifier as `(lat,lon,...)`; unchanged if it has none."""
    start = identifier.find(ARRAY_MARK)
    if start < 0:
        return identifier
    begin = start + len(ARRAY_MARK) - 1
    end = identifier.find(b"]]", begin) + 2
    try:
        text = polygon_text(polygon_of(identifier[begin:end].decode(), sys.maxsize))
    except ShapeError:
        return identifier
    return identifier[:begin] + b'"' + text.encode() + b'"' + identifier[end:]


def geometry_problem(identifier: bytes) -> str | None:
    """Say why there is no event of an identifier: its geometry is malformed. None if there is no problem.

    Only other servers store such a thing; it is kept as the text that it was.
    """
    begin = identifier.find(TEXT_MARK)
    if begin >= 0:
        if with_array(identifier) is not identifier:
            return None
        return f"the stored polygon is malformed: {_text_at(identifier, begin + len(TEXT_MARK))}"
    begin = identifier.find(CLOUD_TEXT_MARK)
    if begin >= 0:
        return f"the stored point cloud is malformed: {_text_at(identifier, begin + len(CLOUD_TEXT_MARK))}"
    return None


def _text_at(identifier: bytes, begin: int) -> str:
    return quoted(identifier[begin : identifier.find(b'"', begin)].decode("utf-8", "replace"))
