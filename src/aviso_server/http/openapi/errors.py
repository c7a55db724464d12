"""The error codes in the OpenAPI document: which there are, when they come and how their bodies look."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aviso_server.http.answers import ENDPOINTS
from aviso_server.http.openapi.streams import REQUEST_ID

__all__ = ["KINDS", "ErrorKind", "error_content", "error_statuses"]

Shape = Literal["details", "topic", "plain", "event_types", "faults"]

_MEMBERS: dict[Shape, tuple[str, ...]] = {
    "details": ("code", "error", "message", "details", "request_id"),
    "topic": ("code", "error", "message", "details", "topic", "request_id"),
    "plain": ("code", "error", "message", "request_id"),
    "faults": ("code", "error", "message", "details", "faults", "request_id"),
    "event_types": ("code", "error", "message", "configured_event_types", "request_id"),
}
_POSTS = frozenset(ENDPOINTS)
_PUBLISHES = frozenset({"notification", "notifications"})
_GUARDED = _POSTS | {"admin", "auth", "insight"}


class ErrorKind(msgspec.Struct, frozen=True):
    """One error code: its status, its label (None: the endpoint's own), its members and when it comes."""

    code: str
    status: int
    error: str | None
    shape: Shape
    endpoints: frozenset[str] | None  # None: all of them
    when: str


KINDS = (
    ErrorKind("INVALID_JSON", 400, None, "details", _POSTS, "The body is not JSON."),
    ErrorKind("UNKNOWN_FIELD", 400, None, "details", _POSTS, "The body has a member that no request has."),
    ErrorKind("INVALID_REQUEST_SHAPE", 400, None, "details", _POSTS, "A member is missing or has the wrong JSON type."),
    ErrorKind(
        "UNKNOWN_EVENT_TYPE",
        400,
        "unknown_event_type",
        "event_types",
        _POSTS,
        "The event type is not configured and the server is strict about it.",
    ),
    *(
        ErrorKind(
            endpoint.invalid,
            400,
            None,
            "details",
            frozenset({name}),
            "A field, an area, a start or an end is not acceptable; `message` names it and says what is accepted.",
        )
        for name, endpoint in ENDPOINTS.items()
    ),
    ErrorKind(
        "BATCH_REFUSED",
        400,
        None,
        "faults",
        frozenset({"notifications"}),
        "All or nothing was asked for, and not all can be accepted; `faults` lists the first hundred that cannot.",
    ),
    ErrorKind(
        "INVALID_INSIGHT_REQUEST",
        400,
        "Invalid Insight Request",
        "details",
        frozenset({"insight"}),
        "A parameter is not acceptable; `message` names it and says what is accepted.",
    ),
    ErrorKind(
        "INSIGHT_NOT_FOUND",
        404,
        "not_found",
        "plain",
        frozenset({"insight"}),
        "There is nothing of that name, or nothing yet; `message` says which.",
    ),
    ErrorKind(
        "IDEMPOTENCY_KEY_IN_DOUBT",
        409,
        None,
        "details",
        _PUBLISHES,
        "An earlier publish under this key was interrupted, and nobody can tell any more whether it was stored.",
    ),
    ErrorKind(
        "IDEMPOTENCY_KEY_REUSED",
        422,
        None,
        "details",
        _PUBLISHES,
        "The idempotency key was used for other content before; nothing was stored.",
    ),
    ErrorKind("UNAUTHORIZED", 401, "unauthorized", "plain", _GUARDED, "Credentials are missing or wrong."),
    ErrorKind("FORBIDDEN", 403, "forbidden", "plain", _GUARDED, "The credentials do not allow this."),
    ErrorKind(
        "TOO_MANY_REQUESTS",
        429,
        "too_many_requests",
        "plain",
        None,
        "This client asks too often or has too many connections; `Retry-After` says when to try again.",
    ),
    ErrorKind(
        "NOTIFICATION_PROCESSING_FAILED",
        500,
        "Notification Processing Failed",
        "details",
        frozenset({"notification"}),
        "Known from other servers of this protocol; this one says INVALID_NOTIFICATION_REQUEST instead.",
    ),
    ErrorKind(
        "NOTIFICATION_STORAGE_FAILED",
        500,
        "Notification Storage Failed",
        "details",
        _PUBLISHES,
        "The notification could not be stored; it was not published.",
    ),
    ErrorKind(
        "SSE_STREAM_INITIALIZATION_FAILED",
        500,
        "SSE stream creation failed",
        "topic",
        frozenset({"watch", "replay"}),
        "The stream could not be opened.",
    ),
    ErrorKind("INTERNAL_ERROR", 500, "internal_error", "plain", None, "The server could not handle the request."),
    ErrorKind(
        "SERVICE_UNAVAILABLE",
        503,
        "service_unavailable",
        "plain",
        None,
        "The server is too busy, or a service it asks about credentials does not answer.",
    ),
)


_FAULT = {
    "type": "object",
    "properties": {
        "index": {"type": "integer", "minimum": 0, "description": "The place in the batch, from 0 on."},
        "code": {"type": "string"},
        "field": {"type": ["string", "null"]},
        "message": {"type": "string"},
    },
    "required": ["index", "code", "field", "message"],
    "additionalProperties": False,
}


def error_statuses(endpoint: str) -> list[int]:
    """The statuses of an endpoint that come with an error code."""
    return sorted({kind.status for kind in _kinds(endpoint)})


def error_content(endpoint: str, status: int) -> tuple[str, dict[str, Any]]:
    """What a status means on an endpoint, and the schema and examples of its JSON body."""
    kinds = [kind for kind in _kinds(endpoint) if kind.status == status]
    schemas = [_schema(kind, endpoint) for kind in kinds]
    examples = {kind.code: {"description": kind.when, "value": _example(kind, endpoint)} for kind in kinds}
    words = "\n".join(f"* `{kind.code}`: {kind.when}" for kind in kinds)
    return words, {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, "examples": examples}


def _kinds(endpoint: str) -> list[ErrorKind]:
    return [kind for kind in KINDS if kind.endpoints is None or endpoint in kind.endpoints]


def _label(kind: ErrorKind, endpoint: str) -> str:
    return ENDPOINTS[endpoint].label if kind.error is None else kind.error


def _schema(kind: ErrorKind, endpoint: str) -> dict[str, Any]:
    texts: dict[str, Any] = {
        "code": {"const": kind.code},
        "error": {"const": _label(kind, endpoint)},
        "message": {"type": "string", "description": "What is wrong, for people."},
        "details": {"type": "string", "description": "The innermost reason."},
        "topic": {"type": "string"},
        "configured_event_types": {"type": "array", "items": {"type": "string"}},
        "faults": {"type": "array", "items": _FAULT},
        "request_id": {"type": "string", "format": "uuid", "description": "The same as the header X-Request-ID."},
    }
    members = _MEMBERS[kind.shape]
    return {
        "type": "object",
        "description": kind.when,
        "properties": {member: texts[member] for member in members},
        "required": list(members),
        "additionalProperties": False,
    }


def _example(kind: ErrorKind, endpoint: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "code": kind.code,
        "error": _label(kind, endpoint),
        "message": kind.when,
        "details": kind.when,
        "topic": "mars.*",
        "configured_event_types": ["mars"],
        "faults": [{"index": 3, "code": "UNKNOWN_EVENT_TYPE", "field": "event_type", "message": "unknown event type"}],
        "request_id": REQUEST_ID,
    }
    return {member: values[member] for member in _MEMBERS[kind.shape]}
