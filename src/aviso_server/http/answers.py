"""Answers as bytes: status, headers, JSON bodies and the contract's error bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from aviso_server.delivery.outlet import Send
from aviso_server.errors import (
    InvalidRequest,
    KeyInDoubt,
    KeyRefused,
    KeyReused,
    MalformedRequest,
    RequestError,
    UnknownEventType,
)

__all__ = [
    "ENDPOINTS",
    "JSON",
    "Endpoint",
    "Refusal",
    "empty",
    "error_members",
    "json_answer",
    "refusal_of",
    "respond",
    "text_answer",
]

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class Endpoint(msgspec.Struct, frozen=True):
    """What the errors of an endpoint are called."""

    operation: str
    label: str
    invalid: str


ENDPOINTS = {
    "notification": Endpoint("notify", "Invalid Notification Request", "INVALID_NOTIFICATION_REQUEST"),
    "notifications": Endpoint("notify", "Invalid Notification Request", "INVALID_NOTIFICATION_REQUEST"),
    "watch": Endpoint("watch", "Invalid Watch Request", "INVALID_WATCH_REQUEST"),
    "replay": Endpoint("replay", "Invalid Replay Request", "INVALID_REPLAY_REQUEST"),
    "explain": Endpoint("watch", "Invalid Watch Request", "INVALID_WATCH_REQUEST"),
}


_KEYS: dict[type[KeyRefused], tuple[int, str]] = {
    KeyReused: (422, "IDEMPOTENCY_KEY_REUSED"),
    KeyInDoubt: (409, "IDEMPOTENCY_KEY_IN_DOUBT"),
}


class Refusal(Exception):
    """An answer other than success, ready to be sent."""

    def __init__(self, status: int, members: dict[str, Any] | str, headers: Headers | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.members = members
        self.headers = headers or []
        self.limit: str | None = None  # the limit that was reached, if it was one

    @classmethod
    def error(cls, status: int, code: str, error: str, message: str, **more: Any) -> Refusal:
        """An error body of the contract; `request_id` is added when it is sent."""
        return cls(status, {"code": code, "error": error, "message": message, **more})


def error_members(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The members of an error body, in the order in which they are sent."""
    assert isinstance(refusal.members, dict)
    return dict(sorted({**refusal.members, "request_id": request_id}.items()))


def refusal_of(error: RequestError, endpoint: Endpoint) -> Refusal:
    """What a request error looks like on an endpoint."""
    if isinstance(error, UnknownEventType):
        return Refusal.error(
            400, "UNKNOWN_EVENT_TYPE", "unknown_event_type", error.message, configured_event_types=error.configured
        )
    if isinstance(error, KeyRefused):
        status, code = _KEYS[type(error)]
        return Refusal.error(status, code, endpoint.label, error.message, details=error.details)
    code = error.code if isinstance(error, MalformedRequest) else endpoint.invalid
    assert isinstance(error, MalformedRequest | InvalidRequest)
    return Refusal.error(400, code, endpoint.label, error.message, details=error.details)


async def respond(
    send: Send, status: int, content_type: tuple[bytes, bytes], body: bytes, request_id: str, headers: Headers
) -> None:
    """Send a whole answer."""
    length = (b"content-length", b"%d" % len(body))
    start = [(b"x-request-id", request_id.encode()), content_type, length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def json_answer(send: Send, status: int, members: Any, request_id: str, headers: Headers | None = None) -> None:
    """Send members as JSON."""
    await respond(send, status, JSON, msgspec.json.encode(members), request_id, headers or [])


async def text_answer(send: Send, status: int, text: str, request_id: str, headers: Headers | None = None) -> None:
    """Send plain text."""
    await respond(send, status, _TEXT, text.encode(), request_id, headers or [])


async def empty(send: Send, status: int, request_id: str) -> None:
    """Send a status and nothing else."""
    headers = [(b"x-request-id", request_id.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
