"""B. Parsing: what is not a request at all, and in which order that is found out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.expectations import INR, IRR, IWR, OPERATIONS, assert_refused
from tests.conformance.samples import MARS
from tests.harness import Client
from tests.harness.client import body, encode

ALLOWED = ("event_type", "identifier", "from_id", "from_date", "payload", "to_id", "to_date")


def around(payload: str) -> bytes:
    """A mars notification with this JSON text as its payload."""
    return encode(body("mars", MARS))[:-1] + b', "payload": ' + payload.encode("utf-8", "surrogatepass") + b"}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_022_not_json(api: Client, operation: str) -> None:
    assert_refused(api.answer(operation, b"not-valid-json"), "INVALID_JSON", operation=operation)


def test_case_023_empty_body(api: Client) -> None:
    assert_refused(api.answer("notification", b""), "INVALID_JSON", operation="notification")


@pytest.mark.parametrize("text", ["{} x", "{}{}", "{},", '{"event_type":"mars","identifier":{},}', "{} // done"])
def test_case_024_trailing_data(api: Client, text: str) -> None:
    assert_refused(api.answer("notification", text.encode()), "INVALID_JSON")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[NaN]"])
def test_case_025_nan(api: Client, text: str) -> None:
    assert_refused(api.answer("notification", around(text)), "INVALID_JSON")


@pytest.mark.parametrize("text", ["1e400", "-1e400", '{"a":[1e400]}', "1" * 400])
def test_case_026_number_beyond_double(api: Client, text: str) -> None:
    assert_refused(api.answer("notification", around(text)), "INVALID_JSON")


def test_case_026_number_beyond_double_in_identifier(api: Client) -> None:
    request = encode(body("mars", MARS)).replace(b'"step": "1"', b'"step": 1e400')
    assert b"1e400" in request
    assert_refused(api.answer("notification", request), "INVALID_JSON")


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00\ud800"', r'{"\ud800":1}'])
def test_case_027_lone_surrogate(api: Client, text: str) -> None:
    assert_refused(api.answer("notification", around(text)), "INVALID_JSON")


def test_case_028_byte_order_mark(api: Client) -> None:
    assert_refused(api.answer("notification", b"\xef\xbb\xbf" + encode(body("mars", MARS))), "INVALID_JSON")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_only_utf_8_is_json(api: Client, encoding: str) -> None:
    request = json.dumps(body("mars", MARS, payload="é"), ensure_ascii=False).encode(encoding)
    assert_refused(api.answer("notification", request), "INVALID_JSON")


def test_case_029_nesting(api: Client) -> None:
    assert_refused(api.answer("notification", b"[" * 128 + b"]" * 128), "INVALID_JSON")
    assert_refused(api.answer("notification", b"[" * 127 + b"]" * 127), "INVALID_REQUEST_SHAPE")
    assert_refused(api.answer("notification", around("[" * 127 + "]" * 127)), "INVALID_JSON")
    assert_refused(api.answer("notification", b"[" * 100_000 + b"]" * 100_000), "INVALID_JSON")


def test_payloads_stay_readable_for_the_client(api: Client) -> None:
    """The client reads 127 levels per event, which leaves 125 for the payload."""
    assert api.answer("notification", around("[" * 125 + "]" * 125)).status == 200
    assert api.answer("notification", around("[" * 126 + "]" * 126)).status == 400
    (event,) = api.replay("mars", {"class": "od"}).notifications
    assert json.dumps(event["data"]["payload"]) == "[" * 125 + "]" * 125


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_030_label_of_the_endpoint(api: Client, operation: str) -> None:
    assert_refused(api.answer(operation, b"{"), "INVALID_JSON", operation=operation)
    assert_refused(api.answer(operation, b'{"foo":1}'), "UNKNOWN_FIELD", operation=operation)
    assert_refused(api.answer(operation, b"{}"), "INVALID_REQUEST_SHAPE", operation=operation)


def test_case_031_unknown_member(api: Client) -> None:
    assert_refused(
        api.answer("notification", {"event_type": "mars", "identifier": {}, "foo": 1}), "UNKNOWN_FIELD", "foo", *ALLOWED
    )


def test_case_032_first_unknown_member_in_the_alphabet(api: Client) -> None:
    request = {"event_type": "mars", "identifier": {}, "foo": 1, "bar": 2}
    refusal = assert_refused(api.answer("notification", request), "UNKNOWN_FIELD", "bar")
    assert "foo" not in refusal["message"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_033_point_at_top_level(api: Client, operation: str) -> None:
    request = {"event_type": "mars", "identifier": {"class": "od"}, "point": "1,2"}
    assert_refused(api.answer(operation, request), "UNKNOWN_FIELD", "point")


ONLY_REPLAY = "to_id and to_date are only supported for the replay endpoint, not /"


@pytest.mark.parametrize("member", [{"to_id": "1"}, {"to_date": "2025-01-15T10:00:00Z"}], ids=["to_id", "to_date"])
def test_case_034_end_point_is_known_to_replay_only(api: Client, member: dict[str, str]) -> None:
    identifier = {"class": "od"}
    assert_refused(api.answer("watch", body("mars", identifier, **member)), IWR, f"{ONLY_REPLAY}watch")
    assert_refused(api.answer("notification", body("mars", MARS, **member)), INR, f"{ONLY_REPLAY}notification")
    assert api.answer("replay", body("mars", identifier, from_id="1", **member)).status == 200


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_034_end_point_types(api: Client, operation: str) -> None:
    for member in ("to_id", "to_date"):
        request = {"event_type": "mars", "identifier": MARS, "from_id": "1", member: 1}
        assert_refused(api.answer(operation, request), "INVALID_REQUEST_SHAPE")
        assert api.answer(operation, {**request, member: None}).status == 200


def test_case_035_unknown_member_before_shape(api: Client) -> None:
    assert_refused(api.answer("notification", {"identifier": {}, "foo": 1}), "UNKNOWN_FIELD", "foo")


@pytest.mark.parametrize("request_text", ["5", '"x"', "null", "true", "[]", '["mars", {}]'])
def test_case_036_not_an_object(api: Client, request_text: str) -> None:
    assert_refused(api.answer("notification", request_text.encode()), "INVALID_REQUEST_SHAPE")


@pytest.mark.parametrize(
    "request_body",
    [
        {"identifier": {}},
        {"event_type": "mars"},
        {"event_type": 5, "identifier": {}},
        {"event_type": None, "identifier": {}},
        {"event_type": "mars", "identifier": []},
        {"event_type": "mars", "identifier": None},
        {"event_type": "mars", "identifier": "x"},
        {"event_type": "nope", "identifier": []},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_037_wrong_shape(api: Client, operation: str, request_body: dict[str, Any]) -> None:
    assert_refused(api.answer(operation, request_body), "INVALID_REQUEST_SHAPE", operation=operation)


@pytest.mark.parametrize("start", [{"from_id": 1}, {"from_date": 1740509903}, {"from_id": True}, {"from_date": []}])
def test_case_038_start_point_types(api: Client, start: dict[str, Any]) -> None:
    refusal = assert_refused(api.answer("replay", body("mars", {"class": "od"}, **start)), "INVALID_REQUEST_SHAPE")
    assert ('such as "42"' if "from_id" in start else 'such as "2025-01-15T10:00:00Z"') in refusal["message"]


def test_case_039_start_point_on_notify(api: Client) -> None:
    assert_refused(api.answer("notification", body("mars", MARS, from_id=1)), "INVALID_REQUEST_SHAPE")
    assert api.answer("notification", body("mars", MARS, from_id="garbage", from_date="x")).status == 200


def test_case_040_null_start_points_are_absent(api: Client) -> None:
    request = body("mars", {"class": "od"}, from_id=None, from_date=None)
    assert_refused(api.answer("replay", request), IRR, "Replay endpoint requires either from_id or from_date")
    assert b'"type":"connection_established"' in api.answer("watch", request).body


def test_case_041_payload_on_watch(api: Client) -> None:
    for operation in ("watch", "replay"):
        assert api.answer(operation, body("mars", {"class": "od"}, from_id="1", payload={"x": 1})).status == 200


def test_case_042_last_duplicate_wins(api: Client) -> None:
    text = encode(body("mars", MARS))[1:]
    assert api.answer("notification", b'{"event_type":"nope",' + text).status == 200
    response = api.answer("notification", b"{" + text[:-1] + b',"event_type":"nope"}')
    assert response.json()["code"] == "UNKNOWN_EVENT_TYPE"


def test_integers_beyond_64_bits_become_floats(api: Client) -> None:
    assert api.answer("notification", around("[18446744073709551615, 18446744073709551616]")).status == 200
    stream = api.replay("mars", {"class": "od"})
    (event,) = stream.notifications
    largest, beyond = event["data"]["payload"]
    assert (largest, type(largest)) == (18446744073709551615, int)
    assert (beyond, type(beyond)) == (18446744073709551616.0, float)
