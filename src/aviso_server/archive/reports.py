"""Reports that Spark leaves beside the archive: the last audit, and tables of refused rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from aviso_server.model.quarantine import KEY, Note, RefusedFor, decode

__all__ = ["MOST_TABLES", "AuditResult", "LastAudit", "Quarantine", "Quarantined"]

logger = logging.getLogger(__name__)

_FILE = Path("_audit") / "verdict.json"


Verdict = Literal["clean", "defects", "unchecked"]


class AuditDefect(msgspec.Struct, frozen=True):
    """Consecutive sequences with the same defect."""

    kind: str
    where: str
    first: int
    last: int


class AuditedStream(msgspec.Struct, frozen=True):
    event_type: str
    verdict: Verdict
    defects: Annotated[int, Meta(description="Sequences that have one.")]
    acknowledged: int
    lag: Annotated[int, Meta(description="Sequences that were not archived yet.")]
    first_defects: tuple[AuditDefect, ...] = ()


class AuditResult(msgspec.Struct, frozen=True):
    at: str
    verdict: Verdict
    seconds: float
    streams: dict[str, AuditedStream]


_read = msgspec.json.Decoder(AuditResult).decode


class LastAudit:
    """The last audit; of an archive elsewhere only those that were made on this machine are known."""

    def __init__(self, path: str, work: Path) -> None:
        parts = urlsplit(path)
        folder = work
        if parts.scheme in ("", "file"):
            folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)
        self._file = folder / _FILE
        self._seen: tuple[int, int] | None = None
        self.result: AuditResult | None = None  # None if there was none

    async def look(self) -> None:
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        try:
            facts = self._file.stat()
            seen = facts.st_mtime_ns, facts.st_size
            if seen != self._seen:
                self.result = _read(self._file.read_bytes())
                self._seen = seen
        except FileNotFoundError:
            self.result = self._seen = None
        except (OSError, msgspec.DecodeError) as error:
            if self._seen != (0, 0):
                self._seen = 0, 0  # said once
                logger.warning(
                    "what the last audit found cannot be read: %s", error, extra={"event": "archive.audit.unreadable"}
                )


MOST_TABLES = 20
"""Tables that are shown: the newest."""

_TABLES = "refused-*.parquet"


class QuarantineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows that a load has refused."""

    file: Annotated[str, Meta(description="Its name in the folder `quarantine` in `archive.work_path`.")]
    event_type: str
    at: Annotated[str, Meta(description="When the load refused them.")]
    rows: int
    reasons: Annotated[tuple[RefusedFor, ...], Meta(description="Those with the most rows, at most 20.")]
    other_reasons: Annotated[int, Meta(description="Rows that were refused for other reasons.")]


class Quarantine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest tables of refused rows."""

    count: Annotated[int, Meta(description="How many tables there are.")]
    tables: Annotated[list[QuarantineTable], Meta(description="The newest, at most 20.")]


_Identity = tuple[int, int, int]


class Quarantined:
    """The tables of one folder. Only their ends are read, and each only once for as long as it stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[_Identity, Note | None]] = {}  # by name; None if it cannot be read

    async def describe(self) -> Quarantine | None:
        """Return the newest tables; None if there are none."""
        return await asyncio.to_thread(self._describe)

    def _describe(self) -> Quarantine | None:
        tables = self._tables()
        if not tables:
            return None
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name][0] == identity else (identity, self._note(name))
            for identity, name in tables[:MOST_TABLES]
        }
        notes = {name: note for name, (_, note) in self._known.items() if note is not None}
        shown = [QuarantineTable(name, *msgspec.structs.astuple(note)) for name, note in notes.items()]
        return Quarantine(len(tables), shown)

    def _tables(self) -> list[tuple[_Identity, str]]:
        """Return the tables, the newest first."""
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
