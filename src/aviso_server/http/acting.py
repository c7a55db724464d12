"""Who acts in the request that is being handled, for log records about what they did."""

from __future__ import annotations

from contextvars import ContextVar

from aviso_server.http.auth.user import User

__all__ = ["ACTING", "acting_user"]

ACTING: ContextVar[User | None] = ContextVar("acting", default=None)
"""The caller whose credentials were accepted."""


def acting_user() -> dict[str, str | None]:
    """The caller's name and realm as attributes of a record."""
    user = ACTING.get()
    return {} if user is None else {"user.name": user.name, "user.realm": user.realm}
