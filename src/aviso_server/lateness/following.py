"""Hearing of every notification of a stream, live and after a pause, in order and once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from aviso_server.delivery.history import History
from aviso_server.log.base import Log, Subscription
from aviso_server.model.lateness.judge import Judge
from aviso_server.model.lateness.notice import Notice
from aviso_server.model.notification import Notification
from aviso_server.model.schema import EventType
from aviso_server.model.timestamp import SECOND

__all__ = ["Following"]

logger = logging.getLogger(__name__)

_BATCH = 1000
_MOMENT = 0.01  # seconds


class Following:
    """One stream and its judge. What was stored while nobody listened is read from the log and the archive."""

    def __init__(
        self, judge: Judge, log: Log, history: History, event_type: EventType, say: Callable[[Notice], None]
    ) -> None:
        self._judge = judge
        self._log = log
        self._history = history
        self._everything = event_type.compile({}, "replay", lenient=True)
        self._say = say
        self._subscription: Subscription | None = None
        self._live = False
        self._heard = 0  # the newest sequence that was stored since somebody listens

    async def catch_up(self, now: int) -> None:
        """Return once everything that is stored has been reported to the judge; LogError if it cannot be read."""
        if self._live:
            return
        stream, book = self._judge.watched.stream, self._judge.book
        if self._subscription is None:
            self._heard = 0
            self._subscription = self._log.follow(stream, self._hear, self._lose)
        while True:
            last = (await self._log.state(stream)).last
            if book.position is None:
                book.position = last
            elif book.position > max(last, self._heard):
                book.position = 0  # the log began anew
            if book.position >= max(last, self._heard):
                self._live = True
                return
            if book.position < last:
                await self._read(book.position + 1, last, now)
            else:
                await asyncio.sleep(_MOMENT)  # heard of, but not to be read yet

    def close(self) -> None:
        """Hear no more."""
        self._live = False
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    async def _read(self, start: int, last: int, now: int) -> None:
        stream, book = self._judge.watched.stream, self._judge.book
        if await self._history.lost(stream, start):
            self._judge.begin_anew(now)
            logger.warning(
                "notifications of '%s' from %d on are gone already: what they were expected for is not judged",
                stream, start, extra={"event": "lateness.history.gone"},
            )  # fmt: skip
        reading = self._history.reading(self._everything, start)
        try:
            while reading.position <= last:
                batch = await reading.next(last, _BATCH)
                for notification in batch.notifications:
                    self._report(notification)
                book.position = batch.next - 1
                await asyncio.sleep(0)  # others want to be served too
        finally:
            reading.close()

    def _hear(self, notifications: Sequence[Notification]) -> None:
        book = self._judge.book
        for notification in notifications:
            self._heard = max(self._heard, notification.sequence)
            if not self._live or book.position is None or notification.sequence <= book.position:
                continue
            if notification.sequence != book.position + 1:
                self._live = False  # the one before it is on its way, or there is none: reading tells
                continue
            self._report(notification)
            book.position = notification.sequence

    def _lose(self, reason: str) -> None:
        self._live = False
        self._subscription = None

    def _report(self, notification: Notification) -> None:
        notice = self._judge.arrive(notification.values(), notification.sequence, notification.time // SECOND)
        if notice is not None:
            self._say(notice)
