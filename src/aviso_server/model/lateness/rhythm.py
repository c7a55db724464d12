"""When a combination usually arrives: learned from when it did, with statistics that a few odd days do not move."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median_low

import msgspec

from aviso_server.model.lateness.watched import DAY, Watched

__all__ = ["Rhythm", "Seen", "every_day", "folded", "learn_rhythm", "weekday"]

Seen = tuple[int, int]
"""A day, counted from 1970, and when the combination arrived for it: seconds after the day's midnight, UTC."""

_NORMAL = 1.4826  # the standard deviation of a normal distribution, in median absolute deviations
_NINETY_PER_CENT = 3.29  # and the width of its middle ninety per cent, in standard deviations
_ASIDE = 8  # deviations from the median beyond which an arrival says nothing about the usual
_BEYOND = 4  # deviations that something may be later than nearly all others
_WIDEST = DAY  # between the usual time and being overdue; what is less regular is not expected at all
_SHORTEST_GAP = 7200  # seconds of the day without arrivals, where one day can be told from the next
_MISSED = 0.1  # of the expected days
_STRAY = 0.1  # of the other days
_EVERY_DAY = 0b1111111


class Rhythm(msgspec.Struct, frozen=True, kw_only=True):
    """When one combination is expected; times are seconds after midnight (UTC) of the day it belongs to."""

    values: tuple[str, ...]
    weekdays: int  # a bit for each, Monday is 1
    earliest: int  # it has not come earlier than this
    expected: int  # the usual time
    overdue: int  # from here on it is overdue
    spread: int  # the usual deviation
    seen: int  # days on which it came
    cut: int | None = None  # where its day begins, if a notification does not say to which day it belongs

    def expected_on(self, day: int) -> bool:
        """True if it is expected on this day."""
        return bool(self.weekdays >> weekday(day) & 1)

    def next_after(self, day: int) -> int:
        """The first day after this one on which it is expected."""
        return next(each for each in range(day + 1, day + 8) if self.expected_on(each))

    def day_of_arrival(self, second: int) -> int:
        """The day that an arrival at this second since 1970 belongs to."""
        return (second - (self.cut or 0)) // DAY


def weekday(day: int) -> int:
    """The weekday of a day since 1970: Monday is 0."""
    return (day + 3) % 7


def every_day(rhythm: Rhythm) -> bool:
    """True if it is expected on all days of the week."""
    return rhythm.weekdays == _EVERY_DAY


def folded(arrivals: Sequence[int]) -> tuple[int, list[Seen]] | None:
    """Arrivals (seconds since 1970) as days, the first of each day counting, and where the days begin.

    The day is cut where there are no arrivals for longest. None if they come around the clock.
    """
    clock = sorted({second % DAY for second in arrivals})
    if not clock:
        return None
    start, end = max(pairwise([*clock, clock[0] + DAY]), key=lambda gap: gap[1] - gap[0])
    if end - start < _SHORTEST_GAP:
        return None
    cut = (start + end) // 2 % DAY
    first: dict[int, int] = {}
    for second in sorted(arrivals):
        first.setdefault((second - cut) // DAY, second)
    shift = median_low([second - day * DAY for day, second in first.items()]) // DAY
    # the day that it belongs to is the one on which it usually comes
    return cut - shift * DAY, [(day + shift, second - (day + shift) * DAY) for day, second in first.items()]


def learn_rhythm(
    values: tuple[str, ...], seen: Sequence[Seen], until: int, watched: Watched, cut: int | None = None
) -> Rhythm | None:
    """The rhythm of a combination that arrived on these days; None if there is none to rely on.

    `until` is how far the past is known, in seconds since 1970: later days may still come.
    """
    seen = sorted(seen)
    if len(seen) < watched.min_seen:
        return None
    usual = _usual([offset for _, offset in seen], watched)
    middle = median_low(usual)
    sigma = _deviation(usual, middle)
    ordered = sorted(usual)
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    spread = max(sigma, (high - low) / _NINETY_PER_CENT)
    overdue = high + round(max(watched.tolerance, _BEYOND * spread))
    if overdue - middle > _WIDEST or (cut is not None and overdue > cut + DAY):
        return None
    complete = (until - overdue) // DAY
    weekdays = _weekdays({day for day, _ in seen}, seen[0][0], complete, watched.min_seen)
    if not weekdays:
        return None
    return Rhythm(
        values=values,
        weekdays=weekdays,
        earliest=ordered[0],
        expected=middle,
        overdue=overdue,
        spread=round(spread),
        seen=len(seen),
        cut=cut,
    )


def _usual(offsets: Sequence[int], watched: Watched) -> Sequence[int]:
    """The arrivals without the odd ones; only the latest if the schedule has changed."""
    middle = median_low(offsets)
    reach = max(watched.tolerance, _ASIDE * _deviation(offsets, middle))
    for side in (1, -1):
        changed = 0
        while changed < len(offsets) and side * (offsets[-1 - changed] - middle) > reach:
            changed += 1
        if changed >= watched.min_seen:
            return _usual(offsets[-changed:], watched)
    return [offset for offset in offsets if abs(offset - middle) <= reach]


def _deviation(offsets: Sequence[int], middle: int) -> float:
    return _NORMAL * median_low([abs(offset - middle) for offset in offsets])


def _weekdays(days: Collection[int], first: int, last: int, min_seen: int) -> int:
    """The weekdays on which it comes, of those from the first day to the last; none if there is no pattern."""
    # a day that is not over yet counts only if it has come
    looked_at = [*range(first, last + 1), *sorted(day for day in days if day > last)]
    possible = [0] * 7
    came = [0] * 7
    for day in looked_at:
        possible[weekday(day)] += 1
        came[weekday(day)] += day in days
    chosen = _pattern(possible, came, min_seen)
    expected = [day for day in looked_at if weekday(day) in chosen]
    if not any(day in days for day in expected[-min_seen:]):
        return 0  # it has ended
    return sum(1 << each for each in chosen)


def _pattern(possible: Sequence[int], came: Sequence[int], min_seen: int) -> Collection[int]:
    """The weekdays on which it should come, given how often it could have and how often it did."""
    total = sum(possible)
    if total >= 7 and sum(came) >= min_seen and total - sum(came) <= _MISSED * total:
        return range(7)
    chosen = [
        each
        for each in range(7)
        if came[each] >= min_seen and possible[each] - came[each] <= max(1, _MISSED * possible[each])
    ]
    others = [each for each in range(7) if each not in chosen]
    if sum(came[each] for each in others) > _STRAY * sum(possible[each] for each in others):
        return ()  # it comes as it likes; that some weekdays were complete is chance
    return chosen
