"""The last warnings and errors of the process, for people who look at it from outside."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from aviso_server.diagnostics.attributes import clean, severity

__all__ = ["RECENT", "RecentRecord", "RecentRecords"]

_KEPT = 50
_LONGEST = 500  # characters of a message


class RecentRecord(msgspec.Struct, frozen=True):
    """A warning or an error: when, how bad, what, and the request it belongs to."""

    time: int  # nanoseconds since 1970
    level: str
    message: str
    event: str | None
    request_id: str | None


class RecentRecords(logging.Handler):
    """Remembers the newest warnings and errors, and forgets the oldest."""

    def __init__(self, kept: int = _KEPT) -> None:
        super().__init__(logging.WARNING)
        self._records: deque[RecentRecord] = deque(maxlen=kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the record."""
        try:
            message = clean(record.getMessage())[:_LONGEST]
        except Exception:
            self.handleError(record)
            return
        request_id, event = getattr(record, "request_id", None), getattr(record, "event", None)
        self._records.append(RecentRecord(int(record.created * 1e9), severity(record)[0], message, event, request_id))

    def newest_first(self) -> Sequence[RecentRecord]:
        """What is remembered."""
        return list(reversed(self._records))


RECENT = RecentRecords()
"""The records of this process."""
