"""A proxy before a server under test: it keeps what was asked, and can make server and line look worse."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.harness import Server
from tests.harness.patience import PATIENCE

__all__ = ["Proxy"]

BATCHES = "/api/v1/notifications"
CHECKS = f"{BATCHES}?dry_run=true"
STREAMS = "/api/v1/streams"
NEWER_MEMBERS = ("to_id", "to_date")


class Proxy:
    """Forwards everything to a server.

    `plain` hides the headers with which other forms are asked for, as a server that does not know them would;
    `single` does not know batches; `old` also refuses the members that came after release 0.7.1, and lists no streams.
    """

    def __init__(self, server: Server, plain: bool = False, old: bool = False, single: bool = False) -> None:
        self.server = server
        self.plain = plain or old
        self.old = old
        self.single = single or old
        self.asked: list[tuple[str, Any]] = []
        self.cut_after: list[int] = []  # how many bytes of each of the next replays get through
        self.lose_answers = 0  # how many of the next answers to a publish do not get through
        self.fail_with: list[int] = []  # statuses that the next publishes are answered with
        self.fail_checks_with: list[int] = []  # the same for dry runs
        self.stored: Callable[[int], None] = lambda port: None  # called with the publisher's port, before the answer
        self._listening = _Listening(("127.0.0.1", 0), _Handler)
        self._listening.proxy = self
        self._thread = threading.Thread(target=self._listening.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown()
        self._listening.server_close()

    @property
    def url(self) -> str:
        """Where the proxy answers."""
        return f"http://127.0.0.1:{self._listening.server_port}"

    def asked_for(self, operation: str) -> list[Any]:
        """The bodies of the requests to `/api/v1/<operation>`."""
        return [body for path, body in self.asked if path == f"/api/v1/{operation}"]


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing special here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listening

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, *args: Any) -> None:
        pass

    def _forward(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        members = json.loads(body) if body else None
        proxy.asked.append((self.path, members))
        if (proxy.single and self.path.partition("?")[0] == BATCHES) or (proxy.old and self.path == STREAMS):
            self._answer(404, None)
            return
        if proxy.old and members and (newer := [name for name in NEWER_MEMBERS if name in members]):
            self._answer(400, {"code": "UNKNOWN_FIELD", "message": f"Unknown field '{newer[0]}'"})
            return
        publishing = self.path == "/api/v1/notification" or (self.path == BATCHES and bool(members))
        failures = proxy.fail_checks_with if self.path == CHECKS else proxy.fail_with if publishing else []
        if failures:
            self._answer(failures.pop(0), {"code": "SERVICE_UNAVAILABLE", "message": "not now"})
            return
        hidden = {"host", "connection"} | ({"accept", "prefer"} if proxy.plain else set())
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hidden}
        upstream = http.client.HTTPConnection(proxy.server.host, proxy.server.port, timeout=PATIENCE)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            if publishing:
                proxy.stored(self.client_address[1])
            if publishing and proxy.lose_answers:
                proxy.lose_answers -= 1
                answer.read()
                self.close_connection = True
                return
            self._copy(answer, proxy)
        except ConnectionError:
            self.close_connection = True
        finally:
            upstream.close()

    def _copy(self, answer: http.client.HTTPResponse, proxy: Proxy) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        left = proxy.cut_after.pop(0) if proxy.cut_after and self.path == "/api/v1/replay" else None
        try:
            while chunk := answer.read1(65536):
                if left is not None:
                    chunk = chunk[:left]
                    left -= len(chunk)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b"")
                if left == 0:
                    self.close_connection = True
                    return
        except http.client.IncompleteRead:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, members: Any) -> None:
        body = json.dumps(members).encode()
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
