"""Small records beside a log, durable as it is: what subscriptions are, and how far each has come.

Every change names the revision that it replaces, so that of two writers with the same idea one finds out. A log on a
broker shares its records with all servers; the others belong to one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

__all__ = ["Change", "MemoryRecords", "Record", "Records"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it is now; one without a value was removed."""

    key: str
    revision: int  # higher than that of every earlier change of any record
    value: bytes


class Change(msgspec.Struct, frozen=True, gc=False):
    """What a record is to become; without a value it is removed."""

    key: str  # tokens of letters, digits, - and _, joined by dots
    value: bytes
    expected: int = 0  # the revision that is replaced; 0: there must be none


class Records(Protocol):
    """Records by key. All methods are called from the event loop's thread."""

    shared: bool  # other servers write here too

    async def load(self, prefix: str) -> Sequence[Record]:
        """Return the records whose keys begin like this, sorted by key; LogError if that is not possible now."""

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        """Make the changes and return the new revisions once they are durable.

        Each change is judged by itself: None for one whose record has another revision than the expected.
        """

    async def changed(self, after: int) -> Sequence[Record]:
        """Return what was changed after a revision, in order of revisions: of each record the newest change.

        A log that shares its records also returns those that were removed.
        """


class MemoryRecords:
    """Records that are gone when the process ends."""

    shared = False

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._newest = 0

    async def load(self, prefix: str) -> Sequence[Record]:
        return [self._records[key] for key in sorted(self._records) if key.startswith(prefix)]

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        return [self._save(change) for change in changes]

    async def changed(self, after: int) -> Sequence[Record]:
        found = [record for record in self._records.values() if record.revision > after]
        return sorted(found, key=lambda record: record.revision)

    def _save(self, change: Change) -> int | None:
        known = self._records.get(change.key)
        if (0 if known is None else known.revision) != change.expected:
            return None
        self._newest += 1
        if change.value:
            self._records[change.key] = Record(change.key, self._newest, change.value)
        else:
            self._records.pop(change.key, None)
        return self._newest
