"""Which loads have put rows aside: read from the notes of the tables that they left on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from aviso_server.model.quarantine import KEY, Note, decode

__all__ = ["MOST_TABLES", "Quarantined"]

logger = logging.getLogger(__name__)

MOST_TABLES = 20
"""Tables that are shown: the newest."""

_TABLES = "refused-*.parquet"
_Identity = tuple[int, int, int]


class Quarantined:
    """The tables of one folder. Only their ends are read, and each only once for as long as it stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[_Identity, Note | None]] = {}  # by name; None if it cannot be read

    async def describe(self) -> dict[str, Any] | None:
        """The newest tables as JSON values; None if there are none."""
        return await asyncio.to_thread(self._describe)

    def _describe(self) -> dict[str, Any] | None:
        tables = self._tables()
        if not tables:
            return None
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name][0] == identity else (identity, self._note(name))
            for identity, name in tables[:MOST_TABLES]
        }
        shown = [
            {"file": name, **msgspec.to_builtins(note)} for name, (_, note) in self._known.items() if note is not None
        ]
        return {"count": len(tables), "tables": shown}

    def _tables(self) -> list[tuple[_Identity, str]]:
        """What there is, the newest first."""
        found: list[tuple[_Identity, str]] = []
        try:
            for file in self._folder.glob(_TABLES):
                with contextlib.suppress(FileNotFoundError):  # a load has just taken it away
                    facts = file.stat()
                    found.append(((facts.st_mtime_ns, facts.st_size, facts.st_ino), file.name))
        except OSError as error:
            self._complain(str(self._folder), error)
        return sorted(found, reverse=True)

    def _note(self, name: str) -> Note | None:
        # imported late: a server that nothing was loaded into does not need it
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            kept = pq.read_metadata(self._folder / name).metadata or {}
            if KEY not in kept:
                raise ValueError("it has no note of 'aviso-server pipeline load'")
            return decode(kept[KEY])
        except (OSError, ValueError, pa.ArrowException) as error:
            self._complain(name, error)
            return None

    def _complain(self, what: str, error: Exception) -> None:
        logger.warning(
            "what was put into quarantine cannot be read: %s: %s", what, error,
            extra={"event": "archive.quarantine.unreadable"},
        )  # fmt: skip
