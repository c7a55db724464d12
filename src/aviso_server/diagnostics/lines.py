"""The two forms of a record: a JSON object for machines, a coloured line for people."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from aviso_server.config.settings import Deployment
from aviso_server.diagnostics.attributes import attributes, clean, resource, severity

__all__ = ["JsonFormatter", "TerminalFormatter"]

_LONGEST = 100  # characters of one attribute on a terminal
_COLOURS = {5: "\x1b[2m", 10: "\x1b[2m", 20: "\x1b[32m", 30: "\x1b[33m", 40: "\x1b[31m"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in the form log collectors know."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self._resource = resource(deployment)

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        text, number = severity(record)
        found = attributes(record)
        found["code.namespace"] = record.name
        found["code.function"] = record.funcName
        found["code.lineno"] = record.lineno
        if record.exc_info and record.exc_info[0] is not None:
            found["exception.stacktrace"] = clean(self.formatException(record.exc_info))
        line = {
            "timestamp": datetime.fromtimestamp(int(record.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "severityText": text,
            "severityNumber": number,
            "body": clean(record.getMessage()),
            "resource": self._resource,
            "attributes": found,
        }
        for name in ("traceId", "spanId"):
            if (value := found.pop(name, None)) is not None:
                line[name] = value
        return msgspec.json.encode(line, enc_hook=str).decode()


class TerminalFormatter(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a coloured line, with the attributes behind it."""
        level = max((known for known in _COLOURS if known <= record.levelno), default=10)
        clock = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        found = {name: value for name, value in attributes(record).items() if name != "event.name"}
        more = _one_line(" ".join(f"{name}={_short(value)}" for name, value in found.items()))
        line = f"{clock} {_COLOURS[level]}{severity(record)[0]:<5}\x1b[0m {_one_line(clean(record.getMessage()))}"
        if more:
            line += f" \x1b[2m{more}\x1b[0m"
        if record.exc_info:
            line += "\n" + clean(self.formatException(record.exc_info))
        return line


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _one_line(text: str) -> str:
    """What came from outside cannot steer the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
