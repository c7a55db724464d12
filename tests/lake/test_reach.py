"""Many shapes against one area: what is called certain is what the exact tests of the model say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.lake.condition import NO, UNSURE, YES, reach
from aviso_server.model.predicates import cloud_touches, contains, intersects
from aviso_server.model.shapes import Point, Polygon, parse_point_cloud, parse_polygon, wkb

# On a small grid nearly everything touches, overlaps or lies on a line with something else.
GRID = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(lambda pair: (float(pair[0]), float(pair[1])))
ANYWHERE = st.tuples(st.floats(-90, 90), st.floats(-180, 180))
PLACES = GRID | ANYWHERE
RINGS = st.lists(PLACES, min_size=3, max_size=7).map(Polygon.closed)
CLOUDS = st.lists(PLACES, min_size=1, max_size=5).map(lambda pairs: parse_point_cloud([list(pair) for pair in pairs]))


def column(shapes: list[bytes | None]) -> pa.Array:
    return pa.array([b"other", *shapes], pa.binary()).slice(1)  # an offset, as Spark's batches may have


@given(st.lists(RINGS, min_size=1, max_size=20), RINGS)
@settings(deadline=None, max_examples=150)
def test_rings_and_a_polygon(rings: list[Polygon], area: Polygon) -> None:
    answers = reach(column([wkb(ring) for ring in rings]), area)
    for ring, answer in zip(rings, answers.tolist(), strict=True):
        assert answer == UNSURE or (answer == YES) == intersects(ring, area)


@given(st.lists(CLOUDS, min_size=1, max_size=20), RINGS)
@settings(deadline=None, max_examples=80)
def test_clouds_and_a_polygon(clouds: list, area: Polygon) -> None:
    answers = reach(column([wkb(cloud) for cloud in clouds]), area)
    for cloud, answer in zip(clouds, answers.tolist(), strict=True):
        assert answer == UNSURE or (answer == YES) == cloud_touches(cloud, area)


@given(st.lists(RINGS, min_size=1, max_size=20), PLACES)
@settings(deadline=None, max_examples=100)
def test_rings_and_a_point(rings: list[Polygon], place: tuple[float, float]) -> None:
    answers = reach(column([wkb(ring) for ring in rings]), Point(*place))
    for ring, answer in zip(rings, answers.tolist(), strict=True):
        assert answer == UNSURE or (answer == YES) == contains(ring, Point(*place))


SQUARE = parse_polygon("(0,0,0,2,2,2,2,0,0,0)")


@pytest.mark.parametrize(
    ("ring", "answer"),
    [
        ("(0.5,0.5,0.5,1,1,1,0.5,0.5)", YES),  # inside
        ("(-1,-1,-1,3,3,3,3,-1,-1,-1)", YES),  # around
        ("(1,-1,1,3,1.5,3,1.5,-1,1,-1)", YES),  # across, with no corner inside
        ("(3,3,3,4,4,4,3,3)", NO),
        ("(-1,1.5,1.5,-1,-1,-1,-1,1.5)", YES),  # cuts a corner off
        ("(3.5,1,1,3.5,4,4,3.5,1)", NO),  # the boxes overlap, the rings do not
    ],
)
def test_ordinary_cases_are_certain(ring: str, answer: int) -> None:
    assert reach(column([wkb(parse_polygon(ring))]), SQUARE).tolist() == [answer]


def test_what_is_no_shape_is_not_certain() -> None:
    broken = [None, b"", b"\x01\x03", wkb(SQUARE)[:-1], b"\x00" + wkb(SQUARE)[1:], b"\x01\x07" + wkb(SQUARE)[2:]]
    assert reach(column(broken), SQUARE).tolist() == [UNSURE] * len(broken)


def test_no_shapes_at_all() -> None:
    assert reach(pa.array([], pa.binary()), SQUARE).tolist() == []


def test_ordinary_shapes_leave_hardly_any_doubt() -> None:
    chance = np.random.default_rng(7)
    middles = chance.uniform(-5, 7, (2_000, 2))
    rings = [
        Polygon.closed([(lat, lon), (lat, lon + size), (lat + size, lon + size), (lat + size, lon)])
        for (lat, lon), size in zip(middles.tolist(), chance.uniform(0.1, 3, 2_000).tolist(), strict=True)
    ]
    answers = reach(column([wkb(ring) for ring in rings]), SQUARE)
    assert np.count_nonzero(answers == UNSURE) < 20
    assert [answer == YES for answer in answers.tolist()] == [intersects(ring, SQUARE) for ring in rings]
