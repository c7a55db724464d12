"""The Authorization header: which credentials were sent, if any that make sense."""

from __future__ import annotations

from typing import Any

__all__ = ["bearer_or_basic", "bearer_token", "sent_header"]

_SCHEMES = frozenset({"bearer", "basic"})


def sent_header(scope: Any) -> str | None:
    """The value of the Authorization header, blanks around it removed; None if there is none that can be read.

    Two such headers count as none: whoever stands before this server may have looked at the other one.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1 or not values[0].isascii():
        return None
    text: str = values[0].decode("ascii").strip(" \t")
    return text if text.replace("\t", " ").isprintable() else None


def bearer_or_basic(text: str) -> str | None:
    """The credentials to hand on, scheme included: `Bearer …` or `Basic …` with one space; None for anything else."""
    scheme, _, rest = text.partition(" ")
    return text if scheme.lower() in _SCHEMES and rest and rest[0] not in " \t" else None


def bearer_token(text: str) -> str | None:
    """The token of `Bearer <token>`, two words and no more; None for anything else."""
    words = text.split()
    return words[1] if len(words) == 2 and words[0].lower() == "bearer" else None
