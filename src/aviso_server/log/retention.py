"""Retention of a log with an archive behind it: what the logs that let go only of what is archived have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aviso_server.log.base import StoragePolicy

__all__ = ["PATIENCE", "Archived", "HeldBack", "exceeded", "has_limits", "horizon"]

Archived = Callable[[str], int]
"""The newest sequence of a stream that the archive holds, 0 if none; called from whichever thread lets go."""

PATIENCE = 600 * 10**9
"""Nanoseconds that the archive may be behind before somebody should look."""

_logger = logging.getLogger(__name__)


class HeldBack:
    """The streams that have waited long for the archive; each is said once. `kind` is that of the log."""

    def __init__(self, kind: str) -> None:
        self.streams: frozenset[str] = frozenset()
        self._kind = kind

    def note(self, stream: str, late: bool) -> None:
        """Whether the stream holds more than its policy says, and has for long."""
        if late == (stream in self.streams):
            return
        if late:
            self.streams |= {stream}
            _logger.warning(
                "stream %s holds more than its policy says: the archive does not have it yet",
                stream,
                extra={"event": f"backend.{self._kind}.retention.waiting", "stream": stream},
            )
        else:
            self.streams -= {stream}
            _logger.warning(
                "stream %s need not wait for the archive any longer",
                stream,
                extra={"event": f"backend.{self._kind}.retention.resumed", "stream": stream},
            )


def has_limits(policy: StoragePolicy) -> bool:
    """True if there is anything that the policy does not keep."""
    numbers = (policy.retention_ns, policy.max_messages, policy.max_bytes)
    return policy.allow_duplicates is False or any(each is not None for each in numbers)


def horizon(policy: StoragePolicy, now: int) -> int | None:
    """What was stored before this has expired; None if nothing ever does."""
    return None if policy.retention_ns is None else now - policy.retention_ns


def exceeded(policy: StoragePolicy, count: int, size: int) -> bool:
    """True if these are more notifications, or bytes, than the policy keeps."""
    return (policy.max_messages is not None and count > policy.max_messages) or (
        policy.max_bytes is not None and size > policy.max_bytes
    )
