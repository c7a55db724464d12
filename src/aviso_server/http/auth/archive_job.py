"""The archive job as a caller: a process of our own, with a secret that only this run of the server knows."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from aviso_server.http.auth.header import bearer_token, sent_header
from aviso_server.http.auth.user import User

__all__ = ["ARCHIVE_JOB", "ArchiveJobToken"]

ARCHIVE_JOB = User("archive job", None, (), {}, 2**33, admin=True)
"""May read everything, on the routes that it needs."""

_ROUTES = frozenset({"/api/v1/replay", "/api/v1/streams"})


class ArchiveJobToken:
    """The secret, and who shows it."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)

    def shown_by(self, scope: Any) -> bool:
        """True if a request comes from the archive job and asks for something that it may have."""
        if scope["path"] not in _ROUTES:
            return False
        header = sent_header(scope)
        token = None if header is None else bearer_token(header)
        return token is not None and hmac.compare_digest(token.encode(), self.text.encode())
