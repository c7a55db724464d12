"""Log records: their events, attributes and forms, without secrets and without floods."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import msgspec

from aviso_server import __version__
from aviso_server.config.settings import Deployment
from aviso_server.model.json_text import printable
from aviso_server.model.times import event_time

__all__ = [
    "ANONYMOUS",
    "CALLER",
    "EVENTS",
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
        self.failed_exports = 0  # batches of records
        self.failed_span_exports = 0

    def export_failed(self) -> None:
        """Count a batch of records that the collector did not take."""
        self.failed_exports += 1

    def span_export_failed(self) -> None:
        """Count a batch of spans that the collector did not take."""
        self.failed_span_exports += 1


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


Level = Literal["debug", "info", "warn", "error"]

EVENTS: dict[str, tuple[Level, str]] = {
    # Start and stop
    "startup.configuration.loaded": ("info", "The configuration was read and is valid."),
    "startup.configuration.dumped": ("info", "The configuration in full, without secrets."),
    "startup.configuration.warning": ("warn", "Something in the configuration has no effect, or is a risk."),
    "configuration.schema_strict.explicit_disabled": ("warn", "Event types that are not configured are accepted."),
    "startup.server.started": ("info", "The server is listening."),
    "startup.server.failed": ("error", "The main port cannot be used."),
    "startup.backend.failed": ("error", "The log cannot be opened."),
    "startup.archive.failed": ("error", "The archive cannot be used with this log."),
    "startup.metrics.failed": ("error", "The metrics port cannot be used."),
    "startup.otlp.failed": ("error", "Log export is on, but its packages are not installed."),
    "startup.signal.sigterm.received": ("info", "SIGTERM: the server stops."),
    "startup.signal.sigint.received": ("info", "SIGINT, such as Ctrl+C: the server stops."),
    "startup.shutdown.received": ("info", "Open streams are closed."),
    "startup.server.stopped": ("info", "Everything is closed."),
    # Requests
    "api.notification.processed": ("info", "A notification was stored."),
    "api.watch.stream.established": ("info", "A watch was opened."),
    "api.replay.stream.established": ("info", "A replay was opened."),
    "api.schema.list.succeeded": ("debug", "All schemas were asked for."),
    "api.schema.get.succeeded": ("debug", "One schema was asked for."),
    "api.request.malformed": ("warn", "The request was not HTTP, or its headers were too large."),
    "api.request.parse.failed": ("warn", "The body cannot be read as a request."),
    "api.request.validation.failed": ("warn", "The request is invalid."),
    "api.request.site.refused": ("warn", "A browser sent it from a page of another site, or for an unknown host name."),
    "api.request.limit.reached": ("warn", "A limit was reached; `limit` names it."),
    "api.request.processing.failed": ("error", "The server failed to handle the request."),
    # Streams
    "stream.sse.initialization.failed": ("error", "A stream could not be opened."),
    "stream.replay.batch.failed": ("error", "History could not be read; the stream was closed with an error."),
    "stream.live.lost": ("error", "The log can no longer feed live streams; they were closed."),
    "stream.live.failed": (
        "error",
        "A live feed failed, or stood still for ten seconds, and is restarted; its watchers read from the log.",
    ),
    "stream.live.overrun": ("warn", "Too much was waiting for delivery; watchers read from the log."),
    "stream.heartbeat.failed": ("error", "A heartbeat could not be sent."),
    "stream.connection.failed": ("warn", "A connection failed unexpectedly; its stream was closed."),
    "stream.watcher.failed": ("error", "Delivery to one watcher failed; its stream was closed."),
    "stream.watcher.lagged": ("warn", "A watcher fell behind what the log keeps and was closed."),
    # Administration
    "admin.stream.wipe.requested": ("info", "A wipe of a stream was requested."),
    "admin.stream.wipe.succeeded": ("info", "A stream was wiped."),
    "admin.stream.wipe.not_found": ("warn", "The stream to wipe does not exist."),
    "admin.stream.wipe.failed": ("error", "A stream could not be wiped."),
    "admin.all.wipe.requested": ("info", "A wipe of all streams was requested."),
    "admin.all.wipe.succeeded": ("info", "All streams were wiped."),
    "admin.all.wipe.failed": ("error", "Not all streams could be wiped."),
    "admin.notification.delete.succeeded": ("info", "A notification was deleted."),
    "admin.notification.delete.not_found": ("warn", "The notification to delete does not exist."),
    "admin.notification.delete.invalid_id": ("warn", "The id of the notification to delete is invalid."),
    "admin.notification.delete.failed": ("error", "A notification could not be deleted."),
    # Who may
    "auth.middleware.request.denied": ("info", "A request was refused with 401, 403 or 503."),
    "auth.middleware.remote.validation.failed": ("warn", "The authentication service or the key server failed."),
    "auth.ecpds.check.allowed": ("info", "ECPDS allows a user to read about a destination."),
    "auth.ecpds.check.denied": ("info", "ECPDS does not allow a user to read about a destination."),
    "auth.ecpds.check.unavailable": ("info", "ECPDS could not be asked; the request was refused."),
    "auth.ecpds.check.error": ("info", "A destination check failed; the request was refused."),
    "auth.ecpds.fetch.failed": ("warn", "One ECPDS server failed."),
    # Logs
    "backend.sqlite.disk.failed": ("error", "The disk lost written data; publishing is refused until a restart."),
    "backend.sqlite.write.failed": ("error", "The log cannot be written; publishing is refused."),
    "backend.sqlite.write.recovered": ("warn", "The log can be written again."),
    "backend.sqlite.rollback.failed": ("warn", "A failed write could not be rolled back at once."),
    "backend.sqlite.retention.waiting": ("warn", "The log holds more than its policy allows: the archive is behind."),
    "backend.sqlite.retention.resumed": ("warn", "The archive has caught up; the log is within its policy again."),
    "backend.sqlite.ledger.failed": (
        "error",
        "The ledger may not be on disk: after a power cut, lost notifications might go unnoticed.",
    ),
    "backend.retention.clock.jumped": ("warn", "The clock jumped ahead; retention uses the old time for a day."),
    "backend.in_memory.topic.evicted": ("debug", "A topic was removed to make room for another."),
    "backend.jetstream.durability.weak": ("warn", "A setting weakens what an acknowledgement means."),
    "backend.jetstream.connection.retry": ("warn", "The broker did not answer; the server retries."),
    "backend.jetstream.connection.lost": ("warn", "The connection to the broker was lost."),
    "backend.jetstream.connection.restored": ("info", "The broker is back."),
    "backend.jetstream.connection.failed": ("error", "The broker cannot be reached."),
    "backend.jetstream.connection.error": ("warn", "The client of the broker reports an error."),
    "backend.jetstream.publish.retry": ("warn", "A notification is sent to the broker again."),
    "backend.jetstream.keys.unsettled": ("warn", "The outcome of a key was not recorded; a repeated publish finds it."),
    "backend.jetstream.subscription.failed": ("error", "A stream can no longer be followed."),
    "backend.jetstream.message.malformed": (
        "warn",
        "A message on the broker is not a notification; readers do not get it.",
    ),
    "backend.jetstream.stream.missing": ("error", "A stream was replaced or lost data."),
    "backend.jetstream.stream.deleted": ("error", "A stream was deleted on the broker and was created again."),
    "backend.jetstream.stream.unusable": ("error", "A stream is not as configured; requests that use it are refused."),
    "backend.jetstream.stream.create.succeeded": ("info", "A stream was created."),
    "backend.jetstream.stream.reconcile.succeeded": ("info", "A stream was updated to the configuration."),
    "backend.jetstream.stream.reconcile.failed": ("warn", "The broker refused to update a stream."),
    "backend.jetstream.retention.waiting": (
        "warn",
        "The log holds more than its policy allows: the archive is behind.",
    ),
    "backend.jetstream.retention.resumed": ("warn", "The archive has caught up; the log is within its policy again."),
    "backend.jetstream.retention.limited": (
        "warn",
        "A stream has limits that do not wait for the archive; they are removed.",
    ),
    "backend.jetstream.retention.failed": ("warn", "Archived notifications could not be removed from a stream."),
    # The archive
    "archive.process.running": ("info", "Spark is up; the archive is being filled and can be read."),
    "archive.process.leftover": ("warn", "Processes of an earlier pipeline were still running and were ended."),
    "archive.process.ended": ("warn", "The pipeline process ended unexpectedly; it is restarted."),
    "archive.process.impossible": ("error", "Spark cannot run here; the server runs without an archive."),
    "archive.process.said": ("debug", "The pipeline process wrote to its error output."),
    "archive.process.silent": ("debug", "The pipeline process did not answer."),
    "archive.job.failed": ("warn", "The archive job reports an error."),
    "archive.job.waiting": ("warn", "The archive job cannot continue now; it retries."),
    "archive.elected": ("info", "This server archives from now on; it stood by before."),
    "archive.lease.taken": ("info", "Of all servers on the broker, this one archives now."),
    "archive.lease.lost": ("info", "Another server archives now, or the broker cannot be reached."),
    "archive.lease.unknown": ("debug", "The broker could not be asked which server archives; the server asks again."),
    "archive.compaction.failed": ("warn", "Small files could not be merged; the server retries."),
    "archive.audit.unreadable": ("warn", "The verdict of the last audit cannot be read."),
    "archive.flight.failed": ("error", "The pipeline process could not answer the server."),
    "archive.files.unreadable": ("warn", "The archive's folder, or what the server knew about it, cannot be read."),
    "archive.read.failed": ("error", "A part of the archive, which the message names, could not be read."),
    "archive.numbering.advanced": ("warn", "The log was behind the archive; numbering continues after the archive."),
    "archive.numbering.refused": ("error", "The log is behind the archive and its numbering cannot be advanced."),
    "archive.removal.refused": ("warn", "The archive did not accept a delete or a wipe; the server retries."),
    "archive.quarantine.unreadable": ("warn", "A quarantine table of a load cannot be read."),
    "insight.failed": ("warn", "Insight could not be updated; the server retries."),
    "subscription.created": ("info", "A subscription was created; `by` says by whom."),
    "subscription.changed": ("info", "A subscription was changed."),
    "subscription.paused": ("info", "A subscription was paused."),
    "subscription.resumed": ("info", "A subscription was resumed."),
    "subscription.confirmed": ("info", "The sink of a subscription agreed."),
    "subscription.unconfirmed": ("info", "The sink of a subscription did not agree; nothing is sent to it."),
    "subscription.rotated": ("info", "A subscription got a new secret."),
    "subscription.deleted": ("info", "A subscription was deleted."),
    "subscription.disabled": (
        "info",
        "A sink answered 410; nothing is sent to it until somebody resumes the subscription.",
    ),
    "subscription.unusable": (
        "error",
        "A subscription cannot be served: the event type or its fields are not what they were.",
    ),
    "subscription.gap": ("error", "Retention removed notifications before a subscription came to them."),
    "subscription.state.failed": ("error", "How far subscriptions have come cannot be saved; the server retries."),
    "subscription.push.failed": (
        "error",
        "Delivery of a subscription failed unexpectedly; the server retries.",
    ),
    "subscription.push.failing": ("warn", "A sink did not take a notification; it is tried again."),
    "subscription.push.recovered": ("info", "A sink works again."),
    "subscription.push.blocked": ("error", "A subscription waits behind a notification that its sink does not take."),
    "subscription.letter.parked": ("warn", "A notification became a dead letter; the subscription continues."),
    "subscription.fenced": ("warn", "Another server has taken over a subscription."),
    "subscription.taken_over": (
        "warn",
        "This server has taken over a subscription from one that gives no sign of life.",
    ),
    "subscription.lease.failed": (
        "warn",
        "The other servers cannot be reached; what they might have taken over is not delivered meanwhile.",
    ),
    "lateness.learning.failed": ("warn", "The schedule could not be learned; the server retries."),
    "lateness.learning.bounded": (
        "warn",
        "There are more combinations than `max_combinations`; the most frequent are watched.",
    ),
    "lateness.model.unusable": (
        "warn",
        "A learned schedule cannot be used; nothing is watched until it is learned again.",
    ),
    "lateness.state.damaged": ("error", "The saved state of the watch cannot be read; it starts again."),
    "lateness.watch.failed": ("error", "The watch for late notifications failed; it is restarted."),
    "lateness.watch.waiting": ("warn", "What is late cannot be decided now; the server retries."),
    "lateness.history.gone": ("warn", "Notifications that came while the watch was off are no longer available."),
    # Metrics
    "metrics.log.unavailable": ("debug", "A scrape got no answer from the log."),
    "event_loop.held": (
        "warn",
        "The event loop was blocked for more than 100 ms; says how long, where and, if known, by which request.",
    ),
}
"""Level and meaning of every event, by name."""


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
