"""The three answers to somebody who may not: not known, not allowed, cannot be told now."""

from __future__ import annotations

from aviso_server.http.answers import Headers, Refusal

__all__ = ["challenge", "forbidden", "unauthorized", "unavailable"]

_RETRY_AFTER = (b"retry-after", b"5")


def challenge(mode: str) -> Headers:
    """Which credentials are accepted: a header line for each scheme."""
    schemes = (b"Bearer", b"Basic") if mode == "direct" else (b"Bearer",)
    return [(b"www-authenticate", scheme) for scheme in schemes]


def unauthorized(message: str, mode: str) -> Refusal:
    """Credentials are missing or wrong."""
    refusal = Refusal.error(401, "UNAUTHORIZED", "unauthorized", message)
    refusal.headers = challenge(mode)
    return refusal


def forbidden(message: str) -> Refusal:
    """The credentials are fine, but do not allow this."""
    return Refusal.error(403, "FORBIDDEN", "forbidden", message)


def unavailable(message: str) -> Refusal:
    """A service that has to be asked does not answer."""
    refusal = Refusal.error(503, "SERVICE_UNAVAILABLE", "service_unavailable", message)
    refusal.headers = [_RETRY_AFTER]
    return refusal
