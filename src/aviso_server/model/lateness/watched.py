"""Which event types are watched for lateness, and what makes one of their notifications an expected one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec

from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.fields.date import DateField

__all__ = ["DAY", "Watched", "combination_text", "date_field", "day_of", "day_text", "default_fields"]

DAY = 86_400
"""Seconds."""

_EPOCH = date(1970, 1, 1).toordinal()
_MARKS = {"%": "%25", ",": "%2C", "=": "%3D"}  # the percent sign first: the others bring more of them


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """An event type that is watched, and how strictly."""

    event_type: str
    stream: str
    by: tuple[str, ...]  # the identifier fields that make up a combination
    date: str | None = None  # the field that says to which day a notification belongs; None: the day of its arrival
    tolerance: int = 1800  # seconds that something may always be later than usual
    learn_days: int = 42
    min_seen: int = 4
    max_combinations: int = 10_000

    def values_of(self, identifier: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The combination that a notification belongs to; None if a field of it is missing."""
        try:
            return tuple([str(identifier[name]) for name in self.by])
        except KeyError:
            return None


def default_fields(fields: Mapping[str, Field]) -> tuple[str, ...]:
    """What makes up a combination unless the configuration says it: all fields but dates and shapes."""
    return tuple(name for name, field in fields.items() if not isinstance(field, (DateField, SpatialField)))


def date_field(fields: Mapping[str, Field]) -> str | None:
    """The field that says to which day a notification belongs: the first date."""
    return next((name for name, field in fields.items() if isinstance(field, DateField)), None)


def combination_text(by: Iterable[str], values: Sequence[str]) -> str:
    """A combination as one text: `class=od,step=24`."""
    return ",".join([f"{name}={_escaped(value)}" for name, value in zip(by, values, strict=True)])


def day_of(text: str) -> int | None:
    """The day that a canonical date names, in days since 1970; None if it names none."""
    digits = text.replace("-", "")
    if len(digits) != 8 or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).toordinal() - _EPOCH
    except ValueError:
        return None


def day_text(day: int) -> str:
    """A day as a canonical date."""
    return date.fromordinal(day + _EPOCH).strftime("%Y%m%d")


def _escaped(value: str) -> str:
    for character, encoded in _MARKS.items():
        value = value.replace(character, encoded)
    return value
