"""A receiver of pushed notifications: a real HTTP server that keeps what it got and answers as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from tests.harness.patience import PATIENCE

__all__ = ["Got", "Receiver", "Reply", "until"]


class Got(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def events(self) -> list[Any]:
        """The CloudEvents in it."""
        decoded = json.loads(self.body)
        return decoded if isinstance(decoded, list) else [decoded]

    @property
    def sequences(self) -> list[int]:
        """Their sequences."""
        return [event["sequence"] for event in self.events]


class Reply(NamedTuple):
    """What to answer; without a status the connection is closed instead."""

    status: int | None = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Receiver:
    """Listens on a free port of this machine; `answer` decides about each POST, and may wait."""

    def __init__(self, answer: Callable[[Got], Reply] = lambda got: Reply(), consents: bool = True) -> None:
        self.answer = answer
        self.consents = consents
        self.posts: list[Got] = []
        self.asked: list[Got] = []  # for consent
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_OPTIONS(self) -> None:
                got = self._got()
                receiver.asked.append(got)
                origin = got.headers.get("webhook-request-origin", "")
                allowed = (("WebHook-Allowed-Origin", origin),) if receiver.consents else ()
                self._reply(Reply(200, allowed))

            def do_POST(self) -> None:
                got = self._got()
                reply = receiver.answer(got)
                receiver.posts.append(got)
                self._reply(reply)

            def _got(self) -> Got:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                return Got(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)

            def _reply(self, reply: Reply) -> None:
                if reply.status is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name that it has in the base class
                pass

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Listening(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def sequences(self) -> list[int]:
        """All sequences that arrived, in the order of arrival."""
        return [sequence for got in list(self.posts) for sequence in got.sequences]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, count: int) -> list[Got]:
        """Wait until so many requests have arrived and return all."""
        until(lambda: len(self.posts) >= count, lambda: f"{len(self.posts)} of {count} requests arrived")
        return list(self.posts)


def until(
    condition: Callable[[], bool], words: Callable[[], str] = lambda: "it did not happen", seconds: float = PATIENCE
) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, words()
        time.sleep(0.01)
