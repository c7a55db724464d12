"""Log records: one JSON object per line, readable lines on a terminal, and to a collector if one is named."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from aviso_server.config.settings import Settings
from aviso_server.diagnostics.log_records import RECENT, CallerFilter, Floodgate, JsonFormatter, TerminalFormatter
from aviso_server.diagnostics.otlp import NOT_INSTALLED, OtlpHandler, TraceIds, make_exporter

__all__ = ["NOT_INSTALLED", "configure", "finish"]

LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 100}
_TALKATIVE = ("uvicorn", "uvicorn.access", "asyncio", "httpx", "httpcore", "nats", "opentelemetry", "grpc", "urllib3")


def configure(settings: Settings, stream: TextIO = sys.stdout) -> None:
    """Write records to the stream, from the configured levels up; raises ImportError if export lacks its packages."""
    logging.addLevelName(LEVELS["trace"], "TRACE")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        TerminalFormatter(colour=not os.environ.get("NO_COLOR"))
        if stream.isatty()
        else JsonFormatter(settings.deployment)
    )
    handler.addFilter(Floodgate())
    handler.addFilter(CallerFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler, RECENT]
    root.setLevel(LEVELS[settings.log_level])
    if settings.logging.otlp.enabled:
        export = OtlpHandler(make_exporter(settings.logging.otlp, "logs"), settings.deployment)
        export.addFilter(Floodgate())
        export.addFilter(CallerFilter())
        root.addHandler(export)
    if settings.logging.otlp.traces:
        handler.addFilter(TraceIds())
    for name in _TALKATIVE:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(max(logging.WARNING, LEVELS[settings.log_level]))
    # what it warns of is said again with a request id
    logging.getLogger("uvicorn.error").setLevel(max(logging.ERROR, LEVELS[settings.log_level]))
    for name, level in settings.log_levels.items():
        logging.getLogger(name).setLevel(LEVELS[level])


def finish() -> None:
    """Export the records that are still queued."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, OtlpHandler):
            root.removeHandler(handler)
            handler.close()
