"""Every error of the product, in one tree.

    AvisoError
    ├── ConfigError              the configuration cannot be used; carries every problem found
    ├── RequestError             a request that must be refused; carries field, message and details
    │   ├── MalformedRequest     the body is not a request: bad JSON, unknown member, wrong shape
    │   ├── UnknownEventType     strict mode and nobody configured this event type
    │   ├── InvalidRequest       well-formed, but a field, a start point or an area is not acceptable
    │   │   └── PolygonTooLarge  it has more vertices than the limit allows
    │   └── KeyRefused           nothing can be stored under this idempotency key
    │       ├── KeyReused        it stands for another notification already
    │       └── KeyInDoubt       nobody can tell any more whether its notification was stored
    ├── PipelineError            Spark cannot read from or write to a server; says which option, row or request
    │   └── Refused              the server did not accept a request; carries its status and code
    └── LogError                 the place where notifications live cannot do what was asked
        ├── LogUnavailable       it may work again later (disk full, broker away)
        ├── LogInUse             another process owns it
        └── LogDamaged           it is not ours or it is broken; nothing was changed

All of them pickle, so they travel from Spark workers and processes unharmed.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AvisoError",
    "ConfigError",
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
    "UnknownEventType",
]


class AvisoError(Exception):
    """Something aviso-server refuses or cannot do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[AvisoError], args: tuple[Any, ...], state: dict[str, Any]) -> AvisoError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class Problem:
    """One thing wrong with a configuration: where it stands, what is wrong, what would be right."""

    __slots__ = ("accepted", "key", "message", "source")

    def __init__(self, key: str, message: str, accepted: str = "", source: str = "") -> None:
        self.key = key
        self.message = message
        self.accepted = accepted
        self.source = source

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        accepted = f" (accepted: {self.accepted})" if self.accepted else ""
        return f"{where}{self.key}: {self.message}{accepted}"

    def __repr__(self) -> str:
        return f"Problem({str(self)!r})"


class ConfigError(AvisoError):
    """The configuration cannot be used; `problems` lists all that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class RequestError(AvisoError):
    """A request that must be refused; `message` is the outermost reason, `details` the innermost."""

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
    """Nobody configured this event type and the server is strict about it."""

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
    """The idempotency key stands for another notification already."""

    reason = "The idempotency key was used for other content before; use a new key for every new notification"


class KeyInDoubt(KeyRefused):
    """The first publish under the idempotency key was interrupted, and nobody can tell any more what came of it."""

    reason = (
        "An earlier publish under this idempotency key was interrupted, and what it may have stored is gone by now; "
        "look whether it has arrived and, if it has not, publish it under a new key"
    )


class PipelineError(AvisoError):
    """Spark cannot read from or write to a server."""


class Refused(PipelineError):
    """The server did not accept a request; `status` and `code` are its own."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LogError(AvisoError):
    """The log cannot do what was asked."""


class LogUnavailable(LogError):
    """The log cannot do it now, but may later: disk full, broker away."""


class LogInUse(LogError):
    """Another process owns this log."""


class LogDamaged(LogError):
    """The files are not ours or are broken; nothing was changed."""
