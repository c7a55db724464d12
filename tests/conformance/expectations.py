"""What several cases expect of an answer or a stream, in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.harness import EventStream, Response

__all__ = ["INR", "IRR", "IWR", "LABELS", "OPERATIONS", "REFUSALS", "UUID", "assert_refused", "payloads", "steps"]

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

INR = "INVALID_NOTIFICATION_REQUEST"
IWR = "INVALID_WATCH_REQUEST"
IRR = "INVALID_REPLAY_REQUEST"

OPERATIONS = ("notification", "watch", "replay")
REFUSALS = {"notification": INR, "watch": IWR, "replay": IRR}
LABELS = {
    "notification": "Invalid Notification Request",
    "watch": "Invalid Watch Request",
    "replay": "Invalid Replay Request",
}


def assert_refused(response: Response, code: str, *fragments: str, operation: str | None = None) -> dict[str, Any]:
    """The answer is a 400 of the common shape with this code; `message` has the fragments. Returns its body."""
    assert response.status == 400, (response.status, response.body)
    assert response.header("content-type") == "application/json"
    assert response.header("access-control-allow-origin") is None
    body: dict[str, Any] = response.json()
    errors = body.pop("errors", None)  # ours: all faults, if there is more than one
    assert errors is None or (len(errors) > 1 and errors[0]["message"] == body["message"])
    assert set(body) == {"code", "details", "error", "message", "request_id"}
    assert all(isinstance(value, str) for value in body.values())
    assert body["code"] == code, body
    assert body["request_id"] == response.header("x-request-id")
    assert UUID.fullmatch(body["request_id"])
    operation = operation or next((name for name, refusal in REFUSALS.items() if refusal == code), None)
    if operation is not None:
        assert body["error"] == LABELS[operation]
    for fragment in fragments:
        assert fragment in body["message"], body
    return body


def payloads(stream: EventStream) -> list[Any]:
    """The payloads delivered, in order."""
    return [event["data"]["payload"] for event in stream.notifications]


def steps(stream: EventStream) -> Sequence[int]:
    """The `step` of each notification delivered, in order."""
    return [int(event["data"]["identifier"]["step"]) for event in stream.notifications]
