"""The gate before every route under /api/v1: who is calling, and may they come in at all?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from aviso_server.config.public_keys import DEFAULT_ALGORITHMS, read_public_keys
from aviso_server.config.settings import Auth, StreamAuth
from aviso_server.http.answers import Refusal
from aviso_server.http.auth.direct import AuthService
from aviso_server.http.auth.header import bearer_or_basic, bearer_token, sent_header
from aviso_server.http.auth.keys import Jwks, Keys, PublicKeys, SharedSecret
from aviso_server.http.auth.refusals import forbidden, unauthorized
from aviso_server.http.auth.stream_rule import StreamRules
from aviso_server.http.auth.tokens import LONGEST, Tokens
from aviso_server.http.auth.user import User
from aviso_server.http.outgoing import Outgoing
from aviso_server.model.schema import Catalogue, EventType, GenericType

__all__ = ["Gate", "is_guarded"]

logger = logging.getLogger(__name__)

_GUARDED = "/api/v1/"
_OPEN = "/api/v1/schema"
_ADMIN = "/api/v1/admin"
_SHORTEST_SECRET = 32  # bytes; a shorter one can be guessed from a token
_OUTCOMES = {401: "unauthorized", 403: "forbidden", 503: "service_unavailable"}


def is_guarded(path: str) -> bool:
    """True if the gate looks at requests for this path; `path` is decoded, as routes see it."""
    return (path.startswith(_GUARDED) or path == _GUARDED[:-1]) and not path.startswith(_OPEN)


class Gate:
    """Authentication and authorisation of one server; it exists only when they are switched on."""

    def __init__(self, auth: Auth, streams: Mapping[str, StreamAuth], catalogue: Catalogue) -> None:
        self.mode = auth.mode
        self.outcomes = dict.fromkeys(("success", *_OUTCOMES.values()), 0)  # of requests with credentials, for metrics
        self._outgoing = Outgoing(auth.timeout_ms / 1000)
        self._service = AuthService(auth.auth_o_tron_url, self._outgoing) if auth.mode == "direct" else None
        self._credentials: Callable[[str], str | None] = bearer_or_basic if self._service else bearer_token
        self._tokens = Tokens(_keys(auth, self._outgoing), auth)
        self._rules = StreamRules(auth.mode, streams, catalogue)
        if auth.jwt_secret and len(auth.jwt_secret.encode()) < _SHORTEST_SECRET:
            logger.warning(
                "auth.jwt_secret is shorter than %d bytes and could be guessed",
                _SHORTEST_SECRET,
                extra={"event": "startup.auth.weak_secret"},
            )

    async def admit(self, scope: Any, request_id: str) -> User | None:
        """Who is calling, None for somebody without credentials; a Refusal if they may not come in."""
        admin_only = scope["path"].startswith(_ADMIN)
        header = sent_header(scope)
        credentials = None if header is None else self._credentials(header)
        if credentials is None and not admin_only:
            return None
        try:
            user = await self._identify(credentials, request_id)
            if admin_only and not user.admin:
                raise forbidden("This needs a role that auth.admin_roles names")
        except Refusal as refusal:
            self.outcomes[_OUTCOMES[refusal.status]] += 1
            _log_denied(refusal, request_id)
            raise
        self.outcomes["success"] += 1
        return user

    def allow(
        self, event_type: EventType | GenericType, user: User | None, action: Literal["read", "write"], request_id: str
    ) -> None:
        """Let the user read or write an event type; a Refusal if they may not."""
        try:
            self._rules.check(event_type, user, action)
        except Refusal as refusal:
            _log_denied(refusal, request_id)
            raise

    async def close(self) -> None:
        """Let go of the connections to other services."""
        await self._outgoing.close()

    async def _identify(self, credentials: str | None, request_id: str) -> User:
        if credentials is None:
            raise unauthorized("Credentials are needed", self.mode)
        if len(credentials) > LONGEST:
            raise unauthorized(f"The credentials are longer than {LONGEST} characters", self.mode)
        if self._service is not None:
            return await self._tokens.user(await self._service.token(credentials, request_id))
        return await self._tokens.user(credentials)


def _keys(auth: Auth, outgoing: Outgoing) -> Keys:
    pinned = auth.algorithms or DEFAULT_ALGORITHMS
    if auth.jwks_url:
        return Jwks(auth.jwks_url, pinned, outgoing)
    if auth.public_key_file is not None:
        return PublicKeys(read_public_keys(auth.public_key_file), pinned)
    return SharedSecret(auth.jwt_secret)


def _log_denied(refusal: Refusal, request_id: str) -> None:
    assert isinstance(refusal.members, dict)
    logger.info(
        "request denied: %s",
        refusal.members["message"],
        extra={"event": "auth.middleware.request.denied", "request_id": request_id, "status": refusal.status},
    )
