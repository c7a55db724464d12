"""Many rows at a time come out as the model's own check has them one by one: value by value, error by error."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest, MalformedRequest, RequestError
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.json_text import loads
from aviso_server.spark.load.row_checks import (
    Checker,
    Fault,
    Notice,
    Outcome,
    Times,
    Wanted,
    check_event_type,
    fault_of,
    read_row,
)
from aviso_server.spark.load.row_texts import TableReader, field_value
from tests.spark.load.bad_rows import KINDS, MARS
from tests.spark.load.bad_rows import rows as bad_rows
from tests.spark.load.scene import CLOUD, EVERY_FIELD, LATEST

EVENT_TYPES: list[EventType | GenericType] = [EVERY_FIELD, CLOUD, GenericType("anything")]

scalars = st.one_of(
    st.sampled_from(
        [
            *("od", "", "*", "north", "NORTH", "Kelvin", "\u212a", "1", "0001", "+7", "4294967296", "Ab"),
            *("20250706", "2025-07-06", "2025-187", "2025-02-30", " 2025-7-6", "12", "12:00", "1260", "24", "0600"),
            *("3", "03", "-0", "1e2", "2.50", "inf", "nan", "99", "1.", ".5", "a.b%c>", "ü" * 3, "x" * 70),
            *("(0,0,0,2,2,2,2,0,0,0)", "(0,0,0,2,2,2)", "(95,0,0,2,2,2,95,0)", "(0,0,1,1,0,0)"),
        ]
    ),
    st.text(max_size=6),
    st.integers(-3, 20250706),
    st.sampled_from([0, 1, 7, 2**63, 2**64, 10**19, -(2**63) - 1, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1.0, -0.0, 0.0, 3.0, 1e22, 1e400]).filter(lambda number: number < 1e300),
    st.booleans(),
    st.none(),
)
pairs = st.lists(st.lists(st.integers(-4, 4), min_size=2, max_size=2), max_size=5)
values = st.one_of(scalars, pairs, st.dictionaries(st.text(max_size=3), scalars, max_size=2))
payloads = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner), max_leaves=6
)


@st.composite
def identifiers(draw: st.DrawFn) -> dict[str, Any]:
    good: dict[str, st.SearchStrategy[Any]] = {
        "class": st.sampled_from(["od", "rd", "é"]),
        "region": st.sampled_from(["north", "South", "EAST"]),
        "date": st.sampled_from(["20250706", "2025-07-06", 20250706]),
        "time": st.sampled_from(["12", "1200", "6", 18, "00:30"]),
        "step": st.sampled_from([0, 7, "12", "007"]),
        "depth": st.sampled_from([1, 1.0, "2.50", 1e22, -0.0, 0]),
        "expver": st.sampled_from(["1", "0001", "", "Test", 1]),
        "polygon": st.sampled_from(["(0,0,0,2,2,2,2,0,0,0)", [[0, 0], [0, 2], [2, 2], [0, 0]]]),
    }
    found = {name: draw(strategy) for name, strategy in good.items()}
    for name in draw(st.lists(st.sampled_from(list(good)), max_size=2)):
        found[name] = draw(values)
    for name in draw(st.lists(st.sampled_from(list(good)), max_size=1)):
        found.pop(name, None)
    if draw(st.integers(0, 9)) == 0:
        found[draw(st.sampled_from(["typo", "point", ""]))] = draw(values)
    return found


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    members: dict[str, Any] = {"identifier": draw(identifiers())}
    if draw(st.booleans()):
        members["payload"] = draw(payloads)
    if draw(st.booleans()):
        members["time"] = draw(st.sampled_from(TIMES))
    if draw(st.integers(0, 9)) == 0:
        members[draw(st.sampled_from(["event_type", "typo", "from_id", "specversion"]))] = draw(scalars)
    if draw(st.integers(0, 9)) == 0:
        members["event_type"] = "flood"
    return json.dumps(members, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


TIMES: list[Any] = [
    *("2025-01-15T10:00:00Z", "2025-01-15T10:00:00.123456789Z", "2025-01-15T10:00:60Z", "2025-13-15T10:00:00Z"),
    *("2025-01-15 10:00:00", "2025-01-15T10:00:00+02:00", "2025-01-15", "", "1736935200", 1736935200, 1.5, None, True),
    *("2525-01-15T10:00:00Z", "1925-01-15T10:00:00Z", "0001-01-15T10:00:00Z", "9999-12-31T23:59:59Z", [], {}),
]
BROKEN = [
    *(b"", b" ", b"{", b"nope", b"[]", b"null", b"1", b'"text"', b"{}", b'{"identifier":1}', b'{"identifier":{}}'),
    *(b'{"identifier":{},"payload":NaN}', b'{"identifier":{},"payload":"\\ud800"}', b'{"identifier":{"a":"\xff"}}'),
    *(b"\xef\xbb\xbf{}", b'{"identifier":{}}x', b'{"identifier":{"class":"a","class":"b"}}', b'{"a":' * 200),
    b'{"identifier":{},"payload":' + b"[" * 126 + b"]" * 126 + b"}",
    b'{"identifier":{},"payload":' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"identifier":{},"payload":123456789012345678901234567890}',
]


def by_the_model(event_type: EventType | GenericType, lines: list[bytes], history: bool) -> list[Any]:
    """What a person would write: row by row, nothing but the model."""
    found: list[Any] = []
    for line in lines:
        try:
            notice = read_row(line, event_type.name)
            found.append(one_by_the_model(event_type, notice, history))
        except RequestError as error:
            found.append(fault_of(error))
    return found


def one_by_the_model(event_type: EventType | GenericType, notice: Notice, history: bool) -> Any:
    draft = event_type.check(notice.identifier, notice.payload)
    if not history:
        return (draft.payload,)
    return draft.payload, draft.identifier, draft.topic, draft.box, Times(LATEST).read_one(notice.time)


def in_order(outcome: Outcome, count: int) -> list[Any]:
    """The same of what was checked together."""
    taken = outcome.taken
    columns: list[Any] = [taken.payloads]
    if taken.topics:
        columns += [taken.identifiers, taken.topics, taken.boxes or [None] * len(taken.places), taken.times]
    found: dict[int, Any] = {**outcome.faults, **dict(zip(taken.places, zip(*columns, strict=True), strict=True))}
    assert list(taken.places) == sorted(taken.places)
    assert sorted(found) == list(range(count))
    return [found[place] for place in range(count)]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=lambda each: each.name)
@given(lines=st.lists(st.one_of(rows(), rows(), rows(), st.sampled_from(BROKEN)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_rows_together_are_rows_one_by_one(
    event_type: EventType | GenericType, history: bool, lines: list[bytes]
) -> None:
    checker = Checker(event_type, Wanted(history=history), LATEST)
    expected = by_the_model(event_type, lines, history)
    assert in_order(checker.lines(lines), len(lines)) == expected
    assert in_order(checker.lines(lines), len(lines)) == expected, "what was remembered changed the outcome"


ODD_VALUES: list[dict[str, Any]] = [
    *({}, {"step": None}, {"date": "20250230"}, {"date": "20250230", "time": None}, {"class": "x" * 100}),
    *({"step": True}, {"domain": ["a"]}, {"klass": "od"}, {"step": 2**64}, {"step": "100001"}, {"step": 100001}),
]
ODD_MEMBERS: list[bytes] = [
    *(b"", b',"payload":null', b',"payload":1', b',"payload":[12345678901234567890]', b',"event_type":"mars"'),
    *(b',"event_type":"flood","payload":2', b',"event_type":"flood"', b',"event_type":"%b","payload":3' % (b"x" * 100)),
    *(b',"payload":{"a":%b%b}' % (b"[" * depth, b"]" * depth) for depth in (123, 124, 125, 126, 300)),
    b',"payload":"%b"' % (b"[" * 300),
    b',"event_type":"flood","payload":%b%b' % (b"[" * 126, b"]" * 126),
]


@pytest.mark.parametrize("history", [False, True])
def test_rows_with_more_than_one_fault_are_refused_as_the_model_refuses_them(history: bool) -> None:
    good = {"class": "od", "expver": "1", "domain": "g", "date": "20250601", "time": "0", "stream": "oper", "step": 0}
    identifiers = [{**good, **odd} for odd in ODD_VALUES] + [{**good, "stream": "enfo"}]
    identifiers += [{name: good[name] for name in good if name not in gone} for gone in (["step"], ["time", "date"])]
    lines = [
        b'{"identifier":%b,"time":"2025-01-15T10:00:00Z"%b}' % (json.dumps(identifier).encode(), members)
        for identifier in identifiers
        for members in ODD_MEMBERS
    ]
    expected = by_the_model(MARS, lines, history)
    checker = Checker(MARS, Wanted(history=history), LATEST)
    for size in (1, 7, len(lines)):
        for start in range(0, len(lines), size):
            some = lines[start : start + size]
            assert in_order(checker.lines(some), len(some)) == expected[start : start + size]


@pytest.mark.parametrize("history", [False, True])
def test_refused_rows_leave_nothing_behind(history: bool) -> None:
    lines = list(bad_rows(0, 999))
    checker = Checker(MARS, Wanted(history=history), LATEST)
    assert len(checker.lines(lines).faults) == 10 * len(KINDS)
    gc.collect()
    gc.disable()  # as in a worker: rows that an error leads back to would stay until the end
    try:
        for _ in range(3):
            checker.lines(lines)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:40].decode("latin-1"))
def test_what_is_no_row_is_refused_as_the_model_refuses_it(line: bytes) -> None:
    checker = Checker(EVERY_FIELD, Wanted(), LATEST)
    assert in_order(checker.lines([line]), 1) == by_the_model(EVERY_FIELD, [line], False)


def test_what_was_given_is_what_is_published() -> None:
    line = b'{"identifier":{"network":"*","date":"2025-7-6","time":6,"point_cloud":[[1,2]]},"payload":{"b":1,"a":2}}'
    outcome = Checker(CLOUD, Wanted(given=True), LATEST).lines([line, line])
    given = [json.loads(each) for each in outcome.taken.given]
    assert given == [{"network": "*", "date": "2025-7-6", "time": 6, "point_cloud": [[1, 2]]}] * 2
    assert list(outcome.taken.payloads) == [b'{"a":2,"b":1}'] * 2


def test_a_refusal_says_field_reason_and_code() -> None:
    line = b'{"identifier":{"network":"n","date":"2025-02-30","time":"6","point_cloud":[[1,2]]}}'
    outcome = Checker(CLOUD, Wanted(), LATEST).lines([line])
    assert outcome.faults == {
        0: Fault("INVALID_NOTIFICATION_REQUEST", "date", "Field 'date' contains invalid date '2025-02-30'")
    }


@pytest.mark.parametrize("value", TIMES)
def test_times_together_are_times_one_by_one(value: Any) -> None:
    times = Times(LATEST)
    try:
        expected = times.read_one(value)
    except InvalidRequest:
        expected = None
    assert times.read([value, "2025-01-15T10:00:00Z"])[0] == expected


cells = st.one_of(scalars, st.binary(max_size=4), st.dates())


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of a table with a column for each field; good ones with a few cells that may be anything."""
    good: dict[str, list[Any]] = {
        "class": ["od", "é"], "region": ["north", "South"], "date": ["20250706", "2025-187"], "time": ["12", 18],
        "step": [0, "12"], "depth": [1, 1.0, "2.50", -0.0], "expver": ["1", ""], "polygon": ["(0,0,0,2,2,2,2,0,0,0)"],
    }  # fmt: skip
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        row = {name: draw(st.sampled_from(each)) for name, each in good.items()}
        for name in draw(st.lists(st.sampled_from(list(good)), max_size=1)):
            row[name] = draw(cells)
        row["payload"] = draw(st.sampled_from(['{"b":1,"a":[2]}', "", None, "null", "{", "7", '"\\ud800"']))
        row["event_type"] = draw(st.sampled_from(["flood", "flood", "", None, "tide"]))
        row["when"] = draw(st.sampled_from(TIMES[:9]))
        rows.append(row)
    return rows


def row_by_the_model(row: dict[str, Any], history: bool) -> Any:
    """What a person would write for a row of a table: nothing but the model."""
    payload, text = None, row["payload"]
    if text:
        try:
            payload = loads(text.encode())
        except MalformedRequest as error:
            raise InvalidRequest(f"Column 'payload' is not JSON: {error.details}", field="payload") from None
    check_event_type(row["event_type"] or None, "flood")
    named = {name: row[name] for name in EVERY_FIELD.fields if row[name] is not None}
    identifier = {"expver": "0001", **{name: field_value(name, value) for name, value in named.items()}}  # the default
    return one_by_the_model(EVERY_FIELD, Notice(identifier, payload, row["when"]), history)


@pytest.mark.parametrize("history", [False, True])
@given(table=tables())
@settings(max_examples=100, deadline=None)
def test_rows_of_a_table_are_rows_one_by_one(history: bool, table: list[dict[str, Any]]) -> None:
    renamed = {"time": "identifier_time", "when": "time"}
    names = [*EVERY_FIELD.fields, "payload", "event_type", "when"]
    columns = {renamed.get(name, name): [row[name] for row in table] for name in names}
    checker = Checker(EVERY_FIELD, Wanted(history=history), LATEST)
    outcome = TableReader(checker, EVERY_FIELD, list(columns)).check(columns, len(table), {})
    expected: list[Any] = []
    for row in table:
        try:
            expected.append(row_by_the_model(row, history))
        except RequestError as error:
            expected.append(fault_of(error))
    assert in_order(outcome, len(table)) == expected
