"""Which part of a stream a reader asks for: a start and, on replay, an end, each by sequence or by date."""

from __future__ import annotations

import re

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model.timestamp import event_time, parse_instant

__all__ = ["SEQUENCE_TEXT", "Span", "parse_sequence", "read_end", "read_start"]

_UNSIGNED = re.compile(r"\+?0*([0-9]+)")
_HIGHEST = 2**64 - 1

SEQUENCE_TEXT = r"^\+?0*[0-9]{1,20}$"
"""What the text of every sequence looks like, as a regular expression for JSON schemas."""


class Span(msgspec.Struct, frozen=True):
    """A start and an end; of each pair at most one is set."""

    from_sequence: int | None = None
    from_time: int | None = None  # nanoseconds since 1970
    to_sequence: int | None = None
    to_time: int | None = None

    @property
    def has_start(self) -> bool:
        """True if history is asked for."""
        return self.from_sequence is not None or self.from_time is not None

    @property
    def has_end(self) -> bool:
        """True if the request has an end."""
        return self.to_sequence is not None or self.to_time is not None


def read_start(from_id: str | None, from_date: str | None) -> Span:
    """The start of a request; each part is checked before whether both are there."""
    sequence = None if from_id is None else parse_sequence("from_id", from_id)
    instant = None if from_date is None else parse_instant("from_date", from_date)
    if sequence is not None and instant is not None:
        raise InvalidRequest("Cannot specify both from_id and from_date", field="from_id")
    return Span(from_sequence=sequence, from_time=instant)


def read_end(start: Span, to_id: str | None, to_date: str | None) -> Span:
    """The start completed with the end of a replay request."""
    sequence = None if to_id is None else parse_sequence("to_id", to_id)
    instant = None if to_date is None else parse_instant("to_date", to_date)
    if sequence is not None and instant is not None:
        raise InvalidRequest("Cannot specify both to_id and to_date", field="to_id")
    if sequence is not None and start.from_sequence is not None and sequence < start.from_sequence:
        raise InvalidRequest(
            f"to_id ({sequence}) must not be lower than from_id ({start.from_sequence})", field="to_id"
        )
    if instant is not None and start.from_time is not None and instant < start.from_time:
        raise InvalidRequest(
            f"to_date ({_offset_text(instant)}) must not be earlier than from_date ({_offset_text(start.from_time)})",
            field="to_date",
        )
    return msgspec.structs.replace(start, to_sequence=sequence, to_time=instant)


def parse_sequence(name: str, text: str) -> int:
    """A sequence number of a request: an unsigned decimal of 64 bits."""
    found = _UNSIGNED.fullmatch(text)
    if found is None or len(found[1]) > 20 or int(found[1]) > _HIGHEST:
        raise InvalidRequest(
            f"Invalid {name} '{text}': expected an unsigned integer as text",
            f"expected decimal digits of a number up to {_HIGHEST}",
            field=name,
        )
    return int(found[1])


def _offset_text(instant: int) -> str:
    return event_time(instant).replace("Z", "+00:00")
