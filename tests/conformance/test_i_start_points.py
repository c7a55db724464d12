"""I. Start points."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conformance.expectations import IRR, IWR, REFUSALS, assert_refused, payloads
from tests.conformance.samples import MARS
from tests.harness import Client
from tests.harness.client import body

OD = {"class": "od"}
NEEDS_START = "Replay endpoint requires either from_id or from_date"
NOT_BOTH = "Cannot specify both from_id and from_date"


def publish(api: Client, *texts: str) -> list[int]:
    """Publish and return the sequences that the notifications got."""
    for text in texts:
        api.publish("mars", MARS, text)
    events = api.replay("mars", OD).notifications[-len(texts) :]
    assert [event["data"]["payload"] for event in events] == list(texts)
    return [event["sequence"] for event in events]


def test_case_118_no_start(api: Client) -> None:
    refusal = assert_refused(api.answer("replay", body("mars", OD)), IRR)
    assert refusal["message"].startswith(NEEDS_START)


def test_case_119_both_starts(api: Client) -> None:
    for operation in ("replay", "watch"):
        request = body("mars", OD, from_id="1", from_date="2025-01-15T10:00:00Z")
        refusal = assert_refused(api.answer(operation, request), REFUSALS[operation])
        assert refusal["message"].startswith(NOT_BOTH)


def test_case_120_live_only(api: Client) -> None:
    with api.watch("mars", OD) as stream:
        frame = stream.next()
    assert (frame.event, frame.data["type"]) == ("live-notification", "connection_established")


def test_case_121_inclusive(api: Client) -> None:
    first, second, third = publish(api, "a", "b", "c")
    assert (second, third) == (first + 1, first + 2)
    assert payloads(api.replay("mars", OD, from_id=str(second))) == ["b", "c"]
    assert payloads(api.replay("mars", OD, from_id=str(third))) == ["c"]


def test_case_122_zero(api: Client) -> None:
    publish(api, "a", "b")
    stream = api.replay("mars", OD, from_id="0")
    assert payloads(stream) == ["a", "b"]
    assert stream.frames[0].data["from_sequence"] == 0
    assert stream.frames[0].data["from_date"] is None


@pytest.mark.parametrize("text", ["+1", "001", "1"])
def test_case_123_written_differently(api: Client, text: str) -> None:
    publish(api, "a", "b")
    stream = api.replay("mars", OD, from_id=text)
    assert payloads(stream) == ["a", "b"]
    assert stream.frames[0].data["from_sequence"] == 1


@pytest.mark.parametrize(
    "text",
    ["", "  ", " 1", "1 ", "1\n", "-1", "1.0", "1e3", "1_0", "abc", "mars@1", "+", "٣", "18446744073709551616"],
    ids=repr,
)
@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_case_124_bad_sequence(api: Client, operation: str, text: str) -> None:
    assert_refused(api.answer(operation, body("mars", OD, from_id=text)), REFUSALS[operation], "from_id")


def test_case_125_largest(api: Client) -> None:
    publish(api, "a")
    stream = api.replay("mars", OD, from_id="18446744073709551615")
    assert stream.kinds == ["replay_started", "replay_completed", "connection-closing"]
    assert stream.frames[0].data["from_sequence"] == 18446744073709551615


SEED_DATES = {
    "2025-01-15T10:00:00Z": "2025-01-15T10:00:00Z",
    "2025-01-15T10:00:00+02:00": "2025-01-15T08:00:00Z",
    "2025-01-15 10:00:00+00:00": "2025-01-15T10:00:00Z",
    "2025-01-15T10:00:00": "2025-01-15T10:00:00Z",
    "1740509903": "2025-02-25T18:58:23Z",
    "1740509903710": "2025-02-25T18:58:23Z",
}

MORE_DATES = {
    "2025-01-15 10:00:00": "2025-01-15T10:00:00Z",
    "2025-01-15T10:00:00.5Z": "2025-01-15T10:00:00Z",
    "2025-01-15T10:00:00.999999999Z": "2025-01-15T10:00:00Z",
    "2026-05-01T00:00:00.000000Z": "2026-05-01T00:00:00Z",
    "2025-01-15 10:00:00.123": "2025-01-15T10:00:00Z",
    "2025-01-15 10:00:00.25+01:00": "2025-01-15T09:00:00Z",
    "2025-01-15t10:00:00z": "2025-01-15T10:00:00Z",
    "2025-01-15T10:00:00-05:30": "2025-01-15T15:30:00Z",
    "2025-01-15 10:00:00 +00:00": "2025-01-15T10:00:00Z",
    "2025-01-15 10:00:00+0200": "2025-01-15T08:00:00Z",
    "2025-1-5 1:2:3": "2025-01-05T01:02:03Z",
    "+1740509903": "2025-02-25T18:58:23Z",
    "00000000001740509903": "2025-02-25T18:58:23Z",
    "10000000000": "2286-11-20T17:46:40Z",
    "946684800000": "2000-01-01T00:00:00Z",
    "  2025-01-15T10:00:00Z ": "2025-01-15T10:00:00Z",
    "0": "1970-01-01T00:00:00Z",
}


@pytest.mark.parametrize(("text", "echo"), SEED_DATES.items(), ids=SEED_DATES)
def test_case_126_dates_of_the_seed(api: Client, text: str, echo: str) -> None:
    with api.watch("mars", OD, from_date=text) as stream:
        started = stream.next().data
    assert started["type"] == "replay_started"
    assert started["from_date"] == echo
    assert started["from_sequence"] is None


@pytest.mark.parametrize(("text", "echo"), MORE_DATES.items(), ids=map(repr, MORE_DATES))
def test_case_127_more_dates(api: Client, text: str, echo: str) -> None:
    started = api.replay("mars", OD, from_date=text).frames[0].data
    assert started["from_date"] == echo
    assert started["from_sequence"] is None


def test_a_leap_second_is_accepted(api: Client) -> None:
    assert api.answer("replay", body("mars", OD, from_date="2016-12-31T23:59:60Z")).status == 200


BAD_DATES = [
    *["", "   ", "2025-06-09", "2025-06-09T13:15Z", "not-a-date", "-1", "2025-13-01T00:00:00Z"],
    *["9223372036854775807", "20250115T100000Z", "2025-01-15T10:00:00+0200", "2025-01-15T24:00:00Z", "1.5", "1e9"],
    *["2025-02-30T00:00:00Z", "2025-01-15T10:00:00Zulu", "2025-01-15T10:00:00 Europe/Berlin", "+-5", "now"],
]


@pytest.mark.parametrize("text", BAD_DATES, ids=repr)
@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_case_128_bad_dates(api: Client, operation: str, text: str) -> None:
    assert_refused(api.answer(operation, body("mars", OD, from_date=text)), REFUSALS[operation], "from_date")


ORDER = [
    ("from_id before from_date", OD, {"from_id": "x", "from_date": "y"}, "from_id"),
    ("point before from_id", {**OD, "point": "x"}, {"from_id": "y"}, "point"),
    ("from_id before a missing field", {}, {"from_id": "x"}, "from_id"),
    ("from_date before both given", OD, {"from_id": "1", "from_date": "y"}, "from_date"),
    ("both given before a missing field", {}, {"from_id": "1", "from_date": "0"}, NOT_BOTH),
    (
        "polygon and point before their syntax",
        {"polygon": "x", "point": "y"},
        {"from_id": "z"},
        "Cannot specify both identifier.polygon and identifier.point",
    ),
]


@pytest.mark.parametrize(("identifier", "start", "named"), [row[1:] for row in ORDER], ids=[row[0] for row in ORDER])
@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_case_129_order_of_checks(
    api: Client, operation: str, identifier: dict[str, Any], start: dict[str, str], named: str
) -> None:
    refusal = assert_refused(api.answer(operation, body("mars", identifier, **start)), REFUSALS[operation], named)
    assert "Required field" not in refusal["message"]


def test_case_129_missing_start_before_a_missing_field(api: Client) -> None:
    assert_refused(api.answer("replay", body("mars", {})), IRR, NEEDS_START)
    assert_refused(api.answer("watch", body("mars", {})), IWR, "Required field 'class'")


@pytest.mark.parametrize("form", ["microseconds", "offset"])
def test_case_130_from_date(api: Client, form: str) -> None:
    publish(api, "old")
    time.sleep(0.01)
    now = datetime.now(UTC)
    time.sleep(0.01)
    publish(api, "new")
    text = now.isoformat() if form == "microseconds" else (now + timedelta(hours=2)).isoformat().replace("+00", "+02")
    assert payloads(api.replay("mars", OD, from_date=text)) == ["new"]


def test_case_130_inclusive_at_full_precision(api: Client) -> None:
    publish(api, "a")
    time.sleep(0.002)
    publish(api, "b")
    stored = [event["time"] for event in api.replay("mars", OD).notifications]
    assert payloads(api.replay("mars", OD, from_date=stored[1])) == ["b"]
    assert payloads(api.replay("mars", OD, from_date=stored[0])) == ["a", "b"]


def test_case_131_future(api: Client) -> None:
    publish(api, "before")
    stream = api.replay("mars", OD, from_date="2100-01-01T00:00:00Z")
    assert stream.kinds == ["replay_started", "replay_completed", "connection-closing"]
    with api.watch("mars", OD, from_date="2100-01-01T00:00:00Z") as watch:
        watch.until("replay_completed")
        publish(api, "live")
        assert watch.notification()["data"]["payload"] == "live"
        assert watch.kinds == ["replay_started", "replay_completed", "notification"]


def test_case_132_beyond_the_end(api: Client) -> None:
    publish(api, "before")
    with api.watch("mars", OD, from_id="1000000") as watch:
        watch.until("replay_completed")
        (sequence,) = publish(api, "live")
        event = watch.notification()
    assert event["data"]["payload"] == "live"
    assert event["sequence"] == sequence < 1000000
    assert watch.kinds == ["replay_started", "replay_completed", "notification"]
    assert watch.frames[-1].event == "live-notification"
