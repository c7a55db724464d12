"""A fair share of the archive: so many replays at a time, the others wait in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["Slots", "Turn"]

_IDLE = 2.0  # seconds that a reader may do nothing while others wait


class Turn:
    """The right to read, which is lost to whoever waits if its reader takes nothing for a while."""

    def __init__(self) -> None:
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self.idle_since: float | None = None

    def rests(self) -> None:
        """Its reader is busy with something else."""
        self.idle_since = asyncio.get_running_loop().time()

    def goes_on(self) -> bool:
        """Its reader wants more; False if the turn was lost meanwhile."""
        self.idle_since = None
        return not self.lost


class Slots:
    """At most so many turns at a time."""

    def __init__(self, most: int, idle: float = _IDLE) -> None:
        self._most = most
        self._idle = idle
        self._taken: list[Turn] = []
        self._promised = 0  # handed to somebody who has not woken up yet
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        """How many read."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Wait for a turn, and hold it."""
        if len(self._taken) + self._promised >= self._most or self._waiting:
            await self._wait()
        turn = Turn()
        self._taken.append(turn)
        try:
            yield turn
        finally:
            if not turn.lost:
                self._taken.remove(turn)
                self._hand_on()

    async def _wait(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            while not mine.done():
                self._take_from_idle()
                await asyncio.wait([mine], timeout=self._idle / 4)
        except BaseException:
            if mine.done():
                self._promised -= 1
                self._hand_on()
            else:
                self._waiting.remove(mine)
            raise
        self._promised -= 1

    def _take_from_idle(self) -> None:
        """Let somebody who waits go before a reader who does nothing."""
        now = asyncio.get_running_loop().time()
        idle = [turn for turn in self._taken if turn.idle_since is not None and now - turn.idle_since >= self._idle]
        if idle:
            longest = min(idle, key=lambda turn: turn.idle_since or now)
            longest.lost = True
            self._taken.remove(longest)
            longest.on_lost()
            self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting and len(self._taken) + self._promised < self._most:
            self._waiting.popleft().set_result(None)
            self._promised += 1
