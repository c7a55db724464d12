"""H. Topics."""

from __future__ import annotations

import pytest

from tests.conformance.expectations import payloads
from tests.conformance.samples import DISSEMINATION, MARS, SEED_A, but, without
from tests.harness import Client

OD = {"class": "od"}
RESERVED = ["1.45", "1*34", "1>0", "1%25"]
AWKWARD = [
    *["1.45*foo>bar%baz", "%", "%2", "%2G", "abc%ZZ", "%GG", "%2e", "%2E", ".", "..", "a.b", "**", "*.", "> ", ">"],
    *["%FF", "é", "a b", "/", "\\", "\x00", "%25", "%2525", "1%2E45", "1%2A34", "1%3E0", "1%2525", "1%"],
]


def publish(api: Client, values: list[str]) -> None:
    for value in values:
        api.publish("mars", but(MARS, stream=value), value)


@pytest.mark.parametrize("value", [*RESERVED, *AWKWARD])
def test_case_113_every_value_survives_the_codec(api: Client, value: str) -> None:
    publish(api, [value, "other"])
    (event,) = api.replay("mars", but(OD, stream=value)).notifications
    assert event["data"]["identifier"] == but(MARS, stream=value)
    assert event["data"]["payload"] == value


def test_case_114_reserved_characters(api: Client) -> None:
    publish(api, RESERVED)
    for value in RESERVED:
        (event,) = api.replay("mars", but(OD, stream=value)).notifications
        assert event["data"]["identifier"]["stream"] == value


def test_case_115_display_topic(api: Client) -> None:
    stream = api.replay("mars", but(OD, stream="1.45"))
    assert {frame.data["topic"] for frame in stream.frames} == {"mars.od.*.*.*.*.1.45.*"}
    stream = api.replay("dissemination", {"destination": "FOO", "class": "od", "target": "target.v1"})
    assert stream.frames[0].data["topic"] == "diss.FOO.target.v1.od.*.*.*.*.*.*"


def test_case_116_nothing_to_escape(api: Client) -> None:
    publish(api, ["1.45"])
    assert payloads(api.replay("mars", but(OD, stream="1%2E45"))) == []
    publish(api, ["1%2E45"])
    assert payloads(api.replay("mars", but(OD, stream="1%2E45"))) == ["1%2E45"]
    assert payloads(api.replay("mars", but(OD, stream="1.45"))) == ["1.45"]


def test_case_117_event_types_do_not_meet(api: Client) -> None:
    api.publish("extreme_event", SEED_A, "extreme_event")
    api.publish("extreme", without(SEED_A, "polygon"), "extreme")
    api.publish("mars", MARS, "mars")
    api.publish("dissemination", DISSEMINATION, "dissemination")
    assert payloads(api.replay("extreme", {})) == ["extreme"]
    given = {"region": "north", "run_time": "1200", "severity": "3"}
    assert payloads(api.replay("extreme_event", given)) == ["extreme_event"]
    assert payloads(api.replay("mars", OD)) == ["mars"]
    assert payloads(api.replay("dissemination", {"destination": "FOO", **OD})) == ["dissemination"]


def test_case_117_live(api: Client) -> None:
    with api.watch("extreme", {}) as stream:
        stream.until("connection_established")
        api.publish("extreme_event", SEED_A, "extreme_event")
        api.publish("extreme", without(SEED_A, "polygon"), "extreme")
        assert stream.notification()["data"]["payload"] == "extreme"
