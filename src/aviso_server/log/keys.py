"""Storing under keys, for logs that see all their keys at once: each content once, other content never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from aviso_server.errors import KeyRefused, KeyReused
from aviso_server.log.base import Appended, Key, Keyed
from aviso_server.model.notification import Draft

__all__ = ["KeyBook", "Known", "append_once"]


class Known(NamedTuple):
    """What was stored under a key."""

    content: bytes
    sequence: int


class KeyBook(Protocol):
    """The keys that are remembered."""

    def get(self, name: bytes) -> Known | None:
        """What was stored under this name; None if nothing was, or if that was too long ago."""

    def add(self, key: Key, sequence: int) -> None:
        """This was stored just now."""


def append_once(
    entries: Sequence[Keyed], whole: bool, book: KeyBook, store: Callable[[Draft], int]
) -> list[Appended | KeyRefused]:
    """Store what is new; KeyReused if `whole` and one of the keys stands for something else, before any is stored."""
    if whole:
        _refuse_reuse(entries, book)
    outcomes: list[Appended | KeyRefused] = []
    for entry in entries:
        key = entry.key
        known = None if key is None else book.get(key.name)
        if known is None or key is None:
            sequence = store(entry.draft)
            if key is not None:
                book.add(key, sequence)
            outcomes.append(Appended(sequence))
        elif known.content == key.content:
            outcomes.append(Appended(known.sequence, repeated=True))
        else:
            outcomes.append(KeyReused())
    return outcomes


def _refuse_reuse(entries: Sequence[Keyed], book: KeyBook) -> None:
    contents: dict[bytes, bytes] = {}
    for key in [entry.key for entry in entries if entry.key is not None]:
        known = book.get(key.name)
        content = contents.setdefault(key.name, key.content) if known is None else known.content
        if content != key.content:
            raise KeyReused
