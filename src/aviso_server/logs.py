"""Log records: one JSON object per line, or readable lines on a terminal."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from aviso_server import __version__
from aviso_server.config.settings import Deployment

__all__ = ["JsonFormatter", "TerminalFormatter", "configure"]

_LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 100}
_SEVERITIES = {5: ("TRACE", 1), 10: ("DEBUG", 5), 20: ("INFO", 9), 30: ("WARN", 13), 40: ("ERROR", 17)}
_SECRET_KEY = re.compile(r"password|secret|token|authorization|api_key", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {10: "\x1b[2m", 20: "\x1b[32m", 30: "\x1b[33m", 40: "\x1b[31m"}


def configure(level: str, deployment: Deployment, stream: TextIO = sys.stdout) -> None:
    """Send all log records to the stream, from the given level up."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TerminalFormatter() if stream.isatty() else JsonFormatter(deployment))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS.get(level, logging.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
        logging.getLogger(name).setLevel(logging.WARNING)


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in vars(record).items():
        if key in _STANDARD:
            continue
        name = "event.name" if key == "event" else key
        if _SECRET_KEY.search(name):
            value = "[REDACTED]"
        shown[name] = _USER_INFO.sub("[REDACTED]@", value) if isinstance(value, str) else value
    return shown


def _body(record: logging.LogRecord) -> str:
    return _USER_INFO.sub("[REDACTED]@", record.getMessage())


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in the form log collectors know."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self._resource = {"service.name": "aviso-server", "service.version": __version__}
        if deployment.namespace:
            self._resource["k8s.namespace.name"] = deployment.namespace
        if deployment.pod:
            self._resource["k8s.pod.name"] = deployment.pod

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        level = max((known for known in _SEVERITIES if known <= record.levelno), default=5)
        text, number = _SEVERITIES[level]
        attributes = _attributes(record)
        attributes["code.namespace"] = record.name
        if record.exc_info and record.exc_info[0] is not None:
            attributes["error.type"] = record.exc_info[0].__name__
            attributes["exception.message"] = str(record.exc_info[1])
            attributes["exception.stacktrace"] = self.formatException(record.exc_info)
        line = {
            "timestamp": datetime.fromtimestamp(int(record.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "severityText": text,
            "severityNumber": number,
            "body": _body(record),
            "resource": self._resource,
            "attributes": attributes,
        }
        return msgspec.json.encode(line, enc_hook=str).decode()


class TerminalFormatter(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a coloured line, with the attributes behind it."""
        level = max((known for known in _COLOURS if known <= record.levelno), default=10)
        clock = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        more = " ".join(f"{key}={value}" for key, value in _attributes(record).items() if key != "event.name")
        line = f"{clock} {_COLOURS[level]}{record.levelname:<7}\x1b[0m {_body(record)}"
        if more:
            line += f" \x1b[2m{more}\x1b[0m"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line
