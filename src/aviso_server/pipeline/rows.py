"""Staged rows on their way to the server, and the keys that keep them from being published twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from aviso_server.pipeline.staging import Staged, row_name

__all__ = ["Row", "Stopped", "digest", "rows_of"]


class Row(msgspec.Struct, frozen=True):
    """A request, where it comes from, and its idempotency key."""

    partition: int
    place: int
    request: bytes
    content: bytes  # its digest
    key: str

    def __str__(self) -> str:
        return row_name(self.partition, self.place)

    @property
    def item(self) -> bytes:
        """The request as an item of a batch."""
        return b'{"idempotency_key":"%b",%b' % (self.key.encode(), self.request[1:])


class Stopped(Exception):
    """Publishing cannot go on; the text says at which row and why."""


def digest(request: bytes) -> bytes:
    """What stands for the content of a request in a ledger."""
    return blake2b(request, digest_size=16).hexdigest().encode()


def rows_of(parts: Sequence[Staged], write: str) -> list[Row]:
    """All rows in the order of partitions and places; `write` names the write they belong to.

    A key consists of the write, the content and how often that content came before. So the same rows have the same
    keys when a write is repeated, even if Spark brings them in another order.
    """
    seen: Counter[bytes] = Counter()
    rows = []
    for part in parts:
        for place, request in enumerate(part.requests):
            content = digest(request)
            key = digest(f"{write}/{seen[content]}/".encode() + content).decode()
            seen[content] += 1
            rows.append(Row(part.partition, place, request, content, key))
    return rows
