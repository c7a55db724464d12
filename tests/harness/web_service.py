"""A small HTTP server on this machine whose answers a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Asked", "Said", "WebService"]


class Asked(NamedTuple):
    """A request that arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]


class Said(NamedTuple):
    """An answer to give."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class WebService:
    """Answers GET with whatever `answer` returns, in a thread for each connection, and remembers what was asked."""

    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
                service.asked.append(asked)
                said = service.answer(asked)
                self.send_response(said.status)
                for name, value in said.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said.body)))
                self.end_headers()
                self.wfile.write(said.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
                """Stay silent."""

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""
