"""Log records about requests that were refused."""

from __future__ import annotations

import logging
from typing import Any

from aviso_server.http.answers import Refusal

__all__ = ["log_refusal"]

logger = logging.getLogger(__name__)

_UNREADABLE = frozenset({"INVALID_JSON", "UNKNOWN_FIELD", "INVALID_REQUEST_SHAPE"})


def log_refusal(refusal: Refusal, scope: Any, request_id: str) -> None:
    """Say why a request was refused; who may not and what failed has been said where it was found out."""
    members = refusal.members if isinstance(refusal.members, dict) else {"message": refusal.members}
    if refusal.limit is not None or refusal.status == 413:
        event = "api.request.limit.reached"
    elif refusal.status != 400:
        return
    elif members.get("code") in _UNREADABLE:
        event = "api.request.parse.failed"
    else:
        event = "api.request.validation.failed"
    logger.warning(
        "request refused: %s",
        members["message"],
        extra={
            "event": event,
            "request_id": request_id,
            "route": scope.get("route"),
            "status": refusal.status,
            "limit": refusal.limit,
            "error.type": members.get("code"),
        },
    )
