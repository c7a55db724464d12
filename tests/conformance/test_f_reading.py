"""F. Field rules of watch and replay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.expectations import IRR, IWR, REFUSALS, assert_refused, payloads, steps
from tests.conformance.samples import MARS, PROBE, but
from tests.harness import Client
from tests.harness.client import body

OD = {"class": "od"}


def test_case_080_required_field(api: Client) -> None:
    response = api.answer("watch", body("mars", {}))
    assert_refused(response, IWR, "Required field 'class'")


def test_case_081_omitted_fields_are_wildcards(api: Client) -> None:
    with api.watch("mars", OD) as stream:
        assert stream.next().data["topic"] == "mars.od.*.*.*.*.*.*"


def test_case_082_replay_needs_a_start(api: Client) -> None:
    assert_refused(api.answer("replay", body("mars", OD)), IRR)


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_083_unknown_key(api: Client, operation: str) -> None:
    response = api.answer(operation, body("mars", but(OD, bogus="x"), from_id="1"))
    fragment = f"Unknown field 'bogus' provided for {operation} operation"
    assert_refused(response, REFUSALS[operation], fragment)


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_084_null(api: Client, operation: str) -> None:
    response = api.answer(operation, body("mars", but(OD, step=None), from_id="1"))
    assert_refused(response, REFUSALS[operation], "Field 'step'")


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_085_array(api: Client, operation: str) -> None:
    response = api.answer(operation, body("mars", but(OD, step=[1]), from_id="1"))
    assert_refused(response, REFUSALS[operation], "Field 'step'")


def test_case_086_value_too_long(api: Client) -> None:
    response = api.answer("watch", body("mars", {"class": "abc"}))
    assert_refused(response, IWR, "class")


def publish_steps(api: Client, *values: Any) -> None:
    for value in values:
        api.publish("mars", but(MARS, step=value))


def test_case_087_canonical_scalar(api: Client) -> None:
    publish_steps(api, "4", "5")
    assert steps(api.replay("mars", but(OD, step="04"))) == [4]


def test_case_088_number(api: Client) -> None:
    publish_steps(api, "4", "5")
    assert steps(api.replay("mars", but(OD, step=4))) == [4]


def publish_streams(api: Client, *values: str) -> None:
    for value in values:
        api.publish("mars", but(MARS, stream=value), value)


def test_case_089_wildcard_text(api: Client) -> None:
    publish_streams(api, "enfo", "oper")
    stream = api.replay("mars", but(OD, stream="*"))
    assert payloads(stream) == ["enfo", "oper"]
    assert stream.frames[0].data["topic"] == "mars.od.*.*.*.*.*.*"
    assert payloads(api.replay("mars", {"class": "*", "expver": "*", "stream": "oper"})) == ["oper"]


@pytest.mark.parametrize("field", ["step", "date", "time", "domain"])
def test_case_090_no_wildcard_in_other_handlers(api: Client, field: str) -> None:
    assert_refused(api.answer("replay", body("mars", {**OD, field: "*"}, from_id="1")), IRR, field)


def test_case_091_scalar_outside_key_order(api: Client) -> None:
    """Fields outside key_order filter like any other."""
    api.publish("probe", PROBE, "o")
    api.publish("probe", but(PROBE, off="p"), "p")
    assert payloads(api.replay("probe", {"off": "zzz"})) == []
    assert payloads(api.replay("probe", {"off": "p"})) == ["p"]
    assert payloads(api.replay("probe", {"off": "*"})) == ["o", "p"]


def test_case_092_constraint_outside_key_order(api: Client) -> None:
    for number in (1, 2, 3):
        api.publish("probe", but(PROBE, offnum=number), number)
    assert payloads(api.replay("probe", {"offnum": {"gte": 0}})) == [1, 2, 3]
    assert payloads(api.replay("probe", {"offnum": {"gte": 2}})) == [2, 3]
    assert payloads(api.replay("probe", {"offnum": "02"})) == [2]
    assert payloads(api.replay("probe", {"offnum": {"gte": 2}, "txt": "b"})) == []


def test_case_092_live(api: Client) -> None:
    with api.watch("probe", {"offnum": {"gte": 2}, "off": "o"}) as stream:
        stream.until("connection_established")
        for number in (1, 2):
            api.publish("probe", but(PROBE, offnum=number), number)
        assert stream.notification()["data"]["payload"] == 2


def test_case_093_star_inside_a_value(api: Client) -> None:
    publish_streams(api, "a*b", "axb")
    assert payloads(api.replay("mars", but(OD, stream="a*b"))) == ["a*b"]
    assert payloads(api.replay("mars", but(OD, stream="a*"))) == []
    assert payloads(api.replay("mars", but(OD, stream=">"))) == []


def test_case_094_star_as_a_value(api: Client) -> None:
    publish_streams(api, "*")
    assert payloads(api.replay("mars", but(OD, stream="x"))) == []
    (event,) = api.replay("mars", OD).notifications
    assert event["data"]["payload"] == "*"
    assert "stream" not in event["data"]["identifier"]
    assert event["data"]["identifier"]["step"] == "1"


def test_case_095_dotted_value(api: Client) -> None:
    publish_streams(api, "ens.member.7", "ens")
    (event,) = api.replay("mars", but(OD, stream="ens.member.7")).notifications
    assert event["data"]["identifier"]["stream"] == "ens.member.7"


def test_matching_is_case_sensitive(api: Client) -> None:
    publish_streams(api, "enfo", "ENFO")
    assert payloads(api.replay("mars", but(OD, stream="ENFO"))) == ["ENFO"]


def test_expver_default_on_reading(api: Client) -> None:
    api.publish("mars", MARS, "one")
    api.publish("mars", but(MARS, expver="2"), "two")
    assert payloads(api.replay("mars", but(OD, expver=""))) == ["one"]
