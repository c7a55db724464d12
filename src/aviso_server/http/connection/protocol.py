"""One client's connection, below the application."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Any

from httptools import HttpParserInvalidMethodError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from aviso_server.http.connection.joined_writes import JoinedWrites
from aviso_server.http.request_id import new_request_id

__all__ = ["Connection", "answer"]

logger = logging.getLogger(__name__)

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_IGNORED = b"\r\nignored:"  # as long as the other, so that nothing moves
_MOST_HEAD_BYTES = 131_072
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r\n")


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP connection, with a request id on the answer to what is not HTTP at all, and deaf to upgrades.

    Some clients offer HTTP/2 with their first request. The parser would take its body for the other protocol.
    """

    _head_bytes = 0  # of a request whose headers are not complete
    _received = b""  # what came last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """A client is there."""
        joined = JoinedWrites(transport, self.loop)
        super().connection_made(joined)  # type: ignore[arg-type]  # it does what a transport does

    def data_received(self, data: bytes) -> None:
        """Take what the client sent; in the head of a request, an offer to speak another protocol is ignored."""
        before: RequestResponseCycle | None = self.cycle
        if before is None or before.response_complete:
            end = data.find(b"\r\n\r\n")
            if end > 0 and b"\r\nupgrade:" in data[:end].lower():
                data = _UPGRADE.sub(_IGNORED, data[:end]) + data[end:]
        self._received = data
        super().data_received(data)
        self._received = b""
        if not self.in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.refuse("431 Request Header Fields Too Large", f"The headers exceed {_MOST_HEAD_BYTES} bytes")

    @property
    def in_head(self) -> bool:
        """True while the headers of a request have begun and are not complete."""
        scope: object | None = self.scope
        cycle: RequestResponseCycle | None = self.cycle
        return scope is not None and (cycle is None or cycle.scope is not scope)

    def on_message_begin(self) -> None:
        """A request begins; whoever answers it may have to hang up on a client that does not read."""
        super().on_message_begin()
        scope: Any = self.scope
        scope["hang_up"] = self.transport.abort

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be read, and hang up; a method that nobody knows is on no route."""
        unknown = isinstance(sys.exception(), HttpParserInvalidMethodError) and _REQUEST_LINE.match(self._received)
        self.refuse("404 Not Found" if unknown else "400 Bad Request", "" if unknown else msg)

    def refuse(self, status: str, message: str) -> None:
        """Answer what never reached the application, unless another answer has begun, and hang up."""
        request_id = new_request_id()
        logger.warning(message or status, extra={"event": "api.request.malformed", "request_id": request_id})
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(answer(status, message, request_id))
        self.transport.close()


def answer(status: str, message: str, request_id: str) -> bytes:
    """The bytes of an answer in plain text that is given below the application; the connection ends with it."""
    body = message.encode()
    kind = "content-type: text/plain; charset=utf-8\r\n" if body else ""
    return (
        f"HTTP/1.1 {status}\r\n"
        f"x-request-id: {request_id}\r\n"
        f"{kind}content-length: {len(body)}\r\n"
        "connection: close\r\n"
        "\r\n"
    ).encode() + body
