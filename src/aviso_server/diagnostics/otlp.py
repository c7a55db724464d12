"""Export of log records to a collector over OTLP; needs the extra `otlp`."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Literal

from aviso_server.config.settings import Deployment, Otlp
from aviso_server.diagnostics.attributes import attributes, clean, resource, severity
from aviso_server.diagnostics.tally import RECORDS, Records

__all__ = ["NOT_INSTALLED", "OtlpHandler", "TraceIds", "counting", "endpoint", "otlp_handler"]

NOT_INSTALLED = "logging.otlp.enabled needs packages that are not installed: pip install 'aviso-server[otlp]'"

_MOST_WAITING = 8192
_AT_ONCE = 512
_PATIENCE = 5.0  # seconds for the last records when the server stops, and for one answer of the collector
_OWN = ("opentelemetry", "grpc", "urllib3", "requests")  # exporting what they say would make them say more


def endpoint(otlp: Otlp, signal: Literal["logs", "traces"]) -> str:
    """The address for a kind of data: without a scheme http, and with a path where the protocol needs one."""
    base = (otlp.endpoint or "").strip()
    if "://" not in base:
        base = f"http://{base}"
    return f"{base.rstrip('/')}/v1/{signal}" if otlp.protocol == "http" else base


def otlp_handler(otlp: Otlp, deployment: Deployment) -> OtlpHandler:
    """A handler that exports records; ImportError if the extra is not installed."""
    exporter: Any
    if otlp.protocol == "http":
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter

        exporter = HttpExporter(endpoint=endpoint(otlp, "logs"), timeout=_PATIENCE)
    else:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter

        address = endpoint(otlp, "logs")
        exporter = GrpcExporter(endpoint=address, insecure=address.startswith("http://"), timeout=_PATIENCE)
    return OtlpHandler(counting(exporter), deployment)


def counting(exporter: Any, records: Records = RECORDS) -> Any:
    """The exporter, counting what it could not deliver."""
    export = exporter.export

    def counted(batch: Any) -> Any:
        try:
            result = export(batch)
        except Exception:
            records.failed_exports += 1
            raise
        if result.name != "SUCCESS":
            records.failed_exports += 1
        return result

    exporter.export = counted
    return exporter


class OtlpHandler(logging.Handler):
    """Hands records to a thread that exports them; nobody waits for the collector."""

    def __init__(self, exporter: Any, deployment: Deployment, records: Records = RECORDS) -> None:
        super().__init__()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = exporter
        self._records = records
        self._resource = Resource(resource(deployment))
        self._scope = InstrumentationScope("aviso-server")
        self._waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._export, name="aviso-otlp", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record in the queue; if that is full it is left out and counted."""
        if record.name.startswith(_OWN):
            return
        try:
            self._waiting.put_nowait(self._converted(record))
        except queue.Full:
            self._records.not_exported += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Export what is waiting, for a few seconds at most."""
        try:
            self._waiting.put(None, timeout=_PATIENCE)
            self._thread.join(_PATIENCE)
        except queue.Full:
            pass
        self._exporter.shutdown()
        super().close()

    def _converted(self, record: logging.LogRecord) -> Any:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.context import get_current
        from opentelemetry.sdk._logs import ReadableLogRecord

        text, number = severity(record)
        found = {name: _plain(value) for name, value in attributes(record).items()}
        log_record = LogRecord(
            timestamp=int(record.created * 1e9),
            observed_timestamp=int(record.created * 1e9),
            context=get_current(),
            severity_text=text,
            severity_number=SeverityNumber(number),
            body=clean(record.getMessage()),
            attributes={**found, "code.namespace": record.name},
        )
        return ReadableLogRecord(log_record, self._resource, self._scope)

    def _export(self) -> None:
        stopping = False
        while not stopping:
            batch = [self._waiting.get()]
            while len(batch) < _AT_ONCE:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            stopping = None in batch
            try:
                self._exporter.export([record for record in batch if record is not None])
            except Exception as error:  # the thread must live on, and logging it would come back here
                logging.getLogger("opentelemetry").debug("export failed: %s", error)


class TraceIds(logging.Filter):
    """Gives records the ids of the trace they belong to."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True always."""
        from opentelemetry.trace import get_current_span

        context = get_current_span().get_span_context()
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
