"""Heartbeats and deadlines of all streams, without a timer or a task for each.

With 10,000 heartbeats due at once (`python -m bench.timers`), one `call_later` each makes others wait six times as
long, because asyncio calls all that are due in one go, and takes 1 kB more per watcher.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

__all__ = ["Timers"]

logger = logging.getLogger(__name__)


_RESOLUTION = 0.1  # seconds
_CALLS_PER_TURN = 256  # then other requests get their turn


class Due(Protocol):
    """Something that wants to be called now and then."""

    def tick(self, now: float) -> float | None:
        """Act, and return when the next tick is due; None for never again."""

    def abort(self) -> None:
        """Hear that the tick has failed; it is not called again."""


class Timers:
    """Calls everybody when they are due."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Due, None]] = {}
        self._place: dict[Due, int] = {}
        self._turned = 0

    def add(self, item: Due, when: float) -> None:
        """Call the item at that time of the loop's clock."""
        place = max(int(when / _RESOLUTION) + 1, self._turned + 1)
        self._place[item] = place
        self._due.setdefault(place, {})[item] = None

    def discard(self, item: Due) -> None:
        """Do not call the item any more."""
        place = self._place.pop(item, None)
        if place is not None and (due := self._due.get(place)) is not None:
            due.pop(item, None)
            if not due:
                del self._due[place]

    async def run(self) -> None:
        """Go on for ever."""
        loop = asyncio.get_running_loop()
        self._turned = int(loop.time() / _RESOLUTION)
        while True:
            await asyncio.sleep(_RESOLUTION)
            now = loop.time()
            while self._turned < int(now / _RESOLUTION):
                self._turned += 1
                await self._call(self._due.pop(self._turned, {}), now)

    async def _call(self, due: dict[Due, None], now: float) -> None:
        for number, item in enumerate(due):
            if self._place.pop(item, None) is None:
                continue  # has left since
            try:
                again = item.tick(now)
            except Exception:  # one that fails must not stop the clock for all
                logger.exception("a tick failed", extra={"event": "stream.heartbeat.failed"})
                with suppress(Exception):
                    item.abort()
                continue
            if again is not None:
                self.add(item, again)
            if number % _CALLS_PER_TURN == _CALLS_PER_TURN - 1:
                await asyncio.sleep(0)
