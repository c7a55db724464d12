"""The topic of a notification: tokens, percent-encoded where a broker would misread them, joined by dots."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["WILDCARD", "build", "decode", "display", "encode", "parse"]

WILDCARD = "*"

_RESERVED = {"%": "%25", ".": "%2E", "*": "%2A", ">": "%3E"}  # the percent sign first: the others bring more of them
_NEEDS_ENCODING = re.compile(r"[%.*>]")
_HEX_PAIR = re.compile(rb"%([0-9A-Fa-f]{2})")


def encode(token: str) -> str:
    if not _NEEDS_ENCODING.search(token):
        return token
    for character, encoded in _RESERVED.items():  # much faster than translate() where the token is a large polygon
        token = token.replace(character, encoded)
    return token


def decode(token: str) -> str:
    """Decode one wire token; ValueError if a percent sign is not followed by two hex digits."""
    if "%" not in token:
        return token
    raw = token.encode()
    if raw.count(b"%") != len(_HEX_PAIR.findall(raw)):
        raise ValueError(f"malformed percent-encoding in topic token {token!r}: expected %HH with two hex digits")
    return _HEX_PAIR.sub(lambda pair: bytes.fromhex(pair[1].decode()), raw).decode()


def build(tokens: Iterable[str]) -> str:
    return ".".join([encode(token) for token in tokens])


def parse(topic: str) -> list[str]:
    """Return the logical tokens of a wire topic; ValueError if one of them is malformed."""
    if "%" not in topic:
        return topic.split(".")
    return [decode(token) for token in topic.split(".")]


def display(topic: str) -> str:
    """Write a topic for people: decoded tokens joined by dots, or the raw text if it cannot be decoded."""
    try:
        return ".".join(parse(topic))
    except ValueError:
        return topic
