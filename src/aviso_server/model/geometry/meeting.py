"""Whether two polygons have a point in common."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aviso_server.model.geometry.inside import covers
from aviso_server.model.geometry.orientation import certain_sides, side
from aviso_server.model.geometry.runs import Numbers, Runs, overlap
from aviso_server.model.geometry.shape import Point, PointCloud, Polygon
from aviso_server.model.notification import Box

__all__ = ["cost", "intersects"]

# Up to this many vertices together, and pairs of edges near each other, plain loops are faster than arrays.
_SMALL_RINGS = 400
_FEW_PAIRS = 4_000
# Pairs of runs looked at in one go: bounds the memory.
_RUN_PAIRS_AT_ONCE = 64

Indices = npt.NDArray[np.intp]
Edge = tuple[float, float, float, float, float, float, float, float]


def intersects(a: Polygon, b: Polygon) -> bool:
    """True if the polygons share at least one point; touching counts, and so does one inside the other."""
    return a.box.overlaps(b.box) and (
        covers(b, Point(a.lats[0], a.lons[0])) or covers(a, Point(b.lats[0], b.lons[0])) or _edges_meet(a, b)
    )


def cost(a: Polygon | PointCloud | Point, b: Polygon | PointCloud | Point) -> int:
    """How many pairs of edges or points a test of the two may have to look at; zero if they are apart.

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
    """True if some edge of the one and some edge of the other share at least one point."""
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
    """The edges whose own boxes reach into the box: x1, y1, x2, y2, left, bottom, right, top."""
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
    """For two edges whose boxes overlap: neither lies strictly on one side of the other's line.

    Together with the overlap of the boxes this also settles collinear edges and edges of no length.
    """
    one, other = side(x1, y1, x2, y2, x3, y3), side(x1, y1, x2, y2, x4, y4)
    if (one > 0 and other > 0) or (one < 0 and other < 0):
        return False
    one, other = side(x3, y3, x4, y4, x1, y1), side(x3, y3, x4, y4, x2, y2)
    return not ((one > 0 and other > 0) or (one < 0 and other < 0))


def _many_meet(ours: Runs, theirs: Runs, shared: Box) -> bool:
    frame = np.array((shared.min_lon, shared.min_lat, shared.max_lon, shared.max_lat))
    mine, its = np.flatnonzero(overlap(ours.boxes, frame)), np.flatnonzero(overlap(theirs.boxes, frame))
    one, other = np.nonzero(overlap(ours.boxes[:, mine, None], theirs.boxes[:, None, its]))
    mine, its = mine[one], its[other]
    start, step = 0, 4
    while start < len(mine):
        if _runs_meet(ours, mine[start : start + step], theirs, its[start : start + step]):
            return True
        start += step
        step = min(2 * step, _RUN_PAIRS_AT_ONCE)
    return False


def _runs_meet(ours: Runs, mine: Indices, theirs: Runs, its: Indices) -> bool:
    """True if in some pair of runs an edge of the one and an edge of the other share a point."""
    near = overlap(ours.edge_boxes[:, mine, :, None], theirs.edge_boxes[:, its, None, :])
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
    """The same question as `_share_a_point` for many pairs of edges; doubtful pairs are asked one by one."""
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
