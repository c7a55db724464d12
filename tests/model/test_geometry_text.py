"""Polygons, points and boxes as text."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.model import geometry
from aviso_server.model.geometry import Point, ShapeError, TooManyVertices
from aviso_server.model.notification import Box

DIAMOND = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180)
pairs = st.lists(st.tuples(latitudes, longitudes), min_size=3, max_size=12)


def reason(text: str) -> str:
    with pytest.raises(ShapeError) as caught:
        geometry.parse_polygon(text)
    return str(caught.value)


def test_latitude_comes_first():
    polygon = geometry.parse_polygon(DIAMOND)
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
    assert geometry.parse_polygon(text) == geometry.parse_polygon("(0,0,0,1,1,1,0,0)")


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
    geometry.parse_polygon(text)


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
    assert geometry.parse_polygon(text, max_vertices=6).vertices == 6
    with pytest.raises(TooManyVertices, match="polygon has 6 coordinate pairs, maximum is 5"):
        geometry.parse_polygon(text, max_vertices=5)
    assert geometry.parse_polygon(",".join(["0,0"] * 10_000)).vertices == 10_000
    with pytest.raises(TooManyVertices, match="maximum is 10000"):
        geometry.parse_polygon(",".join(["0,0"] * 10_001))


@settings(deadline=None)  # a busy machine is no reason to fail
@given(pairs)
def test_text_reads_back_equal(ring):
    polygon = geometry.Polygon.closed(ring)
    text = geometry.polygon_text(polygon)
    assert "e" not in text
    if polygon.vertices >= 4:
        assert geometry.parse_polygon(text) == polygon


@settings(deadline=None)  # a busy machine is no reason to fail
@given(
    st.lists(st.from_regex(r"[+-]?([0-9]{1,2}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE]-?[01])?", fullmatch=True), min_size=3)
)
def test_numbers_mean_what_python_says(items):
    values = [float(item) for item in items]
    if all(abs(value) <= 90 for value in values):
        ring = [item for item in items for _ in range(2)] + [items[0]] * 2
        polygon = geometry.parse_polygon(",".join(ring))
        assert polygon.lats == polygon.lons == (*values, values[0])


def test_text_has_no_exponent_and_no_trailing_zero():
    polygon = geometry.Polygon.closed([(0.0, 1e-7), (52.50, 10.0), (1.0, 2.0)])
    assert geometry.polygon_text(polygon) == "(0,0.0000001,52.5,10,1,2,0,0.0000001)"


def test_equal_polygons_hash_alike_and_survive_pickling():
    polygon = geometry.parse_polygon(DIAMOND)
    again = geometry.parse_polygon(DIAMOND.strip("()"))
    assert polygon == again
    assert hash(polygon) == hash(again)
    assert polygon != geometry.parse_polygon("(0,0,0,1,1,1,0,0)")
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
    assert geometry.parse_point(text) == point


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
        geometry.parse_point(text)


@pytest.mark.parametrize(
    ("box", "text"),
    [
        (Box(0, 0, 1, 1), "0,0,1,1"),
        (Box(52.4, 13.4, 52.6, 13.6), "52.4,13.4,52.6,13.6"),
        (Box(-1e-7, 0, 1, 2.5), "-0.0000001,0,1,2.5"),
    ],
)
def test_box_text(box, text):
    assert geometry.box_text(Box(*map(float, box))) == text
    assert geometry.parse_box(text) == box


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "1,2,3,x", "1,2,3,nan", "1,2,3,1e400", "1,,2,3"])
def test_no_box(text):
    assert geometry.parse_box(text) is None
