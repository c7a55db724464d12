"""What the last audit found, read from the file that it left beside the archive."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

__all__ = ["LastAudit", "StreamVerdict", "Summary"]

logger = logging.getLogger(__name__)

_FILE = Path("_audit") / "verdict.json"


class StreamVerdict(msgspec.Struct, frozen=True):
    """What was found out about a stream."""

    event_type: str
    verdict: str  # clean, defects or unchecked
    defects: int  # sequences that have one
    acknowledged: int
    lag: int  # sequences that were not archived yet
    first_defects: tuple[dict[str, Any], ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """The verdict on all streams, and when it was given."""

    at: str
    verdict: str
    seconds: float
    streams: dict[str, StreamVerdict]


_read = msgspec.json.Decoder(Summary).decode


class LastAudit:
    """The last audit; of an archive elsewhere only those that were made on this machine are known."""

    def __init__(self, path: str, work: Path) -> None:
        parts = urlsplit(path)
        folder = work
        if parts.scheme in ("", "file"):
            folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)
        self._file = folder / _FILE
        self._seen: tuple[int, int] | None = None
        self.summary: Summary | None = None  # None if there was none

    async def look(self) -> None:
        """See whether there is a new one."""
        await asyncio.to_thread(self._look)

    def describe(self) -> dict[str, Any] | None:
        """The summary as JSON values."""
        return None if self.summary is None else msgspec.to_builtins(self.summary)

    def _look(self) -> None:
        try:
            facts = self._file.stat()
            seen = facts.st_mtime_ns, facts.st_size
            if seen != self._seen:
                self.summary = _read(self._file.read_bytes())
                self._seen = seen
        except FileNotFoundError:
            self.summary = self._seen = None
        except (OSError, msgspec.DecodeError) as error:
            if self._seen != (0, 0):
                self._seen = 0, 0  # said once
                logger.warning(
                    "what the last audit found cannot be read: %s", error, extra={"event": "archive.audit.unreadable"}
                )
