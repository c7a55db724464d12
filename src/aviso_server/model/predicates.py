"""Exact tests of points and polygons: inside, on the boundary, sharing a point.

Ours and not a library's, because the contract takes rings as they are: it counts windings (non-zero rule), accepts
rings that cross themselves, puts boundary points outside of a polygon but lets polygons that touch meet. Shapely and
GEOS repair or refuse such rings. Floats decide where their rounding cannot matter, and integers where it could.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from aviso_server.model.notification import Box
from aviso_server.model.shapes import Boxes, Numbers, Point, PointCloud, Polygon, Runs

__all__ = ["Position", "certain_sides", "cloud_touches", "contains", "cost", "covers", "intersects", "position", "side"]


# The rounding of the six operations below stays under this share of the two products (a little over
# 3 * 2**-53), the loss of very small products under the second value.
_ROUNDING = 3.3306690738754716e-16
_UNDERFLOW = 1e-300


def side(ax: float, ay: float, bx: float, by: float, cx: float, cy: float) -> float:
    """Return a positive number if c lies left of the line from a to b, negative if right, zero if on it; exact."""
    left = (ax - cx) * (by - cy)
    right = (ay - cy) * (bx - cx)
    area = left - right
    # Overflow makes the comparison false, so it ends in the exact test as well.
    if abs(area) > _ROUNDING * (abs(left) + abs(right)) + _UNDERFLOW:
        return area
    return _exact_side(ax, ay, bx, by, cx, cy)


def certain_sides(ax: Numbers, ay: Numbers, bx: Numbers, by: Numbers, cx: Numbers, cy: Numbers) -> npt.NDArray[np.int8]:
    """Return 1 or -1 for triples whose side is beyond doubt, 0 where `side` has to decide."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        left = (ax - cx) * (by - cy)
        right = (ay - cy) * (bx - cx)
        area = left - right
        doubt = _ROUNDING * (np.abs(left) + np.abs(right)) + _UNDERFLOW
        return (area > doubt).astype(np.int8) - (area < -doubt).astype(np.int8)


def _exact_side(ax: float, ay: float, bx: float, by: float, cx: float, cy: float) -> int:
    left = _sign(ax, cx) * _sign(by, cy)
    right = _sign(ay, cy) * _sign(bx, cx)
    if left != right or left == 0:
        return left - right
    # Floats are fractions over powers of two: over the largest denominator all six are integers.
    ratios = [value.as_integer_ratio() for value in (ax, ay, bx, by, cx, cy)]
    scale = max(denominator for _, denominator in ratios)
    iax, iay, ibx, iby, icx, icy = (numerator * (scale // denominator) for numerator, denominator in ratios)
    area = (iax - icx) * (iby - icy) - (iay - icy) * (ibx - icx)
    return (area > 0) - (area < 0)


def _sign(value: float, other: float) -> int:
    return (value > other) - (value < other)


# Up to this many vertices a plain loop is faster than arrays.
_SMALL_RING = 1_000
# Pairs of a point and an edge looked at in one go: bounds the memory.
_PAIRS_AT_ONCE = 1 << 17


class Position(Enum):
    """The position of a point relative to a polygon."""

    OUTSIDE = "outside"
    BOUNDARY = "boundary"
    INSIDE = "inside"


def contains(polygon: Polygon, point: Point) -> bool:
    """Return True if the point lies strictly inside; a point on an edge or a vertex does not."""
    return position(polygon, point) is Position.INSIDE


def covers(polygon: Polygon, point: Point) -> bool:
    """Return True if the point lies inside or on the boundary."""
    return position(polygon, point) is not Position.OUTSIDE


def cloud_touches(cloud: PointCloud, polygon: Polygon) -> bool:
    """Return True if at least one point of the cloud lies inside the polygon or on its boundary."""
    if not cloud.box.overlaps(polygon.box):
        return False
    if cloud.points * polygon.vertices <= _SMALL_RING:
        return any(covers(polygon, Point(lat, lon)) for lat, lon in zip(cloud.lats, cloud.lons, strict=True))
    return _any_covered(polygon, cloud)


def position(polygon: Polygon, point: Point) -> Position:
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
    """Return the winding number of the edges around each point, and whether any point lies on an edge."""
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


# Up to this many vertices together, and pairs of edges near each other, plain loops are faster than arrays.
_SMALL_RINGS = 400
_FEW_PAIRS = 4_000
# Pairs of runs looked at in one go: bounds the memory.
_RUN_PAIRS_AT_ONCE = 64

Indices = npt.NDArray[np.intp]
Edge = tuple[float, float, float, float, float, float, float, float]


def intersects(a: Polygon, b: Polygon) -> bool:
    """Return True if the polygons share at least one point; touching counts, and so does one inside the other."""
    return a.box.overlaps(b.box) and (
        covers(b, Point(a.lats[0], a.lons[0])) or covers(a, Point(b.lats[0], b.lons[0])) or _edges_meet(a, b)
    )


def cost(a: Polygon | PointCloud | Point, b: Polygon | PointCloud | Point) -> int:
    """Bound the pairs of edges or points that a test may have to look at; zero if the boxes are disjoint.

    Up to 10,000 pairs are settled well within a millisecond. Far more belong away from an event loop: ten
    million take a millisecond or two for ordinary outlines, but half a second for hostile ones.
    """
    if isinstance(a, Point):
        a, b = b, a
    if isinstance(a, Point):
        return 1
    apart = not (a.box.covers(*b) if isinstance(b, Point) else a.box.overlaps(b.box))
    return 0 if apart else len(a.lats) * (1 if isinstance(b, Point) else len(b.lats))


def _edges_meet(a: Polygon, b: Polygon) -> bool:
    shared = Box(
        max(a.box.min_lat, b.box.min_lat),
        max(a.box.min_lon, b.box.min_lon),
        min(a.box.max_lat, b.box.max_lat),
        min(a.box.max_lon, b.box.max_lon),
    )
    if a.vertices + b.vertices <= _SMALL_RINGS:
        ours, theirs = _edges_in(a, shared), _edges_in(b, shared)
        if len(ours) * len(theirs) <= _FEW_PAIRS:
            return _few_meet(ours, theirs)
    return _many_meet(a.runs, b.runs, shared)


def _edges_in(polygon: Polygon, box: Box) -> list[Edge]:
    """Return the edges whose boxes reach into the box: x1, y1, x2, y2, left, bottom, right, top."""
    bottom, left, top, right = box
    found: list[Edge] = []
    x1, y1 = polygon.lons[0], polygon.lats[0]
    for x2, y2 in zip(polygon.lons[1:], polygon.lats[1:], strict=True):
        low_x, high_x = (x1, x2) if x1 < x2 else (x2, x1)
        low_y, high_y = (y1, y2) if y1 < y2 else (y2, y1)
        if low_x <= right and high_x >= left and low_y <= top and high_y >= bottom:
            found.append((x1, y1, x2, y2, low_x, low_y, high_x, high_y))
        x1, y1 = x2, y2
    return found


def _few_meet(ours: list[Edge], theirs: list[Edge]) -> bool:
    for x1, y1, x2, y2, left, bottom, right, top in ours:
        for x3, y3, x4, y4, low_x, low_y, high_x, high_y in theirs:
            if (
                low_x <= right
                and high_x >= left
                and low_y <= top
                and high_y >= bottom
                and _share_a_point(x1, y1, x2, y2, x3, y3, x4, y4)
            ):
                return True
    return False


def _share_a_point(x1: float, y1: float, x2: float, y2: float, x3: float, y3: float, x4: float, y4: float) -> bool:
    """Test two edges whose boxes overlap: neither may lie strictly on one side of the other's line.

    Together with the overlap of the boxes this also settles collinear edges and edges of no length.
    """
    one, other = side(x1, y1, x2, y2, x3, y3), side(x1, y1, x2, y2, x4, y4)
    if (one > 0 and other > 0) or (one < 0 and other < 0):
        return False
    one, other = side(x3, y3, x4, y4, x1, y1), side(x3, y3, x4, y4, x2, y2)
    return not ((one > 0 and other > 0) or (one < 0 and other < 0))


def _many_meet(ours: Runs, theirs: Runs, shared: Box) -> bool:
    frame = np.array((shared.min_lon, shared.min_lat, shared.max_lon, shared.max_lat))
    mine, its = np.flatnonzero(_overlap(ours.boxes, frame)), np.flatnonzero(_overlap(theirs.boxes, frame))
    one, other = np.nonzero(_overlap(ours.boxes[:, mine, None], theirs.boxes[:, None, its]))
    mine, its = mine[one], its[other]
    start, step = 0, 4
    while start < len(mine):
        if _runs_meet(ours, mine[start : start + step], theirs, its[start : start + step]):
            return True
        start += step
        step = min(2 * step, _RUN_PAIRS_AT_ONCE)
    return False


def _runs_meet(ours: Runs, mine: Indices, theirs: Runs, its: Indices) -> bool:
    near = _overlap(ours.edge_boxes[:, mine, :, None], theirs.edge_boxes[:, its, None, :])
    if np.count_nonzero(near) > near.size // 8:
        # So many that it pays to look at all vertices at once before any pair is picked out.
        x, y, vx, vy = ours.x[mine, :, None], ours.y[mine, :, None], theirs.x[its, None], theirs.y[its, None]
        sides = certain_sides(x[:, :-1], y[:, :-1], x[:, 1:], y[:, 1:], vx, vy)
        near &= sides[:, :, :-1] * sides[:, :, 1:] <= 0
    pair, one, other = np.nonzero(near)
    mine, its = mine[pair], its[pair]
    return len(pair) > 0 and _any_share_a_point(
        np.stack((ours.x[mine, one], ours.y[mine, one], ours.x[mine, one + 1], ours.y[mine, one + 1])),
        np.stack((theirs.x[its, other], theirs.y[its, other], theirs.x[its, other + 1], theirs.y[its, other + 1])),
    )


def _any_share_a_point(ours: Numbers, theirs: Numbers) -> bool:
    """Do what `_share_a_point` does for many pairs of edges; doubtful pairs are tested one by one."""
    x1, y1, x2, y2 = ours
    x3, y3, x4, y4 = theirs
    first = certain_sides(x1, y1, x2, y2, x3, y3) * certain_sides(x1, y1, x2, y2, x4, y4)
    open_pairs = np.flatnonzero(first <= 0)
    if not len(open_pairs):
        return False
    first = first[open_pairs]
    x1, y1, x2, y2 = ours[:, open_pairs]
    x3, y3, x4, y4 = theirs[:, open_pairs]
    second = certain_sides(x3, y3, x4, y4, x1, y1) * certain_sides(x3, y3, x4, y4, x2, y2)
    if np.any((first < 0) & (second < 0)):
        return True
    doubtful = open_pairs[second <= 0]
    pairs = np.concatenate((ours[:, doubtful], theirs[:, doubtful])).T
    return any(_share_a_point(*pair) for pair in pairs.tolist())


def _overlap(ours: Boxes, theirs: Boxes) -> npt.NDArray[np.bool_]:
    """Return which boxes overlap; touching counts."""
    both: npt.NDArray[np.bool_] = (ours[0] <= theirs[2]) & (ours[2] >= theirs[0])
    both &= (ours[1] <= theirs[3]) & (ours[3] >= theirs[1])
    return both
