"""The keys of a sqlite log: a table that is written in the same transaction as the notifications.

Rows stand in the order of their times, so the oldest are found without an index. Each transaction that adds keys
removes a few more than it adds, if they are due. The key of a batch is one row: its name is shorter than the others,
and in the place of a sequence it has a blob with the sequences of all places.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from aviso_server.errors import KeyRefused
from aviso_server.log.base import Appended, BatchKey, Key, Keyed, KeyPolicy
from aviso_server.log.keys import Known, KnownBatch, append_once, pack_places, unpack_places
from aviso_server.model.notification import Draft

__all__ = ["KeyTable", "KeyedAppend"]

_TABLE = """
CREATE TABLE IF NOT EXISTS keys (
    number INTEGER PRIMARY KEY,
    name BLOB NOT NULL UNIQUE,
    content BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    time INTEGER NOT NULL
)
"""
_AT_ONCE = 256  # rows of a statement
_TRIM_ROWS = 1000  # that leave in one transaction, besides twice as many as come


class KeyedAppend(msgspec.Struct, gc=False):
    """Store these under their keys; the answer is what became of each, or KeyRefused for all of them."""

    entries: Sequence[Keyed]
    whole: bool
    batch: BatchKey | None
    future: asyncio.Future[Any]


class KeyTable:
    """The keys while a transaction is open; `work` is everything in it that has keys."""

    def __init__(
        self, connection: sqlite3.Connection, work: Sequence[KeyedAppend], policy: KeyPolicy, now: int
    ) -> None:
        self._connection = connection
        self._policy = policy
        self._now = now
        self._added: list[tuple[bytes, bytes, int | bytes]] = []  # name, content, and where it is
        connection.execute(_TABLE)
        names = [one.batch.name for one in work if one.batch is not None]
        names += [entry.key.name for one in work for entry in one.entries if entry.key is not None]
        self._known: dict[bytes, Known] = {}
        self._batches: dict[bytes, KnownBatch] = {}
        for start in range(0, len(names), _AT_ONCE):
            run = names[start : start + _AT_ONCE]
            marks = ",".join("?" * _padded(len(run)))
            rows = connection.execute(
                f"SELECT name, content, sequence FROM keys WHERE time >= ? AND name IN ({marks})",
                [now - policy.retention_ns, *run, *[None] * (_padded(len(run)) - len(run))],
            )
            for name, content, place in rows:
                if isinstance(place, bytes):
                    self._batches[name] = KnownBatch(content, dict(unpack_places(place)))
                else:
                    self._known[name] = Known(content, place)

    def get(self, name: bytes) -> Known | None:
        """What was stored under this name."""
        return self._known.get(name)

    def add(self, key: Key, sequence: int) -> None:
        """This was stored just now; `save` brings it into the table."""
        self._known[key.name] = Known(key.content, sequence)
        self._added.append((key.name, key.content, sequence))

    def get_batch(self, name: bytes) -> KnownBatch | None:
        """What was stored under this name of a batch."""
        return self._batches.get(name)

    def add_batch(self, name: bytes, known: KnownBatch) -> None:
        """This was stored just now, or some of it earlier; `save` brings it into the table."""
        self._batches[name] = known
        self._added.append((name, known.content, pack_places(known.sequences)))

    def append(
        self, one: KeyedAppend, store: Callable[[Sequence[Draft]], Sequence[int]]
    ) -> list[Appended | KeyRefused] | KeyRefused:
        """The answer to a piece of work."""
        try:
            return append_once(one.entries, one.whole, self, store, one.batch)
        except KeyRefused as error:
            return error

    def save(self) -> None:
        """Write what was added, and remove the oldest if they are due."""
        if not self._added:
            return
        for start in range(0, len(self._added), _AT_ONCE):
            run = self._added[start : start + _AT_ONCE]
            values: list[object] = []
            for each in run:
                values += (*each, self._now)
            rows = _padded(len(run))
            values += (None,) * (4 * (rows - len(run)))
            # a key that was forgotten, but whose row is still there, is replaced
            self._connection.execute(
                "INSERT OR REPLACE INTO keys (name, content, sequence, time) "
                f"SELECT * FROM (VALUES {','.join(['(?,?,?,?)'] * rows)}) WHERE column1 IS NOT NULL",
                values,
            )
        self._trim(2 * len(self._added) + _TRIM_ROWS)

    def _trim(self, at_most: int) -> None:
        oldest, newest = self._connection.execute("SELECT min(number), max(number) FROM keys").fetchone()
        expired = self._connection.execute(
            "SELECT max(number) FROM (SELECT number, time FROM keys ORDER BY number LIMIT ?) WHERE time < ?",
            (at_most, self._now - self._policy.retention_ns),
        ).fetchone()[0]
        surplus = min(newest - self._policy.max_keys, oldest + at_most)
        last = max(surplus, oldest - 1 if expired is None else expired)
        if last >= oldest:
            self._connection.execute("DELETE FROM keys WHERE number <= ?", (last,))


def _padded(count: int) -> int:
    """Up to the next power of two, so that there are few different statements to prepare."""
    return 1 << (count - 1).bit_length()
