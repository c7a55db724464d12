"""Inside, touching, disjoint: the cases of the contract, laws, and agreement with exact arithmetic."""

from __future__ import annotations

import math
import time
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aviso_server.model import predicates, shapes
from aviso_server.model.predicates import Position, certain_sides, side
from aviso_server.model.shapes import Point, PointCloud, Polygon
from tests.harness.patience import slowness
from tests.model import exact_geometry as exact

P = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
SQ = "(0,0,0,2,2,2,2,0,0,0)"
BOW_TIE = "(0,0,2,2,0,2,2,0,0,0)"
TWICE = "(0,0,0,4,4,4,4,0,0,0,0,4,4,4,4,0,0,0)"
LINE = "(0,0,2,2,0,0,0,0)"
DOT = "(1,1,1,1,1,1,1,1)"


def star(lat: float, lon: float, radius: float) -> str:
    """A pentagram: its core has winding number two."""
    angles = [math.radians(90 + 144 * corner) for corner in range(5)]
    pairs = [f"{lat + radius * math.sin(a):.6f},{lon + radius * math.cos(a):.6f}" for a in angles]
    return ",".join([*pairs, pairs[0]])


def crowded(polygon: Polygon, vertices: int = 1_200) -> Polygon:
    """The same ring with every vertex repeated, so that it counts as a large one."""
    times = -(-vertices // polygon.vertices)
    pairs = zip(polygon.lats, polygon.lons, strict=True)
    return Polygon.closed([pair for pair in pairs for _ in range(times)])


@pytest.mark.parametrize("size", [0, 1_200], ids=["small", "large"])
@pytest.mark.parametrize(
    ("polygon", "point", "expected"),
    [
        (P, "52.55,13.5", Position.INSIDE),
        (P, "52.5,13.5", Position.INSIDE),
        (P, "52.6,13.5", Position.BOUNDARY),
        (P, "52.4,13.5", Position.BOUNDARY),
        (P, "52.5,13.4", Position.BOUNDARY),
        (P, "52.5,13.6", Position.BOUNDARY),
        (P, "52.59,13.41", Position.OUTSIDE),
        (P, "0,0", Position.OUTSIDE),
        (SQ, "1,1", Position.INSIDE),
        (SQ, "0,1", Position.BOUNDARY),
        (SQ, "1,0", Position.BOUNDARY),
        (SQ, "2,1", Position.BOUNDARY),
        (SQ, "1,2", Position.BOUNDARY),
        (SQ, "0,0", Position.BOUNDARY),
        (SQ, "2,2", Position.BOUNDARY),
        (SQ, "1,2.0000001", Position.OUTSIDE),
        (SQ, "1,1.9999999999999998", Position.INSIDE),
        (SQ, "5e-324,1", Position.INSIDE),
        (SQ, "-5e-324,1", Position.OUTSIDE),
        (BOW_TIE, "1,0.5", Position.INSIDE),
        (BOW_TIE, "1,1.5", Position.INSIDE),
        (BOW_TIE, "0.5,1", Position.OUTSIDE),
        (BOW_TIE, "1.5,1", Position.OUTSIDE),
        (BOW_TIE, "1,1", Position.BOUNDARY),
        (TWICE, "2,2", Position.INSIDE),
        (star(10, 10, 5), "10,10", Position.INSIDE),
        (star(10, 10, 5), "13,10", Position.INSIDE),
        (star(10, 10, 5), "7,10", Position.OUTSIDE),
        (LINE, "1,1", Position.BOUNDARY),
        (LINE, "1,1.0000000000000002", Position.OUTSIDE),
        (LINE, "1.5,0.5", Position.OUTSIDE),
        (DOT, "1,1", Position.BOUNDARY),
        (DOT, "1,1.0000000000000002", Position.OUTSIDE),
        ("(0,0,0,1e-200,1e-200,0,0,0)", "1e-201,1e-201", Position.INSIDE),
        ("(0,0,0,1e-200,1e-200,0,0,0)", "5e-201,5e-201", Position.BOUNDARY),
        ("(0,0,0,1e-200,1e-200,0,0,0)", "6e-201,5e-201", Position.OUTSIDE),
        ("(10,179,10,-179,20,-179,20,179,10,179)", "15,0", Position.INSIDE),  # no wrap at the antimeridian
    ],
)
def test_point(polygon, point, expected, size):
    shape, place = shapes.parse_polygon(polygon), shapes.parse_point(point)
    shape = crowded(shape, size) if size else shape
    assert predicates.position(shape, place) is expected
    assert predicates.contains(shape, place) is (expected is Position.INSIDE)
    assert predicates.covers(shape, place) is (expected is not Position.OUTSIDE)


@pytest.mark.parametrize("size", [0, 1_200], ids=["small", "large"])
@pytest.mark.parametrize(
    ("stored", "request_area", "expected"),
    [
        (P, P, True),
        (P, "(52.6,13.5,52.7,13.4,52.7,13.6,52.6,13.5)", True),  # touches the top vertex
        (P, "(52.52,13.45,52.62,13.55,52.52,13.65,52.42,13.55,52.52,13.45)", True),
        (P, "(10.0,10.0,10.2,10.0,10.2,10.2,10.0,10.2,10.0,10.0)", False),
        (P, "(52.58,13.40,52.60,13.40,52.60,13.42,52.58,13.42,52.58,13.40)", False),  # in the box, beside the diamond
        (SQ, "(2,0,3,0,3,1,2,1,2,0)", True),  # shares an edge
        (SQ, "(2,2,3,2,3,3,2,3,2,2)", True),  # shares a corner
        (SQ, "(3,3,4,3,4,4,3,4,3,3)", False),
        (SQ, "(0.5,0.5,0.5,1,1,1,0.5,0.5)", True),  # inside
        (SQ, "(-1,-1,-1,5,5,5,5,-1,-1,-1)", True),  # around
        (SQ, "(1,-1,1,3,1.5,3,1.5,-1,1,-1)", True),  # right across: no vertex of the one in the other
        (SQ, "(2.0000000000000004,0,3,0,3,1,2.0000000000000004,0)", False),
        (SQ, DOT, True),
        (SQ, LINE, True),
        (SQ, "(3,1,1,3,3,1,3,1)", True),  # a line through the corner
        (SQ, "(3,1.0000000000000002,1,3,3,1.0000000000000002,3,1.0000000000000002)", False),  # and a hair beside it
        (BOW_TIE, "(0.2,1,0.1,1,0.1,1.05,0.2,1)", False),  # in the open mouth
        (BOW_TIE, "(1,1,1.5,1,1.5,1.1,1,1)", True),  # touches the crossing
        (LINE, LINE, True),
        (LINE, "(1,1,3,3,1,1,1,1)", True),  # collinear and overlapping
        (LINE, "(2,2,3,3,2,2,2,2)", True),  # collinear, end to end
        (LINE, "(3,3,4,4,3,3,3,3)", False),  # collinear and apart
        (LINE, "(0,1,1,2,0,1,0,1)", False),  # parallel
        (DOT, DOT, True),
        (DOT, "(1,2,1,2,1,2,1,2)", False),
        (DOT, LINE, True),
        (TWICE, "(1,1,1,2,2,2,1,1)", True),
    ],
)
def test_polygons(stored, request_area, expected, size):
    a, b = shapes.parse_polygon(stored), shapes.parse_polygon(request_area)
    if size:
        a, b = crowded(a, size), crowded(b, size)
    assert predicates.intersects(a, b) is expected
    assert predicates.intersects(b, a) is expected


@pytest.mark.parametrize(
    ("points", "polygon", "expected"),
    [
        ([[1, 1], [5, 5]], SQ, True),
        ([[1, 1], [5, 5]], "(8,8,8,9,9,9,9,8,8,8)", False),
        ([[0, 1]], SQ, True),  # on the edge
        ([[2, 2]], SQ, True),  # on the vertex
        ([[0, 3], [3, 0], [1, 2.0000001]], SQ, False),  # the boxes overlap, no point is in
        ([[0.5, 1], [1.5, 1]], BOW_TIE, False),
        ([[0.5, 1], [1, 1.5]], BOW_TIE, True),
    ],
)
def test_cloud(points, polygon, expected):
    area = shapes.parse_polygon(polygon)
    for cloud in (points, points * 400):
        assert predicates.cloud_touches(shapes.parse_point_cloud(cloud), area) is expected
        assert predicates.cloud_touches(shapes.parse_point_cloud(cloud), crowded(area)) is expected


def circle(lat: float, lon: float, radius: float, vertices: int) -> Polygon:
    angles = [2 * math.pi * step / (vertices - 1) for step in range(vertices - 1)]
    return Polygon.closed([(lat + radius * math.sin(a), lon + radius * math.cos(a)) for a in angles])


@pytest.mark.parametrize(
    ("lat", "lon", "radius", "expected"),
    [
        (50, 15, 5, True),
        (50, 10, 1, True),
        (50, 10, 20, True),
        (57.2, 17.2, 5, False),
        (57, 17, 5, True),
        (50, 22, 5, False),
    ],
)
def test_ten_thousand_vertices_each(lat, lon, radius, expected):
    here, there = circle(50, 10, 5, 10_000), circle(lat, lon, radius, 10_000)
    began = time.process_time()
    assert predicates.intersects(here, there) is expected
    assert predicates.intersects(there, here) is expected
    assert time.process_time() - began < 5 * slowness(), "a hundred million pairs of edges would take minutes"


def test_a_large_ring_and_a_small_one():
    here = circle(50, 10, 5, 10_000)
    assert predicates.intersects(here, shapes.parse_polygon("(50,10,50,11,51,10,50,10)"))  # inside
    assert predicates.intersects(here, shapes.parse_polygon("(40,0,40,20,60,20,60,0,40,0)"))  # around
    assert predicates.intersects(here, shapes.parse_polygon("(50,0,50.1,0,50.1,20,50,20,50,0)"))  # across
    assert not predicates.intersects(
        here, shapes.parse_polygon("(54,14,55,14,55,15,54,14)")
    )  # in the box, beside the ring


def zigzag(teeth: int, shift: float, poke: int | None = None) -> list[tuple[float, float]]:
    """A line of long teeth; one of the tips may poke out."""
    line = [(shift + (30.0 if step % 2 else -30.0), 0.01 * step) for step in range(2 * teeth)]
    if poke is not None:
        lat, lon = line[2 * poke + 1]
        line[2 * poke + 1] = lat + 0.3, lon
    return line


@pytest.mark.parametrize("poke", [0, 1, 7, 100, 333, 500, 613, 777, 901, 998, 999])
def test_teeth_that_interlock_touch_only_where_one_pokes_out(poke):
    """Each box of an edge overlaps its neighbours', so only the edges themselves can tell."""
    upper = Polygon.closed([(80.0, -1.0), *zigzag(1_000, 0.1), (80.0, 25.0)])
    apart = Polygon.closed([(-80.0, -1.0), *zigzag(1_000, -0.1), (-80.0, 25.0)])
    poking = Polygon.closed([(-80.0, -1.0), *zigzag(1_000, -0.1, poke), (-80.0, 25.0)])
    assert not predicates.intersects(upper, apart)
    assert predicates.intersects(upper, poking)
    assert predicates.intersects(poking, upper)


@pytest.mark.parametrize("vertices", [1_023, 1_024, 1_025, 1_026, 1_040])
def test_the_closing_edge_counts(vertices):
    angles = [math.pi * step / (vertices - 2) for step in range(vertices - 1)]
    half_disc = Polygon.closed([(10 + 5 * math.sin(a), 10 + 5 * math.cos(a)) for a in angles])
    assert half_disc.vertices == vertices
    across = shapes.parse_polygon("(9,9,11,10,9,11,9,9)")  # starts outside and meets the straight side only
    assert predicates.intersects(half_disc, across)
    assert predicates.intersects(across, half_disc)


def test_hostile_diagonals_stay_bounded():
    """Every edge box of one overlaps every one of the other; they are a thin gap apart."""
    a = Polygon.closed([(0.0, 0.0) if step % 2 else (60.0, 60.0 - step * 1e-3) for step in range(1_500)])
    b = Polygon.closed([(0.0, 1.0) if step % 2 else (60.0, 61.0 + step * 1e-3) for step in range(1_500)])
    assert not predicates.intersects(a, b)


def test_cost_grows_with_both_and_vanishes_when_apart():
    square, far = shapes.parse_polygon(SQ), shapes.parse_polygon("(8,8,8,9,9,9,9,8,8,8)")
    cloud = shapes.parse_point_cloud([[1, 1]] * 7)
    assert predicates.cost(square, square) == 25
    assert predicates.cost(square, crowded(square, 10_000)) == 50_000
    assert predicates.cost(square, far) == 0
    assert predicates.cost(square, Point(1, 1)) == predicates.cost(Point(1, 1), square) == 5
    assert predicates.cost(square, Point(9, 9)) == 0
    assert predicates.cost(cloud, square) == predicates.cost(square, cloud) == 35


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


def crowded_ring(shape: Polygon) -> Polygon:
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
    assert predicates.contains(shape, point) is inside
    assert predicates.covers(shape, point) is (inside or boundary)


@many
@given(two_polygons)
def test_intersects_agrees_with_fractions(case):
    a, b = case
    assert predicates.intersects(a, b) is exact.do_intersect(a, b)


@few
@given(polygon_and_point)
def test_large_rings_place_points_like_small_ones(case):
    shape, point = case
    expected = predicates.position(shape, point)
    assert predicates.position(crowded_ring(shape), point) is expected
    assert predicates.position(wound(shape), point) is expected


@few
@given(two_polygons)
def test_large_rings_intersect_like_small_ones(case):
    a, b = case
    expected = predicates.intersects(a, b)
    assert predicates.intersects(crowded_ring(a), crowded_ring(b)) is expected
    assert predicates.intersects(wound(a), wound(b)) is expected
    assert predicates.intersects(a, crowded_ring(b)) is expected


@few
@given(rings(grid), rings(grid), grid)
def test_fine_edges_change_nothing(a, b, pair):
    assert predicates.intersects(subdivided(a), subdivided(b)) is predicates.intersects(a, b)
    assert predicates.intersects(subdivided(a), b) is predicates.intersects(a, b)
    assert predicates.position(subdivided(a), Point(*pair)) is predicates.position(a, Point(*pair))


@usual
@given(two_polygons)
def test_intersects_is_symmetric(case):
    a, b = case
    assert predicates.intersects(a, b) is predicates.intersects(b, a)


@usual
@given(polygon)
def test_a_polygon_intersects_itself(shape):
    assert predicates.intersects(shape, shape)
    assert predicates.intersects(shape, backwards(shape))


@usual
@given(polygon_and_point, st.integers(0, 10))
def test_start_and_direction_of_a_ring_do_not_matter(case, by):
    shape, point = case
    expected = predicates.position(shape, point)
    assert predicates.position(rotated(shape, by), point) is expected
    assert predicates.position(backwards(shape), point) is expected


@usual
@given(two_polygons, st.integers(0, 10))
def test_intersects_ignores_start_and_direction_where_edges_meet(case, by):
    a, b = case
    if any(exact.share_a_point(one, other) for one in exact.edges(a) for other in exact.edges(b)):
        assert predicates.intersects(rotated(a, by), backwards(b))


@usual
@given(polygon_and_point)
def test_contains_implies_covers_implies_intersects(case):
    shape, point = case
    dot = Polygon.closed([point])
    assert predicates.covers(shape, point) or not predicates.contains(shape, point)
    assert predicates.intersects(shape, dot) is predicates.covers(shape, point)


@usual
@given(polygon)
def test_a_ring_covers_but_never_contains_its_vertices(shape):
    for lat, lon in zip(shape.lats, shape.lons, strict=True):
        assert predicates.covers(shape, Point(lat, lon))
        assert not predicates.contains(shape, Point(lat, lon))


@few
@given(
    st.one_of(*(st.tuples(rings(pair), st.lists(pair, min_size=1, max_size=9)) for pair in (grid, tenths, anywhere)))
)
def test_a_cloud_touches_where_one_of_its_points_is_covered(case):
    shape, points = case
    expected = any(predicates.covers(shape, Point(*point)) for point in points)
    for many in (points, points * 300):
        lats, lons = zip(*many, strict=True)
        cloud = PointCloud(lats, lons, Polygon.closed(many).box, b"")
        assert predicates.cloud_touches(cloud, shape) is expected
        assert predicates.cloud_touches(cloud, crowded_ring(shape)) is expected


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
