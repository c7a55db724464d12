"""Idempotency keys: the text that a publisher chose, and what it stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.http.auth.user import User
from aviso_server.log.base import BatchKey, Key
from aviso_server.model.notification import Draft

__all__ = ["HEADER", "LONGEST", "REPLAYED", "Keyring", "header_text", "key_text"]

HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
LONGEST = 255  # characters

_TEXT = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ACCEPTED = f"1 to {LONGEST} printable ASCII characters, without blanks around them"
_BYTES = 16
_BATCH_BYTES = 12  # of the name of a batch


def key_text(value: object) -> str:
    """A key as it was given; InvalidRequest if it cannot be one."""
    if not isinstance(value, str) or len(value) > LONGEST or not _TEXT.fullmatch(value):
        raise InvalidRequest(f"The idempotency key must be {_ACCEPTED}", field="idempotency_key")
    return value


def header_text(value: bytes) -> str:
    """The key in a header, with or without quotes around it."""
    text = key_text(value.decode("latin-1").strip())
    quoted = len(text) >= 2 and text[0] == text[-1] == '"'
    return key_text(text[1:-1]) if quoted else text


class Keyring:
    """The keys of one caller: the same text from another user is another key."""

    def __init__(self, scope: Any) -> None:
        user: User | None = scope.get("user")
        self._owner = None if user is None else (user.realm, user.name)

    def of_item(self, text: str, draft: Draft) -> Key:
        """The key of one notification."""
        return Key(_digest((self._owner, text)), _digest(_content(draft)))

    def of_batch(self, text: str, items: Sequence[Draft | str]) -> BatchKey:
        """The key of a batch: other content of one of its items is other content of all.

        An item that cannot be stored is there as the reason why.
        """
        whole = _digest([_content(item) if type(item) is Draft else item for item in items])
        places = [place for place, item in enumerate(items) if not isinstance(item, str)]
        return BatchKey(_digest((self._owner, text, "batch"))[:_BATCH_BYTES], whole, places)


def _content(draft: Draft) -> tuple[str, str, bytes, bytes]:
    """What has to be the same again: as it is stored, not as it was written."""
    return draft.stream, draft.topic, draft.identifier, draft.payload


def _digest(parts: Any) -> bytes:
    return blake2b(msgspec.msgpack.encode(parts), digest_size=_BYTES).digest()
