"""Constraint objects: operators, operands, and what they mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.fields import (
    COMPARISONS,
    Constraint,
    DateField,
    EnumField,
    ExpverField,
    Field,
    FloatField,
    IntField,
    PolygonField,
    StringField,
    TimeField,
)

INT = IntField(required=True)
WEEK = IntField(required=True, range=(1, 7))
FLOAT = FloatField(required=True)
PERCENT = FloatField(required=True, range=(0, 100))
ENUM = EnumField(required=True, values=("North", "south"))


@pytest.mark.parametrize(
    ("request_", "holding", "failing"),
    [
        ({"eq": 5}, [5], [4, 6]),
        ({"in": [1, 3, 3]}, [1, 3], [2]),
        ({"gt": 5}, [6], [5, 4]),
        ({"gte": 5}, [5, 6], [4]),
        ({"lt": 5}, [4], [5, 6]),
        ({"lte": 5}, [4, 5], [6]),
        ({"between": [2, 4]}, [2, 3, 4], [1, 5]),
        ({"between": [3, 3]}, [3], [2, 4]),
    ],
)
@pytest.mark.parametrize("field", [INT, WEEK, FLOAT, PERCENT])
def test_meaning_of_the_operators(
    field: Field, request_: dict[str, Any], holding: list[int], failing: list[int]
) -> None:
    constraint = field.constraint("severity", request_)
    assert all(constraint.holds(value) for value in holding)
    assert not any(constraint.holds(value) for value in failing)


def test_words_compare_in_lower_case() -> None:
    assert ENUM.constraint("region", {"eq": "NORTH"}).operands == ("north",)
    constraint = ENUM.constraint("region", {"in": ["South", "north"]})
    assert constraint.holds("south")
    assert not constraint.holds("east")


@pytest.mark.parametrize("field", [INT, FLOAT, ENUM])
@pytest.mark.parametrize("request_", [{}, {"gte": 4, "lt": 7}, {"eq": "a", "in": ["b"]}])
def test_exactly_one_operator(field: Field, request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="exactly one operator") as refusal:
        field.constraint("severity", request_)
    assert refusal.value.field == "severity"
    assert "Field 'severity'" in refusal.value.message


@pytest.mark.parametrize("operator", ["EQ", "Gt", "ne", "", "between ", "regex"])
def test_unknown_operators_are_refused_with_the_known_ones(operator: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        INT.constraint("severity", {operator: 5})
    assert all(known in refusal.value.message for known in COMPARISONS)


@pytest.mark.parametrize("operator", ["gt", "gte", "lt", "lte", "between"])
def test_words_have_no_order(operator: str) -> None:
    with pytest.raises(InvalidRequest, match="accepted: eq, in"):
        ENUM.constraint("region", {operator: "north"})


@pytest.mark.parametrize("field_type", [StringField, DateField, TimeField, ExpverField, PolygonField])
@pytest.mark.parametrize("request_", [{"eq": "1"}, {"in": ["1"]}, {}])
def test_other_fields_take_no_constraint(field_type: type[Field], request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Field 'x' does not support constraint objects"):
        field_type(required=True).constraint("x", request_)


BAD_INTEGERS = [5.0, "5", True, None, [5], {"eq": 5}, 2**63, -(2**63) - 1]
BAD_NUMBERS = ["5", True, False, None, [5], {}]
BAD_WORDS = [5, True, None, ["north"], 1.5]


@pytest.mark.parametrize(
    ("field", "operand"),
    [
        *((INT, operand) for operand in BAD_INTEGERS),
        *((FLOAT, operand) for operand in BAD_NUMBERS),
        *((ENUM, operand) for operand in BAD_WORDS),
    ],
)
def test_operands_have_the_type_of_the_field(field: Field, operand: object) -> None:
    requests: list[dict[str, Any]] = [{"eq": operand}, {"in": [operand]}]
    if field is not ENUM:
        requests += [{"gt": operand}, {"between": [operand, operand]}]
    for request in requests:
        with pytest.raises(InvalidRequest, match="Field 'x'"):
            field.constraint("x", request)


@pytest.mark.parametrize(
    "request_",
    [
        {"in": []},
        {"in": 5},
        {"in": {"a": 1}},
        {"between": []},
        {"between": [1]},
        {"between": [1, 2, 3]},
        {"between": [2, 1]},
        {"between": 5},
    ],
)
@pytest.mark.parametrize("field", [INT, FLOAT])
def test_malformed_sets_and_ranges(field: Field, request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Field 'x'"):
        field.constraint("x", request_)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        (WEEK, {"lt": 8}),
        (WEEK, {"gt": 0}),
        (WEEK, {"in": [1, 8]}),
        (WEEK, {"between": [1, 8]}),
        (PERCENT, {"gte": 100.5}),
        (PERCENT, {"between": [-1, 5]}),
        (ENUM, {"eq": "west"}),
        (ENUM, {"in": ["north", "west"]}),
    ],
)
def test_every_operand_lies_in_the_range_or_among_the_values(field: Field, request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Field 'x'"):
        field.constraint("x", request_)


def test_limits_of_the_range_belong_to_it() -> None:
    assert WEEK.constraint("x", {"between": [1, 7]}).operands == (1, 7)
    assert PERCENT.constraint("x", {"in": [0, 100]}).operands == (0, 100)


def test_floats_compare_exactly_and_as_doubles() -> None:
    assert FLOAT.constraint("x", {"eq": 0.1}).holds(0.1)
    assert not FLOAT.constraint("x", {"eq": 0.3}).holds(0.1 + 0.2)
    # the stored text is read as a double, and so is the operand: both are 2 to the power of 53
    assert FLOAT.constraint("x", {"eq": 2**53 + 1}).holds(float(2**53))


NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.sampled_from(COMPARISONS), st.lists(NUMBERS, min_size=2, max_size=5), NUMBERS | st.integers(-3, 3))
def test_the_interval_covers_all_that_holds(operator: str, operands: list[int], value: int) -> None:
    chosen = {"in": operands, "between": sorted(operands[:2])}.get(operator, operands[:1])
    constraint = Constraint("integer", operator, tuple(chosen))
    low, high = constraint.interval()
    for candidate in (value, *operands):
        if constraint.holds(candidate):
            assert low <= float(candidate) <= high


@given(st.sampled_from(["gt", "gte", "lt", "lte"]), st.floats(allow_nan=False, allow_infinity=False))
def test_open_ends_are_infinite(operator: str, operand: float) -> None:
    low, high = Constraint("number", operator, (operand,)).interval()
    assert (math.isinf(high) and low == operand) if operator.startswith("g") else (math.isinf(low) and high == operand)
