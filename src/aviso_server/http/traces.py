"""Traces from publish through commit to delivery, exported over OTLP; needs the extra `otlp`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aviso_server.config.settings import Deployment, Otlp
from aviso_server.diagnostics.attributes import resource
from aviso_server.diagnostics.otlp import counting, endpoint
from aviso_server.model.notification import Notification

__all__ = ["Traces", "start_traces"]

_MOST_REMEMBERED = 8192
_PATIENCE = 5.0  # seconds for one answer of the collector


def start_traces(otlp: Otlp, deployment: Deployment) -> Traces:
    """Traces that go to the collector; ImportError if the extra is not installed."""
    exporter: Any
    address = endpoint(otlp, "traces")
    if otlp.protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter(endpoint=address, timeout=_PATIENCE)
    else:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=address, insecure=address.startswith("http://"), timeout=_PATIENCE)
    return Traces(counting(exporter), deployment)


class Traces:
    """Spans of publish requests, and of what becomes of the notification afterwards."""

    def __init__(self, exporter: Any, deployment: Deployment) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource(resource(deployment)), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("aviso-server")
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER
        # A notification may be handed on before its publisher hears of it, or after.
        self._stored: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._passed: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()

    @contextmanager
    def publish(self, scope: Any, request_id: str) -> Iterator[None]:
        """The span of a publish request; it continues the caller's trace if there is one."""
        sent = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        with self._tracer.start_as_current_span(
            "publish",
            context=self._propagator.extract(sent),
            kind=self._server,
            attributes={"request_id": request_id, "http.route": scope["route"]},
        ):
            yield

    @contextmanager
    def commit(self, stream: str, backend: str) -> Iterator[None]:
        """The span of storing a notification."""
        attributes = {"aviso.stream": stream, "aviso.backend": backend}
        with self._tracer.start_as_current_span("commit", attributes=attributes):
            yield

    def stored(self, stream: str, sequence: int) -> None:
        """The current publish request has led to this notification."""
        from opentelemetry.context import get_current

        key = (stream, sequence)
        passed = self._passed.pop(key, None)
        if passed is not None:
            self._deliver(get_current(), key, *passed)
        else:
            _remember(self._stored, key, get_current())

    def passed_on(self, stream: str, notifications: Sequence[Notification], began: int) -> None:
        """These were handed on to whoever watches the stream, from `began` until now."""
        ended = time.time_ns()
        for notification in notifications:
            key = (stream, notification.sequence)
            context = self._stored.pop(key, None)
            if context is not None:
                self._deliver(context, key, began, ended)
            else:
                _remember(self._passed, key, (began, ended))

    def close(self) -> None:
        """Export what is waiting. Blocks for a few seconds at most."""
        self._provider.force_flush(int(_PATIENCE * 1000))
        self._provider.shutdown()

    def _deliver(self, context: Any, key: tuple[str, int], began: int, ended: int) -> None:
        attributes: dict[str, str | int] = {"aviso.stream": key[0], "aviso.sequence": key[1]}
        span = self._tracer.start_span("deliver", context=context, start_time=began, attributes=attributes)
        span.end(ended)


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    if len(memory) > _MOST_REMEMBERED:
        memory.popitem(last=False)
