"""Which of many shapes reach an area: certain answers for whole columns at once.

A shape is told apart by exact signs only. Where rounding leaves a doubt, or a shape touches the area in a corner, the
answer is that it is not certain, and the model's exact test has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aviso_server.model.filter import Area
from aviso_server.model.geometry import Point, Polygon
from aviso_server.model.geometry.orientation import certain_sides

__all__ = ["NO", "UNSURE", "YES", "reach"]

NO, UNSURE, YES = 0, 1, 2

Answers = npt.NDArray[np.int8]
Numbers = npt.NDArray[np.float64]
Side = tuple[Numbers, Numbers, Numbers, Numbers]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_POLYGON, _CLOUD = 3, 4
_RING_HEAD, _CLOUD_HEAD, _PLACE = 13, 9, 21  # bytes; a place of a cloud brings a head of 5


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
    """For each shape, as well-known binary: does it reach the area?"""
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
