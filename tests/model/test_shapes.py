"""Shapes on the map: polygons, points and point clouds as text, JSON and well-known binary."""

from __future__ import annotations

import json
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model import shapes
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box
from aviso_server.model.shapes import (
    Point,
    ShapeError,
    TooManyVertices,
    geometry_problem,
    polygon_of,
    with_array,
    with_text,
)

DIAMOND = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180)
pairs = st.lists(st.tuples(latitudes, longitudes), min_size=3, max_size=12)


def reason(text: str) -> str:
    with pytest.raises(ShapeError) as caught:
        shapes.parse_polygon(text)
    return str(caught.value)


def test_latitude_comes_first():
    polygon = shapes.parse_polygon(DIAMOND)
    assert polygon.lats == (52.5, 52.6, 52.5, 52.4, 52.5)
    assert polygon.lons == (13.4, 13.5, 13.6, 13.5, 13.4)
    assert polygon.box == Box(52.4, 13.4, 52.6, 13.6)
    assert polygon.vertices == 5


@pytest.mark.parametrize(
    "text",
    [
        "(0,0,0,1,1,1,0,0)",
        "0,0,0,1,1,1,0,0",
        " ( 0 , 0 ,0,1, 1,1,0,0 ) ",
        "\t0,0,\n0,1,1,1,0,0\r\n",
        "\u00a00,0,\u20030,1,1,1,0,0\u3000",
        "(0.0,-0.0,0e5,1.,+1,1.00,0,0)",
        "(00,.0,0,01,10e-1,0.1E+1,-0,0)",
    ],
)
def test_spellings_of_one_triangle(text):
    assert shapes.parse_polygon(text) == shapes.parse_polygon("(0,0,0,1,1,1,0,0)")


@pytest.mark.parametrize(
    "text",
    [
        "(90,-180,-90,180,0,0,90,-180)",  # the limits belong to the map
        "(0,0,2,2,0,2,2,0,0,0)",  # crosses itself
        "(0,0,1,0,1,1,0,1,0,0)",  # clockwise
        "(0,0,1,1,2,2,0,0)",  # no area
        "(1,1,1,1,1,1,1,1)",  # one point
        "(0,0,0,0,0,1,0,1,1,1,0,0)",  # repeated vertices
    ],
)
def test_no_further_geometry_checks(text):
    shapes.parse_polygon(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "polygon coordinate string is empty"),
        ("   ", "polygon coordinate string is empty"),
        ("()", "polygon coordinate string is empty"),
        ("( )", "polygon coordinate string is empty"),
        ("(", "missing the closing"),
        (")", "missing the opening"),
        ("(1,2,3,4,5,6,1,2", "missing the closing"),
        ("1,2,3,4,5,6,1,2)", "missing the opening"),
        ("(1,2),3,4,5,6,1,2)", "parentheses inside"),
        ("((1,2,3,4,5,6,1,2))", "parentheses inside"),
        ("(1,2),(3,4),(5,6),(1,2)", "parentheses inside"),
        ("1,2,(3,4,5,6,1,2", "parentheses inside"),
        ("(1,2,3)", "odd number of values"),
        ("(1,2,3,4,5,6,1,2,)", "odd number of values"),
        ("abc", "odd number of values"),
        ("a,b", "could not parse latitude 'a'"),
        ("(0,b,0,1,1,1,0,0)", "could not parse longitude 'b'"),
        ("1,2,,4,5,6,1,2", "could not parse latitude ''"),
        ("1,2,3, ,5,6,1,2", "could not parse longitude ''"),
        ("1 1,2,3,4,5,6,1,2", "could not parse latitude '1 1'"),
        ("1_0,2,3,4,5,6,1_0,2", "could not parse latitude '1_0'"),
        ("٣,2,3,4,5,6,٣,2", "could not parse latitude '٣'"),
        ("\x1c1,2,3,4,5,6,1,2", "could not parse latitude"),
        ("\ud800,2,3,4,5,6,1,2", "could not parse latitude"),
        ("null,2,3,4,5,6,1,2", "could not parse latitude 'null'"),
        ('"1",2,3,4,5,6,1,2', "could not parse latitude"),
        ("1],2,3,4,5,6,1,2", "could not parse latitude '1]'"),
        ("91,0,1,1,2,2,91,0", "latitude 91 is outside the valid range"),
        ("0,0,-90.5,1,2,2,0,0", "latitude -90.5 is outside the valid range"),
        ("0,181,1,1,2,2,0,181", "longitude 181 is outside the valid range"),
        ("0,0,1,-180.000001,2,2,0,0", "longitude -180.000001 is outside the valid range"),
        ("NaN,0,1,1,2,2,NaN,0", "latitude nan is outside the valid range"),
        ("0,0,1,nan,2,2,0,0", "longitude nan is outside the valid range"),
        ("0,0,1,1,inf,-inf,0,0", "latitude inf is outside the valid range"),
        ("0,0,1,1,2,-Infinity,0,0", "longitude -inf is outside the valid range"),
        ("0,0,1,1,1e400,2,0,0", "latitude inf is outside the valid range"),
        ("(0,0,1,0,0,0)", "at least 4 coordinate pairs"),
        ("(0,0)", "at least 4 coordinate pairs"),
        ("(0,0,0,1,1,1,1,0)", "not closed"),
        ("(0,0,0,1,1,1,0,1e-9)", "not closed"),
    ],
)
def test_refused_with_the_words_clients_look_for(text, words):
    assert words in reason(text)


def test_inner_parentheses_are_not_blamed_on_a_number():
    assert "longitude" not in reason("(1,2),3,4,5,6,1,2)")


def test_long_nonsense_is_cut_in_the_message():
    assert len(reason("x" * 100_000 + ",1")) < 200


def test_vertex_limit():
    text = ",".join(["0,0"] * 6)
    assert shapes.parse_polygon(text, max_vertices=6).vertices == 6
    with pytest.raises(TooManyVertices, match="polygon has 6 coordinate pairs, maximum is 5"):
        shapes.parse_polygon(text, max_vertices=5)
    assert shapes.parse_polygon(",".join(["0,0"] * 10_000)).vertices == 10_000
    with pytest.raises(TooManyVertices, match="maximum is 10000"):
        shapes.parse_polygon(",".join(["0,0"] * 10_001))


@given(pairs)
def test_text_reads_back_equal(ring):
    polygon = shapes.Polygon.closed(ring)
    text = shapes.polygon_text(polygon)
    assert "e" not in text
    if polygon.vertices >= 4:
        assert shapes.parse_polygon(text) == polygon


@given(
    st.lists(st.from_regex(r"[+-]?([0-9]{1,2}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE]-?[01])?", fullmatch=True), min_size=3)
)
def test_numbers_mean_what_python_says(items):
    values = [float(item) for item in items]
    if all(abs(value) <= 90 for value in values):
        ring = [item for item in items for _ in range(2)] + [items[0]] * 2
        polygon = shapes.parse_polygon(",".join(ring))
        assert polygon.lats == polygon.lons == (*values, values[0])


def test_text_has_no_exponent_and_no_trailing_zero():
    polygon = shapes.Polygon.closed([(0.0, 1e-7), (52.50, 10.0), (1.0, 2.0)])
    assert shapes.polygon_text(polygon) == "(0,0.0000001,52.5,10,1,2,0,0.0000001)"


def test_equal_polygons_hash_alike_and_survive_pickling():
    polygon = shapes.parse_polygon(DIAMOND)
    again = shapes.parse_polygon(DIAMOND.strip("()"))
    assert polygon == again
    assert hash(polygon) == hash(again)
    assert polygon != shapes.parse_polygon("(0,0,0,1,1,1,0,0)")
    fresh = len(pickle.dumps(polygon))
    assert polygon.arrays[0].tolist() == list(polygon.lons)
    assert polygon.runs.boxes.tolist() == [[13.4], [52.4], [13.6], [52.6]]
    assert len(pickle.dumps(polygon)) == fresh
    assert pickle.loads(pickle.dumps(polygon)) == polygon
    with pytest.raises(AttributeError):
        polygon.lats = ()  # type: ignore[misc]  # frozen


def test_shape_errors_pickle():
    error = pickle.loads(pickle.dumps(ShapeError("odd number of values")))
    assert isinstance(error, ShapeError)
    assert str(error) == "odd number of values"


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("52.55,13.5", Point(52.55, 13.5)),
        ("(52.55, 13.5)", Point(52.55, 13.5)),
        (" ( -90 , 180 ) ", Point(-90.0, 180.0)),
        ("+1,.5", Point(1.0, 0.5)),
        ("1e1,2.", Point(10.0, 2.0)),
    ],
)
def test_point(text, point):
    assert shapes.parse_point(text) == point


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("()", "empty"),
        ("52.55", "exactly two"),
        ("1,2,3", "exactly two"),
        ("invalid-point", "exactly two"),
        ("(1,2", "missing the closing"),
        ("1,2)", "missing the opening"),
        ("a,2", "could not parse latitude 'a'"),
        ("1,", "could not parse longitude ''"),
        ("91,0", "outside the valid range"),
        ("0,181", "outside the valid range"),
        ("nan,0", "outside the valid range"),
    ],
)
def test_point_refused(text, words):
    with pytest.raises(ShapeError, match=words):
        shapes.parse_point(text)


TRIANGLE = [[0, 0], [0, 1.5], [1, 1], [0, 0]]


def test_polygon_from_pairs_equals_the_same_text():
    polygon = shapes.polygon_from_pairs(TRIANGLE)
    assert polygon == shapes.parse_polygon("(0,0,0,1.5,1,1,0,0)")
    assert polygon.box == Box(0, 0, 1, 1.5)
    assert shapes.polygon_text(polygon) == "(0,0,0,1.5,1,1,0,0)"


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
        ([[0, 0], [0, 1, 2], [1, 1], [0, 0]], "point 1 is invalid: expected exactly two numbers"),
        ([[0, 0], [0], [1, 1], [0, 0]], "point 1 is invalid: expected exactly two numbers"),
        ([[0, 0], 5, [1, 1], [0, 0]], "point 1 is invalid: expected \\[lat, lon\\], found a number"),
        ([[0, 0], ["1", 1], [1, 1], [0, 0]], "point 1 is invalid: could not parse latitude"),
        ([[0, 0], [1, True], [1, 1], [0, 0]], "point 1 is invalid: could not parse longitude"),
        ([[0, 0], [1, None], [1, 1], [0, 0]], "point 1 is invalid: could not parse longitude"),
        ([[0, 0], [91, 0], [1, 1], [0, 0]], "point 1 is invalid: latitude 91 is outside the valid range"),
        ([[0, 0], [0, -181], [1, 1], [0, 0]], "point 1 is invalid: longitude -181 is outside the valid range"),
        ([[0, 0], [float("nan"), 0], [1, 1], [0, 0]], "finite"),
        ([[0, 0], [0, float("inf")], [1, 1], [0, 0]], "finite"),
        ([[0, 0], [10**400, 0], [1, 1], [0, 0]], "finite"),
    ],
)
def test_polygon_pairs_refused(value, words):
    with pytest.raises(ShapeError, match=words):
        shapes.polygon_from_pairs(value)


@pytest.mark.parametrize(
    "value",
    [
        "(0,0,0,1.5,1,1,0,0)",
        TRIANGLE,
        json.dumps(TRIANGLE),
        " [[0,0],\n[0,1.5],[1,1],[0,0]] ",
        "[[0.0,0e0],[0,1.5],[1,1],[0,0]]",
    ],
)
def test_a_polygon_has_three_forms_on_input_and_one_canonical_form(value):
    polygon = shapes.polygon_of(value)
    assert polygon == shapes.polygon_from_pairs(TRIANGLE)
    assert shapes.polygon_json(polygon) == b"[[0.0,0.0],[0.0,1.5],[1.0,1.0],[0.0,0.0]]"


@pytest.mark.parametrize("value", ["52.55,13.5", "(52.55, 13.5)", [52.55, 13.5], "[52.55,13.5]", " [52.55, 13.5]"])
def test_a_point_has_three_forms(value):
    assert shapes.point_of(value) == Point(52.55, 13.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0,0],[0,1]", "begins like a JSON array and is none"),
        ("[" * 100_000, "begins like a JSON array and is none"),
        ("[]", "is empty"),
        ("[0,0,0,1,1,1,0,0]", r"point 0 is invalid: expected \[lat, lon\], found a number"),
        ('[["0",0],[0,1],[1,1],[0,0]]', "point 0 is invalid: could not parse latitude"),
        ("[[0,0],[0,1],[1,1],[1,0]]", "not closed"),
        ("[[0,0],[0,1],[91,1],[0,0]]", "point 2 is invalid: latitude 91 is outside"),
        ("[[NaN,0],[0,1],[1,1],[NaN,0]]", "begins like a JSON array and is none"),
    ],
)
def test_text_that_holds_no_polygon_is_refused(text, words):
    with pytest.raises(ShapeError, match=words):
        shapes.polygon_of(text)
    with pytest.raises(ShapeError):
        shapes.point_of(text)


def test_polygon_pairs_limit():
    with pytest.raises(TooManyVertices, match="polygon has 5 coordinate pairs, maximum is 4"):
        shapes.polygon_from_pairs([[0, 0]] * 5, max_vertices=4)


def test_point_from_pair():
    refused: list[object] = [None, "1,2", {}, [], [1], [1, 2, 3], ["1", "2"], [True, 1], [91, 0], [0, 181], [[1, 2]]]
    assert shapes.point_from_pair([52, 13.5]) == Point(52.0, 13.5)
    for value in refused:
        with pytest.raises(ShapeError):
            shapes.point_from_pair(value)


def test_point_cloud_keeps_order_and_duplicates():
    cloud = shapes.parse_point_cloud([[5, 5], [1, 2.5], [5, 5]])
    assert cloud.points == 3
    assert json.loads(cloud.canonical) == [[5, 5], [1, 2.5], [5, 5]]
    assert cloud.canonical == b"[[5.0,5.0],[1.0,2.5],[5.0,5.0]]"
    assert cloud.box == Box(1, 2.5, 5, 5)
    assert pickle.loads(pickle.dumps(cloud)) == cloud


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "point cloud contains 0 points, minimum is 1"),
        ("1,1", "must be an array"),
        (None, "must be an array"),
        ({}, "must be an array"),
        ([[91, 0]], "^point 0 is invalid: latitude 91 is outside the valid range"),
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
        shapes.parse_point_cloud(value, max_points=100)


def test_point_count_is_checked_before_the_points():
    with pytest.raises(ShapeError, match=r"^point cloud contains 3 points, maximum is 2$"):
        shapes.parse_point_cloud(["bad", "bad", "bad"], max_points=2)
    with pytest.raises(ShapeError, match=r"^point cloud contains 10001 points, maximum is 10000$"):
        shapes.parse_point_cloud([[1, 1]] * 10_001)


def test_point_cloud_size_limit_is_61440_bytes():
    fits = [[1.5, 1.25]] + [[1.25, 1.25]] * 5_119  # 12 bytes each with its comma, 11 for the first, 1 more bracket
    assert len(shapes.parse_point_cloud(fits).canonical) == 61_440
    with pytest.raises(ShapeError, match=r"^point cloud canonical JSON is 61441 bytes, maximum is 61440 bytes$"):
        shapes.parse_point_cloud([[1.25, 1.25]] * 5_120)


SQUARE = shapes.parse_polygon("(0,0,0,2,2,2,2,0,0,0)")


def carried(geometry_value: object) -> shapes.Polygon | None:
    return shapes.payload_polygon({"spatial_geometry": geometry_value, "other": 1})


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
    assert carried(ring([0, 0], [0, 1], [1, 1])) == shapes.parse_polygon("(0,0,0,1,1,1,0,0)")
    assert carried(ring([0, 0], [0, 1], [0, 0])) == shapes.Polygon.closed([(0, 0), (0, 1), (0, 0)])
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
    assert shapes.payload_polygon(payload) is None


ARRAY = b'{"class":"od","polygon":[[0.0,0.0],[0.0,2.5],[2.0,2.0],[0.0,0.0]],"step":"4"}'
TEXT = b'{"class":"od","polygon":"(0,0,0,2.5,2,2,0,0)","step":"4"}'

stored_pairs = st.tuples(st.floats(-90, 90), st.floats(-180, 180))


def test_each_form_becomes_the_other() -> None:
    assert with_array(TEXT) == with_array(ARRAY) == ARRAY
    assert with_text(ARRAY) == with_text(TEXT) == TEXT


@pytest.mark.parametrize(
    "identifier",
    [
        b"{}",
        b'{"class":"od"}',
        b'{"class":"\\"polygon\\":\\"(0,0,0,2,2,2,0,0)\\""}',
        b'{"the polygon":"(0,0,0,2,2,2,0,0)"}',
        b'{"polygon":"northern"}',
        b'{"polygon":"a \\" quote"}',
        b'{"polygon":"never ends',
        b'{"polygon":""}',
    ],
)
def test_what_is_no_polygon_stays(identifier: bytes) -> None:
    assert with_array(identifier) == with_text(identifier) == identifier


@given(st.lists(stored_pairs, min_size=3, max_size=6), st.dictionaries(st.sampled_from("aqz"), st.text()))
def test_the_polygon_is_the_same_and_nothing_else_changes(
    ring: list[tuple[float, float]], other: dict[str, str]
) -> None:
    ring.append(ring[0])
    identifier = compact({**other, "polygon": [list(map(float, pair)) for pair in ring]})
    text = with_text(identifier)
    values = json.loads(text)
    assert isinstance(values["polygon"], str)
    assert polygon_of(values.pop("polygon")) == polygon_of([list(pair) for pair in ring])
    assert values == other
    assert json.loads(with_array(text)) == json.loads(identifier)


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        (ARRAY, None),
        (TEXT, None),
        (b'{"class":"od"}', None),
        (b'{"point_cloud":[[1.0,2.0]]}', None),
        (b'{"polygon":"invalid"}', "the stored polygon is malformed: 'invalid'"),
        (b'{"polygon":"[[0,0],[1,1]]"}', "the stored polygon is malformed: '[[0,0],[1,1]]'"),
        (b'{"point_cloud":"[[1,2"}', "the stored point cloud is malformed: '[[1,2'"),
    ],
)
def test_geometry_that_is_none_is_told(identifier: bytes, words: str | None) -> None:
    assert geometry_problem(identifier) == words


WKB_SQUARE = struct.pack("<BIII8d", 1, 3, 1, 4, 0, 0, 1.5, 0, 1, 1, 0, 0)  # a polygon, one ring, (lon, lat) pairs
WKB_POINTS = struct.pack("<BII", 1, 4, 2) + struct.pack("<BIdd", 1, 1, 2, 1) + struct.pack("<BIdd", 1, 1, 4, 3.5)


def test_well_known_binary_is_little_endian_with_the_longitude_first() -> None:
    assert shapes.wkb(shapes.polygon_from_pairs(TRIANGLE)) == WKB_SQUARE
    assert shapes.wkb(shapes.parse_point_cloud([[1, 2], [3.5, 4]])) == WKB_POINTS
