"""Mode `direct`: the authentication service turns credentials into a token."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from aviso_server.http.auth.header import bearer_token
from aviso_server.http.auth.refusals import forbidden, unauthorized, unavailable
from aviso_server.http.outgoing import Answer, Outgoing, OversizedAnswer, Unreachable

__all__ = ["AuthService", "token_in"]

logger = logging.getLogger(__name__)

# three base64url parts; the last is empty in a token without a signature, which is then refused as such
_TOKEN = re.compile(r"[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]*={0,2}", re.ASCII)
_MEMBERS = ("token", "jwt", "access_token")
_LARGEST_ANSWER = 256 * 1024


class AuthService:
    """An auth-o-tron service."""

    def __init__(self, url: str, outgoing: Outgoing) -> None:
        self._url = url.rstrip("/") + "/authenticate"
        self._outgoing = outgoing

    async def token(self, credentials: str, request_id: str) -> str:
        """The token that the service gives for an Authorization header; a Refusal if it gives none."""
        try:
            answer = await self._outgoing.get(self._url, _LARGEST_ANSWER, {"authorization": credentials})
        except (Unreachable, OversizedAnswer) as error:
            raise self._no_verdict(str(error), request_id) from None
        if answer.status == 401:
            raise unauthorized("The credentials were not accepted by the authentication service", "direct")
        if answer.status == 403:
            raise forbidden("The authentication service does not allow this user")
        if not answer.successful:
            raise self._no_verdict(f"it answered {answer.status}", request_id)
        token = token_in(answer)
        if token is None:
            raise self._no_verdict(f"it answered {answer.status} without a token", request_id)
        return token

    def _no_verdict(self, reason: str, request_id: str) -> Exception:
        logger.warning(
            "the authentication service gave no verdict: %s",
            reason,
            extra={"event": "auth.middleware.remote.validation.failed", "request_id": request_id},
        )
        return unavailable("The authentication service cannot be asked at the moment; try again later")


def token_in(answer: Answer) -> str | None:
    """The token in an answer's header or body; None if there is nothing that looks like one."""
    from_header = bearer_token(answer.headers.get("authorization", ""))
    token = from_header if from_header is not None else _in_body(answer.body)
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else None


def _in_body(body: bytes) -> Any:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.decode("ascii", errors="replace").strip()
    if isinstance(content, dict):
        return next((content[name] for name in _MEMBERS if name in content), None)
    return content.strip() if isinstance(content, str) else None
