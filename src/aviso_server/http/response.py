"""Responses: whole ones as small values, streams as a function that writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aviso_server.delivery.clients import Send

__all__ = [
    "HTML",
    "JSON",
    "Answer",
    "Count",
    "Headers",
    "Processed",
    "RequestId",
    "Response",
    "StreamingResponse",
]

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
