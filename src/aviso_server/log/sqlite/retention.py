"""Retention of a log with an archive behind it: it lets go only of what the archive holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from aviso_server.log.base import StoragePolicy
from aviso_server.log.retention import Archived, HeldBack, exceeded, has_limits, horizon
from aviso_server.log.sqlite.stream import KEEP_ALL, Entry, StreamTable

__all__ = ["ArchivedRetention"]


class ArchivedRetention:
    """Applies storage policies a little at a time, beside the publishers and never ahead of the archive."""

    def __init__(
        self, connection: sqlite3.Connection, policies: Mapping[str, StoragePolicy], archived: Archived, patience: int
    ) -> None:
        self._connection = connection
        self._policies = {stream: policy for stream, policy in policies.items() if has_limits(policy)}
        self._archived = archived
        self._patience = patience
        self._swept: dict[str, tuple[int, int]] = {}  # how far the archive and the stream were at the last sweep
        self._held_back = HeldBack("sqlite")

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that have waited long for the archive."""
        return self._held_back.streams

    @property
    def needed(self) -> bool:
        """True if some stream has a limit."""
        return bool(self._policies)

    def is_due(self, entry: Entry, now: int) -> bool:
        """True if there is something to let go of; notes whether the archive keeps it from being let go of."""
        policy = self._policies.get(entry.name.lower(), KEEP_ALL)
        late = False
        due = False
        if policy is not KEEP_ALL and entry.count:
            archived = self._archived(entry.name)
            too_much = exceeded(policy, entry.count, entry.bytes)
            if too_much or policy.retention_ns is not None:
                sequence, time = self._connection.execute(
                    f"SELECT sequence, time FROM {entry.table} ORDER BY sequence LIMIT 1"
                ).fetchone()
                oldest = horizon(policy, now)
                beyond = too_much or (oldest is not None and time < oldest)
                due = beyond and sequence <= archived
                late = beyond and not due and now - time > self._patience
            if policy.allow_duplicates is False and archived:
                due = due or self._swept.get(entry.name) != (archived, entry.last)
        self._held_back.note(entry.name, late)
        return due

    def let_go(self, table: StreamTable, name: str, now: int, at_most: int) -> bool:
        """Remove some of what is due, within a transaction; True if more may be left."""
        policy, archived = self._policies[name.lower()], self._archived(name)
        if table.let_go(policy, archived, horizon(policy, now), at_most):
            return True
        if policy.allow_duplicates is False:
            since = self._swept.get(name, (0, 0))[0] + 1
            if table.let_go_of_superseded(archived, since, at_most):
                return True
            self._swept[name] = (archived, table.last)
        return False
