"""The law of the JSON schemas: whatever a field or an event type accepts, its schema accepts too."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.event_type import EventType, read_point
from aviso_server.model.fields import (
    DateField,
    EnumField,
    ExpverField,
    Field,
    FloatField,
    IntField,
    PointCloudField,
    PolygonField,
    SpatialField,
    StringField,
    TimeField,
)
from aviso_server.model.json_schema import filter_samples, filter_schema, published_sample, published_schema
from aviso_server.model.times import INSTANT_TEXT, SEQUENCE_TEXT, parse_instant, parse_sequence

FIELDS: dict[str, Field] = {
    "text": StringField(required=True),
    "short": StringField(required=True, max_length=3),
    "day": DateField(required=True),
    "clock": TimeField(required=True),
    "word": EnumField(required=True, values=("Red", "kelvin", "a+b")),
    "mixed": EnumField(required=True, values=("true", "1", "5.0")),
    "foreign": EnumField(required=True, values=("Ärger", "Σίγμα")),
    "whole": IntField(required=True),
    "level": IntField(required=True, range=(-3, 7)),
    "number": FloatField(required=True),
    "percent": FloatField(required=True, range=(0.0, 100.0)),
    "version": ExpverField(required=True),
    "version_or_default": ExpverField(required=True, default="0001"),
    "polygon": PolygonField(required=True),
    "point_cloud": PointCloudField(required=True, max_points=2),
}
each_field = pytest.mark.parametrize("name", FIELDS)

digits = st.text("0123456789+-. :T", max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
pairs = st.lists(st.tuples(st.floats(-91, 91), st.floats(-181, 181)).map(list), max_size=5)
rings = pairs.map(lambda ring: [*ring, *ring[:1]])
ring_texts = rings.map(lambda ring: f"({','.join(str(number) for pair in ring for number in pair)})")
# The Kelvin sign and the sigmas are letters whose lower case surprises.
words = st.sampled_from(
    ["RED", "red", "\u212aelvin", "KELVIN", "A+B", "TRUE", "1", "5.0", "ÄRGER", "ΣΊΓΜΑ", "x", "", "*"]
)
dates = st.from_regex(r"\s?\+?[0-9]{1,4}[- ]?[01]?[0-9][- ]?[0-3]?[0-9]", fullmatch=True)
times = st.from_regex(r"[0-2]?[0-9]:?([0-5][0-9])?", fullmatch=True)
values = st.one_of(
    st.none(), st.booleans(), numbers, digits, st.text(max_size=4), words, dates, times, pairs, rings, ring_texts
)


def accepted(field: Field, name: str, value: object) -> bool:
    try:
        if isinstance(field, SpatialField):
            field.locate(name, value, 100)
        else:
            field.accept(name, value)
    except InvalidRequest:
        return False
    return True


def validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return _validator(json.dumps(schema))


@lru_cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads(schema))


@each_field
@settings(max_examples=200, derandomize=True)
@given(value=values)
def test_what_a_field_accepts_satisfies_its_schema(name: str, value: object) -> None:
    field = FIELDS[name]
    if accepted(field, name, value):
        assert validator(field.json_schema()).is_valid(value)


@each_field
def test_the_sample_of_a_field_is_accepted_and_satisfies_its_schema(name: str) -> None:
    field = FIELDS[name]
    assert accepted(field, name, field.sample())
    schema = field.json_schema()
    assert schema["examples"] == [field.sample()]
    assert field.accepts in schema["description"]
    assert validator(schema).is_valid(field.sample())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", ""),
        ("text", None),
        ("text", []),
        ("short", "four"),
        ("day", "2025/12/25"),
        ("day", "2025-13-01"),
        ("day", 2025),
        ("day", True),
        ("clock", "24"),
        ("clock", "12:60"),
        ("clock", "123"),
        ("clock", 2400),
        ("word", "green"),
        ("word", "aab"),
        ("word", True),
        ("whole", "4.5"),
        ("whole", 4.5),
        ("whole", 2**63),
        ("level", 8),
        ("level", " 5"),
        ("number", "nan"),
        ("number", "1_0"),
        ("number", False),
        ("percent", 100.5),
        ("version", ""),
        ("version", {}),
        ("polygon", "(1,2,3,4)"),
        ("polygon", "(0,0,0,1,1,1,0,0"),
        ("polygon", [[0, 0], [0, 1], [1, 1]]),
        ("polygon", [[91, 0], [0, 1], [1, 1], [91, 0]]),
        ("point_cloud", "1,1"),
        ("point_cloud", []),
        ("point_cloud", [[1, 2, 3]]),
        ("point_cloud", [[1, 181]]),
        ("point_cloud", [[1, 1], [2, 2], [3, 3]]),
    ],
)
def test_a_schema_is_no_blank_cheque(name: str, value: object) -> None:
    assert not accepted(FIELDS[name], name, value)
    assert not validator(FIELDS[name].json_schema()).is_valid(value)


operands = st.one_of(st.none(), st.booleans(), st.integers(-5, 9), st.floats(-1, 101), words)
constraints = st.dictionaries(
    st.sampled_from(["eq", "in", "gt", "gte", "lt", "lte", "between", "like"]),
    operands | st.lists(operands, max_size=3),
    max_size=2,
)


@pytest.mark.parametrize("name", [name for name in FIELDS if FIELDS[name].operators])
@settings(max_examples=200, derandomize=True)
@given(constraint=constraints)
def test_what_a_field_accepts_as_a_constraint_satisfies_its_filter_schema(name: str, constraint: Any) -> None:
    field = FIELDS[name]
    try:
        field.constraint(name, constraint)
    except InvalidRequest:
        return
    assert validator(field.filter_schema()).is_valid(constraint)


@pytest.mark.parametrize(
    ("name", "constraint"),
    [
        ("level", {}),
        ("level", {"gt": 1, "lt": 5}),
        ("level", {"like": 1}),
        ("level", {"gt": 8}),
        ("level", {"eq": "5"}),
        ("level", {"in": []}),
        ("level", {"between": [1, 2, 3]}),
        ("word", {"gt": "red"}),
        ("word", {"eq": "green"}),
        ("text", {"eq": "x"}),
    ],
)
def test_a_filter_schema_knows_the_operators(name: str, constraint: dict[str, Any]) -> None:
    assert not validator(FIELDS[name].filter_schema()).is_valid(constraint)


def event_type(*names: str, required: bool = True) -> EventType:
    fields = {name: type(FIELDS[name])(**{**_parameters(FIELDS[name]), "required": required}) for name in names}
    return EventType(name="probe", fields=fields, base="probe", key_order=())


def _parameters(field: Field) -> dict[str, Any]:
    return {name: getattr(field, name) for name in field.__struct_fields__}


EVENT_TYPES = {
    "plain": event_type("text", "level"),
    "optional": event_type("text", "level", required=False),
    "area": event_type("text", "polygon"),
    "optional area": event_type("text", "polygon", required=False),
    "cloud": event_type("text", "point_cloud"),
    "optional cloud": event_type("text", "point_cloud", required=False),
}
each_event_type = pytest.mark.parametrize("kind", EVENT_TYPES)
SQUARE = "(0,0,0,2,2,2,2,0,0,0)"
identifiers = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["x", "*", ""]),
        "level": st.sampled_from([1, "7", 8, {"lt": 3}, {"lt": 30}]),
        "polygon": st.sampled_from([SQUARE, "0,0", [[0, 0], [0, 2], [2, 2], [0, 0]], None]),
        "point": st.sampled_from(["1,1", "(1,1)", [1, 1], "91,1", "1", 1, None]),
        "point_cloud": st.just([[1, 1]]),
        "other": st.just("x"),
    },
)


@each_event_type
@settings(max_examples=200, derandomize=True)
@given(identifier=identifiers)
def test_what_an_event_type_accepts_satisfies_its_schemas(kind: str, identifier: dict[str, Any]) -> None:
    probe = EVENT_TYPES[kind]
    try:
        probe.check(identifier)
    except InvalidRequest:
        pass
    else:
        assert validator(published_schema(probe)).is_valid(identifier)
    try:
        probe.compile(identifier, "watch", read_point(identifier))
    except InvalidRequest:
        pass
    else:
        assert validator(filter_schema(probe)).is_valid(identifier)


@each_event_type
def test_the_samples_of_an_event_type_are_accepted_and_satisfy_its_schemas(kind: str) -> None:
    probe = EVENT_TYPES[kind]
    probe.check(published_sample(probe))
    assert validator(published_schema(probe)).is_valid(published_sample(probe))
    for sample in filter_samples(probe).values():
        probe.compile(sample, "watch", read_point(sample))
        assert validator(filter_schema(probe)).is_valid(sample)


@pytest.mark.parametrize(
    ("kind", "identifier"),
    [
        ("plain", {"text": "x"}),
        ("plain", {"text": "x", "level": 1, "other": 1}),
        ("area", {"text": "x"}),
        ("area", {"text": "x", "polygon": SQUARE, "point": "1,1"}),
        ("optional area", {"point": "1"}),
        ("cloud", {"text": "x"}),
        ("cloud", {"text": "x", "polygon": SQUARE, "point_cloud": [[1, 1]]}),
        ("optional cloud", {"point": "1,1"}),
    ],
)
def test_a_filter_schema_of_an_event_type_is_no_blank_cheque(kind: str, identifier: dict[str, Any]) -> None:
    assert not validator(filter_schema(EVENT_TYPES[kind])).is_valid(identifier)


sequences = digits | st.integers(0, 2**65).map(str)
instants = digits | st.datetimes().map(str) | st.datetimes().map(lambda moment: moment.isoformat() + "+02:00")


@settings(max_examples=300, derandomize=True)
@given(text=sequences)
def test_every_sequence_looks_like_its_pattern(text: str) -> None:
    _follows(text, lambda: parse_sequence("from_id", text), SEQUENCE_TEXT)


@settings(max_examples=300, derandomize=True)
@given(text=instants)
def test_every_point_in_time_looks_like_its_pattern(text: str) -> None:
    _follows(text, lambda: parse_instant("from_date", text), INSTANT_TEXT)


def _follows(text: str, parse: Any, pattern: str) -> None:
    try:
        parse()
    except InvalidRequest:
        return
    assert validator({"pattern": pattern}).is_valid(text)
