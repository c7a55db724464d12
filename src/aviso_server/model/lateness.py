"""Lateness: learn from the past when notifications usually arrive, and detect those that are overdue."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from itertools import pairwise
from statistics import median_low
from typing import Any, Literal

import msgspec

from aviso_server.model.event_type import EventType
from aviso_server.model.fields import DateField, EnumField, Field, SpatialField, StringField
from aviso_server.model.notification import Draft
from aviso_server.model.times import seconds_text

__all__ = [
    "DAY",
    "EVENT_TYPE",
    "LATENESS_FOLDER",
    "NAME",
    "PATIENCE",
    "Book",
    "Detector",
    "Learned",
    "Notice",
    "Rhythm",
    "Status",
    "Watched",
    "combination_text",
    "date_field",
    "day_of",
    "day_text",
    "decode",
    "default_fields",
    "encode",
    "every_day",
    "file_name",
    "folded",
    "learn_rhythm",
    "weekday",
]


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
        """Return the combination that a notification belongs to; None if a field of it is missing."""
        try:
            return tuple([str(identifier[name]) for name in self.by])
        except KeyError:
            return None


def default_fields(fields: Mapping[str, Field]) -> tuple[str, ...]:
    """Return what makes up a combination by default: all fields but dates and shapes."""
    return tuple(name for name, field in fields.items() if not isinstance(field, (DateField, SpatialField)))


def date_field(fields: Mapping[str, Field]) -> str | None:
    """Return the field that says to which day a notification belongs: the first date."""
    return next((name for name, field in fields.items() if isinstance(field, DateField)), None)


def combination_text(by: Iterable[str], values: Sequence[str]) -> str:
    """Write a combination as one text: `class=od,step=24`."""
    return ",".join([f"{name}={_escaped(value)}" for name, value in zip(by, values, strict=True)])


def day_of(text: str) -> int | None:
    """Return the day that a canonical date names, in days since 1970; None if it names none."""
    digits = text.replace("-", "")
    if len(digits) != 8 or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).toordinal() - _EPOCH
    except ValueError:
        return None


def day_text(day: int) -> str:
    return date.fromordinal(day + _EPOCH).strftime("%Y%m%d")


def _escaped(value: str) -> str:
    for character, encoded in _MARKS.items():
        value = value.replace(character, encoded)
    return value


NAME = "aviso_lateness"
"""The event type and its stream; the name is reserved."""

Status = Literal["overdue", "arrived"]

EVENT_TYPE = EventType(
    name=NAME,
    fields={
        "expected_event": StringField(required=False, description="The event type that is late"),
        "combination": StringField(
            required=False, description="What of it is late: identifier fields and values, such as class=od,step=24"
        ),
        "date": DateField(required=False, description="The day that it belongs to"),
        "status": EnumField(required=False, values=("overdue", "arrived"), description="Overdue, or there after all"),
        "expected_at": StringField(required=False, description="When it usually arrives"),
    },
    base=NAME,
    key_order=("expected_event", "status", "date", "combination"),
    payload_required=False,
)
"""Built in, and there as soon as one event type is watched."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm about one combination and day; times are seconds since 1970."""

    event_type: str
    combination: str
    values: dict[str, str]
    day: int
    status: Status
    expected_at: int
    overdue_at: int
    spread: int
    seen: int
    arrived_at: int | None = None
    sequence: int | None = None  # of the notification that has arrived

    def draft(self) -> Draft:
        identifier = {
            "expected_event": self.event_type,
            "combination": self.combination,
            "date": day_text(self.day),
            "status": self.status,
            "expected_at": seconds_text(self.expected_at),
        }
        payload: dict[str, Any] = {
            "identifier": self.values,
            "expected_at": seconds_text(self.expected_at),
            "overdue_at": seconds_text(self.overdue_at),
            "spread_seconds": self.spread,
            "seen_days": self.seen,
        }
        if self.arrived_at is not None:
            payload["arrived_at"] = seconds_text(self.arrived_at)
            payload["late_by_seconds"] = self.arrived_at - self.expected_at
            payload["id"] = f"{self.event_type}@{self.sequence}"
        return EVENT_TYPE.check(identifier, payload)


Seen = tuple[int, int]
"""A day, counted from 1970, and when the combination arrived for it: seconds after the day's midnight, UTC."""

_NORMAL = 1.4826  # the standard deviation of a normal distribution, in median absolute deviations
_NINETY_PER_CENT = 3.29  # and the width of its middle ninety per cent, in standard deviations
_OUTLIER = 8  # deviations from the median beyond which an arrival is left out
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
        return bool(self.weekdays >> weekday(day) & 1)

    def next_after(self, day: int) -> int:
        """Return the first day after this one on which it is expected."""
        return next(each for each in range(day + 1, day + 8) if self.expected_on(each))

    def day_of_arrival(self, second: int) -> int:
        """Return the day that an arrival at this second since 1970 belongs to."""
        return (second - (self.cut or 0)) // DAY


def weekday(day: int) -> int:
    """Return the weekday of a day since 1970: Monday is 0."""
    return (day + 3) % 7


def every_day(rhythm: Rhythm) -> bool:
    return rhythm.weekdays == _EVERY_DAY


def folded(arrivals: Sequence[int]) -> tuple[int, list[Seen]] | None:
    """Assign arrivals (seconds since 1970) to days, the first of each day counting; also say where the days begin.

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
    """Learn the rhythm of a combination that arrived on these days; None if there is none to rely on.

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
    """Drop the outliers; keep only the latest arrivals if the schedule has changed."""
    middle = median_low(offsets)
    reach = max(watched.tolerance, _OUTLIER * _deviation(offsets, middle))
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
    """Return the weekdays on which it comes between the two days; none if there is no pattern."""
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
    """Return the weekdays on which it should come, given how often it could have and how often it did."""
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


LATENESS_FOLDER = "_lateness"
"""The folder in the archive where the files lie; names that begin with `_` are never read as notifications."""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The rhythms of an event type."""

    event_type: str
    learned_at: int  # seconds since 1970
    until: int  # how far the archive reached then, in seconds since 1970; 0 if it had nothing
    by: tuple[str, ...]
    date: str | None = None
    rhythms: tuple[Rhythm, ...] = ()
    irregular: int = 0  # combinations that come often enough, but without a rhythm
    left_out: int = 0  # combinations beyond max_combinations: those that came on the fewest days

    def fits(self, watched: Watched) -> bool:
        """Return True if it was learned for the fields that the configuration names now."""
        return (self.event_type, self.by, self.date) == (watched.event_type, watched.by, watched.date)


def file_name(event_type: str) -> str:
    return "".join(_safe(character) for character in event_type) + ".json"


def encode(learned: Learned) -> bytes:
    return msgspec.json.format(msgspec.json.encode(learned), indent=1)


def decode(content: bytes) -> Learned:
    """Read the content of a file; ValueError if `encode` did not write it."""
    return _decoder.decode(content)


def _safe(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "-_"):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


_decoder = msgspec.json.Decoder(Learned)


PATIENCE = 7 * DAY
"""Seconds after which something overdue is given up, and before which a missed moment is still worth an alarm."""

_BETWEEN_TIDYING = 600  # seconds
_FURTHEST_AHEAD = 31  # days: a later date is a mistake, or a forecast of no interest


class Book(msgspec.Struct):
    """The state of a detector, kept over restarts."""

    position: int | None = None  # the newest sequence that was looked at; None before the first look
    judged: dict[str, int] = {}  # by combination: the last day that a judgement was made about
    arrived: dict[str, list[int]] = {}  # by combination: the days after it that have arrived already
    overdue: dict[str, dict[int, Notice]] = {}  # by combination and day: what was announced and has not arrived


class Detector:
    """Detects what of one event type is late. It knows no clock: every call says the time, in seconds since 1970."""

    def __init__(self, watched: Watched, book: Book) -> None:
        self.watched = watched
        self.book = book
        self.learned: Learned | None = None
        self._rhythms: dict[str, Rhythm] = {}
        self._texts: dict[tuple[str, ...], str] = {}
        self._tidied = 0
        self._due: list[tuple[int, str, int]] = []  # a heap: when, which combination, of which day

    @property
    def watching(self) -> int:
        """The number of combinations that are expected at some time."""
        return len(self._rhythms)

    @property
    def overdue(self) -> list[Notice]:
        """Everything overdue now, the longest first."""
        found = [notice for days in self.book.overdue.values() for notice in days.values()]
        return sorted(found, key=lambda notice: (notice.overdue_at, notice.combination))

    def learn(self, learned: Learned, now: int) -> None:
        """Expect what was learned from now on.

        A combination that was not known before is watched from the next day on that lies ahead as a whole: nobody has
        looked yet whether it has arrived for an earlier one.
        """
        book, by = self.book, self.watched.by
        self.learned = learned
        self._texts = {rhythm.values: combination_text(by, rhythm.values) for rhythm in learned.rhythms}
        self._rhythms = {self._texts[rhythm.values]: rhythm for rhythm in learned.rhythms}
        book.judged = {
            text: book.judged[text] if text in book.judged else self._begun(rhythm, now)
            for text, rhythm in self._rhythms.items()
        }
        book.arrived = {text: days for text, days in book.arrived.items() if text in self._rhythms}
        self._plan()

    def begin_anew(self, now: int) -> None:
        """Start with the next whole day after a gap, in which arrivals may have been missed."""
        for text, rhythm in self._rhythms.items():
            self.book.judged[text] = max(self.book.judged[text], self._begun(rhythm, now))
        self._plan()

    def arrive(self, identifier: Mapping[str, Any], sequence: int, second: int) -> Notice | None:
        """Record that a notification was stored at this second; return the notice if it was overdue."""
        values = self.watched.values_of(identifier)
        if values is None:
            return None
        text = self._texts.get(values)
        if text is None:
            if not self.book.overdue:
                return None
            text = combination_text(self.watched.by, values)  # overdue when it was last heard of, now forgotten
        day = self._day(identifier, text, second)
        if day is None or day > second // DAY + _FURTHEST_AHEAD:
            return None
        if text in self._rhythms and day > self.book.judged[text]:
            days = self.book.arrived.setdefault(text, [])
            if day not in days:
                days.append(day)
            return None
        notice = self.book.overdue.get(text, {}).get(day)
        if notice is None:
            return None
        self._forget(text, day)
        return msgspec.structs.replace(notice, status="arrived", arrived_at=second, sequence=sequence)

    def due(self, now: int) -> Sequence[Notice]:
        """Return what has become overdue; all that was stored before `now` must have been given to `arrive`."""
        notices: list[Notice] = []
        while self._due and self._due[0][0] <= now:
            overdue_at, text, day = heapq.heappop(self._due)
            rhythm = self._rhythms[text]
            days = self.book.arrived.get(text, [])
            if day not in days and overdue_at > now - PATIENCE and day not in self.book.overdue.get(text, {}):
                notice = self._notice(text, rhythm, day)
                self.book.overdue.setdefault(text, {})[day] = notice
                notices.append(notice)
            self.book.judged[text] = day
            if left := [each for each in days if each > day]:
                self.book.arrived[text] = left
            else:
                self.book.arrived.pop(text, None)
            self._push(text, rhythm, rhythm.next_after(day))
        if now >= self._tidied + _BETWEEN_TIDYING:
            self._tidied = now
            self._give_up(now)
        return notices

    def _give_up(self, now: int) -> None:
        for notice in self.overdue:
            if notice.overdue_at > now - PATIENCE:
                return
            self._forget(notice.combination, notice.day)

    def _begun(self, rhythm: Rhythm, now: int) -> int:
        """Return the last day for which it may have arrived already."""
        return (now - rhythm.earliest + self.watched.tolerance) // DAY

    def _day(self, identifier: Mapping[str, Any], text: str, second: int) -> int | None:
        if self.watched.date is not None:
            return day_of(str(identifier.get(self.watched.date, "")))
        if text in self._rhythms:
            return self._rhythms[text].day_of_arrival(second)
        return max(self.book.overdue.get(text, {}), default=None)

    def _plan(self) -> None:
        self._due = []
        for text, rhythm in self._rhythms.items():
            self._push(text, rhythm, rhythm.next_after(self.book.judged[text]))

    def _push(self, text: str, rhythm: Rhythm, day: int) -> None:
        heapq.heappush(self._due, (day * DAY + rhythm.overdue, text, day))

    def _forget(self, text: str, day: int) -> None:
        del self.book.overdue[text][day]
        if not self.book.overdue[text]:
            del self.book.overdue[text]

    def _notice(self, text: str, rhythm: Rhythm, day: int) -> Notice:
        return Notice(
            event_type=self.watched.event_type,
            combination=text,
            values=dict(zip(self.watched.by, rhythm.values, strict=True)),
            day=day,
            status="overdue",
            expected_at=day * DAY + rhythm.expected,
            overdue_at=day * DAY + rhythm.overdue,
            spread=rhythm.spread,
            seen=rhythm.seen,
        )
