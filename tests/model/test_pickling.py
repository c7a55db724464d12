"""Everything in the model travels to other processes unharmed."""

from __future__ import annotations

import pickle

import pytest

from aviso_server.errors import (
    AvisoError,
    ConfigError,
    InvalidRequest,
    LogUnavailable,
    MalformedRequest,
    Problem,
    UnknownEventType,
)
from aviso_server.model.geometry import Point
from aviso_server.model.schema import Catalogue, GenericType
from aviso_server.model.span import Span
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, stored

DRAFT = POLYGON.check({"date": "20250101", "time": "12", "polygon": SQUARE}, {"a": 1})


@pytest.mark.parametrize(
    "value",
    [
        EXTREME,
        CLOUD,
        GenericType("news"),
        Catalogue({"probe": PROBE}),
        DRAFT,
        stored(DRAFT, 7),
        stored(DRAFT).box,
        POLYGON.compile({"polygon": SQUARE, "time": "12"}, "watch"),
        POLYGON.compile({"point": "1,1"}, "watch", Point(1, 1)),
        PROBE.compile({"num": {"in": [1, 2]}, "kind": {"eq": "red"}, "txt": "x"}, "replay"),
        GenericType("news").compile({"a": "*", "b": 5}, "watch"),
        Span(from_sequence=5, to_time=7),
    ],
)
def test_values(value: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert again == value
        assert type(again) is type(value)


def test_filters_mean_the_same_afterwards_and_stay_keys() -> None:
    wanted = POLYGON.compile({"polygon": SQUARE, "time": "12"}, "watch")
    assert wanted.matches(stored(DRAFT))
    again = pickle.loads(pickle.dumps(wanted))
    assert again.matches(stored(DRAFT))
    assert {wanted: 1}[again] == 1


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("message", "details", field="x"),
        MalformedRequest("INVALID_JSON", "message"),
        UnknownEventType("nope", ["a", "b"]),
        LogUnavailable("the disk is full"),
        ConfigError([Problem("a.b", "wrong", "right", "config.yaml")]),
    ],
)
def test_errors(error: AvisoError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    left, right = vars(again), vars(error)
    assert {key: str(value) for key, value in left.items()} == {key: str(value) for key, value in right.items()}
