"""Shapes as JSON: `[lat, lon]` for a point, an array of such pairs for a polygon or a point cloud."""

from __future__ import annotations

import math

import msgspec

from aviso_server.model.geometry.shape import Point, PointCloud, Polygon, ShapeError, box_around
from aviso_server.model.geometry.text import (
    MAX_LAT,
    MAX_LON,
    MAX_VERTICES,
    check_range,
    check_ring,
    check_size,
    is_on_map,
    parse_polygon,
    shown,
)

__all__ = ["MAX_CLOUD_BYTES", "parse_point_cloud", "payload_polygon", "point_from_pair", "polygon_from_pairs"]

MAX_CLOUD_BYTES = 61_440


def polygon_from_pairs(value: object, max_vertices: int = MAX_VERTICES) -> Polygon:
    """Read a polygon from a JSON array of [lat, lon] pairs, the last equal to the first."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"expected an array of [lat, lon] pairs, found {_kind(value)}")
    if not value:
        raise ShapeError("polygon coordinate string is empty; write [[lat, lon], ...]")
    check_size(len(value), max_vertices)
    lats, lons = _coordinates(value)
    check_ring(lats, lons)
    return Polygon(lats, lons, box_around(lats, lons))


def point_from_pair(value: object) -> Point:
    """Read a point from a JSON pair [lat, lon]."""
    lat, lon = _pair(value)
    check_range(lat, lon)
    return Point(lat, lon)


def parse_point_cloud(value: object, max_points: int = MAX_VERTICES) -> PointCloud:
    """Read a point cloud from a JSON array of [lat, lon] pairs; text is not accepted."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"expected an array of [lat, lon] pairs, found {_kind(value)}")
    if not value:
        raise ShapeError("point cloud contains 0 points, minimum is 1")
    if len(value) > max_points:
        raise ShapeError(f"point cloud contains {len(value)} points, maximum is {max_points}")
    lats, lons = _coordinates(value)
    canonical = msgspec.json.encode(list(zip(lats, lons, strict=True)))
    if len(canonical) > MAX_CLOUD_BYTES:
        raise ShapeError(f"canonical JSON is {len(canonical)} bytes, maximum is {MAX_CLOUD_BYTES} bytes")
    return PointCloud(lats, lons, box_around(lats, lons), canonical)


def payload_polygon(payload: object, max_vertices: int = MAX_VERTICES) -> Polygon | None:
    """The polygon a payload carries as its member `spatial_geometry`; None if there is no usable one.

    It may be polygon text or `{"type": "Polygon", "coordinates": [[[lat, lon], ...]]}`, latitude first.
    Of the object only the first ring counts; pairs that are not places are skipped and the ring is closed.
    """
    geometry = payload.get("spatial_geometry") if isinstance(payload, dict) else None
    if isinstance(geometry, str):
        try:
            return parse_polygon(geometry, max_vertices)
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


def _coordinates(pairs: list[object] | tuple[object, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        numbers = msgspec.convert(pairs, list[tuple[float, float]])
    except msgspec.ValidationError:
        return _checked_one_by_one(pairs)
    lats, lons = zip(*numbers, strict=True)
    box = box_around(lats, lons)
    # A nan may hide from min and max, but not from the sum.
    if not is_on_map(box) or math.isnan(sum(lats) + sum(lons)):
        return _checked_one_by_one(pairs)
    return lats, lons


def _checked_one_by_one(pairs: list[object] | tuple[object, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Slower, but says which pair is wrong."""
    lats: list[float] = []
    lons: list[float] = []
    for number, value in enumerate(pairs, start=1):
        try:
            lat, lon = _pair(value)
            check_range(lat, lon)
        except ShapeError as error:
            raise ShapeError(f"pair {number}: {error}") from None
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
        return f"the text {shown(value)}"
    return "an array" if isinstance(value, list | tuple) else "an object"
