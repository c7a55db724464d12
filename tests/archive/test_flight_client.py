"""A fair share of the archive: a limit, a queue, and no place for readers who do nothing."""

from __future__ import annotations

import asyncio

from aviso_server.archive.flight_client import Slots, Turn
from tests.harness.patience import PATIENCE


def test_so_many_at_a_time_in_the_order_in_which_they_came() -> None:
    async def run() -> None:
        slots = Slots(2)
        order: list[int] = []
        running = 0

        async def read(number: int) -> None:
            nonlocal running
            async with slots.turn():
                running += 1
                assert running <= 2
                order.append(number)
                await asyncio.sleep(0.01)
                running -= 1

        tasks = [asyncio.create_task(read(number)) for number in range(10)]
        await asyncio.sleep(0.005)
        assert (slots.taken, slots.waiting) == (2, 8)
        tasks[4].cancel()
        await asyncio.wait(tasks)
        assert order == [number for number in range(10) if number != 4]
        assert (slots.taken, slots.waiting) == (0, 0)

    asyncio.run(run())


def test_giving_up_at_the_moment_of_ones_turn_hands_it_on() -> None:
    async def run() -> None:
        slots = Slots(1)

        async def wait() -> None:
            async with slots.turn():
                await asyncio.sleep(0)

        async with slots.turn():
            first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
            await asyncio.sleep(0)
        first.cancel()  # it has been given the turn and has not woken up
        await asyncio.wait_for(second, PATIENCE)
        assert (slots.taken, slots.waiting) == (0, 0)

    asyncio.run(run())


def test_whoever_does_nothing_loses_their_turn_to_whoever_waits() -> None:
    async def run() -> None:
        slots = Slots(1, idle=0.05)
        lost: list[Turn] = []
        async with slots.turn() as lazy:
            lazy.on_lost = lambda: lost.append(lazy)
            lazy.rests()
            await asyncio.sleep(0.1)
            assert lazy.goes_on(), "nobody else wants it"
            lazy.rests()
            async with asyncio.timeout(PATIENCE), slots.turn():
                assert lost == [lazy]
                assert not lazy.goes_on()
                assert slots.taken == 1
        assert (slots.taken, slots.waiting) == (0, 0)

    asyncio.run(run())


def test_whoever_reads_keeps_their_turn() -> None:
    async def run() -> None:
        slots = Slots(1, idle=0.4)  # much longer than a busy machine makes of the shortest sleep
        async with slots.turn() as busy:
            waiting = asyncio.create_task(slots.turn().__aenter__())
            for _ in range(3):
                busy.rests()
                await asyncio.sleep(0.001)
                assert busy.goes_on()
                await asyncio.sleep(0.5)
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(run())
