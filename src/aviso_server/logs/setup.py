"""Where records go and which are written."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from aviso_server.config.settings import Settings
from aviso_server.logs.flood import Floodgate
from aviso_server.logs.lines import JsonFormatter, TerminalFormatter

__all__ = ["configure"]

LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 100}
_TALKATIVE = ("uvicorn", "uvicorn.access", "asyncio", "httpx", "httpcore", "nats")


def configure(settings: Settings, stream: TextIO = sys.stdout) -> None:
    """Write all records to the stream, from the configured levels up."""
    logging.addLevelName(LEVELS["trace"], "TRACE")
    handler = logging.StreamHandler(stream)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(TerminalFormatter() if coloured else JsonFormatter(settings.deployment))
    handler.addFilter(Floodgate())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[settings.log_level])
    for name in _TALKATIVE:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(max(logging.WARNING, LEVELS[settings.log_level]))
    # what it warns of is said again with a request id
    logging.getLogger("uvicorn.error").setLevel(max(logging.ERROR, LEVELS[settings.log_level]))
    for name, level in settings.log_levels.items():
        logging.getLogger(name).setLevel(LEVELS[level])
