"""Fields for days and times of day: DateHandler and TimeHandler."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.fields.field import Field
from aviso_server.model.json_text import check_length, quoted

__all__ = ["DateField", "TimeField"]


# Possessive digits: a group takes all it can and gives nothing back, so 202512 has no day.
_YEAR = r"\s*+(?P<year>[+-]\d++|\d{1,4}+)"
_CALENDAR = re.compile(_YEAR + r"-\s*+(?P<month>\d{1,2}+)-\s*+(?P<day>\d{1,2}+)", re.ASCII)
_COMPACT = re.compile(_YEAR + r"\s*+(?P<month>\d{1,2}+)\s*+(?P<day>\d{1,2}+)", re.ASCII)
_ORDINAL = re.compile(_YEAR + r"-\s*+(?P<ordinal>\d{1,3}+)", re.ASCII)

_FORMATS = ("%Y%m%d", "%Y-%m-%d")

# For JSON schemas, which know no possessive digits: every day that is accepted looks like this.
_MONTH, _DAY = r"(?:0?[1-9]|1[0-2])", r"(?:0?[1-9]|[12][0-9]|3[01])"
_ANY_DAY = rf"^\s*(?:\+[0-9]+|[0-9]{{1,4}})(?:-\s*{_MONTH}-\s*{_DAY}|\s*{_MONTH}\s*{_DAY}|-\s*[0-9]{{1,3}})$"
_FIRST_NUMBER, _LAST_NUMBER = 1000101, 99991231  # 1000-10-1 and 9999-12-31


class DateField(Field, frozen=True, kw_only=True):
    """A day, written as 2025-12-25, 20251225 or 2025-359 (day of the year)."""

    canonical_format: str = "%Y%m%d"

    type_name: ClassVar[str] = "DateHandler"
    accepts: ClassVar[str] = "a day as YYYY-MM-DD, YYYYMMDD or YYYY-DDD (day of the year), years 1 to 9999"
    example: ClassVar[Any] = "20250706"

    def canonical(self, name: str, text: str) -> str:
        if len(text) == 8 and text.isascii() and text.isdigit() and self.canonical_format == "%Y%m%d":
            year, month, day = int(text[:4]), int(text[4:6]), int(text[6:])
            if 1 <= month <= 12 and 1 <= day <= 28 and year:
                return text  # what nearly every publisher sends
        check_length(name, text, self.accepts)
        found = _parse_day(text)
        if found is None:
            raise InvalidRequest(
                f"Field '{name}' contains invalid date {quoted(text)}",
                f"Failed to parse date {quoted(text)}: "
                "accepted are YYYY-MM-DD, YYYYMMDD and YYYY-DDD (day of the year)",
                field=name,
            )
        dash = "-" if self.canonical_format == "%Y-%m-%d" else ""
        return f"{found.year:04d}{dash}{found.month:02d}{dash}{found.day:02d}"

    def problem(self) -> Problem | None:
        if self.canonical_format not in _FORMATS:
            return Problem("canonical_format", f"unknown format '{self.canonical_format}'", ", ".join(_FORMATS))
        return None

    def value_schema(self) -> dict[str, Any]:
        limits = {"minimum": _FIRST_NUMBER, "maximum": _LAST_NUMBER}
        return {"type": ["string", "integer"], "pattern": _ANY_DAY, **limits}


def _parse_day(text: str) -> date | None:
    for pattern in (_CALENDAR, _COMPACT):
        if (found := pattern.fullmatch(text)) is not None:
            try:
                return date(int(found["year"]), int(found["month"]), int(found["day"]))
            except (ValueError, OverflowError):
                pass
    if (found := _ORDINAL.fullmatch(text)) is not None and int(found["ordinal"]) > 0:
        try:
            start = date(int(found["year"]), 1, 1)
            day = start + timedelta(days=int(found["ordinal"]) - 1)
        except (ValueError, OverflowError):
            return None
        return day if day.year == start.year else None
    return None


_HOURS = re.compile(r"\d{1,2}", re.ASCII)
_COLON = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_FOUR = re.compile(r"(\d{2})(\d{2})", re.ASCII)
_ANY_TIME = r"^(?:(?:[01]?[0-9]|2[0-3])(?::[0-5][0-9])?|(?:[01][0-9]|2[0-3])[0-5][0-9])$"  # for JSON schemas


class TimeField(Field, frozen=True, kw_only=True):
    """A time of day, written as 12, 12:00 or 1200."""

    type_name: ClassVar[str] = "TimeHandler"
    accepts: ClassVar[str] = "a time of day as HH, HH:MM or HHMM, hours 0 to 23, minutes 0 to 59"
    example: ClassVar[Any] = "1200"

    def canonical(self, name: str, text: str) -> str:
        if _HOURS.fullmatch(text):
            hours, minutes = text, "00"
        elif (found := (_COLON if ":" in text else _FOUR).fullmatch(text)) is not None:
            hours, minutes = found.groups()
        else:
            raise InvalidRequest(
                f"Field '{name}' contains invalid time {quoted(text)}; accepted are HH, HH:MM and HHMM", field=name
            )
        if int(hours) > 23:
            raise InvalidRequest(f"Field '{name}' has invalid hours in '{text}'; accepted are 0 to 23", field=name)
        if int(minutes) > 59:
            raise InvalidRequest(f"Field '{name}' has invalid minutes in '{text}'; accepted are 0 to 59", field=name)
        return f"{hours:0>2}{minutes}"

    def value_schema(self) -> dict[str, Any]:
        return {"type": ["string", "integer"], "pattern": _ANY_TIME, "minimum": 0, "maximum": 2359}
