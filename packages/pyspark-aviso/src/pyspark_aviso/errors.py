"""What this package raises on purpose, in one tree. The server's own errors grow from the same root.

    AvisoError
    └── PipelineError    Spark cannot read from or write to a server; says which option, row or request
        └── Refused      the server did not accept a request; carries its status and code

All of them pickle, so they survive the way from workers.
"""

from __future__ import annotations

from typing import Any

__all__ = ["AvisoError", "PipelineError", "Refused"]


class AvisoError(Exception):
    """Base of every error that is raised on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[AvisoError], args: tuple[Any, ...], state: dict[str, Any]) -> AvisoError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class PipelineError(AvisoError):
    """Spark cannot read from or write to a server."""


class Refused(PipelineError):
    """The server did not accept a request; `status` and `code` are its own."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
