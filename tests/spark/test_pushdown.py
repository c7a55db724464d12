"""What Spark filters become in a request: never less than was asked for, and nothing the server would refuse."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from aviso_server.model import event_type as model
from aviso_server.model.batch import columns_of, merge
from pyspark_aviso.client import Column, EventType, choose_types, event_type_of
from pyspark_aviso.client import merge as merge_columns
from pyspark_aviso.pushdown import Pushed, push
from tests.model import event_types as known
from tests.model.event_types import event_type, stored

NAMES: dict[str, Any] = {
    "=": spark.EqualTo,
    "<=>": spark.EqualNullSafe,
    ">": spark.GreaterThan,
    ">=": spark.GreaterThanOrEqual,
    "<": spark.LessThan,
    "<=": spark.LessThanOrEqual,
    "in": spark.In,
}


def described(event_type: model.EventType) -> EventType:
    """An event type as the data source learns of it."""
    return event_type_of(event_type.name, event_type.describe()["identifier"])


EXTREME, POLYGON, PROBE = map(described, (known.EXTREME, known.POLYGON, known.PROBE))


def table_columns(event_types: list[EventType]) -> tuple[Column, ...]:
    return merge_columns([each.columns for each in event_types])


def plain(columns: Any) -> list[tuple[str, str, str | None]]:
    return [(column.name, column.kind, column.field) for column in columns]


@pytest.mark.parametrize("one", [known.EXTREME, known.POLYGON, known.PROBE, known.CLOUD], ids=lambda one: one.name)
def test_columns_are_those_that_the_server_sends(one: model.EventType) -> None:
    assert plain(described(one).columns) == plain(columns_of(one))
    both = [known.EXTREME, one]
    assert plain(table_columns([described(each) for each in both])) == plain(merge([columns_of(each) for each in both]))


HANDLERS = ["StringHandler", "IntHandler", "FloatHandler", "TimeHandler", "DateHandler", "ExpverHandler"]
NAMED = st.sampled_from(["time", "Time", "identifier_time", "sequence", "topic", "a", "A", "time_ns", "box_min_lat"])


@given(st.dictionaries(NAMED, st.sampled_from(HANDLERS), min_size=1, max_size=7))
@settings(deadline=None)  # a busy machine is no reason to fail
def test_columns_of_fields_with_taken_names_are_those_that_the_server_sends(fields: dict[str, str]) -> None:
    one = event_type("any", fields)
    assert plain(described(one).columns) == plain(columns_of(one))


def filters(*tests: tuple[str, str, Any]) -> list[spark.Filter]:
    return [NAMES[operator]((column,), value) for column, operator, value in tests]


def pushed(*tests: tuple[str, str, Any], given: dict[str, Any] | None = None) -> Pushed:
    return push(filters(*tests), EXTREME, EXTREME.columns, given or {})


@pytest.mark.parametrize(
    ("tests", "identifier"),
    [
        ([("severity", "=", 5)], {"severity": {"eq": 5}}),
        ([("severity", "<=>", 5)], {"severity": {"eq": 5}}),
        ([("severity", "in", (5, 3))], {"severity": {"in": [3, 5]}}),
        ([("severity", "in", (5, None, 5))], {"severity": {"eq": 5}}),
        ([("severity", ">=", 3)], {"severity": {"gte": 3}}),
        ([("severity", ">", 3)], {"severity": {"gte": 4}}),
        ([("severity", "<", 3)], {"severity": {"lte": 2}}),
        ([("severity", ">=", 3), ("severity", "<=", 5)], {"severity": {"between": [3, 5]}}),
        ([("severity", ">", 2), ("severity", "<", 6), ("severity", ">=", 4)], {"severity": {"between": [4, 5]}}),
        ([("severity", "in", (1, 3, 5)), ("severity", ">", 2)], {"severity": {"in": [3, 5]}}),
        ([("anomaly", ">", 1.5)], {"anomaly": {"gte": math.nextafter(1.5, 2)}}),
        ([("anomaly", "<", 1.5)], {"anomaly": {"lte": math.nextafter(1.5, 1)}}),
        ([("anomaly", ">=", 1.0), ("anomaly", "<=", 2.5)], {"anomaly": {"between": [1.0, 2.5]}}),
        ([("region", "=", "north")], {"region": {"eq": "north"}}),
        ([("region", "in", ("north", "south"))], {"region": {"in": ["north", "south"]}}),
        ([("region", "=", "north"), ("severity", ">", 1)], {"region": {"eq": "north"}, "severity": {"gte": 2}}),
    ],
)
def test_filters_become_constraints(tests: list[Any], identifier: dict[str, Any]) -> None:
    assert pushed(*tests).identifier == identifier
    known.EXTREME.compile(identifier, "replay", lenient=True)  # the server accepts it


@pytest.mark.parametrize(
    "tests",
    [
        [("severity", ">", 100)],
        [("severity", "=", 0)],
        [("severity", "in", (5, 8))],
        [("severity", ">=", 0)],
        [("anomaly", ">", float("nan"))],
        [("anomaly", "<", float("inf"))],
        [("region", "=", "North")],
        [("region", "=", "*")],
        [("region", "=", "nowhere")],
        [("region", ">", "a")],
        [("run_time", "in", ("1200", "0000"))],
        [("payload", "=", "{}")],
        [("polygon", "=", b"x")],
        [("severity", "=", True)],
        [("nonsense", "=", 1)],
    ],
)
def test_what_the_server_might_refuse_or_take_otherwise_is_left_to_spark(tests: list[Any]) -> None:
    assert pushed(*tests) == Pushed()


@pytest.mark.parametrize("text", ["1200", "12", "*"])
def test_what_a_text_means_is_the_servers_to_say(text: str) -> None:
    assert pushed(("run_time", "=", text)) == Pushed(texts={"run_time": text})


@pytest.mark.parametrize("tests", [[("severity", ">", 5), ("severity", "<", 5)], [("event_type", "=", "mars")]])
def test_filters_that_nothing_can_pass_ask_for_nothing(tests: list[Any]) -> None:
    assert pushed(*tests).nothing


def test_other_filters_are_left_to_spark() -> None:
    others = [
        spark.IsNotNull(("severity",)),
        spark.Not(spark.EqualTo(("severity",), 5)),
        spark.StringStartsWith(("region",), "n"),
        spark.EqualTo(("a", "b"), 1),
    ]
    assert push(others, EXTREME, EXTREME.columns, {}) == Pushed()


def test_fields_that_the_user_has_set_stay_as_they_are() -> None:
    assert pushed(("severity", "=", 5), given={"severity": {"gte": 2}}).identifier == {}


def test_sequence_and_time_become_bounds() -> None:
    assert pushed(("sequence", ">", 10), ("sequence", "<=", 20)) == Pushed(from_sequence=11, to_sequence=20)
    assert pushed(("sequence", "in", (7, 3))) == Pushed(from_sequence=3, to_sequence=7)
    moment = datetime(2025, 1, 15, 10, tzinfo=UTC)
    start = 1_736_935_200 * 10**9
    assert pushed(("time", ">=", moment)) == Pushed(from_time=start)
    assert pushed(("time", ">", moment)) == Pushed(from_time=start + 1000)
    assert pushed(("time", "<=", moment)) == Pushed(to_time=start + 999)
    assert pushed(("time", "<", moment)) == Pushed(to_time=start - 1)
    assert pushed(("time", ">", datetime(2025, 1, 15, 10))) == Pushed()  # noqa: DTZ001  # nobody knows when that is


def test_a_column_that_an_event_type_does_not_have_is_null_in_all_its_rows() -> None:
    both = table_columns([EXTREME, PROBE])
    wanted = filters(("severity", ">=", 3))
    assert push(wanted, PROBE, both, {}).nothing
    assert push(wanted, EXTREME, both, {}).identifier == {"severity": {"gte": 3}}
    assert not push([spark.IsNull(("severity",))], PROBE, both, {}).nothing


def test_a_column_that_holds_text_because_event_types_differ_is_left_to_spark() -> None:
    other = described(event_type("other", {"severity": "StringHandler"}))
    both = table_columns([EXTREME, other])
    wanted = filters(("severity", "=", "5"))
    assert push(wanted, EXTREME, both, {}) == Pushed()
    assert push(wanted, other, both, {}).texts == {"severity": "5"}


def test_a_field_with_a_name_of_its_own_in_the_table_is_found_again() -> None:
    wanted = filters(("identifier_time", "=", "0600"))
    assert push(wanted, POLYGON, POLYGON.columns, {}).texts == {"time": "0600"}


def test_schema_less_events_know_bounds_only() -> None:
    generic = choose_types(["thing"], {})["thing"]
    wanted = filters(("sequence", ">=", 4), ("payload", "=", "1"))
    assert push(wanted, generic, generic.columns, {}) == Pushed(from_sequence=4)


COMPARED = {"=": lambda a, b: a == b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b} | {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "in": lambda a, b: a in b,
}
SEVERITIES = st.integers(-1, 9)
ANOMALIES = st.floats(-1, 101) | st.integers(0, 100).map(float)
REGIONS = st.sampled_from(["north", "south", "North", "*", "nowhere"])


def comparisons_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, str, Any]]:
    single = st.tuples(st.just(column), st.sampled_from(["=", ">", ">=", "<", "<="]), values)
    several = st.tuples(st.just(column), st.just("in"), st.lists(values, min_size=1, max_size=3).map(tuple))
    return single | several


@given(
    st.lists(
        comparisons_on("severity", SEVERITIES)
        | comparisons_on("anomaly", ANOMALIES)
        | comparisons_on("region", REGIONS),
        max_size=4,
    ),
    st.sampled_from(["north", "south"]),
    st.integers(1, 7),
    st.floats(0, 100),
)
@settings(deadline=None)  # a busy machine is no reason to fail
def test_no_row_that_spark_wants_is_left_out(tests: list[Any], region: str, severity: int, anomaly: float) -> None:
    row: dict[str, Any] = {"region": region, "severity": severity, "anomaly": anomaly}
    wanted = all(COMPARED[operator](row[column], value) for column, operator, value in tests)
    found = pushed(*tests)
    fields = {**row, "run_time": "1200", "polygon": "(0,0,0,2,2,2,2,0,0,0)"}
    if wanted:
        assert not found.nothing
        compiled = known.EXTREME.compile(dict(found.identifier), "replay", lenient=True)
        assert compiled.matches(stored(known.EXTREME.check(fields)))
    elif not found.nothing:
        known.EXTREME.compile(dict(found.identifier), "replay", lenient=True)
