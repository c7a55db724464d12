"""Which hours somebody asks about."""

from __future__ import annotations

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.insight.tables import HOUR, State

__all__ = ["DAYS", "MOST_DAYS", "Hours", "hours_of"]

DAYS = 7
"""The days before the newest hour, if nothing else is asked for."""

MOST_DAYS = 366
_HOURLY_DAYS = 31  # up to here answers are by hour, then by day


class Hours(msgspec.Struct, frozen=True):
    """Hours since 1970, both included."""

    first: int
    last: int

    @property
    def step(self) -> int:
        """Hours that are shown together."""
        return 1 if self.last - self.first < _HOURLY_DAYS * 24 else 24


def hours_of(state: State, start: int | None = None, end: int | None = None, days: int = DAYS) -> Hours:
    """The hours that touch a time; without a start, so many days up to the end; without an end, up to the newest.

    Times are nanoseconds. InvalidRequest says what is wrong with them.
    """
    newest = state.days[-1].last_time if state.days else 0
    last = (newest if end is None else end) // HOUR
    first = max(0, last - days * 24 + 1) if start is None else start // HOUR
    if start is not None and end is None:
        last = max(first, min(last, first + MOST_DAYS * 24 - 1))
    if first > last or (start is not None and end is not None and start > end):
        raise InvalidRequest("'from' must not be after 'to'", field="from")
    if last - first >= MOST_DAYS * 24:
        message = f"'from' and 'to' are more than {MOST_DAYS} days apart; ask for at most {MOST_DAYS} days"
        raise InvalidRequest(message, field="from")
    return Hours(first, last)
