"""The log in memory: the contract, and how it keeps itself small."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aviso_server.log.base import KeyPolicy, Log, StreamState
from aviso_server.log.memory import MemoryLog
from tests.log.contract import LogContract
from tests.log.key_contract import KeyContract
from tests.log.scenario import draft, everything, in_event_loop, opened, sequences, size


class TestContract(LogContract):
    survives_restart = False

    def make(self, directory: Path) -> Log:
        return MemoryLog(max_history_per_topic=10_000)


class TestKeys(KeyContract):
    keys_survive_restart = False

    def make_keyed(self, directory: Path, keys: KeyPolicy) -> Log:
        return MemoryLog(max_history_per_topic=10_000, keys=keys)


@pytest.mark.parametrize(("history", "kept"), [(0, 1), (1, 1), (2, 2), (5, 5), (9, 6)])
@in_event_loop
async def test_a_topic_keeps_its_newest(history: int, kept: int) -> None:
    async with opened(MemoryLog(max_history_per_topic=history)) as log:
        stored = [await log.append(draft(n, topic="mars.a")) for n in range(6)]
        assert await everything(log, "mars") == stored[6 - kept :]
        held = sum(size(draft(n, topic="mars.a")) for n in range(6 - kept, 6))
        assert await log.state("mars") == StreamState(first=7 - kept, last=6, count=kept, bytes=held, trimmed=6 - kept)


@in_event_loop
async def test_one_per_topic_is_the_default() -> None:
    async with opened(MemoryLog()) as log:
        for topic in "abacb":
            await log.append(draft(1, topic=f"mars.{topic}"))
        assert await sequences(log, "mars") == [3, 4, 5]


@in_event_loop
async def test_the_topic_whose_newest_is_oldest_leaves_for_a_new_one() -> None:
    async with opened(MemoryLog(max_history_per_topic=5, max_topics=3)) as log:
        for topic in ("a", "b", "c", "a", "b"):
            await log.append(draft(1, topic=f"mars.{topic}"))
        await log.append(draft(1, topic="mars.d"))
        assert [one.topic[-1] for one in await everything(log, "mars")] == ["a", "b", "a", "b", "d"]
        assert (await log.state("mars")).trimmed == 3
        await log.append(draft(1, topic="mars.e"))
        assert [one.topic[-1] for one in await everything(log, "mars")] == ["b", "b", "d", "e"]


@in_event_loop
async def test_the_number_of_topics_is_counted_over_all_streams() -> None:
    async with opened(MemoryLog(max_topics=2)) as log:
        await log.append(draft(1, "mars"))
        await log.append(draft(1, "diss"))
        await log.append(draft(2, "diss"))
        assert (await sequences(log, "mars"), await sequences(log, "diss")) == ([], [1, 2])
        assert await log.state("mars") == StreamState(first=2, last=1, count=0, bytes=0, trimmed=1)


@in_event_loop
async def test_a_topic_emptied_by_a_delete_counts_and_leaves_last() -> None:
    async with opened(MemoryLog(max_topics=2)) as log:
        await log.append(draft(1, topic="mars.a"))
        await log.append(draft(1, topic="mars.b"))
        await log.delete("mars", 1)
        await log.append(draft(1, topic="mars.c"))
        assert [one.topic for one in await everything(log, "mars")] == ["mars.c"]
        await log.append(draft(1, topic="mars.a"))
        assert [one.topic for one in await everything(log, "mars")] == ["mars.c", "mars.a"]


@in_event_loop
async def test_deleting_the_newest_of_a_topic_makes_the_topic_older() -> None:
    async with opened(MemoryLog(max_history_per_topic=2, max_topics=2)) as log:
        for topic in ("a", "b", "a"):
            await log.append(draft(1, topic=f"mars.{topic}"))
        await log.delete("mars", 3)
        await log.append(draft(1, topic="mars.c"))
        assert [one.topic for one in await everything(log, "mars")] == ["mars.b", "mars.c"]


@in_event_loop
async def test_a_wipe_makes_room_for_topics() -> None:
    async with opened(MemoryLog(max_topics=2)) as log:
        await log.append(draft(1, "diss"))
        await log.append(draft(1, "mars"))
        await log.delete("mars", 1)
        assert await log.wipe("mars") == 0
        await log.append(draft(2, "mars"))
        assert (await sequences(log, "diss"), await sequences(log, "mars")) == ([1], [2])


@in_event_loop
async def test_a_clock_that_goes_back_does_not_turn_times_back() -> None:
    ticks = iter([100, 50, 200])
    async with opened(MemoryLog(max_history_per_topic=9, clock=lambda: next(ticks))) as log:
        assert [(await log.append(draft(n))).time for n in range(3)] == [100, 100, 200]


@in_event_loop
async def test_nothing_comes_between_a_large_batch_and_it_is_finished() -> None:
    async with opened(MemoryLog(max_history_per_topic=10_000)) as log:
        large = asyncio.ensure_future(log.append_many([draft(n) for n in range(3000)]))
        await asyncio.sleep(0)
        single, several = (
            asyncio.ensure_future(log.append(draft(1))),
            asyncio.ensure_future(log.append_many([draft(2)])),
        )
        wipe = asyncio.ensure_future(log.wipe("mars"))
        last = asyncio.ensure_future(log.append(draft(3)))
        assert not large.done()
        assert not single.done()
        large.cancel()
        with pytest.raises(asyncio.CancelledError):
            await large
        assert [(await single).sequence, (await several)[0].sequence] == [3001, 3002]
        assert (await wipe, (await last).sequence) == (3002, 3003)
        assert await sequences(log, "mars") == [3003]


@in_event_loop
async def test_deleting_the_newest_of_many_topics_keeps_their_order() -> None:
    async with opened(MemoryLog(max_history_per_topic=2, max_topics=200)) as log:
        for _ in range(2):
            await log.append_many([draft(1, topic=f"mars.{number}") for number in range(200)])
        for number in range(0, 200, 2):  # every other topic is as old as its first notification
            assert await log.delete("mars", 201 + number)
        await log.append_many([draft(1, topic=f"mars.new{number}") for number in range(150)])
        left = {one.topic for one in await everything(log, "mars")}
        expected = {*range(101, 200, 2)}
        assert left == {f"mars.{n}" for n in expected} | {f"mars.new{n}" for n in range(150)}
