"""JSON Web Tokens made by hand, so that a test can make bad ones too."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

__all__ = ["SECRET", "USERS", "bearer", "claims", "signed", "token", "unsigned"]

SECRET = "a-secret-that-is-shared-with-the-authentication-service-and-nobody-else"

USERS = {"admin-user": "admin", "reader-user": "reader", "producer-user": "producer"}
"""The users of the contract's examples and their roles, all in the realm `localrealm`."""


def claims(name: str = "reader-user", *, lifetime: float = 3600, **changes: Any) -> dict[str, Any]:
    """What a token of this user says; a change to `...` leaves the claim out."""
    stated = {
        "username": name,
        "realm": "localrealm",
        "roles": [USERS[name]] if name in USERS else [],
        "exp": int(time.time() + lifetime),
    }
    return {key: value for key, value in {**stated, **changes}.items() if value is not ...}


def token(name: str = "reader-user", *, secret: str = SECRET, lifetime: float = 3600, **changes: Any) -> str:
    """A token of this user, signed with HS256."""
    return signed(claims(name, lifetime=lifetime, **changes), secret)


def signed(content: Any, secret: str = SECRET, header: Any = None) -> str:
    """Any content, signed with HMAC-SHA256 whatever the header says."""
    text = unsigned(content, header if header is not None else {"typ": "JWT", "alg": "HS256"})
    return f"{text}.{_encoded(hmac.digest(secret.encode(), text.encode(), hashlib.sha256))}"


def unsigned(content: Any, header: Any) -> str:
    """The first two parts of a token; content and header are JSON, or bytes as they are."""
    return ".".join(
        _encoded(part if isinstance(part, bytes) else json.dumps(part).encode()) for part in (header, content)
    )


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    """The request header that carries a token."""
    return (("Authorization", f"Bearer {text}"),)


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
