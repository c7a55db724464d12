"""A stand-in for the auth-o-tron service: it knows the users of the contract's examples."""

from __future__ import annotations

import base64
import binascii

from tests.harness.tokens import USERS, token
from tests.harness.web_service import Asked, Said, WebService

__all__ = ["AuthOTron", "basic"]


def basic(name: str, password: str) -> tuple[tuple[str, str], ...]:
    """The request header that carries a name and a password."""
    return (("Authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()),)


class AuthOTron(WebService):
    """Answers `/authenticate`: Basic credentials of known users become a token, bearer tokens come back as they are."""

    def __init__(self) -> None:
        super().__init__(self.usual)
        self.lifetime = 3600.0  # seconds that its tokens are good for, without the leeway

    def usual(self, asked: Asked) -> Said:
        """What it says unless a test sets `answer`."""
        if asked.path != "/authenticate":
            return Said(404)
        scheme, _, rest = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and rest.count(".") == 2:
            return Said(200, headers=(("Authorization", f"Bearer {rest}"),))
        if scheme.lower() == "basic":
            try:
                name, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return Said(401)
            if name in USERS and password == name.replace("-user", "-pass"):
                return Said(200, headers=(("Authorization", f"Bearer {token(name, lifetime=self.lifetime)}"),))
        return Said(401)
