"""The clock of all streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aviso_server.delivery.hub import Timers
from tests.delivery.simulation import in_simulated_time


class Item:
    """Something that is due every `period` seconds, `times` times."""

    def __init__(self, period: float, times: int = 1000, failing: bool = False) -> None:
        self.period = period
        self.times = times
        self.failing = failing
        self.ticks: list[float] = []
        self.aborted = False

    def tick(self, now: float) -> float | None:
        """Note the time."""
        self.ticks.append(now)
        if self.failing:
            raise RuntimeError("broken")
        return now + self.period if len(self.ticks) < self.times else None

    def abort(self) -> None:
        """Fail once more."""
        self.aborted = True
        raise RuntimeError("broken for good")


@asynccontextmanager
async def running() -> AsyncIterator[Timers]:
    timers = Timers()
    task = asyncio.create_task(timers.run())
    await asyncio.sleep(0)
    yield timers
    assert not task.done(), "the clock must never stop"
    task.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


@in_simulated_time
async def test_items_are_called_when_due_and_not_before() -> None:
    async with running() as timers:
        start, items = now(), [Item(9, times=1), Item(9, times=1)]
        for item, delay in zip(items, (0.05, 0.35), strict=True):
            timers.add(item, start + delay)
        await asyncio.sleep(0.9)
        for item, delay in zip(items, (0.05, 0.35), strict=True):
            assert len(item.ticks) == 1
            assert start + delay <= item.ticks[0] <= start + delay + 0.45


@in_simulated_time
async def test_items_come_back_as_often_as_they_ask() -> None:
    async with running() as timers:
        three, forever = Item(0.1, times=3), Item(0.1)
        timers.add(three, now())
        timers.add(forever, now())
        await asyncio.sleep(1.2)
        assert len(three.ticks) == 3
        assert 3 < len(forever.ticks) <= 12
        assert all(later - earlier >= 0.1 for earlier, later in zip(forever.ticks, forever.ticks[1:], strict=False))


@in_simulated_time
async def test_who_has_left_is_not_called() -> None:
    async with running() as timers:
        left, stays = Item(0.1), Item(0.1)
        for item in (left, stays):
            timers.add(item, now() + 0.2)
        timers.discard(left)
        timers.discard(left)
        await asyncio.sleep(0.5)
        assert left.ticks == []
        assert stays.ticks != []


@in_simulated_time
async def test_leaving_while_others_are_called() -> None:
    async with running() as timers:
        victim = Item(0.1)

        class Assassin(Item):
            def tick(self, now: float) -> float | None:
                timers.discard(victim)
                return super().tick(now)

        assassin, when = Assassin(9), now() + 0.15
        timers.add(assassin, when)
        timers.add(victim, when)
        await asyncio.sleep(0.5)
        assert len(assassin.ticks) == 1
        assert victim.ticks == []


def test_one_that_fails_does_not_stop_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with running() as timers:
            broken, fine = Item(0.1, failing=True), Item(0.1)
            timers.add(broken, now())
            timers.add(fine, now())
            await asyncio.sleep(0.6)
            assert len(broken.ticks) == 1
            assert broken.aborted
            assert len(fine.ticks) > 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(scene())
    assert "a tick failed" in caplog.text


@in_simulated_time
async def test_a_thousand_items_leave_room_for_others() -> None:
    async with running() as timers:
        items = [Item(9) for _ in range(1000)]
        for item in items:
            timers.add(item, now() + 0.05)
        turns = 0
        while not all(item.ticks for item in items):
            await asyncio.sleep(0)
            turns += any(item.ticks for item in items)
        assert turns >= 3, "the thousand are not called in one go"
