"""Traces from publish through commit to delivery, exported over OTLP; needs the extra `otlp`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cachetools import FIFOCache

from aviso_server.config.settings import Deployment
from aviso_server.diagnostics.log_records import resource
from aviso_server.model.notification import Notification

__all__ = ["Traces"]

_MOST_REMEMBERED = 8192
_PATIENCE = 5.0  # seconds for the last spans when the server stops


class Traces:
    """Spans of publish requests, and of what becomes of the notification afterwards."""

    def __init__(self, exporter: Any, deployment: Deployment) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create(dict(resource(deployment))), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("aviso-server")
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER
        # a notification may be delivered before its publisher gets the answer, or after
        self._stored: FIFOCache[tuple[str, int], Any] = FIFOCache(_MOST_REMEMBERED)
        self._passed: FIFOCache[tuple[str, int], tuple[int, int]] = FIFOCache(_MOST_REMEMBERED)

    @contextmanager
    def publish(self, scope: Any, request_id: str) -> Iterator[None]:
        """Open the span of a publish request; it continues the caller's trace if there is one."""
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
        """Open the span of storing a notification."""
        attributes = {"aviso.stream": stream, "aviso.backend": backend}
        with self._tracer.start_as_current_span("commit", attributes=attributes):
            yield

    def stored(self, stream: str, sequence: int) -> None:
        """Note that the current publish request has stored this notification."""
        from opentelemetry.context import get_current

        key = (stream, sequence)
        passed = self._passed.pop(key, None)
        if passed is not None:
            self._deliver(get_current(), key, *passed)
        else:
            self._stored[key] = get_current()

    def passed_on(self, stream: str, notifications: Sequence[Notification], began: int) -> None:
        """Note that notifications were handed to the watchers of the stream, from `began` until now."""
        ended = time.time_ns()
        for notification in notifications:
            key = (stream, notification.sequence)
            context = self._stored.pop(key, None)
            if context is not None:
                self._deliver(context, key, began, ended)
            else:
                self._passed[key] = (began, ended)

    def close(self) -> None:
        """Export the queue; blocks for a few seconds at most."""
        self._provider.force_flush(int(_PATIENCE * 1000))
        self._provider.shutdown()

    def _deliver(self, context: Any, key: tuple[str, int], began: int, ended: int) -> None:
        attributes: dict[str, str | int] = {"aviso.stream": key[0], "aviso.sequence": key[1]}
        span = self._tracer.start_span("deliver", context=context, start_time=began, attributes=attributes)
        span.end(ended)
