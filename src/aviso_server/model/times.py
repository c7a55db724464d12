"""Points in time as text, and the start and end of a watch or replay request."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model.json_text import LONGEST, quoted, unsigned

__all__ = [
    "ACCEPTED",
    "INSTANT_TEXT",
    "SECOND",
    "SEQUENCE_TEXT",
    "Instant",
    "Span",
    "event_time",
    "parse_instant",
    "parse_sequence",
    "read_end",
    "read_start",
    "seconds_text",
]


SECOND = 1_000_000_000

Instant = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""The text of a point in time, in a type that JSON schemas are made from."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_SECONDS_DIGITS = 11
_UNIX_MILLISECONDS_DIGITS = 18

_CLOCK = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d+))?"
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_SPACED = re.compile(rf"(\d{{1,4}})-(\d{{1,2}})-(\d{{1,2}}) {_CLOCK} ?(?:[Zz]|([+-])(\d{{2}}):?(\d{{2}}))", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NAIVE = re.compile(rf"(\d{{1,4}})-(\d{{1,2}})-(\d{{1,2}})[T ]{_CLOCK}()()()", re.ASCII)

ACCEPTED = "RFC 3339 (2025-01-15T10:00:00Z), a date and time without zone (UTC), Unix seconds or milliseconds"

_BLANK = r"[\s\u001c-\u001f\u0085]*"
_ZONE = r"(?: ?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}))?"
INSTANT_TEXT = (
    rf"^{_BLANK}(?:\+?[0-9]+|[0-9]{{1,4}}-[0-9]{{1,2}}-[0-9]{{1,2}}[Tt ]"
    rf"[0-9]{{1,2}}:[0-9]{{1,2}}:[0-9]{{1,2}}(?:\.[0-9]+)?{_ZONE}){_BLANK}$"
)
"""A regular expression for the text of points in time, for JSON schemas."""


@lru_cache(maxsize=4096)
def seconds_text(second: int) -> str:
    """Write whole seconds since 1970 as YYYY-MM-DDTHH:MM:SSZ."""
    # not strftime: it writes the year 33 with two digits
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat() + "Z"


def event_time(time: int) -> str:
    """Write nanoseconds since 1970 as RFC 3339 with a fraction of 0, 3, 6 or 9 digits as needed."""
    second, fraction = divmod(time, SECOND)
    whole = seconds_text(second)
    if not fraction:
        return whole
    digits = f"{fraction:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole[:-1]}.{digits}Z"


def parse_instant(name: str, text: str) -> int:
    """Read a `from_date` or `to_date` as nanoseconds since 1970; InvalidRequest says what is accepted."""
    trimmed = text.strip()
    if not trimmed:
        raise InvalidRequest(f"{name} cannot be empty", f"expected {ACCEPTED}", field=name)
    instant = None if len(trimmed) > LONGEST else _parse_unix(trimmed)
    for pattern in (_RFC3339, _SPACED, _NAIVE):
        if instant is None and len(trimmed) <= LONGEST and (found := pattern.fullmatch(trimmed)) is not None:
            instant = _assemble(*found.groups())
    if instant is None:
        hint = f'; a day alone has no time: write "{trimmed}T00:00:00Z"' if _DAY.fullmatch(trimmed) else ""
        raise InvalidRequest(
            f"{name} must be a valid datetime/timestamp such as 2025-01-15T10:00:00Z; got {quoted(text)}{hint}",
            f"expected {ACCEPTED}; got {quoted(text)}",
            field=name,
        )
    return instant


def _parse_unix(text: str) -> int | None:
    digits = unsigned(text)
    if digits is None or len(digits) > _UNIX_MILLISECONDS_DIGITS:
        return None
    scale = SECOND if len(digits) <= _UNIX_SECONDS_DIGITS else SECOND // 1000
    instant = int(digits) * scale
    return instant if instant < _LAST else None


def _assemble(
    year: str,
    month: str,
    day: str,
    hour: str,
    minute: str,
    second: str,
    fraction: str | None,
    sign: str | None,
    offset_hours: str | None,
    offset_minutes: str | None,
) -> int | None:
    leap = int(second) == 60  # a leap second is the first of the next minute
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour), int(minute), 59 if leap else int(second), tzinfo=UTC
        )
    except ValueError:
        return None
    elapsed = moment - _EPOCH
    total = elapsed.days * 86400 + elapsed.seconds + leap
    if sign:
        if int(offset_hours or 0) > 23 or int(offset_minutes or 0) > 59:
            return None
        offset = int(offset_hours or 0) * 3600 + int(offset_minutes or 0) * 60
        total -= offset if sign == "+" else -offset
    instant = total * SECOND + int((fraction or "0")[:9].ljust(9, "0"))
    return instant if _FIRST <= instant < _LAST else None


_FIRST = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).days * 86400 * SECOND
_LAST = ((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).days + 1) * 86400 * SECOND


_HIGHEST = 2**64 - 1
_MOST_DIGITS = 20

SEQUENCE_TEXT = r"^\+?0*[0-9]{1,20}$"
"""A regular expression for the text of sequences, for JSON schemas."""


class Span(msgspec.Struct, frozen=True):
    """A start and an end; of each pair at most one is set."""

    from_sequence: int | None = None
    from_time: int | None = None  # nanoseconds since 1970
    to_sequence: int | None = None
    to_time: int | None = None

    @property
    def has_start(self) -> bool:
        return self.from_sequence is not None or self.from_time is not None

    @property
    def has_end(self) -> bool:
        return self.to_sequence is not None or self.to_time is not None


def read_start(from_id: str | None, from_date: str | None) -> Span:
    """Read the start of a request; each part is checked before whether both are there."""
    sequence = None if from_id is None else parse_sequence("from_id", from_id)
    instant = None if from_date is None else parse_instant("from_date", from_date)
    if sequence is not None and instant is not None:
        raise InvalidRequest("Cannot specify both from_id and from_date", field="from_id")
    return Span(from_sequence=sequence, from_time=instant)


def read_end(start: Span, to_id: str | None, to_date: str | None) -> Span:
    """Add the end of a replay request to its start."""
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
    """Read a sequence number: an unsigned decimal of 64 bits."""
    if not text or text.isspace():
        raise InvalidRequest(f'{name} cannot be empty; write a sequence as text, such as "42"', field=name)
    digits = unsigned(text)
    if digits is None or len(digits) > _MOST_DIGITS or int(digits) > _HIGHEST:
        raise InvalidRequest(
            f'{name} must be a valid positive integer as text, such as "42", or "0" for all; got {quoted(text)}',
            f"expected decimal digits of a number up to {_HIGHEST}",
            field=name,
        )
    return int(digits)


def _offset_text(instant: int) -> str:
    return event_time(instant).replace("Z", "+00:00")
