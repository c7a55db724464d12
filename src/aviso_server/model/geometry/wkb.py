"""Shapes as well-known binary, the form that map software and databases read: x is the longitude, y the latitude."""

from __future__ import annotations

import struct

from aviso_server.model.geometry.shape import PointCloud, Polygon, ShapeError
from aviso_server.model.notification import Box

__all__ = ["polygon_from_wkb", "wkb"]

_LITTLE_ENDIAN = 1
_POINT, _POLYGON, _MULTI_POINT = 1, 3, 4
_RING = struct.Struct("<BIII")  # byte order, kind, one ring, its vertices
_CLOUD = struct.Struct("<BII")  # byte order, kind, points
_PLACE = struct.Struct("<BIdd")


def wkb(shape: Polygon | PointCloud) -> bytes:
    """A polygon as a Polygon with one ring, a point cloud as a MultiPoint; little-endian."""
    if isinstance(shape, PointCloud):
        places = zip(shape.lons, shape.lats, strict=True)
        points = b"".join([_PLACE.pack(_LITTLE_ENDIAN, _POINT, lon, lat) for lon, lat in places])
        return _CLOUD.pack(_LITTLE_ENDIAN, _MULTI_POINT, shape.points) + points
    flat = [0.0] * (2 * shape.vertices)
    flat[0::2] = shape.lons
    flat[1::2] = shape.lats
    return _RING.pack(_LITTLE_ENDIAN, _POLYGON, 1, shape.vertices) + struct.pack(f"<{len(flat)}d", *flat)


def polygon_from_wkb(data: bytes) -> Polygon:
    """Read a polygon of one ring, as `wkb` writes it; the ring is taken as it is."""
    if len(data) < _RING.size:
        raise ShapeError(f"expected a polygon as well-known binary, found {len(data)} bytes")
    order, kind, rings, vertices = _RING.unpack_from(data)
    if (order, kind, rings) != (_LITTLE_ENDIAN, _POLYGON, 1) or len(data) != _RING.size + 16 * vertices:
        raise ShapeError("expected well-known binary of a little-endian polygon with one ring")
    flat = struct.unpack_from(f"<{2 * vertices}d", data, _RING.size)
    lons, lats = flat[0::2], flat[1::2]
    if not lats:
        raise ShapeError("the polygon has no vertices")
    return Polygon(lats, lons, Box(min(lats), min(lons), max(lats), max(lons)))
