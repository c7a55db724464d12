"""GET /api/v1/auth/check: who does the server think I am?"""

from __future__ import annotations

from typing import Any

from aviso_server.delivery.outlet import Send
from aviso_server.http.answers import json_answer
from aviso_server.http.auth.refusals import unauthorized
from aviso_server.http.auth.user import User
from aviso_server.http.body import Receive
from aviso_server.http.service import Service
from aviso_server.model.timestamp import seconds_text

__all__ = ["check"]

_LAST_SECOND = 253_402_300_799  # of the year 9999, the last that can be written


async def check(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """The caller's name, realm, roles and the end of their token; without authentication everybody is nobody."""
    user: User | None = scope.get("user")
    if service.gate is not None and user is None:
        raise unauthorized("Credentials are needed", service.gate.mode)
    answer: dict[str, Any] = {"auth_enabled": service.gate is not None}
    if user is None:
        # without authentication the admin routes are open
        answer |= {"username": None, "realm": None, "roles": [], "admin": True, "expires_at": None}
    else:
        expires_at = seconds_text(min(user.expires, _LAST_SECOND))
        answer |= {"username": user.name, "realm": user.realm, "roles": user.roles}
        answer |= {"admin": user.admin, "expires_at": expires_at}
    await json_answer(send, 200, {**answer, "request_id": request_id}, request_id)
