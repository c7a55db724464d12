"""What an audit finds: defects with their sequences and hours, and a verdict per stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from aviso_server.model.timestamp import SECOND, seconds_text
from aviso_server.pipeline.archive.storage import Storage, joined

__all__ = [
    "AUDIT",
    "VERDICT",
    "Audit",
    "Defect",
    "Explained",
    "Held",
    "Hour",
    "Kind",
    "StreamAudit",
    "Verdict",
    "Where",
    "hour_text",
    "keep_verdict",
]

AUDIT = "_audit"
"""The folder in an archive that is about audits."""

VERDICT = "verdict.json"
"""The file in it that says what the last one found."""

Kind = Literal["hole", "duplicate", "content", "form", "misplaced", "unreadable", "behind"]
"""What is wrong: a sequence is missing, there twice, different in log and archive, not in canonical form, in a file
that is named otherwise, in a file that cannot be read, or the log is behind its archive."""

Where = Literal["log", "archive", "log and archive"]

Verdict = Literal["clean", "defects", "unchecked"]
"""Nothing is wrong, something is, or nobody can say."""

_HOUR = 3600
_SHOWN = 20  # defects of a stream in the verdict file


class Defect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with some sequences of a stream."""

    kind: Kind
    where: Where
    first: int
    last: int
    hours: tuple[str, str] | None = None  # the first and the last one; None if nobody knows
    reason: str = ""
    repairable: bool = False  # by archiving anew what the log still has

    @property
    def count(self) -> int:
        """How many sequences."""
        return self.last - self.first + 1


class Hour(msgspec.Struct, frozen=True):
    """What is there of an hour; counts are those of different sequences."""

    hour: str
    log: int
    archive: int
    same: int  # in both, with the same content


class Held(msgspec.Struct, frozen=True):
    """A range, and how many of its sequences have a row."""

    first: int = 1
    last: int = 0
    rows: int = 0


class Explained(msgspec.Struct, frozen=True):
    """Sequences that are missing, in the log or in the archive, for a known reason."""

    deleted: int = 0
    wiped: int = 0
    retention: int = 0


class StreamAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a stream."""

    event_type: str
    verdict: Verdict
    acknowledged: int = 0  # the newest sequence that was given out
    log: Held | None = None  # what was read of the log
    archive: Held | None = None
    same: int = 0  # sequences with the same content in both
    lag: int = 0  # sequences that are not archived yet
    explained: Explained = Explained()
    defects: tuple[Defect, ...] = ()
    hours: tuple[Hour, ...] = ()
    unchecked: tuple[str, ...] = ()  # what could not be looked at, in sentences
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many sequences have a defect; one that has two counts twice."""
        return sum(each.count for each in self.defects)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one audit."""

    at: str
    seconds: float
    archive: str | None
    streams: dict[str, StreamAudit]

    @property
    def verdict(self) -> Verdict:
        """Defects weigh most, then what could not be checked."""
        return overall(each.verdict for each in self.streams.values())

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return {"verdict": self.verdict, **shown}

    def summary(self) -> dict[str, Any]:
        """What the verdict file says."""
        streams = {
            name: {
                "event_type": each.event_type,
                "verdict": each.verdict,
                "defects": each.count,
                "acknowledged": each.acknowledged,
                "lag": each.lag,
                "first_defects": [
                    {"kind": one.kind, "where": one.where, "first": one.first, "last": one.last}
                    for one in each.defects[:_SHOWN]
                ],
            }
            for name, each in self.streams.items()
        }
        return {"at": self.at, "verdict": self.verdict, "seconds": self.seconds, "streams": streams}


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on all of them."""
    found = set(verdicts)
    return "defects" if "defects" in found else "unchecked" if "unchecked" in found or not found else "clean"


def hour_text(time_ns: int) -> str:
    """The hour that a time lies in."""
    seconds = time_ns // SECOND
    return seconds_text(seconds - seconds % _HOUR)


def keep_verdict(root: str, audit: Audit, storage: Storage) -> None:
    """Write the verdict beside the archive, at once for all who look."""
    storage.write(joined(root, f"{AUDIT}/{VERDICT}"), msgspec.json.encode(audit.summary()))
