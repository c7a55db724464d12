"""G. Constraints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.expectations import IRR, IWR, assert_refused, payloads
from tests.conformance.samples import SEED_A, SEED_B, but, without
from tests.harness import Client, Server
from tests.harness.client import body

BOTH = {"region": {"in": ["north", "south"]}, "run_time": "1200"}
NORTH = {"region": "north", "run_time": "1200", "severity": "3"}


@pytest.fixture(scope="module")
def seeded(server: Server) -> Client:
    """A server that holds the two notifications of the seed document and nothing else."""
    client = server.client
    client.wipe_all()
    client.publish("extreme_event", SEED_A, {"note": "seed-a"})
    client.publish("extreme_event", SEED_B, {"note": "seed-b"})
    return client


def found(client: Client, identifier: dict[str, Any]) -> str:
    """The letters of the seed notifications that a replay delivers."""
    return "".join(payload["note"][-1] for payload in payloads(client.replay("extreme_event", identifier)))


def refused(client: Client, identifier: dict[str, Any], *fragments: str) -> None:
    assert_refused(client.answer("replay", body("extreme_event", identifier, from_id="1")), IRR, *fragments)
    assert_refused(client.answer("watch", body("extreme_event", identifier)), IWR, *fragments)


def test_case_096_implicit_eq(seeded: Client) -> None:
    assert found(seeded, {"region": "south", "run_time": "1200", "severity": "6", "anomaly": "87.2"}) == "b"


def test_case_097_in_and_gte(seeded: Client) -> None:
    assert found(seeded, {**BOTH, "severity": {"gte": 5}, "anomaly": "87.2"}) == "b"


def test_case_098_between(seeded: Client) -> None:
    assert found(seeded, {**NORTH, "anomaly": {"between": [40.0, 50.0]}}) == "a"


def test_case_099_float_eq_is_exact(seeded: Client) -> None:
    assert found(seeded, {**NORTH, "anomaly": {"eq": 42.5}}) == "a"
    assert found(seeded, {**NORTH, "anomaly": {"eq": 42.5000001}}) == ""


@pytest.mark.parametrize(
    "constraint",
    [{"gte": 4, "lt": 7}, {"gte": 4, "nonsense": 7}, {"eq": 3, "in": [3]}],
    ids=json.dumps,
)
def test_case_101_two_operators(seeded: Client, constraint: Any) -> None:
    refused(seeded, {**NORTH, "severity": constraint}, "exactly one operator")


def test_case_102_no_operator(seeded: Client) -> None:
    refused(seeded, {**NORTH, "severity": {}}, "exactly one operator")


@pytest.mark.parametrize(
    "constraint",
    [
        {"severity": {"gte": 5}},
        {"severity": {"between": [3, 7]}},
        {"region": {"in": ["north", "south"]}},
        {"anomaly": {"lt": 50.0}},
    ],
    ids=json.dumps,
)
def test_case_103_examples_of_the_seed(seeded: Client, constraint: dict[str, Any]) -> None:
    assert seeded.answer("replay", body("extreme_event", {**NORTH, **constraint}, from_id="1")).status == 200
    assert seeded.answer("watch", body("extreme_event", {**NORTH, **constraint})).status == 200


@pytest.mark.parametrize(
    ("constraint", "letters"),
    [
        ({"eq": 3}, "a"),
        ({"gt": 3}, "b"),
        ({"gte": 3}, "ab"),
        ({"lt": 6}, "a"),
        ({"lte": 6}, "ab"),
        ({"in": [3, 6]}, "ab"),
        ({"in": [3, 3]}, "a"),
        ({"between": [3, 3]}, "a"),
        ({"between": [3, 6]}, "ab"),
        ({"eq": 4}, ""),
        ({"between": [1, 7]}, "ab"),
    ],
    ids=str,
)
def test_case_104_integer(seeded: Client, constraint: Any, letters: str) -> None:
    assert found(seeded, {**BOTH, "severity": constraint}) == letters


@pytest.mark.parametrize(
    "constraint",
    [
        {"ge": 4},
        {"GTE": 4},
        {"": 4},
        {"gte": "4"},
        {"gte": 4.0},
        {"gte": True},
        {"gte": None},
        {"gte": [4]},
        {"gte": {}},
        {"gte": 9223372036854775808},
        {"in": []},
        {"in": 4},
        {"in": [3, "4"]},
        {"in": [3, True]},
        {"between": [3]},
        {"between": [3, 4, 5]},
        {"between": [6, 2]},
        {"between": 4},
        {"gte": 9},
        {"lt": 8},
        {"gt": 0},
        {"between": [0, 7]},
        {"in": [3, 9]},
    ],
    ids=json.dumps,
)
def test_case_105_integer_refused(seeded: Client, constraint: Any) -> None:
    refused(seeded, {**BOTH, "severity": constraint}, "severity")


@pytest.mark.parametrize(
    ("constraint", "letters"),
    [
        ({"gte": 40}, "ab"),
        ({"gt": 42.5}, "b"),
        ({"lt": 50.0}, "a"),
        ({"lte": 42.5}, "a"),
        ({"in": [42.5, 1]}, "a"),
        ({"between": [42.5, 87.2]}, "ab"),
        ({"eq": 87.2}, "b"),
    ],
    ids=str,
)
def test_case_106_float(seeded: Client, constraint: Any, letters: str) -> None:
    assert found(seeded, {**BOTH, "severity": {"gte": 1}, "anomaly": constraint}) == letters


@pytest.mark.parametrize(
    "constraint",
    [
        {"eq": "42.5"},
        {"eq": True},
        {"eq": None},
        {"gt": 100.5},
        {"gte": -1},
        {"in": []},
        {"in": [1, "2"]},
        {"between": [2.0, 1.0]},
        {"between": [1.0]},
        {"ne": 1.0},
    ],
    ids=json.dumps,
)
def test_case_106_float_refused(seeded: Client, constraint: Any) -> None:
    refused(seeded, {**BOTH, "severity": {"gte": 1}, "anomaly": constraint}, "anomaly")


@pytest.mark.parametrize(
    ("constraint", "letters"),
    [({"eq": "NORTH"}, "a"), ({"in": ["North", "SOUTH"]}, "ab"), ({"in": ["west"]}, "")],
    ids=str,
)
def test_case_107_enum(seeded: Client, constraint: Any, letters: str) -> None:
    assert found(seeded, {"region": constraint, "run_time": "1200", "severity": {"gte": 1}}) == letters


@pytest.mark.parametrize(
    "constraint",
    [{"gt": "a"}, {"between": ["east", "west"]}, {"in": ["north", "moon"]}, {"in": [1]}, {"in": []}, {"eq": 5}],
    ids=json.dumps,
)
def test_case_107_enum_refused(seeded: Client, constraint: Any) -> None:
    refused(seeded, {**NORTH, "region": constraint}, "region")


@pytest.mark.parametrize(
    ("event_type", "identifier"),
    [
        ("extreme_event", {**NORTH, "run_time": {"eq": "1200"}}),
        ("extreme_event", {**NORTH, "polygon": {"eq": "x"}}),
        ("mars", {"class": {"eq": "od"}}),
        ("mars", {"class": "od", "date": {"eq": "20250706"}}),
        ("mars", {"class": "od", "expver": {"in": ["1"]}}),
    ],
    ids=["time", "polygon", "string", "date", "expver"],
)
def test_case_108_fields_without_operators(seeded: Client, event_type: str, identifier: dict[str, Any]) -> None:
    assert_refused(seeded.answer("replay", body(event_type, identifier, from_id="1")), IRR)
    assert_refused(seeded.answer("watch", body(event_type, identifier)), IWR)


def test_case_109_point(seeded: Client) -> None:
    refused(seeded, {**NORTH, "point": {"eq": "1,2"}})


def test_case_110_constraints_are_anded(seeded: Client) -> None:
    assert found(seeded, {**BOTH, "severity": {"gte": 3}, "anomaly": {"lt": 50.0}}) == "a"
    assert found(seeded, {**BOTH, "severity": {"gte": 4}, "anomaly": {"lt": 50.0}}) == ""


def test_case_100_live_enum(seeded: Client) -> None:
    """Publishes, so it comes after the cases that count what is stored."""
    request = {"region": {"in": ["south", "west"]}, "run_time": "1200", "severity": "6", "anomaly": "87.2"}
    with seeded.watch("extreme_event", request) as stream:
        stream.until("connection_established")
        for region in ("north", "south", "east", "west"):
            seeded.publish("extreme_event", but(SEED_B, region=region), region)
        assert [stream.notification()["data"]["payload"] for _ in range(2)] == ["south", "west"]


EXTREME = without(SEED_A, "polygon")


def test_case_111_other_schema(api: Client) -> None:
    for anomaly in ("42.5", "12.5", "40"):
        api.publish("extreme", but(EXTREME, anomaly=anomaly), anomaly)
    assert payloads(api.replay("extreme", {"anomaly": {"gte": 40.0}})) == ["42.5", "40"]


def test_case_112_negative_zero(api: Client) -> None:
    api.publish("extreme", but(EXTREME, anomaly="-0.0"), "minus zero")
    assert payloads(api.replay("extreme", {"anomaly": {"eq": 0}})) == ["minus zero"]
    assert payloads(api.replay("extreme", {"anomaly": "0"})) == []
    assert payloads(api.replay("extreme", {"anomaly": "-0"})) == ["minus zero"]


def test_constrained_fields_are_wildcards_in_the_topic(api: Client) -> None:
    with api.watch("extreme", {"region": "north", "severity": {"gte": 3}}) as stream:
        assert stream.next().data["topic"] == "extreme.north.*.*.*"
