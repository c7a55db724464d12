"""Keeps one kind of record from flooding the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aviso_server.diagnostics.tally import RECORDS, Records

__all__ = ["Floodgate"]

PER_SECOND = 100
"""Records of one kind that are let through in a second."""


class Floodgate(logging.Filter):
    """Lets so many records of one event through per second; the next one after says how many were left out."""

    def __init__(
        self,
        per_second: int = PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
        records: Records = RECORDS,
    ) -> None:
        super().__init__()
        self._per_second = per_second
        self._clock = clock
        self._records = records
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record may be written."""
        name = str(getattr(record, "event", None) or f"{record.name}:{record.msg}"[:200])
        kind = self._kinds.get((name, record.levelno))
        if kind is None:
            if len(self._kinds) > 4096:  # messages made on the fly
                self._kinds.clear()
            kind = self._kinds[name, record.levelno] = _Kind()
        now = self._clock()
        if now >= kind.until:
            kind.until, kind.written = now + 1.0, 0
        if kind.written >= self._per_second:
            kind.left_out += 1
            self._records.suppressed += 1
            return False
        kind.written += 1
        if kind.left_out:
            record.suppressed = kind.left_out
            kind.left_out = 0
        return True


class _Kind:
    __slots__ = ("left_out", "until", "written")

    def __init__(self) -> None:
        self.until = 0.0
        self.written = 0
        self.left_out = 0
