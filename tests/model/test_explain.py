"""Filters in words, and verdicts that agree with the filter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.event_type import EventType, GenericType, read_point
from aviso_server.model.explain import clauses_of, filter_sentence, start_sentence, verdicts
from aviso_server.model.times import Span
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, stored

CORE = {"region": "North", "run_time": "12", "severity": 3}
PAIRS = [(0.0, 0.0), (0.0, 2.0), (2.0, 2.0), (2.0, 0.0), (0.0, 0.0)]
AROUND = "polygon of 5 vertices, latitudes 0 to 2, longitudes 0 to 2"


@pytest.mark.parametrize(
    ("more", "field", "operator", "value", "sentence"),
    [
        ({}, "region", "eq", "north", 'region is "north"'),
        ({}, "run_time", "eq", "1200", 'run_time is "1200"'),
        ({"severity": {"gt": 3}}, "severity", "gt", 3, "severity is greater than 3"),
        ({"severity": {"gte": 3}}, "severity", "gte", 3, "severity is 3 or greater"),
        ({"severity": {"lt": 3}}, "severity", "lt", 3, "severity is less than 3"),
        ({"severity": {"lte": 3}}, "severity", "lte", 3, "severity is 3 or less"),
        ({"severity": {"eq": 3}}, "severity", "eq", 3, "severity is 3"),
        ({"severity": {"in": [1, 2]}}, "severity", "in", [1, 2], "severity is one of 1, 2"),
        ({"region": {"in": ["East"]}}, "region", "in", ["east"], 'region is one of "east", in any letter case'),
        (
            {"anomaly": {"between": [0.5, 2]}},
            "anomaly",
            "between",
            [0.5, 2.0],
            "anomaly lies between 0.5 and 2.0, limits included",
        ),
        ({"polygon": SQUARE}, "polygon", "meets", PAIRS, f"its shape has a point in common with a {AROUND}"),
        ({"point": "1, 0.5"}, "point", "contains", "1,0.5", "its polygon has the point 1,0.5 inside"),
    ],
)
def test_words(more: dict[str, Any], field: str, operator: str, value: Any, sentence: str) -> None:
    identifier = {**CORE, **more}
    clauses = clauses_of(EXTREME.compile(identifier, "watch", read_point(identifier)))
    (clause,) = [each for each in clauses if each.field == field]
    assert (clause.operator, clause.value, clause.sentence) == (operator, value, sentence)
    assert len(clauses) == len(identifier)


def test_a_whole_filter_in_a_sentence() -> None:
    wanted = EXTREME.compile({**CORE, "severity": {"gte": 3}}, "watch")
    assert filter_sentence(wanted, clauses_of(wanted)) == (
        'Notifications of event type \'extreme_event\' where region is "north", and run_time is "1200", '
        "and severity is 3 or greater."
    )
    everything = PROBE.compile({"txt": "*"}, "watch")
    assert filter_sentence(everything, clauses_of(everything)) == "Notifications of event type 'probe', all of them."


def test_schema_less_filters_speak_of_the_keys_of_the_request() -> None:
    wanted = GenericType("free").compile({"b": "x", "a": "*"}, "watch")
    clauses = {each.field: (each.value, each.sentence) for each in clauses_of(wanted, ("a", "b"))}
    assert clauses == {"#": (3, "there are 2 keys"), "b": ("x", 'b is "x"')}


@pytest.mark.parametrize(
    ("span", "sentence"),
    [
        (Span(), "Only what is published from now on."),
        (Span(from_sequence=5), "History from sequence 5 on, then what is published."),
        (Span(from_time=10**9), "History stored at 1970-01-01T00:00:01Z or later, then what is published."),
    ],
)
def test_starts(span: Span, sentence: str) -> None:
    assert start_sentence(span) == sentence


def test_a_verdict_says_what_each_clause_saw() -> None:
    notification = stored(EXTREME.check({**CORE, "anomaly": 1.5, "polygon": SQUARE}))
    identifier = {**CORE, "severity": {"gt": 3}, "region": "south", "point": "5,5"}
    wanted = EXTREME.compile(identifier, "watch", read_point(identifier))
    found = verdicts(wanted, clauses_of(wanted), notification)
    assert {each.clause.field: (each.passed, each.seen) for each in found} == {
        "region": (False, "north"),
        "run_time": (True, "1200"),
        "severity": (False, "3"),
        "point": (False, f"a {AROUND}"),
    }


def test_a_verdict_on_what_is_not_there() -> None:
    wanted = EXTREME.compile({**CORE, "anomaly": {"gte": 0}, "polygon": SQUARE}, "watch")
    bare = EXTREME.compile({**CORE}, "watch")
    notification = stored(PROBE.check({"txt": "a", "num": 1, "exp": "1", "kind": "red", "off": "x", "offnum": 5}))
    found = verdicts(wanted, clauses_of(wanted), notification)
    seen = {each.clause.field: (each.passed, each.seen) for each in found}
    assert seen == dict.fromkeys((*CORE, "anomaly", "polygon"), (False, None))
    assert not any(each.passed for each in verdicts(bare, clauses_of(bare), notification))


SHAPES = [SQUARE, "(1,1,1,3,3,3,3,1,1,1)", "(2,2,2,4,4,4,4,2,2,2)", "(50,50,50,51,51,51,50,50)"]
REGIONS = st.sampled_from(["north", "South", {"in": ["north", "east"]}, {"eq": "WEST"}])
LEVELS = st.sampled_from([1, "3", {"gt": 2}, {"lte": 4}, {"between": [2, 6]}, {"in": [1, 7]}])
NUMBERS = st.sampled_from([0, 42.5, {"gte": 40}, {"lt": 42.5}, {"eq": 100}])
PLACES = st.sampled_from(
    [{}, *({"polygon": each} for each in SHAPES), {"point": "1,1"}, {"point": "2,2"}, {"point": "50.2,50.1"}]
)
EXTREMES = st.builds(
    lambda region, severity, anomaly, polygon: EXTREME.check(
        {"region": region, "run_time": "12", "severity": severity, "anomaly": anomaly, "polygon": polygon}
    ),
    st.sampled_from(["north", "south", "east", "west"]),
    st.integers(1, 7),
    st.sampled_from([0, 40, 42.5, 100]),
    st.sampled_from(SHAPES),
)


def agree(kind: EventType | GenericType, identifier: dict[str, Any], draft: Any) -> None:
    wanted = kind.compile(identifier, "watch", read_point(identifier))
    found = verdicts(wanted, clauses_of(wanted, sorted(identifier)), stored(draft))
    assert all(each.passed for each in found) == wanted.matches(stored(draft))


@given(EXTREMES, REGIONS, LEVELS, st.none() | NUMBERS, PLACES)
def test_verdicts_agree_with_the_filter(draft: Any, region: Any, severity: Any, anomaly: Any, place: Any) -> None:
    more = {} if anomaly is None else {"anomaly": anomaly}
    agree(EXTREME, {"region": region, "run_time": "1200", "severity": severity, **more, **place}, draft)


TOKENS = st.sampled_from(["a", "b", "a.b", "50%", "*"])


@given(st.lists(TOKENS, min_size=1, max_size=3), st.lists(TOKENS, min_size=1, max_size=3))
def test_verdicts_agree_with_schema_less_filters(published: list[str], wanted: list[str]) -> None:
    kind = GenericType("free")
    agree(kind, dict(zip("xyz", wanted, strict=False)), kind.check(dict(zip("xyz", published, strict=False))))


@given(st.sampled_from(SHAPES), st.sampled_from(["*", "a", "b"]))
def test_verdicts_agree_on_clouds(area: str, kind: str) -> None:
    cloud = CLOUD.check({"kind": "a", "point_cloud": [[1.0, 1.0], [50.1, 50.9]]})
    agree(CLOUD, {"kind": kind, "polygon": area}, cloud)


def test_a_filter_that_cannot_be_has_no_words() -> None:
    with pytest.raises(InvalidRequest):
        POLYGON.compile({"polygon": "nonsense"}, "watch")
