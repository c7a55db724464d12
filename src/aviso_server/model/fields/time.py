"""TimeHandler: a time of day in hours and minutes."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest
from aviso_server.model.fields.base import Field

__all__ = ["TimeField"]

_HOURS = re.compile(r"\d{1,2}", re.ASCII)
_COLON = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_FOUR = re.compile(r"(\d{2})(\d{2})", re.ASCII)
_ANY_FORM = r"^(?:(?:[01]?[0-9]|2[0-3])(?::[0-5][0-9])?|(?:[01][0-9]|2[0-3])[0-5][0-9])$"  # for JSON schemas


class TimeField(Field, frozen=True, kw_only=True):
    """A time of day, written as 12, 12:00 or 1200."""

    type_name: ClassVar[str] = "TimeHandler"
    accepts: ClassVar[str] = "a time of day as HH, HH:MM or HHMM, hours 0 to 23, minutes 0 to 59"
    example: ClassVar[Any] = "1200"
    widget: ClassVar[str] = "time"

    def canonical(self, name: str, text: str) -> str:
        """The time as HHMM."""
        if _HOURS.fullmatch(text):
            hours, minutes = text, "00"
        elif (found := (_COLON if ":" in text else _FOUR).fullmatch(text)) is not None:
            hours, minutes = found.groups()
        else:
            raise InvalidRequest(
                f"Field '{name}' contains invalid time '{text}'; accepted are HH, HH:MM and HHMM", field=name
            )
        if int(hours) > 23:
            raise InvalidRequest(f"Field '{name}' has invalid hours in '{text}'; accepted are 0 to 23", field=name)
        if int(minutes) > 59:
            raise InvalidRequest(f"Field '{name}' has invalid minutes in '{text}'; accepted are 0 to 59", field=name)
        return f"{hours:0>2}{minutes}"

    def value_schema(self) -> dict[str, Any]:
        """Text, or a number that is written like one of the forms."""
        return {"type": ["string", "integer"], "pattern": _ANY_FORM, "minimum": 0, "maximum": 2359}
