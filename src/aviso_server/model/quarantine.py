"""The note on refused rows that a load writes into its quarantine table, and the archive reads."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["KEY", "QUARANTINE_FOLDER", "Note", "RefusedFor", "decode", "encode", "note"]

QUARANTINE_FOLDER = "quarantine"
"""The folder in `archive.work_path` where loads put their tables by default."""
KEY = b"aviso.quarantine"
"""Under this name a table keeps its note."""
MOST_REASONS = 20
"""Reasons that a note lists: those with the most rows."""

_LONGEST = 300  # characters of a reason; a row may have a field with a name of megabytes


class RefusedFor(msgspec.Struct, frozen=True):
    """A rule, and the number of rows that broke it."""

    code: str
    field: str | None
    reason: str
    rows: int


class Note(msgspec.Struct, frozen=True):
    """Which load it was, and what its rows were refused for."""

    event_type: str
    at: str
    rows: int
    reasons: tuple[RefusedFor, ...]
    other_reasons: int  # rows that were refused for reasons that are not listed


def note(event_type: str, at: str, reasons: Iterable[RefusedFor]) -> Note:
    """Build the note on a load from all of its reasons, in any order."""
    ranked = sorted(reasons, key=lambda each: (-each.rows, each.code, each.field or "", each.reason))
    listed = tuple(_shortened(each) for each in ranked[:MOST_REASONS])
    others = sum(each.rows for each in ranked[MOST_REASONS:])
    return Note(event_type, at, sum(each.rows for each in ranked), listed, others)


def encode(given: Note) -> bytes:
    return msgspec.json.encode(given)


def decode(content: bytes) -> Note:
    """Read the note of a table; ValueError if `encode` did not write it."""
    return _decoder.decode(content)


def _shortened(given: RefusedFor) -> RefusedFor:
    field = None if given.field is None else _short(given.field)
    return RefusedFor(given.code, field, _short(given.reason), given.rows)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_decoder = msgspec.json.Decoder(Note)
