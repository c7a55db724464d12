"""The promises of `aviso_server.log.base`, as tests that every log passes.

A new log joins with a class in a test module of its own:

    class TestMine(LogContract):
        def make(self, directory): return MyLog(...)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Log, StoragePolicy, StreamState
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.scenario import EVERYTHING, draft, everything, in_event_loop, opened, sequences, until


class LogContract:
    """What holds for every log. `make` gives a log that keeps all notifications; the same directory, the same log."""

    survives_restart: ClassVar[bool] = True

    def make(self, directory: Path) -> Log:
        raise NotImplementedError

    # Numbers and times

    @in_event_loop
    async def test_sequences_start_at_one_and_rise_by_one_in_each_stream(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            got = [(await log.append(draft(n, stream))).sequence for n in range(3) for stream in ("mars", "diss")]
        assert got == [1, 1, 2, 2, 3, 3]

    @in_event_loop
    async def test_append_returns_what_was_given_and_read_finds_the_same(self, tmp_path: Path) -> None:
        given = draft(7, box=Box(-10.5, 0.1, 20.0, 179.99999999999997))
        async with opened(self.make(tmp_path)) as log:
            stored = await log.append(given)
            assert (stored.topic, stored.identifier, stored.payload, stored.box) == (
                given.topic, given.identifier, given.payload, given.box,
            )  # fmt: skip
            assert await everything(log, "mars") == [stored]

    @pytest.mark.parametrize(
        "payload",
        [b"null", b'""', '{"text":"Zürich ☃ 𝄞"}'.encode(), rb'"\u001f\u0000"', b'"' + b"x" * 500_000 + b'"'],
        ids=["null", "empty text", "not ascii", "escaped control", "large"],
    )
    @in_event_loop
    async def test_payloads_come_back_byte_for_byte(self, tmp_path: Path, payload: bytes) -> None:
        async with opened(self.make(tmp_path)) as log:
            for number in range(3):
                await log.append(Draft("mars", f"mars.Z%2Eürich.{number}", b'{"place":"Z\xc3\xbcrich"}', payload))
            found = await everything(log, "mars")
        assert [one.payload for one in found] == [payload] * 3
        assert [one.topic for one in found] == [f"mars.Z%2Eürich.{number}" for number in range(3)]

    @in_event_loop
    async def test_times_are_of_now_and_never_fall(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            before = time.time_ns()
            times = [(await log.append(draft(n))).time for n in range(20)]
            after = time.time_ns()
        assert times == sorted(times)
        assert before <= times[0]
        assert times[-1] <= after

    @in_event_loop
    async def test_concurrent_publishers_get_every_number_once(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            stored = await asyncio.gather(*(log.append(draft(n)) for n in range(300)))
            assert sorted(one.sequence for one in stored) == list(range(1, 301))
            assert await everything(log, "mars") == sorted(stored, key=lambda one: one.sequence)

    @in_event_loop
    async def test_several_appended_together_are_adjacent_and_in_order(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            others = [asyncio.ensure_future(log.append(draft(n))) for n in range(20)]
            together = await log.append_many([draft(n, stream) for n in range(100, 110) for stream in ("mars", "diss")])
            await asyncio.gather(*others)
        mars, diss = together[0::2], together[1::2]
        assert [one.payload for one in mars] == [draft(n).payload for n in range(100, 110)]
        assert [one.sequence for one in mars] == list(range(mars[0].sequence, mars[0].sequence + 10))
        assert [one.sequence for one in diss] == list(range(1, 11))

    @in_event_loop
    async def test_appending_nothing_stores_nothing(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            assert list(await log.append_many([])) == []
            assert list(await log.streams()) == []

    @in_event_loop
    async def test_a_cancelled_publisher_harms_nobody(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.append(draft(0))
            publishers = [asyncio.ensure_future(log.append(draft(n))) for n in range(1, 41)]
            await asyncio.sleep(0)
            for publisher in publishers[::2]:
                publisher.cancel()
            results = await asyncio.gather(*publishers, return_exceptions=True)
            answered = [one for one in results if isinstance(one, Notification)]
            assert len(answered) >= 20
            last = await log.append(draft(99))
            held = await everything(log, "mars")
        assert [one.sequence for one in held] == list(range(1, last.sequence + 1))
        assert all(one in held for one in answered)

    # Followers

    @in_event_loop
    async def test_a_follower_sees_each_once_in_order_before_the_publisher_does(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.append(draft(0))
            seen: list[Notification] = []
            log.follow("mars", seen.extend)

            async def publish(number: int) -> None:
                stored = await log.append(draft(number))
                assert stored in seen

            await asyncio.gather(*(publish(n) for n in range(1, 101)))
            assert [one.sequence for one in seen] == list(range(2, 102))
            assert seen == await everything(log, "mars", start=2)

    @in_event_loop
    async def test_a_follower_hears_of_its_stream_only(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            seen: list[Notification] = []
            log.follow("mars", seen.extend)
            await log.append(draft(1, "diss"))
            stored = await log.append(draft(2, "mars"))
            assert seen == [stored]

    @in_event_loop
    async def test_a_cancelled_follower_is_not_called_again(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            stopped: list[Notification] = []
            kept: list[Notification] = []
            subscription = log.follow("mars", stopped.extend)
            log.follow("mars", kept.extend)
            await log.append(draft(1))
            subscription.cancel()
            subscription.cancel()
            await log.append(draft(2))
            assert ([one.sequence for one in stopped], [one.sequence for one in kept]) == ([1], [1, 2])

    @in_event_loop
    async def test_a_follower_can_cancel_another_while_both_are_told(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            seen: list[Notification] = []
            log.follow("mars", lambda _: second.cancel())
            second = log.follow("mars", seen.extend)
            await log.append(draft(1))
            assert seen == []

    @in_event_loop
    async def test_a_failing_follower_harms_neither_publisher_nor_others(self, tmp_path: Path) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        def fail(_: Sequence[Notification]) -> None:
            raise ValueError("broken follower")

        async with opened(self.make(tmp_path)) as log:
            seen: list[Notification] = []
            log.follow("mars", fail)
            log.follow("mars", seen.extend)
            stored = await log.append(draft(1))
            assert seen == [stored]
        assert [str(context["exception"]) for context in reported] == ["broken follower"]

    # State

    @in_event_loop
    async def test_a_stream_nobody_used_is_empty(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            assert await log.state("mars") == StreamState(first=1, last=0, count=0, bytes=0, trimmed=0)
            assert list(await log.streams()) == []
            assert await log.read("mars", 1, 10, 5) == await log.read("mars", 3, 10, 5)
            assert (await log.read("mars", 1, 10, 5)).next == 11
            assert (await log.first_since("mars", 0), await log.last_until("mars", EVERYTHING)) == (1, 0)
            assert await log.delete("mars", 1) is False

    @in_event_loop
    async def test_state_counts_what_is_held(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            for number in range(5):
                await log.append(draft(number))
            full = await log.state("mars")
            assert (full.first, full.last, full.count, full.trimmed) == (1, 5, 5, 0)
            assert full.bytes >= sum(len(draft(n).payload) for n in range(5))
            await log.delete("mars", 1)
            await log.delete("mars", 3)
            less = await log.state("mars")
            assert (less.first, less.last, less.count, less.trimmed) == (2, 5, 3, 0)
            assert less.bytes < full.bytes

    @in_event_loop
    async def test_streams_are_sorted_and_stay_when_emptied(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            for stream in ("mars", "diss", "test_polygon"):
                await log.append(draft(1, stream))
            await log.wipe("diss")
            assert list(await log.streams()) == ["diss", "mars", "test_polygon"]

    # Reading

    @pytest.mark.parametrize(
        ("start", "end", "limit", "expected", "next_sequence"),
        [
            (1, 10, 100, range(1, 11), 11),
            (0, 10, 100, range(1, 11), 11),
            (-5, 4, 100, range(1, 5), 5),
            (3, 7, 100, range(3, 8), 8),
            (3, 7, 2, range(3, 5), 5),
            (7, 7, 1, range(7, 8), 8),
            (9, 50, 100, range(9, 11), 51),
            (11, 50, 100, (), 51),
            (8, 3, 100, (), 8),
            (1, 0, 100, (), 1),
            (1, 2**64, 100, range(1, 11), 2**64 + 1),
        ],
    )
    @in_event_loop
    async def test_a_read_gives_the_range_and_where_to_go_on(
        self, tmp_path: Path, start: int, end: int, limit: int, expected: Sequence[int], next_sequence: int
    ) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.append_many([draft(n) for n in range(10)])
            batch = await log.read("mars", start, end, limit)
        assert [one.sequence for one in batch.notifications] == list(expected)
        assert batch.next == next_sequence

    @pytest.mark.parametrize("limit", [1, 3, 100])
    @in_event_loop
    async def test_reading_on_from_next_finds_all_across_gaps(self, tmp_path: Path, limit: int) -> None:
        gone = {1, 4, 5, 6, 7, 8, 9, 20}
        async with opened(self.make(tmp_path)) as log:
            await log.append_many([draft(n) for n in range(20)])
            for sequence in gone:
                assert await log.delete("mars", sequence)
            assert await sequences(log, "mars", limit) == [n for n in range(1, 21) if n not in gone]

    @in_event_loop
    async def test_a_box_leaves_out_no_notification_that_overlaps_it(self, tmp_path: Path) -> None:
        boxes = [None, Box(0, 0, 10, 10), Box(10, 10, 20, 20), Box(-20, -20, -10.5, -10), Box(-90, -180, 90, 180)]
        wanted = Box(10, 10, 12, 12)
        async with opened(self.make(tmp_path)) as log:
            stored = await log.append_many([draft(n, box=boxes[n % 5]) for n in range(50)])
            for limit in (1, 7, 100):
                found = await everything(log, "mars", limit=limit, box=wanted)
                assert found == sorted(found, key=lambda one: one.sequence)
                overlapping = [one for one in stored if one.box is not None and one.box.overlaps(wanted)]
                assert [one for one in found if one.box is not None and one.box.overlaps(wanted)] == overlapping
            assert await everything(log, "mars") == list(stored)

    @in_event_loop
    async def test_dates_lead_to_sequences(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            for number in range(12):
                await log.append(draft(number))
                await asyncio.sleep(0.002)
            for sequence in (1, 5, 6, 12):
                await log.delete("mars", sequence)
            held = await everything(log, "mars")
            first, last = held[0].sequence, held[-1].sequence
            assert (first, last) == (2, 11)
            for instant in {moment + step for one in held for moment in (one.time,) for step in (-1, 0, 1)} | {0}:
                since = [one.sequence for one in held if one.time >= instant]
                until_then = [one.sequence for one in held if one.time <= instant]
                assert await log.first_since("mars", instant) == (since[0] if since else 13)
                assert await log.last_until("mars", instant) == (until_then[-1] if until_then else first - 1)

    # Removing

    @in_event_loop
    async def test_a_deleted_notification_is_gone_and_its_number_too(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            for number in range(3):
                await log.append(draft(number))
            assert await log.delete("mars", 3) is True
            assert await log.delete("mars", 3) is False
            assert [await log.delete("mars", n) for n in (0, -1, 4, 2**64)] == [False] * 4
            assert (await log.append(draft(9))).sequence == 4
            assert await sequences(log, "mars") == [1, 2, 4]

    @in_event_loop
    async def test_a_wiped_stream_keeps_its_numbering_and_its_followers(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            seen: list[Notification] = []
            log.follow("mars", seen.extend)
            await log.append_many([draft(n) for n in range(4)])
            await log.append(draft(1, "diss"))
            assert await log.wipe("mars") == 4
            assert await log.wipe("mars") == 0
            assert await log.wipe("never") is None
            assert await log.state("mars") == StreamState(first=5, last=4, count=0, bytes=0, trimmed=0)
            assert (await log.append(draft(5))).sequence == 5
            assert (await log.state("mars")).first == 5
            assert [one.sequence for one in seen] == [1, 2, 3, 4, 5]
            assert await sequences(log, "diss") == [1]

    @in_event_loop
    async def test_removals_keep_their_place_among_appends(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.append(draft(0))
            calls: list[asyncio.Future[Any]] = []
            for call in (
                lambda: log.append(draft(1)),
                lambda: log.wipe("mars"),
                lambda: log.append(draft(2)),
                lambda: log.delete("mars", 3),
            ):
                calls.append(asyncio.ensure_future(call()))
                await asyncio.sleep(0)
            second, wiped, third, deleted = await asyncio.gather(*calls)
            assert (second.sequence, wiped, third.sequence, deleted) == (2, 2, 3, True)
            assert await sequences(log, "mars") == []

    # Life

    @in_event_loop
    async def test_a_closed_log_refuses_and_closing_twice_is_fine(self, tmp_path: Path) -> None:
        log = self.make(tmp_path)
        await log.open()
        assert log.connected
        await log.append(draft(1))
        await log.close()
        await log.close()
        assert not log.connected
        with pytest.raises(LogUnavailable, match="closed"):
            await log.append(draft(2))

    @in_event_loop
    async def test_closing_finishes_what_was_accepted(self, tmp_path: Path) -> None:
        log = self.make(tmp_path)
        await log.open()
        publishers = [asyncio.ensure_future(log.append(draft(n))) for n in range(50)]
        await asyncio.sleep(0)
        await log.close()
        assert sorted([(await one).sequence for one in publishers]) == list(range(1, 51))

    @in_event_loop
    async def test_a_restart_changes_nothing_or_begins_anew(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            for number in range(6):
                await log.append(draft(number, box=Box(0, 0, 1, 1) if number % 2 else None))
                await log.append(draft(number, "diss"))
            await log.delete("mars", 6)
            await log.wipe("diss")
            held = await everything(log, "mars")
            states = [await log.state(stream) for stream in ("mars", "diss")]
        async with opened(self.make(tmp_path)) as log:
            if self.survives_restart:
                assert await everything(log, "mars") == held
                assert [await log.state(stream) for stream in ("mars", "diss")] == states
                assert (await log.append(draft(7))).sequence == 7
                assert (await log.append(draft(7, "diss"))).sequence == 7
            else:
                assert list(await log.streams()) == []
                assert (await log.append(draft(7))).sequence == 1


class StoragePolicyContract:
    """What holds for every log that honours a storage policy."""

    def make_limited(self, directory: Path, policies: Mapping[str, StoragePolicy]) -> Log:
        raise NotImplementedError

    @in_event_loop
    async def test_the_oldest_leave_when_there_are_too_many(self, tmp_path: Path) -> None:
        policy = StoragePolicy(max_messages=3, allow_duplicates=True)
        async with opened(self.make_limited(tmp_path, {"MARS": policy})) as log:
            for number in range(1, 11):
                assert (await log.append(draft(number))).sequence == number
                assert await sequences(log, "mars") == list(range(max(1, number - 2), number + 1))
                await log.append(draft(number, "diss"))
            state = await log.state("mars")
            assert (state.first, state.last, state.count, state.trimmed) == (8, 10, 3, 7)
            assert len(await sequences(log, "diss")) == 10

    @in_event_loop
    async def test_the_oldest_leave_when_they_take_too_much_room(self, tmp_path: Path) -> None:
        policy = StoragePolicy(max_bytes=5_000, allow_duplicates=True)
        async with opened(self.make_limited(tmp_path, {"mars": policy})) as log:
            for number in range(20):
                await log.append(draft(number, padding=1_000))
                assert (await log.state("mars")).bytes <= 5_000
            held = await sequences(log, "mars")
            assert held == list(range(held[0], 21))
            assert 3 <= len(held) <= 5
            assert (await log.state("mars")).trimmed == held[0] - 1

    @in_event_loop
    async def test_the_old_leave_without_publishing(self, tmp_path: Path) -> None:
        policy = StoragePolicy(retention_ns=300_000_000, allow_duplicates=True)
        async with opened(self.make_limited(tmp_path, {"mars": policy})) as log:
            await log.append_many([draft(n) for n in range(5)])
            await log.append(draft(1, "diss"))

            async def empty() -> bool:
                return (await log.state("mars")).count == 0

            await until(empty)
            state = await log.state("mars")
            assert (state.first, state.last, state.trimmed) == (6, 5, 5)
            assert (await log.append(draft(9))).sequence == 6
            assert await sequences(log, "diss") == [1]

    @in_event_loop
    async def test_only_the_newest_of_a_topic_stays_if_duplicates_are_not_allowed(self, tmp_path: Path) -> None:
        async with opened(self.make_limited(tmp_path, {"mars": StoragePolicy(allow_duplicates=False)})) as log:
            seen: list[Notification] = []
            log.follow("mars", seen.extend)
            for topic in "aabcab":
                await log.append(draft(1, topic=f"mars.{topic}"))
            await asyncio.gather(*(log.append(draft(n, topic="mars.c")) for n in range(10)))
            held = await everything(log, "mars")
            assert [(one.sequence, one.topic) for one in held] == [(5, "mars.a"), (6, "mars.b"), (16, "mars.c")]
            assert [one.sequence for one in seen] == list(range(1, 17))
            assert (await log.state("mars")).count == 3
