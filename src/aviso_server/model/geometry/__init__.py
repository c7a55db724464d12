"""Shapes on the map: reading and writing them, and asking whether they meet."""

from aviso_server.model.geometry.inside import Position, cloud_touches, contains, covers, position
from aviso_server.model.geometry.meeting import cost, intersects
from aviso_server.model.geometry.pairs import (
    MAX_CLOUD_BYTES,
    parse_point_cloud,
    payload_polygon,
    point_from_pair,
    polygon_from_pairs,
)
from aviso_server.model.geometry.shape import Point, PointCloud, Polygon, ShapeError, TooManyVertices
from aviso_server.model.geometry.text import (
    MAX_LAT,
    MAX_LON,
    MAX_VERTICES,
    MIN_VERTICES,
    POINT_TEXT,
    POLYGON_TEXT,
    box_text,
    parse_box,
    parse_point,
    parse_polygon,
    polygon_text,
)
from aviso_server.model.geometry.wkb import polygon_from_wkb, wkb

__all__ = [
    "MAX_CLOUD_BYTES",
    "MAX_LAT",
    "MAX_LON",
    "MAX_VERTICES",
    "MIN_VERTICES",
    "POINT_TEXT",
    "POLYGON_TEXT",
    "Point",
    "PointCloud",
    "Polygon",
    "Position",
    "ShapeError",
    "TooManyVertices",
    "box_text",
    "cloud_touches",
    "contains",
    "cost",
    "covers",
    "intersects",
    "parse_box",
    "parse_point",
    "parse_point_cloud",
    "parse_polygon",
    "payload_polygon",
    "point_from_pair",
    "polygon_from_pairs",
    "polygon_from_wkb",
    "polygon_text",
    "position",
    "wkb",
]
