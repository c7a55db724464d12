"""Every error of the product, in one tree.

    AvisoError
    ├── ConfigError              the configuration cannot be used; carries every problem found
    ├── RequestError             a request that is refused; carries field, message and details
    │   ├── MalformedRequest     the body is not a request: bad JSON, unknown member, wrong shape
    │   ├── UnknownEventType     strict mode, and the event type is not configured
    │   ├── InvalidRequest       well-formed, but a field, a start point or an area is not acceptable
    │   │   └── PolygonTooLarge  a polygon has more vertices than the limit
    │   └── KeyRefused           nothing can be stored under this idempotency key
    │       ├── KeyReused        the key was used for another notification
    │       └── KeyInDoubt       it is unknown whether its notification was stored
    ├── PipelineError            Spark cannot read from or write to a server; says which option, row or request
    │   └── Refused              the server did not accept a request; carries its status and code
    └── LogError                 the log cannot do what was asked
        ├── StreamUnusable       a stream is not kept as configured
        ├── LogUnavailable       it may work again later (disk full, broker away)
        │   └── HistoryGone      retention was faster than a reader
        ├── LogInUse             another process owns it
        └── LogDamaged           its files are damaged or not ours; nothing was changed

All of them pickle, so they survive the way from Spark workers and other processes. The root, PipelineError and Refused
come from pyspark-aviso, which raises them without the server.
"""

from __future__ import annotations

import msgspec

from pyspark_aviso.errors import AvisoError, PipelineError, Refused

__all__ = [
    "AvisoError",
    "ConfigError",
    "HistoryGone",
    "InvalidRequest",
    "KeyInDoubt",
    "KeyRefused",
    "KeyReused",
    "LogDamaged",
    "LogError",
    "LogInUse",
    "LogUnavailable",
    "MalformedRequest",
    "PipelineError",
    "PolygonTooLarge",
    "Problem",
    "Refused",
    "RequestError",
    "StreamUnusable",
    "UnknownEventType",
]


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with a configuration: where it stands, what is wrong, what would be right."""

    key: str
    message: str
    accepted: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        accepted = f" (accepted: {self.accepted})" if self.accepted else ""
        return f"{where}{self.key}: {self.message}{accepted}"


class ConfigError(AvisoError):
    """The configuration cannot be used; `problems` lists everything wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class RequestError(AvisoError):
    """A request that is refused; `message` is the outermost reason, `details` the innermost."""

    def __init__(self, message: str, details: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = message if details is None else details
        self.field = field


class MalformedRequest(RequestError):
    """The body is not a request; `code` is INVALID_JSON, UNKNOWN_FIELD or INVALID_REQUEST_SHAPE."""

    def __init__(self, code: str, message: str, details: str | None = None) -> None:
        super().__init__(message, details)
        self.code = code


class UnknownEventType(RequestError):
    """The event type is not configured and the server is strict."""

    def __init__(self, event_type: str, configured: list[str]) -> None:
        names = ", ".join(configured) or "none"
        super().__init__(f"unknown event type '{event_type}'; configured event types: {names}")
        self.event_type = event_type
        self.configured = configured


class InvalidRequest(RequestError):
    """Well-formed, but a field, a start point or an area is not acceptable."""


class PolygonTooLarge(InvalidRequest):
    """A polygon has more vertices than the limit allows."""


class KeyRefused(RequestError):
    """Nothing can be stored under this idempotency key."""

    reason = "Nothing can be stored under this idempotency key"

    def __init__(self) -> None:
        super().__init__(self.reason, field="idempotency_key")


class KeyReused(KeyRefused):
    """The idempotency key was used for another notification."""

    reason = "The idempotency key was used for other content before; use a new key for every new notification"


class KeyInDoubt(KeyRefused):
    """The first publish under the idempotency key was interrupted, and its outcome is unknown."""

    reason = (
        "An earlier publish under this idempotency key was interrupted, and what it may have stored is gone by now; "
        "look whether it has arrived and, if it has not, publish it under a new key"
    )


class LogError(AvisoError):
    """The log cannot do what was asked."""


class StreamUnusable(LogError):
    """A stream is not kept as configured, so that it can be neither read nor written."""


class LogUnavailable(LogError):
    """The log cannot do it now, but may later: disk full, broker away."""


class HistoryGone(LogUnavailable):
    """Retention has removed what a reader was about to read."""


class LogInUse(LogError):
    """Another process owns this log."""


class LogDamaged(LogError):
    """The files are damaged or not ours; nothing was changed."""
