"""Retention of a log with an archive behind it: it lets go only of what the archive holds."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping

from aviso_server.log.base import StoragePolicy
from aviso_server.log.sqlite.stream import KEEP_ALL, Entry, StreamTable

__all__ = ["PATIENCE", "Archived", "ArchivedRetention"]

Archived = Callable[[str], int]
"""The newest sequence of a stream that the archive holds, 0 if none; called from the writer's thread."""

PATIENCE = 600 * 10**9
"""Nanoseconds that the archive may be behind before somebody should look."""

_logger = logging.getLogger(__name__)


class ArchivedRetention:
    """Applies storage policies a little at a time, beside the publishers and never ahead of the archive."""

    def __init__(
        self, connection: sqlite3.Connection, policies: Mapping[str, StoragePolicy], archived: Archived, patience: int
    ) -> None:
        self._connection = connection
        self._policies = {stream: policy for stream, policy in policies.items() if _limits(policy)}
        self._archived = archived
        self._patience = patience
        self._swept: dict[str, tuple[int, int]] = {}  # how far the archive and the stream were at the last sweep
        self.held_back: frozenset[str] = frozenset()  # streams that have waited long for the archive

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
            if _exceeded(policy, entry) or policy.retention_ns is not None:
                sequence, time = self._connection.execute(
                    f"SELECT sequence, time FROM {entry.table} ORDER BY sequence LIMIT 1"
                ).fetchone()
                horizon = _horizon(policy, now)
                beyond = _exceeded(policy, entry) or (horizon is not None and time < horizon)
                due = beyond and sequence <= archived
                late = beyond and not due and now - time > self._patience
            if policy.allow_duplicates is False and archived:
                due = due or self._swept.get(entry.name) != (archived, entry.last)
        self._note(entry.name, late)
        return due

    def let_go(self, table: StreamTable, name: str, now: int, at_most: int) -> bool:
        """Remove some of what is due, within a transaction; True if more may be left."""
        policy, archived = self._policies[name.lower()], self._archived(name)
        if table.let_go(policy, archived, _horizon(policy, now), at_most):
            return True
        if policy.allow_duplicates is False:
            since = self._swept.get(name, (0, 0))[0] + 1
            if table.let_go_of_superseded(archived, since, at_most):
                return True
            self._swept[name] = (archived, table.last)
        return False

    def _note(self, stream: str, late: bool) -> None:
        if late == (stream in self.held_back):
            return
        if late:
            self.held_back |= {stream}
            _logger.warning(
                "stream %s holds more than its policy says: the archive does not have it yet",
                stream,
                extra={"event": "backend.sqlite.retention.waiting", "stream": stream},
            )
        else:
            self.held_back -= {stream}
            _logger.warning(
                "stream %s need not wait for the archive any longer",
                stream,
                extra={"event": "backend.sqlite.retention.resumed", "stream": stream},
            )


def _limits(policy: StoragePolicy) -> bool:
    numbers = (policy.retention_ns, policy.max_messages, policy.max_bytes)
    return policy.allow_duplicates is False or any(each is not None for each in numbers)


def _horizon(policy: StoragePolicy, now: int) -> int | None:
    return None if policy.retention_ns is None else now - policy.retention_ns


def _exceeded(policy: StoragePolicy, entry: Entry) -> bool:
    return (policy.max_messages is not None and entry.count > policy.max_messages) or (
        policy.max_bytes is not None and entry.bytes > policy.max_bytes
    )
