"""One client's connection, below the application."""

from __future__ import annotations

from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Connection"]


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP connection, with a request id on the answer to what is not HTTP at all."""

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be read, and hang up."""
        body = msg.encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\n"
            b"x-request-id: " + str(uuid4()).encode() + b"\r\n"
            b"content-type: text/plain; charset=utf-8\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n"
            b"connection: close\r\n"
            b"\r\n" + body
        )
        self.transport.close()
