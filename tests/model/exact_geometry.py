"""The geometry rules once more, slowly and with fractions: the measure for the fast ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from aviso_server.model.shapes import Point, Polygon

Place = tuple[Fraction, Fraction]  # x, y


def places(polygon: Polygon) -> list[Place]:
    return [(Fraction(lon), Fraction(lat)) for lat, lon in zip(polygon.lats, polygon.lons, strict=True)]


def edges(polygon: Polygon) -> list[tuple[Place, Place]]:
    ring = places(polygon)
    return list(pairwise(ring))


def cross(u: Place, v: Place) -> Fraction:
    return u[0] * v[1] - u[1] * v[0]


def minus(a: Place, b: Place) -> Place:
    return a[0] - b[0], a[1] - b[1]


def on_edge(place: Place, edge: tuple[Place, Place]) -> bool:
    u, v = minus(edge[0], place), minus(edge[1], place)
    return cross(u, v) == 0 and u[0] * v[0] + u[1] * v[1] <= 0


def quadrant(u: Place) -> int:
    x, y = u
    if x > 0 and y >= 0:
        return 0
    if x <= 0 and y > 0:
        return 1
    return 2 if x < 0 else 3


def quarter_turns(u: Place, v: Place) -> int:
    """By how many quadrants the direction turns from u to v, the short way round."""
    turn = (quadrant(v) - quadrant(u)) % 4
    if turn == 2:
        return 2 if cross(u, v) > 0 else -2
    return turn if turn < 2 else -1


def is_inside_or_on(polygon: Polygon, point: Point) -> tuple[bool, bool]:
    place = Fraction(point.lon), Fraction(point.lat)
    if any(on_edge(place, edge) for edge in edges(polygon)):
        return False, True
    turns = sum(quarter_turns(minus(a, place), minus(b, place)) for a, b in edges(polygon))
    return turns != 0, False


def share_a_point(one: tuple[Place, Place], other: tuple[Place, Place]) -> bool:
    if any(on_edge(place, other) for place in one) or any(on_edge(place, one) for place in other):
        return True
    u, v, between = minus(one[1], one[0]), minus(other[1], other[0]), minus(other[0], one[0])
    if cross(u, v) == 0:
        return False
    return 0 <= cross(between, v) / cross(u, v) <= 1 and 0 <= cross(between, u) / cross(u, v) <= 1


def do_intersect(a: Polygon, b: Polygon) -> bool:
    return (
        any(is_inside_or_on(b, Point(a.lats[0], a.lons[0])))
        or any(is_inside_or_on(a, Point(b.lats[0], b.lons[0])))
        or any(share_a_point(one, other) for one in edges(a) for other in edges(b))
    )
