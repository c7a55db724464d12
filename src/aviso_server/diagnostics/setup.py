"""Where records go and which are written."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from aviso_server.config.settings import Settings
from aviso_server.diagnostics.flood import Floodgate
from aviso_server.diagnostics.lines import JsonFormatter, TerminalFormatter
from aviso_server.diagnostics.otlp import OtlpHandler, TraceIds, otlp_handler
from aviso_server.diagnostics.recent import RECENT

__all__ = ["configure", "finish"]

LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 100}
_TALKATIVE = ("uvicorn", "uvicorn.access", "asyncio", "httpx", "httpcore", "nats", "opentelemetry", "grpc", "urllib3")


def configure(settings: Settings, stream: TextIO = sys.stdout) -> None:
    """Write all records to the stream, from the configured levels up; ImportError if the export is not installed."""
    logging.addLevelName(LEVELS["trace"], "TRACE")
    handler = logging.StreamHandler(stream)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(TerminalFormatter() if coloured else JsonFormatter(settings.deployment))
    handler.addFilter(Floodgate())
    root = logging.getLogger()
    root.handlers[:] = [handler, RECENT]
    root.setLevel(LEVELS[settings.log_level])
    if settings.logging.otlp.enabled:
        export = otlp_handler(settings.logging.otlp, settings.deployment)
        export.addFilter(Floodgate())
        handler.addFilter(TraceIds())
        root.addHandler(export)
    for name in _TALKATIVE:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(max(logging.WARNING, LEVELS[settings.log_level]))
    # what it warns of is said again with a request id
    logging.getLogger("uvicorn.error").setLevel(max(logging.ERROR, LEVELS[settings.log_level]))
    for name, level in settings.log_levels.items():
        logging.getLogger(name).setLevel(LEVELS[level])


def finish() -> None:
    """Export what is waiting to be exported."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, OtlpHandler):
            root.removeHandler(handler)
            handler.close()
