"""Laws of the predicates, and agreement with exact arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aviso_server.model import geometry
from aviso_server.model.geometry import Point, PointCloud, Polygon
from aviso_server.model.geometry.orientation import certain_sides, side
from tests.model import exact_geometry as exact

# No deadlines: a busy machine is no reason to fail.
usual = settings(deadline=None)
few = settings(usual, max_examples=60)
many = settings(usual, max_examples=300)

# A small grid: touching, collinear, repeated and degenerate shapes are the rule, not the exception.
grid = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda pair: (float(pair[0]), float(pair[1])))
# Decimal steps are not exact in binary: points nearly on an edge.
tenths = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda pair: (50 + pair[0] / 10, 13 + pair[1] / 10))
# Everything a float can be on the map, very small numbers included.
near_zero = st.sampled_from([0.0, 5e-324, -5e-324, 1e-310, 1e-200, -1e-200, 3e-160, 1e-17, 0.1, 1.0])
anywhere = st.tuples(st.one_of(near_zero, st.floats(-90, 90)), st.one_of(near_zero, st.floats(-180, 180)))
place = st.one_of(grid, tenths, anywhere)


def rings(pair):
    return st.lists(pair, min_size=1, max_size=7).map(Polygon.closed)


polygon = st.one_of(rings(grid), rings(tenths), rings(anywhere))
two_polygons = st.one_of(*(st.tuples(rings(pair), rings(pair)) for pair in (grid, tenths, anywhere)))
polygon_and_point = st.one_of(
    *(st.tuples(rings(pair), pair.map(lambda it: Point(*it))) for pair in (grid, tenths, anywhere))
)


def rotated(shape: Polygon, by: int) -> Polygon:
    pairs = list(zip(shape.lats, shape.lons, strict=True))[:-1]
    by %= len(pairs)
    return Polygon.closed(pairs[by:] + pairs[:by])


def backwards(shape: Polygon) -> Polygon:
    return Polygon.closed(list(zip(shape.lats, shape.lons, strict=True))[::-1])


def crowded(shape: Polygon) -> Polygon:
    """The same ring with so many repeated vertices that it counts as a large one."""
    pairs = zip(shape.lats, shape.lons, strict=True)
    return Polygon.closed([pair for pair in pairs for _ in range(1_200 // shape.vertices + 1)])


def wound(shape: Polygon) -> Polygon:
    """The same ring gone round so often that it counts as a large one; winding numbers only multiply."""
    pairs = list(zip(shape.lats, shape.lons, strict=True))[1:]
    return Polygon.closed([(shape.lats[0], shape.lons[0]), *pairs * (1_200 // len(pairs) + 1)])


def subdivided(shape: Polygon) -> Polygon:
    """The same ring with every edge cut into 256 parts; exact for vertices on the grid."""
    pairs = list(zip(shape.lats, shape.lons, strict=True))
    parts = [
        (lat1 + (lat2 - lat1) * part / 256, lon1 + (lon2 - lon1) * part / 256)
        for (lat1, lon1), (lat2, lon2) in pairwise(pairs)
        for part in range(256)
    ]
    return Polygon.closed([*parts, pairs[-1]])


@usual
@given(polygon_and_point)
def test_position_agrees_with_fractions(case):
    shape, point = case
    inside, boundary = exact.is_inside_or_on(shape, point)
    assert geometry.contains(shape, point) is inside
    assert geometry.covers(shape, point) is (inside or boundary)


@many
@given(two_polygons)
def test_intersects_agrees_with_fractions(case):
    a, b = case
    assert geometry.intersects(a, b) is exact.do_intersect(a, b)


@few
@given(polygon_and_point)
def test_large_rings_place_points_like_small_ones(case):
    shape, point = case
    expected = geometry.position(shape, point)
    assert geometry.position(crowded(shape), point) is expected
    assert geometry.position(wound(shape), point) is expected


@few
@given(two_polygons)
def test_large_rings_intersect_like_small_ones(case):
    a, b = case
    expected = geometry.intersects(a, b)
    assert geometry.intersects(crowded(a), crowded(b)) is expected
    assert geometry.intersects(wound(a), wound(b)) is expected
    assert geometry.intersects(a, crowded(b)) is expected


@few
@given(rings(grid), rings(grid), grid)
def test_fine_edges_change_nothing(a, b, pair):
    assert geometry.intersects(subdivided(a), subdivided(b)) is geometry.intersects(a, b)
    assert geometry.intersects(subdivided(a), b) is geometry.intersects(a, b)
    assert geometry.position(subdivided(a), Point(*pair)) is geometry.position(a, Point(*pair))


@usual
@given(two_polygons)
def test_intersects_is_symmetric(case):
    a, b = case
    assert geometry.intersects(a, b) is geometry.intersects(b, a)


@usual
@given(polygon)
def test_a_polygon_intersects_itself(shape):
    assert geometry.intersects(shape, shape)
    assert geometry.intersects(shape, backwards(shape))


@usual
@given(polygon_and_point, st.integers(0, 10))
def test_start_and_direction_of_a_ring_do_not_matter(case, by):
    shape, point = case
    expected = geometry.position(shape, point)
    assert geometry.position(rotated(shape, by), point) is expected
    assert geometry.position(backwards(shape), point) is expected


@usual
@given(two_polygons, st.integers(0, 10))
def test_intersects_ignores_start_and_direction_where_edges_meet(case, by):
    a, b = case
    if any(exact.share_a_point(one, other) for one in exact.edges(a) for other in exact.edges(b)):
        assert geometry.intersects(rotated(a, by), backwards(b))


@usual
@given(polygon_and_point)
def test_contains_implies_covers_implies_intersects(case):
    shape, point = case
    dot = Polygon.closed([point])
    assert geometry.covers(shape, point) or not geometry.contains(shape, point)
    assert geometry.intersects(shape, dot) is geometry.covers(shape, point)


@usual
@given(polygon)
def test_a_ring_covers_but_never_contains_its_vertices(shape):
    for lat, lon in zip(shape.lats, shape.lons, strict=True):
        assert geometry.covers(shape, Point(lat, lon))
        assert not geometry.contains(shape, Point(lat, lon))


@few
@given(
    st.one_of(*(st.tuples(rings(pair), st.lists(pair, min_size=1, max_size=9)) for pair in (grid, tenths, anywhere)))
)
def test_a_cloud_touches_where_one_of_its_points_is_covered(case):
    shape, points = case
    expected = any(geometry.covers(shape, Point(*point)) for point in points)
    for many in (points, points * 300):
        lats, lons = zip(*many, strict=True)
        cloud = PointCloud(lats, lons, Polygon.closed(many).box, b"")
        assert geometry.cloud_touches(cloud, shape) is expected
        assert geometry.cloud_touches(cloud, crowded(shape)) is expected


any_float = st.floats(allow_nan=False, allow_infinity=False)


@usual
@given(*[any_float] * 6)
@example(1e308, 1e308, -1e308, -1e308, 0.0, 0.0)
@example(1e308, -1e308, -1e308, 1e308, 1e308, -1e308)
@example(12.0, 12.0, 24.0, 24.0, 0.5, 0.5000000000000001)
@example(15.2, 65.0, 53.7, 53.5, 70.99851629975979, 48.33291071565617)
@example(7.7, 33.9, 29.1, -43.4, 21.070865279012388, -14.397564769516705)
@example(1e-200, 2e-200, 2e-200, 4e-200, 3e-200, 6e-200)
def test_side_is_exact_for_every_float(ax, ay, bx, by, cx, cy):
    points = [(exact.Fraction(x), exact.Fraction(y)) for x, y in ((ax, ay), (bx, by), (cx, cy))]
    a, b, c = points
    area = exact.cross(exact.minus(b, a), exact.minus(c, a))
    found = side(ax, ay, bx, by, cx, cy)
    assert (found > 0) - (found < 0) == (area > 0) - (area < 0)


@usual
@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 3), st.integers(-2, 2))
def test_side_is_exact_close_to_the_line(x, y, along, steps):
    """A third point next to the line through the other two, moved by a few floats."""
    bx, by = x + 0.3, y + 0.1
    cx, cy = x + along * 0.3, y + along * 0.1
    for _ in range(abs(steps)):
        cy = math.nextafter(cy, math.inf * steps)
    a, b, c = [(exact.Fraction(px), exact.Fraction(py)) for px, py in ((x, y), (bx, by), (cx, cy))]
    area = exact.cross(exact.minus(b, a), exact.minus(c, a))
    found = side(x, y, bx, by, cx, cy)
    assert (found > 0) - (found < 0) == (area > 0) - (area < 0)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_side_is_exact_where_floats_alone_are_not(order):
    """Points around 0.5 against the diagonal: plain float arithmetic gets many of these wrong."""
    step = 2.0**-53
    for i in range(0, 64, 3):
        for j in range(64):
            corners = [(0.5 + i * step, 0.5 + j * step), (12.0, 12.0), (24.0, 24.0)]
            (ax, ay), (bx, by), (cx, cy) = (corners[index] for index in order)
            a, b, c = [(exact.Fraction(x), exact.Fraction(y)) for x, y in ((ax, ay), (bx, by), (cx, cy))]
            area = exact.cross(exact.minus(b, a), exact.minus(c, a))
            found = side(ax, ay, bx, by, cx, cy)
            sign = (area > 0) - (area < 0)
            assert (found > 0) - (found < 0) == sign
            many = certain_sides(*(np.array([value]) for value in (ax, ay, bx, by, cx, cy)))
            assert many.tolist() in ([sign], [0])
