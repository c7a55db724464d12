"""One client's connection, below the application."""

from __future__ import annotations

import logging
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from aviso_server.http.request_id import new_request_id

__all__ = ["Connection"]

logger = logging.getLogger(__name__)

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_IGNORED = b"\r\nignored:"  # as long as the other, so that nothing moves


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP connection, with a request id on the answer to what is not HTTP at all, and deaf to upgrades.

    Some clients offer HTTP/2 with their first request. The parser would take its body for the other protocol.
    """

    def data_received(self, data: bytes) -> None:
        """Take what the client sent; in the head of a request, an offer to speak another protocol is ignored."""
        before: RequestResponseCycle | None = self.cycle
        if before is None or before.response_complete:
            end = data.find(b"\r\n\r\n")
            if end > 0 and _UPGRADE.search(data, 0, end):
                data = _UPGRADE.sub(_IGNORED, data[:end]) + data[end:]
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be read, and hang up."""
        body, request_id = msg.encode(), new_request_id()
        logger.warning(msg, extra={"event": "api.request.malformed", "request_id": request_id})
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n"
            b"x-request-id: " + request_id.encode() + b"\r\n"
            b"content-type: text/plain; charset=utf-8\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n"
            b"connection: close\r\n"
            b"\r\n" + body
        )
        self.transport.close()
