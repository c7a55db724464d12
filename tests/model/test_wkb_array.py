"""Many values at once are what they are one by one."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.model.arrow import field_arrays
from aviso_server.model.columns import Column
from aviso_server.model.geometry import ShapeError, parse_polygon
from aviso_server.model.geometry.wkb import wkb
from aviso_server.model.geometry.wkb_array import polygons_as_wkb
from aviso_server.model.json_value import compact

LAT = st.floats(-91, 91).map(lambda value: round(value, 6)) | st.sampled_from(
    ["0", "-0", "90", "-90.0", "1e1", "007", ""]
)
LON = st.floats(-181, 181) | st.integers(-181, 181)
PLAIN = st.floats(-90, 90).map(lambda value: round(value, 3)) | st.sampled_from(["0", "-0", "-0.0", "90", "-90", "7"])


@st.composite
def polygon_texts(draw: st.DrawFn, odd: bool) -> str | None:
    """A polygon; if odd, perhaps only nearly one."""
    if draw(st.integers(0, 9)) == 0:
        return None
    parts = (LAT, LON) if odd else (PLAIN, PLAIN)
    values = [draw(part) for _ in range(draw(st.integers(2 if odd else 3, 6))) for part in parts]
    if not odd or draw(st.booleans()):
        values += values[:2]
    return draw(st.sampled_from(["({})", "{}", "( {} )", "({}"] if odd else ["({})"])).format(
        ",".join(map(str, values))
    )


def one_by_one(texts: list[str | None]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for text in texts:
        try:
            found.append(None if text is None else wkb(parse_polygon(text)))
        except ShapeError:
            found.append(None)
    return found


@given(st.booleans().flatmap(lambda odd: st.lists(polygon_texts(odd), max_size=6)))
@settings(deadline=None)
def test_polygons_are_the_same_at_once_or_left_to_others(texts: list[str | None]) -> None:
    together = polygons_as_wkb(pa.array(texts, pa.string()))
    if together is not None:
        together.validate(full=True)
        assert together.to_pylist() == one_by_one(texts)


def test_plain_polygons_of_several_sizes_are_made_at_once() -> None:
    texts = [
        "(0,0,0,2,2,2,0,0)",
        None,
        "(-1.5,0.25,-0.0,2,2,90,-1.5,0.25)",
        "(0,0,0,2,2,2,2,0,0,0)",
        "(0,0,0,2,2,2,0,0)",
    ]
    together = polygons_as_wkb(pa.array(texts, pa.string()))
    assert together is not None
    assert together.to_pylist() == one_by_one(texts)
    assert polygons_as_wkb(pa.array([*texts, "(0,0,0,2,2,2,1,1)"], pa.string())) is None, "not closed"
    assert polygons_as_wkb(pa.array([*texts, "(0,0,91,2,2,2,0,0)"], pa.string())) is None, "not on the map"
    assert polygons_as_wkb(pa.array([None], pa.string())) is None


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b", 'c"d', "é"]),
            st.text() | st.sampled_from(["12", "-3.5", "2025-01-01", "null"]),
            max_size=4,
        ),
        max_size=5,
    )
)
@settings(deadline=None)
def test_texts_are_the_same_at_once(rows: list[dict[str, str]]) -> None:
    columns = [Column(name, "text", name) for name in ("a", "b", 'c"d', "é", "absent")]
    made = field_arrays(columns, [compact(row) for row in rows])
    assert {name: array.to_pylist() for name, array in made.items()} == {
        column.name: [row.get(column.name) for row in rows] for column in columns
    }


def test_values_that_are_no_texts_are_read_one_by_one() -> None:
    rows = [{"a": "x", "b": [[1, 2]]}, {"a": "y"}]
    made = field_arrays(
        [Column("a", "text", "a"), Column("b", "shape", "b")], [json.dumps(row).encode() for row in rows]
    )
    assert made["a"].to_pylist() == ["x", "y"]
    assert made["b"][1].as_py() is None
    assert made["b"][0].as_py() is not None
