"""Log records and traces, from publish through commit to delivery, exported over OTLP; needs the extra `otlp`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal

from cachetools import FIFOCache

from aviso_server.config.settings import Deployment, Otlp
from aviso_server.diagnostics.log_records import HIDDEN, RECORDS, RecordCounts, attributes, clean, resource, severity
from aviso_server.model.notification import Notification

__all__ = ["NOT_INSTALLED", "OtlpHandler", "TraceIds", "Traces", "endpoint", "make_exporter"]

NOT_INSTALLED = "logging.otlp needs packages that are not installed: pip install 'aviso-server[otlp]'"

_MOST_WAITING = 8192
_AT_ONCE = 512
_EXPORTERS = {"logs": ("_log_exporter", "OTLPLogExporter"), "traces": ("trace_exporter", "OTLPSpanExporter")}
_PATIENCE = 5.0  # seconds for the last records and spans when the server stops, and for one answer of the collector
_OWN = ("opentelemetry", "grpc", "urllib3", "requests")  # exporting what they say would make them say more


def endpoint(otlp: Otlp, signal: Literal["logs", "traces"]) -> str:
    """Return the address for a signal: http without a scheme, and with the signal's path if that is absent."""
    base = (otlp.endpoint or "").strip()
    if "://" not in base:
        base = f"http://{base}"
    return f"{base.rstrip('/').removesuffix('/v1/logs')}/v1/{signal}" if otlp.protocol == "http" else base


def make_exporter(otlp: Otlp, signal: Literal["logs", "traces"]) -> Any:
    """Build the exporter of a signal, which counts failed batches; raises ImportError without the extra."""
    module, name = _EXPORTERS[signal]
    exporter = getattr(import_module(f"opentelemetry.exporter.otlp.proto.{otlp.protocol}.{module}"), name)
    address = endpoint(otlp, signal)
    options = {"insecure": address.startswith("http://")} if otlp.protocol == "grpc" else {}
    made = exporter(endpoint=address, timeout=_PATIENCE, **options)
    export = made.export

    def counted(batch: Any) -> Any:
        delivered = False
        try:
            result = export(batch)
            delivered = result.name == "SUCCESS"
            return result
        finally:
            if not delivered:
                RECORDS.failed_exports[signal] += 1

    made.export = counted
    return made


class OtlpHandler(logging.Handler):
    """Hands records to the SDK's batch processor; nobody waits for the collector."""

    def __init__(self, exporter: Any, deployment: Deployment, records: RecordCounts = RECORDS) -> None:
        super().__init__()
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.resources import Resource

        self._records = records
        # counted here: the processor drops the oldest of a full queue without telling how many
        self._free = threading.Semaphore(_MOST_WAITING)
        self._provider = LoggerProvider(Resource.create(dict(resource(deployment))), shutdown_on_exit=False)
        self._exporter = exporter
        self._export, exporter.export = exporter.export, self._release_and_export
        self._provider.add_log_record_processor(
            BatchLogRecordProcessor(self._exporter, max_queue_size=_MOST_WAITING, max_export_batch_size=_AT_ONCE)
        )
        self._logger = self._provider.get_logger("aviso-server")

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; one that holds a secret or finds the queue full is left out and counted."""
        if record.name.startswith(_OWN):
            return
        try:
            found = {name: _plain(value) for name, value in attributes(record).items()}
            if HIDDEN in repr(found):
                self._records.withheld += 1
                return
            converted = self._converted(record, found)
            if self._free.acquire(blocking=False):
                self._logger.emit(converted)
            else:
                self._records.not_exported += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Export the queue, for a few seconds at most."""
        # the processor would try for half a minute while the collector is away
        ending = threading.Thread(target=self._provider.shutdown, name="aviso-otlp", daemon=True)
        ending.start()
        ending.join(_PATIENCE)
        if ending.is_alive():
            self._exporter.shutdown()
        super().close()

    def _release_and_export(self, batch: Any) -> Any:
        """Free a place in the queue for every record that the exporter takes."""
        self._free.release(len(batch))
        return self._export(batch)

    def _converted(self, record: logging.LogRecord, found: dict[str, Any]) -> Any:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.context import get_current

        text, number = severity(record)
        return LogRecord(
            timestamp=int(record.created * 1e9),
            observed_timestamp=int(record.created * 1e9),
            context=get_current(),
            severity_text=text,
            severity_number=SeverityNumber(number),
            body=clean(record.getMessage()),
            attributes={**found, "code.namespace": record.name},
        )


class TraceIds(logging.Filter):
    """Adds the ids of the current trace to records; raises ImportError without the extra."""

    def __init__(self) -> None:
        super().__init__()
        from opentelemetry.trace import get_current_span

        self._current = get_current_span

    def filter(self, record: logging.LogRecord) -> bool:
        context = self._current().get_span_context()
        if context.is_valid:
            record.traceId = f"{context.trace_id:032x}"
            record.spanId = f"{context.span_id:016x}"
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | bool | int | float) else str(value)


_MOST_REMEMBERED = 8192


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
