"""What makes an address acceptable."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

__all__ = ["base_url_problem", "key_url_problem", "mask_credentials", "server_url_problem", "web_url_problem"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)
_HOSTED = frozenset({"http", "https", "ws", "wss", "ftp"})
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def base_url_problem(text: str) -> str | None:
    """Why this cannot be the start of an event's `source` and `dataschema`; None if it can."""
    parts, problem = _split(text)
    if parts is None:
        return problem
    if not _SCHEME.match(text):
        return "has no scheme"
    if parts.scheme in _HOSTED and not parts.hostname:
        return "has no host"
    return None


def web_url_problem(text: str) -> str | None:
    """Why this is not an absolute http(s) address without credentials; None if it is."""
    parts, problem = _split(text)
    if parts is None:
        return problem
    if parts.scheme not in ("http", "https"):
        return "is not an absolute http or https URL"
    if not parts.hostname:
        return "has no host"
    if "@" in parts.netloc:
        return "must not carry credentials"
    return None


def key_url_problem(text: str) -> str | None:
    """Why keys fetched from this address could not be trusted; None if they can."""
    problem = web_url_problem(text)
    if problem is not None:
        return problem
    parts = urlsplit(text)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        return "must use https unless it is on this machine"
    return None


def server_url_problem(text: str) -> str | None:
    """Why this is not the address of a server that may be given a password; None if it is."""
    parts, problem = _split(text)
    if parts is None:
        return problem
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is not an absolute URL with a host"
    if "?" in text or "#" in text:
        return "must have neither query nor fragment"
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        return "must use https unless it is on this machine"
    return None


def mask_credentials(text: str) -> str:
    """The address with its user and password hidden."""
    return re.sub(r"(?<=://)[^/?#\s]*@", "[REDACTED]@", text)


def _split(text: str) -> tuple[SplitResult | None, str]:
    if any(character.isspace() or not character.isprintable() for character in text):
        return None, "contains blanks or control characters"
    try:
        parts = urlsplit(text)
        # Reading the port is what checks it; an address without a host may look as if it had an odd one.
        _ = parts.port
    except ValueError:
        return None, "is not a valid URL"
    return parts, ""
