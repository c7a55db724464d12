"""The judgement: given what is usual, what arrived and what time it is, what is overdue and what has arrived late?"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aviso_server.model.lateness.learned import Learned
from aviso_server.model.lateness.notice import Notice
from aviso_server.model.lateness.rhythm import Rhythm
from aviso_server.model.lateness.watched import DAY, Watched, combination_text, day_of

__all__ = ["PATIENCE", "Book", "Judge"]

PATIENCE = 7 * DAY
"""Seconds after which something overdue is given up, and before which a missed moment is still worth an alarm."""

_BETWEEN_TIDYING = 600  # seconds
_FURTHEST_AHEAD = 31  # days: a date beyond is a mistake, or a forecast that nobody waits for


class Book(msgspec.Struct):
    """What has to be remembered of an event type, over restarts too."""

    position: int | None = None  # the newest sequence that was looked at; None before the first look
    judged: dict[str, int] = {}  # by combination: the last day that a judgement was made about
    arrived: dict[str, list[int]] = {}  # by combination: the days after it that have arrived already
    overdue: dict[str, dict[int, Notice]] = {}  # by combination and day: what was announced and has not arrived


class Judge:
    """Judges one event type. It knows no clock: every call says what time it is, in seconds since 1970."""

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
        """How many combinations are expected at some time."""
        return len(self._rhythms)

    @property
    def overdue(self) -> list[Notice]:
        """What is overdue now, the longest first."""
        found = [notice for days in self.book.overdue.values() for notice in days.values()]
        return sorted(found, key=lambda notice: (notice.overdue_at, notice.combination))

    def learn(self, learned: Learned, now: int) -> None:
        """From now on this is what is usual.

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
        """Arrivals may have been missed: watch everything from the next day on that lies ahead as a whole."""
        for text, rhythm in self._rhythms.items():
            self.book.judged[text] = max(self.book.judged[text], self._begun(rhythm, now))
        self._plan()

    def arrive(self, identifier: Mapping[str, Any], sequence: int, second: int) -> Notice | None:
        """A notification was stored at this second; what is to be said if it was overdue."""
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
        """What has become overdue; everything that was stored before `now` must have been reported by `arrive`."""
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
        """The last day for which it may have arrived already."""
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
