"""A small OTLP collector on the loopback: it keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collector", "collecting"]


class Collector:
    """Log records and spans as they arrived."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.records: list[Any] = []
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.refuse = False

    def wait(self, enough: Callable[[], bool], seconds: float = 15.0) -> None:
        """Wait until enough has arrived."""
        deadline = time.monotonic() + seconds
        while not enough():
            assert time.monotonic() < deadline, f"only {len(self.records)} records and {len(self.spans)} spans arrived"
            time.sleep(0.05)

    def events(self) -> list[str]:
        """The event names of the records."""
        return [
            each.value.string_value
            for record in list(self.records)
            for each in record.attributes
            if each.key == "event.name"
        ]

    def take(self, path: str, body: bytes) -> int:
        """Keep one request; the status to answer with."""
        if self.refuse:
            return 503
        if path == "/v1/logs":
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                self._note(logs.resource)
                self.records += [record for scope in logs.scope_logs for record in scope.log_records]
        elif path == "/v1/traces":
            for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                self._note(traces.resource)
                self.spans += [span for scope in traces.scope_spans for span in scope.spans]
        else:
            return 404
        return 200

    def _note(self, resource: Any) -> None:
        self.services |= {each.value.string_value for each in resource.attributes if each.key == "service.name"}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that answers as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # as the library names it
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(collector.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the library names it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
