"""Definitions of event types in a configuration: what is accepted and how problems are told."""

from __future__ import annotations

from typing import Any

import pytest

from aviso_server.model.definition import build_event_type
from aviso_server.model.fields import FIELD_TYPES

TEXT = {"type": "StringHandler", "required": True}


def problems(definition: dict[str, Any]) -> list[tuple[str, str]]:
    built, found = build_event_type("mars", definition)
    assert (built is None) == bool(found)
    assert all(problem.accepted for problem in found), "every problem says what is accepted"
    return [(problem.key, f"{problem.message} {problem.accepted}") for problem in found]


def test_a_full_definition() -> None:
    built, found = build_event_type(
        "dissemination",
        {
            "payload": {"required": True},
            "topic": {"base": "diss", "key_order": ["b", "a"]},
            "identifier": {"a": TEXT, "b": {"type": "IntHandler", "required": False, "range": [1, 7]}},
            "storage_policy": {"max_messages": 5},
            "auth": {"required": False},
            "max_historical_notifications": 3,
        },
    )
    assert found == []
    assert built is not None
    assert (built.name, built.base, built.key_order) == ("dissemination", "diss", ("b", "a"))
    assert built.payload_required is True
    assert built.max_historical_notifications == 3


def test_without_topic_the_name_is_the_base_and_keys_are_sorted() -> None:
    cloud = {"type": "PointCloudHandler", "required": False}
    built, _ = build_event_type("mars", {"identifier": {"b": TEXT, "a": TEXT, "point_cloud": cloud}})
    assert built is not None
    assert (built.base, built.key_order) == ("mars", ("a", "b"))
    assert built.payload_required is None


@pytest.mark.parametrize(
    ("identifier", "key", "words"),
    [
        (None, "identifier", "must be present"),
        ([], "identifier", "must be present"),
        ({"a": "StringHandler"}, "identifier.a", "a mapping with type and required"),
        ({"a": {"required": True}}, "identifier.a.type", "must be present StringHandler, "),
        ({"a": {"type": "Nope", "required": True}}, "identifier.a.type", "'Nope'"),
        ({"a": {"type": "StringHandler"}}, "identifier.a.required", "must be present true or false"),
        ({"a": {**TEXT, "max_lenght": 5}}, "identifier.a.max_lenght", "unknown key type, required, description"),
        ({"a": {**TEXT, "max_length": "x"}}, "identifier.a.max_length", "a whole number"),
        ({"a": {**TEXT, "max_length": 0}}, "identifier.a.max_length", "1 or more"),
        ({"a": {**TEXT, "max_length": 10**26}}, "identifier.a.max_length", "64 bits"),
        ({"a": {**TEXT, "required": "maybe"}}, "identifier.a.required", "'maybe' is neither true nor false"),
        ({"a": {**TEXT, "required": None}}, "identifier.a.required", "true or false"),
        ({"a": {**TEXT, "required": {}}}, "identifier.a.required", "true or false"),
        ({"a": {"type": "EnumHandler", "required": True}}, "identifier.a.values", "must be present a list of texts"),
        (
            {"a": {"type": "EnumHandler", "required": True, "values": ["x", {"y": 1}]}},
            "identifier.a.values[1]",
            "a list of texts",
        ),
        ({"a": {"type": "IntHandler", "required": True, "range": [7, 1]}}, "identifier.a.range", "min <= max"),
        ({"a": {"type": "FloatHandler", "required": True, "range": [2.5, 1]}}, "identifier.a.range", "min <= max"),
        ({"a": {"type": "IntHandler", "required": True, "range": [1]}}, "identifier.a.range", "two whole numbers"),
        (
            {"a": {"type": "DateHandler", "required": True, "canonical_format": "%d.%m."}},
            "identifier.a.canonical_format",
            "%Y-%m-%d",
        ),
        ({"point": TEXT}, "identifier.point", "reserved"),
        ({"a": {"type": "PointCloudHandler", "required": True}}, "identifier.a", "must be named point_cloud"),
        (
            {"point_cloud": {"type": "PointCloudHandler", "required": True, "max_points": 10_001}},
            "identifier.point_cloud.max_points",
            "10000",
        ),
        (
            {"point_cloud": {"type": "PointCloudHandler", "required": True, "max_points": 0}},
            "identifier.point_cloud.max_points",
            "from 1 to 10000",
        ),
        (
            {
                "point_cloud": {"type": "PointCloudHandler", "required": True},
                "polygon": {"type": "PolygonHandler", "required": True},
            },
            "identifier.polygon",
            "together",
        ),
    ],
)
def test_problems_of_fields(identifier: object, key: str, words: str) -> None:
    found = problems({"identifier": identifier})
    assert [(where, words in what) for where, what in found] == [(key, True)], found


def test_unknown_field_types_are_answered_with_the_known_ones() -> None:
    ((_, told),) = problems({"identifier": {"a": {"type": "Nope", "required": True}}})
    assert all(name in told for name in FIELD_TYPES)


@pytest.mark.parametrize(
    ("members", "key", "words"),
    [
        ({"topic": {"base": "m", "key_order": ["b"]}}, "topic.key_order", "'b' is not declared"),
        ({"topic": {"base": "m", "key_order": ["a", "a"]}}, "topic.key_order", "listed twice"),
        ({"topic": {"key_order": ["a"]}}, "topic.base", "must be present text"),
        ({"topic": {"base": "m"}}, "topic.key_order", "must be present a list of texts"),
        ({"topic": "m"}, "topic", "a mapping with base, key_order"),
        ({"topic": {"base": "m", "key_order": ["a", []]}}, "topic.key_order[1]", "a list of texts"),
        ({"payload": {}}, "payload.required", "must be present true or false"),
        ({"payload": {"required": "maybe"}}, "payload.required", "'maybe' is neither true nor false"),
        ({"payload": {"required": True, "type": "x"}}, "payload.type", "unknown key required"),
        ({"max_historical_notifications": 0}, "max_historical_notifications", "1 or more"),
        ({"max_historical_notifications": "many"}, "max_historical_notifications", "'many' is not a whole number"),
        ({"max_historical_notifications": 10**26}, "max_historical_notifications", "64 bits"),
    ],
)
def test_problems_of_the_rest(members: dict[str, Any], key: str, words: str) -> None:
    found = problems({"identifier": {"a": TEXT}, **members})
    assert [where for where, _ in found] == [key]
    assert words in found[0][1].lower() or words in found[0][1]


def test_a_point_cloud_is_no_part_of_the_topic() -> None:
    cloud = {"type": "PointCloudHandler", "required": True}
    found = problems({"identifier": {"point_cloud": cloud}, "topic": {"base": "c", "key_order": ["point_cloud"]}})
    assert [where for where, _ in found] == ["topic.key_order"]


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        {
            "identifier": {"a": {**TEXT, "max_length": 0}, "b": {"type": "Nope"}},
            "topic": {"base": "m", "key_order": ["a", "c"]},
            "payload": 5,
        }
    )
    assert {where for where, _ in found} == {
        "identifier.a.max_length",
        "identifier.b.type",
        "identifier.b.required",
        "topic.key_order",
        "payload",
    }


@pytest.mark.parametrize(
    ("field", "members"),
    [
        (
            {"type": "IntHandler", "required": "perhaps", "range": [5], "foo": 1, "max_length": 3},
            ["required", "range", "foo", "max_length"],
        ),
        ({"type": "IntHandler", "required": True, "foo": 1, "range": [5]}, ["range", "foo"]),
        ({"type": "IntHandler", "foo": 1, "range": [5, 1]}, ["required", "foo", "range"]),
        ({"type": "EnumHandler"}, ["required", "values"]),
        ({"required": "perhaps", "description": {}}, ["type", "required", "description"]),
    ],
)
def test_all_problems_of_one_field_are_told_at_once(field: dict[str, Any], members: list[str]) -> None:
    found = problems({"identifier": {"x": field}})
    assert [where for where, _ in found] == [f"identifier.x.{member}" for member in members]


def test_all_problems_of_one_section_are_told_at_once() -> None:
    found = problems({"identifier": {"a": TEXT}, "payload": {"requird": 1}, "topic": {"bases": "m"}})
    assert [where for where, _ in found] == ["topic.base", "topic.key_order", "payload.required", "payload.requird"]
