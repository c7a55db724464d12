"""Inside, touching, apart: the reference cases of the contract."""

from __future__ import annotations

import math

import pytest

from aviso_server.model import geometry
from aviso_server.model.geometry import Point, Polygon, Position

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
    shape, place = geometry.parse_polygon(polygon), geometry.parse_point(point)
    shape = crowded(shape, size) if size else shape
    assert geometry.position(shape, place) is expected
    assert geometry.contains(shape, place) is (expected is Position.INSIDE)
    assert geometry.covers(shape, place) is (expected is not Position.OUTSIDE)


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
    a, b = geometry.parse_polygon(stored), geometry.parse_polygon(request_area)
    if size:
        a, b = crowded(a, size), crowded(b, size)
    assert geometry.intersects(a, b) is expected
    assert geometry.intersects(b, a) is expected


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
    area = geometry.parse_polygon(polygon)
    for cloud in (points, points * 400):
        assert geometry.cloud_touches(geometry.parse_point_cloud(cloud), area) is expected
        assert geometry.cloud_touches(geometry.parse_point_cloud(cloud), crowded(area)) is expected


def circle(lat: float, lon: float, radius: float, vertices: int) -> Polygon:
    angles = [2 * math.pi * step / (vertices - 1) for step in range(vertices - 1)]
    return Polygon.closed([(lat + radius * math.sin(a), lon + radius * math.cos(a)) for a in angles])


@pytest.mark.timeout(20)
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
    assert geometry.intersects(here, there) is expected
    assert geometry.intersects(there, here) is expected


def test_a_large_ring_and_a_small_one():
    here = circle(50, 10, 5, 10_000)
    assert geometry.intersects(here, geometry.parse_polygon("(50,10,50,11,51,10,50,10)"))  # inside
    assert geometry.intersects(here, geometry.parse_polygon("(40,0,40,20,60,20,60,0,40,0)"))  # around
    assert geometry.intersects(here, geometry.parse_polygon("(50,0,50.1,0,50.1,20,50,20,50,0)"))  # across
    assert not geometry.intersects(
        here, geometry.parse_polygon("(54,14,55,14,55,15,54,14)")
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
    assert not geometry.intersects(upper, apart)
    assert geometry.intersects(upper, poking)
    assert geometry.intersects(poking, upper)


@pytest.mark.parametrize("vertices", [1_023, 1_024, 1_025, 1_026, 1_040])
def test_the_closing_edge_counts(vertices):
    angles = [math.pi * step / (vertices - 2) for step in range(vertices - 1)]
    half_disc = Polygon.closed([(10 + 5 * math.sin(a), 10 + 5 * math.cos(a)) for a in angles])
    assert half_disc.vertices == vertices
    across = geometry.parse_polygon("(9,9,11,10,9,11,9,9)")  # starts outside and meets the straight side only
    assert geometry.intersects(half_disc, across)
    assert geometry.intersects(across, half_disc)


def test_hostile_diagonals_stay_bounded():
    """Every edge box of one overlaps every one of the other; they are a thin gap apart."""
    a = Polygon.closed([(0.0, 0.0) if step % 2 else (60.0, 60.0 - step * 1e-3) for step in range(1_500)])
    b = Polygon.closed([(0.0, 1.0) if step % 2 else (60.0, 61.0 + step * 1e-3) for step in range(1_500)])
    assert not geometry.intersects(a, b)


def test_cost_grows_with_both_and_vanishes_when_apart():
    square, far = geometry.parse_polygon(SQ), geometry.parse_polygon("(8,8,8,9,9,9,9,8,8,8)")
    cloud = geometry.parse_point_cloud([[1, 1]] * 7)
    assert geometry.cost(square, square) == 25
    assert geometry.cost(square, crowded(square, 10_000)) == 50_000
    assert geometry.cost(square, far) == 0
    assert geometry.cost(square, Point(1, 1)) == geometry.cost(Point(1, 1), square) == 5
    assert geometry.cost(square, Point(9, 9)) == 0
    assert geometry.cost(cloud, square) == geometry.cost(square, cloud) == 35
