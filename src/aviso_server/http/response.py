"""Responses: whole ones as small values, streams as a function that writes them, and every error in one table.

`http_error` turns a RequestError of the model into the HttpError of an endpoint. Unknown paths get an empty 404, and
400 (unreadable encoding), 408, 413, 414, 415, 431 and 501 are plain text without a code.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aviso_server.delivery.clients import Send
from aviso_server.errors import (
    InvalidRequest,
    KeyInDoubt,
    KeyRefused,
    KeyReused,
    MalformedRequest,
    RequestError,
    UnknownEventType,
)

if TYPE_CHECKING:
    from aviso_server.http.request import Request

__all__ = [
    "ERRORS",
    "HTML",
    "JSON",
    "NOTIFY",
    "REPLAY",
    "SUBSCRIPTION",
    "WATCH",
    "Answer",
    "BatchFault",
    "Count",
    "Endpoint",
    "ErrorBody",
    "ErrorKind",
    "Headers",
    "HttpError",
    "Processed",
    "RequestId",
    "Response",
    "StreamingResponse",
    "forbidden",
    "http_error",
    "log_http_error",
    "unavailable",
]

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"

Count = Annotated[int, Meta(ge=0)]
RequestId = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Processed = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]


_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON body of ours: what a handler returns and what the OpenAPI document describes."""


class Response(msgspec.Struct, frozen=True):
    """A whole answer; without a content type it has no body."""

    status: int = 200
    body: bytes = b""
    content_type: bytes | None = None
    headers: Headers = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers = ()) -> Response:
        """Build a JSON answer."""
        return cls(status, _encode(value), JSON, headers)

    @classmethod
    def text(cls, text: str, status: int = 200, headers: Headers = ()) -> Response:
        """Build an answer in plain text."""
        return cls(status, text.encode(), TEXT, headers)

    async def send(self, send: Send, request_id: str) -> None:
        """Send head and body."""
        kind = () if self.content_type is None else ((b"content-type", self.content_type),)
        length = b"%d" % len(self.body)
        head = [(b"x-request-id", request_id.encode()), *kind, (b"content-length", length), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.body})


class StreamingResponse(msgspec.Struct, frozen=True):
    """An answer that `write` produces: it calls its argument to send the head, then writes to the client itself."""

    headers: Headers
    write: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]

    async def send(self, send: Send, request_id: str) -> None:
        """Run the stream to its end."""
        head = [(b"x-request-id", request_id.encode()), *self.headers]
        await self.write(lambda: send({"type": "http.response.start", "status": 200, "headers": head}))


class ErrorKind(msgspec.Struct, frozen=True):
    """One error code; without a label it has that of the endpoint."""

    code: str
    status: int
    label: str | None
    when: str


_INVALID = "A field, an area, a start or an end is not acceptable; `message` names it and says what is accepted."

# A table reads best with its own line breaks.
# fmt: off
ERRORS = {code: ErrorKind(code, status, label, when) for code, status, label, when in (
    ("INVALID_JSON", 400, None, "The body is not JSON."),
    ("UNKNOWN_FIELD", 400, None, "The body has a member that no request has."),
    ("INVALID_REQUEST_SHAPE", 400, None, "A member is missing or has the wrong JSON type."),
    ("UNKNOWN_EVENT_TYPE", 400, "unknown_event_type", "The event type is not configured; the server is strict."),
    ("INVALID_NOTIFICATION_REQUEST", 400, None, _INVALID),
    ("INVALID_WATCH_REQUEST", 400, None, _INVALID),
    ("INVALID_REPLAY_REQUEST", 400, None, _INVALID),
    ("INVALID_SUBSCRIPTION_REQUEST", 400, None, _INVALID),
    ("BATCH_REFUSED", 400, None,
     "All or nothing was asked for, and not all can be accepted; `faults` lists the first hundred that cannot."),
    ("INVALID_INSIGHT_REQUEST", 400, "Invalid Insight Request",
     "A parameter is not acceptable; `message` names it and says what is accepted."),
    ("UNAUTHORIZED", 401, "unauthorized", "Credentials are missing or wrong."),
    ("FORBIDDEN", 403, "forbidden",
     ("The credentials do not allow this, or a browser sent it for a page of another site or under an unknown host "
      "name.")),
    ("INSIGHT_NOT_FOUND", 404, "not_found", "There is nothing of that name, or not yet; `message` says which."),
    ("SUBSCRIPTION_NOT_FOUND", 404, "not_found",
     "There is no subscription of that name or id, or it belongs to somebody else."),
    ("TOO_MANY_SUBSCRIPTIONS", 403, "forbidden",
     "The caller, or the server, has as many subscriptions as it may; `message` says which limit it is."),
    ("SUBSCRIPTION_EXISTS", 409, "conflict", "The caller has a subscription of that name already."),
    ("IDEMPOTENCY_KEY_IN_DOUBT", 409, None,
     "An earlier publish under this key was interrupted, and it is unknown whether it was stored."),
    ("IDEMPOTENCY_KEY_REUSED", 422, None, "The idempotency key was used for other content before; nothing was stored."),
    ("TOO_MANY_REQUESTS", 429, "too_many_requests",
     "This client asks too often or has too many connections; `Retry-After` says when to try again."),
    ("NOTIFICATION_PROCESSING_FAILED", 500, "Notification Processing Failed",
     "Known from other servers of this protocol; this one says INVALID_NOTIFICATION_REQUEST instead."),
    ("NOTIFICATION_STORAGE_FAILED", 500, "Notification Storage Failed",
     "The notification could not be stored; it was not published."),
    ("SSE_STREAM_INITIALIZATION_FAILED", 500, "SSE stream creation failed", "The stream could not be opened."),
    ("INTERNAL_ERROR", 500, "internal_error", "The server could not handle the request."),
    ("SERVICE_UNAVAILABLE", 503, "service_unavailable",
     "The server is too busy, or a service it asks about credentials does not answer."),
)}
# fmt: on
"""All kinds of errors by code."""


class Endpoint(msgspec.Struct, frozen=True):
    """The label and the code of an endpoint's errors."""

    label: str
    invalid: str


NOTIFY = Endpoint("Invalid Notification Request", "INVALID_NOTIFICATION_REQUEST")
WATCH = Endpoint("Invalid Watch Request", "INVALID_WATCH_REQUEST")
SUBSCRIPTION = Endpoint("Invalid Subscription Request", "INVALID_SUBSCRIPTION_REQUEST")
REPLAY = Endpoint("Invalid Replay Request", "INVALID_REPLAY_REQUEST")


class BatchFault(Answer, frozen=True):
    """Why a notification of a batch was refused."""

    index: Count
    code: str
    field: str | None
    message: str


class RequestFault(Answer, frozen=True):
    """One thing wrong with a request."""

    field: str | None
    message: str


class ErrorBody(Answer, frozen=True, kw_only=True):
    """The body of an error, in the order of its members' names."""

    code: str
    configured_event_types: list[str] | UnsetType = UNSET
    details: str | UnsetType = UNSET
    error: str
    errors: list[RequestFault] | UnsetType = UNSET
    faults: list[BatchFault] | UnsetType = UNSET
    message: str
    request_id: RequestId
    topic: str | UnsetType = UNSET


class HttpError(Exception):
    """An answer other than success, in plain text unless it has a code."""

    code: str | None = None
    label = ""
    limit: str | None = None  # the limit that was reached, if it was one

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.headers = headers
        self.more: dict[str, Any] = {}

    @classmethod
    def of(cls, code: str, message: str, label: str = "", headers: Headers = (), **more: Any) -> HttpError:
        """Build the error with this code; `more` are further members of ErrorBody."""
        kind = ERRORS[code]
        error = cls(kind.status, message, headers)
        error.code, error.label, error.more = code, kind.label or label, more
        return error

    def response(self, request_id: str) -> Response:
        """Build the answer."""
        if self.code is None:
            return Response.text(self.message, self.status, self.headers)
        body = ErrorBody(code=self.code, error=self.label, message=self.message, request_id=request_id, **self.more)
        return Response.json(body, self.status, self.headers)


def forbidden(message: str) -> HttpError:
    """Build the 403 for credentials that are fine but do not allow this."""
    return HttpError.of("FORBIDDEN", message)


def unavailable(message: str, seconds: int = 5) -> HttpError:
    """Build the 503 that asks the client to try again after so many seconds."""
    return HttpError.of("SERVICE_UNAVAILABLE", message, headers=[(b"retry-after", b"%d" % seconds)])


_KEY_CODES: dict[type[KeyRefused], str] = {KeyReused: "IDEMPOTENCY_KEY_REUSED", KeyInDoubt: "IDEMPOTENCY_KEY_IN_DOUBT"}


_MOST_FAULTS = 100


def http_error(error: RequestError, endpoint: Endpoint, faults: Iterable[InvalidRequest] = ()) -> HttpError:
    """Build the HTTP error for a request error of an endpoint; `faults` are all that is wrong with the request."""
    if isinstance(error, UnknownEventType):
        return HttpError.of("UNKNOWN_EVENT_TYPE", error.message, configured_event_types=error.configured)
    if isinstance(error, KeyRefused):
        code = _KEY_CODES[type(error)]
    else:
        assert isinstance(error, MalformedRequest | InvalidRequest)
        code = error.code if isinstance(error, MalformedRequest) else endpoint.invalid
    listed = {
        RequestFault(each.field, each.message): None for each in islice(chain((error,), faults), _MOST_FAULTS + 1)
    }
    errors = list(listed)[:_MOST_FAULTS] if len(listed) > 1 else UNSET  # one alone is what `message` says
    return HttpError.of(code, error.message, endpoint.label, details=error.details, errors=errors)


_UNREADABLE = frozenset({"INVALID_JSON", "UNKNOWN_FIELD", "INVALID_REQUEST_SHAPE"})


def log_http_error(error: HttpError, request: Request) -> None:
    """Log why a request was refused; authorization and failures are logged where they are found."""
    if error.limit is not None or error.status == 413:
        event = "api.request.limit.reached"
    elif error.status != 400:
        return
    elif error.code in _UNREADABLE:
        event = "api.request.parse.failed"
    else:
        event = "api.request.validation.failed"
    logger.warning(
        "request refused: %s",
        error.message,
        extra={
            "event": event,
            "request_id": request.id,
            "route": request.scope.get("route"),
            "status": error.status,
            "limit": error.limit,
            "error.type": error.code,
        },
    )
