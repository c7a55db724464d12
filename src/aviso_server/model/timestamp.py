"""Points in time as text: whole seconds in frames, full precision in events."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from aviso_server.errors import InvalidRequest

__all__ = ["ACCEPTED", "INSTANT_TEXT", "SECOND", "event_time", "parse_instant", "seconds_text"]

SECOND = 1_000_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_SECONDS_DIGITS = 11

_CLOCK = r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d+))?"
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_SPACED = re.compile(rf"(\d{{1,4}})-(\d{{1,2}})-(\d{{1,2}}) {_CLOCK} ?(?:[Zz]|([+-])(\d{{2}}):?(\d{{2}}))", re.ASCII)
_NAIVE = re.compile(rf"(\d{{1,4}})-(\d{{1,2}})-(\d{{1,2}})[T ]{_CLOCK}()()()", re.ASCII)
_UNIX = re.compile(r"\+?0*(\d+)", re.ASCII)

ACCEPTED = "RFC 3339 (2025-01-15T10:00:00Z), a date and time without zone (UTC), Unix seconds or milliseconds"

_BLANK = r"[\s\u001c-\u001f\u0085]*"
_ZONE = r"(?: ?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}))?"
INSTANT_TEXT = (
    rf"^{_BLANK}(?:\+?[0-9]+|[0-9]{{1,4}}-[0-9]{{1,2}}-[0-9]{{1,2}}[Tt ]"
    rf"[0-9]{{1,2}}:[0-9]{{1,2}}:[0-9]{{1,2}}(?:\.[0-9]+)?{_ZONE}){_BLANK}$"
)
"""What the text of every point in time looks like, as a regular expression for JSON schemas."""


@lru_cache(maxsize=4096)
def seconds_text(second: int) -> str:
    """Whole seconds since 1970 as YYYY-MM-DDTHH:MM:SSZ."""
    # not strftime: it writes the year 33 with two digits
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat() + "Z"


def event_time(time: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 with a fraction of 0, 3, 6 or 9 digits as needed."""
    second, fraction = divmod(time, SECOND)
    whole = seconds_text(second)
    if not fraction:
        return whole
    digits = f"{fraction:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole[:-1]}.{digits}Z"


def parse_instant(name: str, text: str) -> int:
    """Nanoseconds since 1970 of a `from_date` or `to_date`; InvalidRequest says what is accepted."""
    trimmed = text.strip()
    instant = _parse_unix(trimmed)
    for pattern in (_RFC3339, _SPACED, _NAIVE):
        if instant is None and (found := pattern.fullmatch(trimmed)) is not None:
            instant = _assemble(*found.groups())
    if instant is None:
        raise InvalidRequest(f"Invalid {name} '{text}'", f"expected {ACCEPTED}; got '{text}'", field=name)
    return instant


def _parse_unix(text: str) -> int | None:
    found = _UNIX.fullmatch(text)
    if found is None:
        return None
    digits = found[1]
    if len(digits) > 18:
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
