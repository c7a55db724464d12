"""The times of rows that become the past: read by the rules of the model, plain ones many at a time."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.errors import InvalidRequest
from aviso_server.model.json_value import identifier_text
from aviso_server.model.timestamp import SECOND, parse_instant

__all__ = ["Times", "read_time"]

_PLAIN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$"
_FIELD = "time"


class Times:
    """Reads times, which must not be later than a moment: what comes after the past must have a later time."""

    def __init__(self, latest: int) -> None:
        self._latest = latest

    def read(self, values: Sequence[Any]) -> list[int | None]:
        """Nanoseconds since 1970; None for those to ask `read_one` about."""
        plain = self._plain(values)
        if plain is not None:
            return plain
        return [self._one(value) for value in values]

    def read_one(self, value: Any) -> int:
        """Nanoseconds since 1970; InvalidRequest says what is accepted."""
        time = read_time(value)
        if not 0 <= time <= self._latest:
            raise InvalidRequest(
                f"Field 'time' must lie between 1970 and the moment of the import; got '{value}'", field=_FIELD
            )
        return time

    def _one(self, value: Any) -> int | None:
        try:
            return self.read_one(value)
        except InvalidRequest:
            return None

    def _plain(self, values: Sequence[Any]) -> list[int | None] | None:
        """All of them, if they are written as most programs write them and are acceptable."""
        try:
            texts = pa.array(values, pa.string())
            if texts.null_count or not pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
                return None
            times = pc.cast(pc.cast(texts, pa.timestamp("ns", tz="UTC")), pa.int64())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return None
        limits = pc.min_max(times)
        if not (limits["min"].as_py() or 0) >= 0 or (limits["max"].as_py() or 0) > self._latest:
            return None
        found: list[int | None] = times.to_pylist()
        return found


def read_time(value: Any) -> int:
    """Nanoseconds since 1970 of a time in a row; InvalidRequest says what is accepted."""
    if value is None or value == "":
        raise InvalidRequest("Field 'time' is missing: history needs the time of each notification", field=_FIELD)
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        elapsed = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return (elapsed.days * 86_400 + elapsed.seconds) * SECOND + elapsed.microseconds * 1000
    return parse_instant(_FIELD, identifier_text(_FIELD, value))
