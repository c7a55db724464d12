"""M. Admin, without authentication."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.expectations import UUID, payloads
from tests.conformance.samples import DISSEMINATION, EVENT_TYPES, MARS, POLYGON, P
from tests.harness import Client, Response
from tests.harness.client import JSON

OD = {"class": "od"}
FOO = {"class": "od", "destination": "FOO"}
NOTIFICATION = "/api/v1/admin/notification"
WIPE_STREAM = "/api/v1/admin/wipe/stream"
WIPE_ALL = "/api/v1/admin/wipe/all"


def publish(api: Client, event_type: str = "mars", payload: Any = "x") -> int:
    """Publish and return the sequence."""
    identifier, reader = {"mars": (MARS, OD), "dissemination": (DISSEMINATION, FOO)}[event_type]
    api.publish(event_type, identifier, payload)
    sequence: int = api.replay(event_type, reader).notifications[-1]["sequence"]
    return sequence


def assert_answer(response: Response, status: int, notification_id: str | None = None) -> str:
    """The common shape of admin answers. Returns the message."""
    assert response.status == status, response.body
    assert response.header("content-type") == "application/json"
    answer = response.json()
    expected = ["success", "message", "request_id"]
    if notification_id is not None:
        expected.insert(2, "notification_id")
        assert answer["notification_id"] == notification_id
    assert list(answer) == expected
    assert answer["success"] is (status == 200)
    assert answer["request_id"] == response.header("x-request-id")
    assert UUID.fullmatch(answer["request_id"])
    message: str = answer["message"]
    return message


def test_case_177_not_an_id(api: Client) -> None:
    message = assert_answer(api.delete(f"{NOTIFICATION}/not-a-valid-id"), 400, "not-a-valid-id")
    assert "must be in" in message
    assert "'<stream>@<sequence>' format" in message


@pytest.mark.parametrize(
    "text",
    ["mars@0", "mars@abc", "@5", "mars@", "a@b@3", "mars@-1", "mars@1.0", "mars@18446744073709551616", "@", "mars"],
)
def test_case_178_bad_id(api: Client, text: str) -> None:
    assert_answer(api.delete(f"{NOTIFICATION}/{text}"), 400, text)


def test_case_178_three_reasons(api: Client) -> None:
    ids = ("mars", "mars@abc", "mars@0")
    messages = {assert_answer(api.delete(f"{NOTIFICATION}/{text}"), 400, text) for text in ids}
    assert len(messages) == 3


@pytest.mark.parametrize("text", ["test_polygon@999999999", "nope@1", "mars@18446744073709551615"])
def test_case_179_not_there(api: Client, text: str) -> None:
    assert "Notification not found" in assert_answer(api.delete(f"{NOTIFICATION}/{text}"), 404, text)


def test_case_180_delete(api: Client) -> None:
    api.publish("test_polygon", POLYGON, "x")
    (event,) = api.replay("test_polygon", {"polygon": P}).notifications
    assert_answer(api.delete(f"{NOTIFICATION}/{event['id']}"), 200, event["id"])
    assert api.replay("test_polygon", {"polygon": P}).notifications == []
    assert_answer(api.delete(f"{NOTIFICATION}/{event['id']}"), 404, event["id"])


def test_case_180_only_that_one(api: Client) -> None:
    first, second, third = (publish(api, payload=number) for number in (1, 2, 3))
    assert_answer(api.delete(f"{NOTIFICATION}/mars@{second}"), 200, f"mars@{second}")
    assert payloads(api.replay("mars", OD)) == [1, 3]
    assert payloads(api.replay("mars", OD, from_id=str(second))) == [3]
    assert publish(api, payload=4) == third + 1 == first + 3


@pytest.mark.parametrize("name", ["diss", "dissemination", "DISSEMINATION", "Diss"])
def test_case_181_names_of_a_stream(api: Client, name: str) -> None:
    text = f"{name}@{publish(api, 'dissemination')}"
    assert_answer(api.delete(f"{NOTIFICATION}/{text}"), 200, text)
    assert api.replay("dissemination", FOO).notifications == []


def test_case_182_another_event_type(api: Client) -> None:
    last = publish(api)
    sequence = publish(api, "dissemination")
    while sequence <= last:
        sequence = publish(api, "dissemination")
    assert_answer(api.delete(f"{NOTIFICATION}/mars@{sequence}"), 404, f"mars@{sequence}")
    assert api.replay("dissemination", FOO).notifications[-1]["sequence"] == sequence


def test_case_183_encoded_path(api: Client) -> None:
    sequence = publish(api)
    assert_answer(api.delete(f"{NOTIFICATION}/mars%40{sequence}"), 200, f"mars@{sequence}")
    sequence = publish(api)
    assert_answer(api.delete(f"{NOTIFICATION}/mars@%2B{sequence}"), 200, f"mars@+{sequence}")
    sequence = publish(api)
    response = api.delete(f"{NOTIFICATION}/%20mars@{sequence}%20")
    assert response.status == 200
    assert api.replay("mars", OD).notifications == []


def test_case_184_wipe_stream(api: Client) -> None:
    sequence = publish(api)
    publish(api, "dissemination")
    assert "MARS" in assert_answer(api.delete(WIPE_STREAM, {"stream_name": "MARS"}), 200)
    assert api.replay("mars", OD).notifications == []
    assert len(api.replay("dissemination", FOO).notifications) == 1
    assert publish(api) == sequence + 1


def test_case_185_unknown_stream(api: Client) -> None:
    publish(api)
    message = assert_answer(api.delete(WIPE_STREAM, {"stream_name": "nope"}), 404)
    assert "Stream not found: nope" in message
    assert ", ".join(EVENT_TYPES) in message
    assert len(api.replay("mars", OD).notifications) == 1


def test_a_configured_stream_may_be_empty(api: Client) -> None:
    assert_answer(api.delete(WIPE_STREAM, {"stream_name": "extreme"}), 200)


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        (b"{}", "application/json"),
        (b'{"stream_name":5}', "application/json"),
        (b'{"stream_name":null}', "application/json"),
        (b"[]", "application/json"),
        (b"not json", "application/json"),
        (b"", "application/json"),
        (b'{"stream_name":"mars"}', "text/plain"),
        (b'{"stream_name":"mars"}', None),
    ],
)
def test_case_186_bad_body(api: Client, text: bytes, content_type: str | None) -> None:
    publish(api)
    headers = [] if content_type is None else [("Content-Type", content_type)]
    response = api.request("DELETE", WIPE_STREAM, text, headers)
    assert response.status == 400
    assert response.header("content-type") == "text/plain; charset=utf-8"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert len(api.replay("mars", OD).notifications) == 1


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.aviso+json"])
def test_case_186_good_body(api: Client, content_type: str) -> None:
    text = b'{"stream_name":"mars","extra":[1]}'
    assert_answer(api.request("DELETE", WIPE_STREAM, text, [("Content-Type", content_type)]), 200)


def test_case_187_wipe_all(api: Client) -> None:
    mars, dissemination = publish(api), publish(api, "dissemination")
    assert_answer(api.delete(WIPE_ALL), 200)
    assert api.replay("mars", OD).notifications == []
    assert api.replay("dissemination", FOO).notifications == []
    assert (publish(api), publish(api, "dissemination")) == (mars + 1, dissemination + 1)


@pytest.mark.parametrize("wipe", ["stream", "all"])
def test_case_188_open_watch_survives(api: Client, wipe: str) -> None:
    with api.watch("mars", OD) as stream:
        publish(api, payload="before")
        assert stream.notification()["data"]["payload"] == "before"
        response = api.delete(WIPE_ALL) if wipe == "all" else api.delete(WIPE_STREAM, {"stream_name": "mars"})
        assert_answer(response, 200)
        publish(api, payload="after")
        assert stream.notification()["data"]["payload"] == "after"


@pytest.mark.parametrize("path", [f"{NOTIFICATION}/mars@1", WIPE_STREAM, WIPE_ALL, NOTIFICATION])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_case_189_other_methods(api: Client, method: str, path: str) -> None:
    response = api.request(method, path, b"{}" if method == "POST" else None)
    assert (response.status, response.body) == (404, b"")


def test_body_limit_of_wipe(api: Client) -> None:
    text = b'{"stream_name":"mars","x":"' + b"x" * (2_097_152 - 29) + b'"}'
    assert len(text) == 2_097_152
    assert api.request("DELETE", WIPE_STREAM, text, JSON).status == 200
    response = api.request("DELETE", WIPE_STREAM, text[:-2] + b'x"}', JSON)
    assert response.status == 413
    assert response.header("content-type") == "text/plain; charset=utf-8"
