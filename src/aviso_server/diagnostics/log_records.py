"""Log records: their attributes and forms, without secrets and without floods. docs/logging.md lists their events."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from aviso_server import __version__
from aviso_server.config.settings import Deployment
from aviso_server.model.json_text import printable
from aviso_server.model.times import event_time

__all__ = [
    "ANONYMOUS",
    "CALLER",
    "HIDDEN",
    "RECENT",
    "RECORDS",
    "Allowance",
    "Caller",
    "CallerFilter",
    "Floodgate",
    "JsonFormatter",
    "RecentRecord",
    "RecentRecords",
    "RecordCounts",
    "TerminalFormatter",
    "attributes",
    "clean",
    "resource",
    "severity",
]


Caller = tuple[str, str]  # name and realm

ANONYMOUS: Caller = ("anonymous", "none")
CALLER: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)


class CallerFilter(logging.Filter):
    """Adds `username` and `auth_realm` to every record of a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "request_id") and not hasattr(record, "username"):
            record.username, record.auth_realm = CALLER.get()
        return True


class RecordCounts:
    """Counts of records that were not written or exported, since the start of the process."""

    def __init__(self) -> None:
        self.suppressed = 0  # too many of one event
        self.withheld = 0  # from export, because they held a secret
        self.not_exported = 0  # the collector was too slow
        self.failed_exports = {"logs": 0, "traces": 0}  # batches that the collector did not take


RECORDS = RecordCounts()
"""The counts of this process."""


HIDDEN = "[REDACTED]"
SEVERITIES = {5: ("TRACE", 1), 10: ("DEBUG", 5), 20: ("INFO", 9), 30: ("WARN", 13), 40: ("ERROR", 17)}
"""Names and numbers of the levels."""

_SECRET_KEY = re.compile(r"password|secret|token|authorization|api_key", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s\"']*@")
_CREDENTIALS = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event"}


def resource(deployment: Deployment) -> dict[str, str]:
    """Return the attributes of this process for all of its records."""
    found = {"service.name": "aviso-server", "service.version": __version__}
    if deployment.namespace:
        found["k8s.namespace.name"] = deployment.namespace
    if deployment.pod:
        found["k8s.pod.name"] = deployment.pod
    return found


def severity(record: logging.LogRecord) -> tuple[str, int]:
    """Return the name and number of the record's level."""
    return SEVERITIES[max((known for known in SEVERITIES if known <= record.levelno), default=5)]


def clean(text: str) -> str:
    """Remove the credentials that addresses and headers in a text may carry."""
    return _CREDENTIALS.sub(rf"\1 {HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))


def attributes(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says beside its message, without None and without secrets."""
    found: dict[str, Any] = {}
    if (event := getattr(record, "event", None)) is not None:
        found["event.name"] = event
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            found[name] = _shown(name, value)
    if record.exc_info and record.exc_info[0] is not None:
        found["error.type"] = record.exc_info[0].__name__
        found["exception.message"] = clean(str(record.exc_info[1]))
    return found


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown(str(key), member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    if _SECRET_KEY.search(name) and value not in ("", None) and not isinstance(value, bool | int | float):
        return HIDDEN
    return clean(value) if isinstance(value, str) else value


PER_SECOND = 100
"""Records of one event and level that are written in a second."""


class Allowance:
    """Limits records per second; busy code asks before it builds a record."""

    __slots__ = ("_clock", "_left_out", "_per_second", "_records", "_until", "_written")

    def __init__(
        self, per_second: int = PER_SECOND, clock: Callable[[], float] = time.monotonic, records: RecordCounts = RECORDS
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._records = records
        self._until = 0.0
        self._written = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many were left out since the last one written; None if this one is to be left out."""
        now = self._clock()
        if now >= self._until:
            self._until, self._written = now + 1.0, 0
        if self._written >= self._per_second:
            self._left_out += 1
            self._records.suppressed += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class Floodgate(logging.Filter):
    """Limits records of one event and level per second; the next one says how many were left out."""

    def __init__(
        self, per_second: int = PER_SECOND, clock: Callable[[], float] = time.monotonic, records: RecordCounts = RECORDS
    ) -> None:
        super().__init__()
        self._new = partial(Allowance, per_second, clock, records)
        self._kinds: dict[tuple[str, int], Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        name = str(getattr(record, "event", None) or f"{record.name}:{record.msg}"[:200])
        kind = self._kinds.get((name, record.levelno))
        if kind is None:
            if len(self._kinds) > 4096:  # messages made on the fly
                self._kinds.clear()
            kind = self._kinds[name, record.levelno] = self._new()
        left_out = kind.take()
        if left_out:
            record.suppressed = left_out
        return left_out is not None


_LONGEST_VALUE = 100  # characters of one attribute on a terminal
_COLOURS = {5: "\x1b[2m", 10: "\x1b[2m", 20: "\x1b[32m", 30: "\x1b[33m", 40: "\x1b[31m"}


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line, in the form log collectors know."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self._resource = resource(deployment)

    def format(self, record: logging.LogRecord) -> str:
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
    """Writes a line for people, with the attributes behind the message."""

    def __init__(self, colour: bool = True) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = max((known for known in _COLOURS if known <= record.levelno), default=10)
        clock = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        found = {name: value for name, value in attributes(record).items() if name != "event.name"}
        more = printable(" ".join(f"{name}={_short(value)}" for name, value in found.items()))
        severe = self._painted(f"{severity(record)[0]:<5}", _COLOURS[level])
        line = f"{clock} {severe} {printable(clean(record.getMessage()))}"
        if more:
            line += f" {self._painted(more, _COLOURS[5])}"
        if record.exc_info:
            line += "\n" + clean(self.formatException(record.exc_info))
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}\x1b[0m" if self._colour else text


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


_KEPT = 50
_LONGEST_MESSAGE = 500  # characters of a message


class RecentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log record of level warning or higher, and the request it belongs to."""

    time: str
    level: str
    message: str
    event: str | None
    request_id: str | None


class RecentRecords(logging.Handler):
    """Keeps the newest warnings and errors in memory."""

    def __init__(self, kept: int = _KEPT) -> None:
        super().__init__(logging.WARNING)
        self._records: deque[RecentRecord] = deque(maxlen=kept)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = clean(record.getMessage())[:_LONGEST_MESSAGE]
        except Exception:
            self.handleError(record)
            return
        request_id, event = getattr(record, "request_id", None), getattr(record, "event", None)
        time = event_time(int(record.created * 1e9))
        self._records.append(RecentRecord(time, severity(record)[0], message, event, request_id))

    def newest_first(self) -> Sequence[RecentRecord]:
        """Return what is kept."""
        return list(reversed(self._records))


RECENT = RecentRecords()
"""The newest warnings and errors of this process."""
