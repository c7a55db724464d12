"""Whether points lie in a polygon, by the non-zero winding rule."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from aviso_server.model.geometry.orientation import certain_sides, side
from aviso_server.model.geometry.runs import Numbers
from aviso_server.model.geometry.shape import Point, PointCloud, Polygon

__all__ = ["Position", "cloud_touches", "contains", "covers", "position"]

# Up to this many vertices a plain loop is faster than arrays.
_SMALL_RING = 1_000
# Pairs of a point and an edge looked at in one go: bounds the memory.
_PAIRS_AT_ONCE = 1 << 17


class Position(Enum):
    """Where a point is, seen from a polygon."""

    OUTSIDE = "outside"
    BOUNDARY = "boundary"
    INSIDE = "inside"


def contains(polygon: Polygon, point: Point) -> bool:
    """True if the point lies strictly inside; a point on an edge or a vertex does not."""
    return position(polygon, point) is Position.INSIDE


def covers(polygon: Polygon, point: Point) -> bool:
    """True if the point lies inside or on the boundary."""
    return position(polygon, point) is not Position.OUTSIDE


def cloud_touches(cloud: PointCloud, polygon: Polygon) -> bool:
    """True if at least one point of the cloud lies inside the polygon or on its boundary."""
    if not cloud.box.overlaps(polygon.box):
        return False
    if cloud.points * polygon.vertices <= _SMALL_RING:
        return any(covers(polygon, Point(lat, lon)) for lat, lon in zip(cloud.lats, cloud.lons, strict=True))
    return _any_covered(polygon, cloud)


def position(polygon: Polygon, point: Point) -> Position:
    """Where the point is, seen from the polygon."""
    lat, lon = point
    if not polygon.box.covers(lat, lon):
        return Position.OUTSIDE
    if polygon.vertices <= _SMALL_RING:
        return _position(polygon, lat, lon)
    x, y = polygon.arrays
    edges = np.flatnonzero(np.minimum(y[:-1], y[1:]) <= lat)
    edges = edges[np.maximum(y[edges], y[edges + 1]) >= lat]
    windings, boundary = _windings(x[edges], y[edges], x[edges + 1], y[edges + 1], np.array([lon]), np.array([lat]))
    if boundary:
        return Position.BOUNDARY
    return Position.INSIDE if windings[0] else Position.OUTSIDE


def _position(polygon: Polygon, lat: float, lon: float) -> Position:
    """Walk once around the ring and count how often it passes the point on the right-hand side."""
    winding = 0
    x1, y1 = polygon.lons[0], polygon.lats[0]
    for x2, y2 in zip(polygon.lons, polygon.lats, strict=True):
        if y1 <= lat:
            if y2 > lat:
                if x1 > lon < x2:
                    winding += 1
                elif not x1 < lon > x2:
                    turn = side(x1, y1, x2, y2, lon, lat)
                    if turn == 0:
                        return Position.BOUNDARY
                    winding += turn > 0
            elif y1 == lat and (x1 == lon or (y2 == lat and (x1 < lon) != (x2 < lon))):
                return Position.BOUNDARY
        elif y2 <= lat:
            if x1 > lon < x2:
                winding -= 1
            elif not x1 < lon > x2:
                turn = side(x1, y1, x2, y2, lon, lat)
                if turn == 0:
                    return Position.BOUNDARY
                winding -= turn < 0
        x1, y1 = x2, y2
    return Position.INSIDE if winding else Position.OUTSIDE


def _any_covered(polygon: Polygon, cloud: PointCloud) -> bool:
    px, py = cloud.arrays
    box = polygon.box
    near = (px >= box.min_lon) & (px <= box.max_lon) & (py >= box.min_lat) & (py <= box.max_lat)
    px, py = px[near], py[near]
    # Sorted by latitude, each group of points meets only the few edges at its height.
    order = np.argsort(py)
    px, py = px[order], py[order]
    x, y = polygon.arrays
    low, high = np.minimum(y[:-1], y[1:]), np.maximum(y[:-1], y[1:])
    step = max(64, _PAIRS_AT_ONCE // len(low))
    for start in range(0, len(px), step):
        gx, gy = px[start : start + step], py[start : start + step]
        edges = np.flatnonzero((low <= gy[-1]) & (high >= gy[0]))
        windings, boundary = _windings(x[edges], y[edges], x[edges + 1], y[edges + 1], gx, gy)
        if boundary or windings.any():
            return True
    return False


def _windings(
    x1: Numbers, y1: Numbers, x2: Numbers, y2: Numbers, px: Numbers, py: Numbers
) -> tuple[npt.NDArray[np.int64], bool]:
    """The winding number of the edges around each point, and whether any point lies on an edge."""
    windings = np.zeros(len(px), dtype=np.int64)
    rows = py[:, None]
    point, edge = np.nonzero(y1 == rows)
    ex, gx = x1[edge], px[point]
    if np.any((ex == gx) | ((y2[edge] == py[point]) & ((ex < gx) != (x2[edge] < gx)))):
        return windings, True
    point, edge = np.nonzero((y1 <= rows) != (y2 <= rows))
    ax, ay, bx, by, cx, cy = x1[edge], y1[edge], x2[edge], y2[edge], px[point], py[point]
    upward = np.where(ay < by, 1, -1)
    turns = certain_sides(ax, ay, bx, by, cx, cy)
    for index in np.flatnonzero(turns == 0).tolist():
        turn = side(*(float(values[index]) for values in (ax, ay, bx, by, cx, cy)))
        if turn == 0:
            return windings, True
        turns[index] = 1 if turn > 0 else -1
    counted = turns == upward
    np.add.at(windings, point[counted], upward[counted])
    return windings, False
