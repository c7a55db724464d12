"""Polygons, points and point clouds as JSON arrays, and the polygon of a payload."""

from __future__ import annotations

import json
import pickle

import pytest

from aviso_server.model import geometry
from aviso_server.model.geometry import Point, ShapeError, TooManyVertices
from aviso_server.model.notification import Box

TRIANGLE = [[0, 0], [0, 1.5], [1, 1], [0, 0]]


def test_polygon_from_pairs_equals_the_same_text():
    polygon = geometry.polygon_from_pairs(TRIANGLE)
    assert polygon == geometry.parse_polygon("(0,0,0,1.5,1,1,0,0)")
    assert polygon.box == Box(0, 0, 1, 1.5)
    assert geometry.polygon_text(polygon) == "(0,0,0,1.5,1,1,0,0)"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "found null"),
        ("0,0,0,1,1,1,0,0", "expected an array"),
        ({"eq": "x"}, "found an object"),
        (5, "found a number"),
        ([], "polygon coordinate string is empty"),
        ([[0, 0], [0, 1], [0, 0]], "at least 4 coordinate pairs"),
        ([[0, 0], [0, 1], [1, 1], [1, 0]], "not closed"),
        ([[0, 0], [0, 1, 2], [1, 1], [0, 0]], "pair 2: expected exactly two numbers"),
        ([[0, 0], [0], [1, 1], [0, 0]], "pair 2: expected exactly two numbers"),
        ([[0, 0], 5, [1, 1], [0, 0]], "pair 2: expected \\[lat, lon\\], found a number"),
        ([[0, 0], ["1", 1], [1, 1], [0, 0]], "pair 2: could not parse latitude"),
        ([[0, 0], [1, True], [1, 1], [0, 0]], "pair 2: could not parse longitude"),
        ([[0, 0], [1, None], [1, 1], [0, 0]], "pair 2: could not parse longitude"),
        ([[0, 0], [91, 0], [1, 1], [0, 0]], "pair 2: latitude 91 is outside the valid range"),
        ([[0, 0], [0, -181], [1, 1], [0, 0]], "pair 2: longitude -181 is outside the valid range"),
        ([[0, 0], [float("nan"), 0], [1, 1], [0, 0]], "finite"),
        ([[0, 0], [0, float("inf")], [1, 1], [0, 0]], "finite"),
        ([[0, 0], [10**400, 0], [1, 1], [0, 0]], "finite"),
    ],
)
def test_polygon_pairs_refused(value, words):
    with pytest.raises(ShapeError, match=words):
        geometry.polygon_from_pairs(value)


def test_polygon_pairs_limit():
    with pytest.raises(TooManyVertices, match="polygon has 5 coordinate pairs, maximum is 4"):
        geometry.polygon_from_pairs([[0, 0]] * 5, max_vertices=4)


def test_point_from_pair():
    refused: list[object] = [None, "1,2", {}, [], [1], [1, 2, 3], ["1", "2"], [True, 1], [91, 0], [0, 181], [[1, 2]]]
    assert geometry.point_from_pair([52, 13.5]) == Point(52.0, 13.5)
    for value in refused:
        with pytest.raises(ShapeError):
            geometry.point_from_pair(value)


def test_point_cloud_keeps_order_and_duplicates():
    cloud = geometry.parse_point_cloud([[5, 5], [1, 2.5], [5, 5]])
    assert cloud.points == 3
    assert json.loads(cloud.canonical) == [[5, 5], [1, 2.5], [5, 5]]
    assert cloud.canonical == b"[[5.0,5.0],[1.0,2.5],[5.0,5.0]]"
    assert cloud.box == Box(1, 2.5, 5, 5)
    assert pickle.loads(pickle.dumps(cloud)) == cloud


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "point cloud contains 0 points, minimum is 1"),
        ("1,1", "expected an array"),
        (None, "expected an array"),
        ({}, "expected an array"),
        ([[91, 0]], "outside the valid range"),
        ([[0, -180.5]], "outside the valid range"),
        ([[1, 2, 3]], "exactly two numbers"),
        ([["1", "2"]], "could not parse latitude"),
        ([[1, False]], "could not parse longitude"),
        ([[1, float("inf")]], "finite"),
        ([1, 2], "expected \\[lat, lon\\]"),
    ],
)
def test_point_cloud_refused(value, words):
    with pytest.raises(ShapeError, match=words):
        geometry.parse_point_cloud(value, max_points=100)


def test_point_count_is_checked_before_the_points():
    with pytest.raises(ShapeError, match=r"^point cloud contains 3 points, maximum is 2$"):
        geometry.parse_point_cloud(["bad", "bad", "bad"], max_points=2)
    with pytest.raises(ShapeError, match=r"^point cloud contains 10001 points, maximum is 10000$"):
        geometry.parse_point_cloud([[1, 1]] * 10_001)


def test_point_cloud_size_limit_is_61440_bytes():
    fits = [[1.5, 1.25]] + [[1.25, 1.25]] * 5_119  # 12 bytes each with its comma, 11 for the first, 1 more bracket
    assert len(geometry.parse_point_cloud(fits).canonical) == 61_440
    with pytest.raises(ShapeError, match=r"^canonical JSON is 61441 bytes, maximum is 61440 bytes$"):
        geometry.parse_point_cloud([[1.25, 1.25]] * 5_120)


SQUARE = geometry.parse_polygon("(0,0,0,2,2,2,2,0,0,0)")


def carried(geometry_value: object) -> geometry.Polygon | None:
    return geometry.payload_polygon({"spatial_geometry": geometry_value, "other": 1})


def ring(*pairs: object) -> dict[str, object]:
    return {"type": "Polygon", "coordinates": [list(pairs)]}


@pytest.mark.parametrize(
    "value",
    [
        "(0,0,0,2,2,2,2,0,0,0)",
        ring([0, 0], [0, 2], [2, 2], [2, 0], [0, 0]),
        ring([0, 0], [0, 2], [2, 2], [2, 0]),  # closed for the sender
        ring(
            [0, 0], [0, 2], "x", [1], [1, "1"], [1, True], None, [95, 0], [0, 200], [2, 2], [2, 0]
        ),  # bad ones skipped
        {"type": "Polygon", "coordinates": [[[0, 0], [0, 2], [2, 2], [2, 0]], [[1, 1], [1, 1.5], [1.5, 1]]]},
    ],
)
def test_payload_polygon_has_latitude_first_and_one_ring(value):
    assert carried(value) == SQUARE


def test_payload_polygon_needs_three_pairs():
    assert carried(ring([0, 0], [0, 1], [1, 1])) == geometry.parse_polygon("(0,0,0,1,1,1,0,0)")
    assert carried(ring([0, 0], [0, 1], [0, 0])) == geometry.Polygon.closed([(0, 0), (0, 1), (0, 0)])
    assert carried(ring([0, 0], [0, 1], ["x", 1])) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        [],
        "(0,0)",
        "(0,0,0,2,2,2,2,0)",
        {},
        {"type": "Polygon"},
        {"type": "Polygon", "coordinates": []},
        {"type": "Polygon", "coordinates": [5]},
        {"type": "Polygon", "coordinates": "(0,0,0,2,2,2,0,0)"},
        {"type": "MultiPolygon", "coordinates": [[[0, 0], [0, 2], [2, 2], [0, 0]]]},
        {"coordinates": [[[0, 0], [0, 2], [2, 2], [0, 0]]]},
    ],
)
def test_payload_without_a_usable_polygon(value):
    assert carried(value) is None


@pytest.mark.parametrize("payload", [None, "text", 5, True, [], {}, {"polygon": "(0,0,0,2,2,2,0,0)"}])
def test_payload_without_geometry(payload):
    assert geometry.payload_polygon(payload) is None
