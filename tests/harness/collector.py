"""A small OTLP collector on the loopback: it keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]  # has no types
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.harness.patience import PATIENCE

__all__ = ["Collector", "collecting", "collecting_grpc"]


class Collector:
    """Log records and spans as they arrived."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.records: list[Any] = []
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.teams: set[str] = set()  # an attribute of the environment's
        self.refuse = False

    def wait(self, enough: Callable[[], bool], seconds: float = PATIENCE) -> None:
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
            self.take_logs(ExportLogsServiceRequest.FromString(body))
        elif path == "/v1/traces":
            self.take_traces(ExportTraceServiceRequest.FromString(body))
        else:
            return 404
        return 200

    def take_logs(self, request: Any) -> None:
        """Keep the records of a request."""
        for logs in request.resource_logs:
            self._note(logs.resource)
            self.records += [record for scope in logs.scope_logs for record in scope.log_records]

    def take_traces(self, request: Any) -> None:
        """Keep the spans of a request."""
        for traces in request.resource_spans:
            self._note(traces.resource)
            self.spans += [span for scope in traces.scope_spans for span in scope.spans]

    def _note(self, resource: Any) -> None:
        said = {each.key: each.value.string_value for each in resource.attributes}
        self.services.add(said.get("service.name", ""))
        self.teams.add(said.get("team", ""))


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


@contextmanager
def collecting_grpc() -> Iterator[Collector]:
    """The same over gRPC."""

    class Logs(LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the service names it
            collector.take_logs(request)
            return ExportLogsServiceResponse()

    class Traces(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the service names it
            collector.take_traces(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_LogsServiceServicer_to_server(Logs(), server)
    add_TraceServiceServicer_to_server(Traces(), server)
    collector = Collector(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
