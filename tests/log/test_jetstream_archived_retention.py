"""A log on a broker with an archive behind it: only what is archived leaves, and the broker removes nothing itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aviso_server.errors import LogError
from aviso_server.log.base import StoragePolicy
from aviso_server.log.jetstream import broker_streams
from aviso_server.log.jetstream.client import BrokerOptions
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from aviso_server.model.times import Span
from tests.archive.memory_archive import MemoryArchive, archived_hub, replayed, trimmed_to
from tests.delivery.scene import publish
from tests.harness.broker import ask, single
from tests.log.scenario import draft, in_event_loop, sequences, until

SECOND = 10**9
UNLIMITED = {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1}


class Mark:
    """How far an archive has got; nothing stands behind it."""

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached

    def __call__(self, stream: str) -> int:
        return self.reached


@pytest.fixture(autouse=True)
def quick_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_streams, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(broker_streams, "QUIET_SECONDS", 0.1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with single(tmp_path / "broker") as running:
        yield running


@asynccontextmanager
async def opened(
    broker: LocalBroker, archived: Mark | None, patience: int = 600 * SECOND, discard: Any = "old", **policy: Any
) -> AsyncIterator[JetStreamLog]:
    """A log whose stream `mars` has a policy, open inside the block."""
    options = BrokerOptions(nats_url=broker.url, discard_policy=discard)
    policies = {"mars": StoragePolicy(**{"allow_duplicates": True, **policy})}
    log = JetStreamLog(options, policies, archived=archived, patience=patience)
    await log.open()
    try:
        yield log
    finally:
        await log.close()


async def fill(log: JetStreamLog, count: int, topics: int = 90) -> None:
    """Store so many one after the other; all are of the same size."""
    for number in range(count):
        await log.append(draft(10 + number % topics))


async def limits(broker: LocalBroker) -> dict[str, int]:
    """The limits of the stream, as another program sees them."""
    config = (await asyncio.to_thread(ask, broker.url, "STREAM.INFO.MARS"))["config"]
    return {key: config[key] for key in UNLIMITED}


async def holds(log: JetStreamLog, *expected: int) -> None:
    """Wait until the stream holds exactly these, and see that it stays so."""

    async def as_expected() -> bool:
        return await sequences(log, "mars") == list(expected)

    try:
        await until(as_expected)
    except TimeoutError:
        assert await sequences(log, "mars") == list(expected)
    await asyncio.sleep(0.3)
    assert await sequences(log, "mars") == list(expected)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of retention in the log records."""
    events: list[str] = [getattr(record, "event", "") for record in caplog.records]
    return [event for event in events if event.startswith("backend.jetstream.retention.")]


@in_event_loop
async def test_a_number(broker: LocalBroker) -> None:
    archived = Mark()
    async with opened(broker, archived, max_messages=10) as log:
        await fill(log, 50)
        await holds(log, *range(1, 51))
        assert await limits(broker) == UNLIMITED
        archived.reached = 25
        await holds(log, *range(26, 51))
        archived.reached = 50
        await holds(log, *range(41, 51))
        state = await log.state("mars")
        assert (state.first, state.last, state.count, state.trimmed) == (41, 50, 10, 40)


@in_event_loop
async def test_a_number_where_some_are_missing(broker: LocalBroker) -> None:
    archived = Mark()
    async with opened(broker, archived, max_messages=10) as log:
        await fill(log, 50)
        for sequence in range(20, 46):
            await log.delete("mars", sequence)
        archived.reached = 50
        await holds(log, *range(15, 20), *range(46, 51))


@in_event_loop
async def test_a_size(broker: LocalBroker) -> None:
    archived = Mark()
    async with opened(broker, archived) as log:
        await fill(log, 50)
        one = (await log.state("mars")).bytes // 50
    async with opened(broker, archived, max_bytes=10 * one) as log:
        await holds(log, *range(1, 51))
        assert await limits(broker) == UNLIMITED
        archived.reached = 25
        await holds(log, *range(26, 51))
        archived.reached = 50
        await holds(log, *range(41, 51))


@in_event_loop
async def test_large_ones_that_leave_do_not_take_small_ones_along(broker: LocalBroker) -> None:
    archived = Mark()
    async with opened(broker, archived) as log:
        for number in range(5):
            await log.append(draft(number, padding=100_000))
        large = (await log.state("mars")).bytes // 5
        await fill(log, 80)
        everything = (await log.state("mars")).bytes
    archived.reached = 85
    async with opened(broker, archived, max_bytes=everything - 2 * large) as log:
        await holds(log, *range(3, 86))


@in_event_loop
async def test_an_age(broker: LocalBroker) -> None:
    archived = Mark()
    async with opened(broker, archived, retention_ns=SECOND) as log:
        await fill(log, 40)
        await asyncio.sleep(1.1)
        await fill(log, 10)
        await holds(log, *range(1, 51))
        assert await limits(broker) == UNLIMITED
        archived.reached = 25
        await holds(log, *range(26, 51))
        archived.reached = 45
        await holds(log, *range(46, 51))
        assert (await log.state("mars")).trimmed == 45


@in_event_loop
async def test_what_is_young_stays_though_it_is_archived(broker: LocalBroker) -> None:
    async with opened(broker, Mark(20), retention_ns=3600 * SECOND, max_messages=50, max_bytes=10**6) as log:
        await fill(log, 20)
        await holds(log, *range(1, 21))
        assert (await log.state("mars")).trimmed == 0


@pytest.mark.parametrize("allow", [False, None], ids=["said", "default"])
@in_event_loop
async def test_superseded_ones(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, allow: bool | None) -> None:
    monkeypatch.setattr(broker_streams, "TOPICS", 3)
    archived = Mark()
    async with opened(broker, archived, allow_duplicates=allow) as log:
        await log.append(draft(1))  # the only one of its topic
        await fill(log, 299, topics=7)
        await holds(log, *range(1, 301))
        assert await limits(broker) == UNLIMITED
        archived.reached = 150
        await holds(log, 1, *range(151, 301))
        assert (await log.state("mars")).trimmed == 150
        archived.reached = 300
        await holds(log, 1, *range(294, 301))
        await fill(log, 2, topics=1)  # of the topic of 296
        await holds(log, 1, 294, 295, *range(297, 303))
        archived.reached = 302
        await holds(log, 1, 294, 295, *range(297, 301), 302)
        state = await log.state("mars")
        assert (state.first, state.last, state.trimmed) == (1, 302, 301)


@in_event_loop
async def test_a_long_backlog_leaves_little_by_little(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_streams, "STEP", 100)
    archived = Mark()
    async with opened(broker, archived, max_messages=7) as log:
        await log.append_many([draft(number) for number in range(1000)])
        await log.append_many([draft(number) for number in range(1000)])
        archived.reached = 2000
        await holds(log, *range(1994, 2001))


@in_event_loop
async def test_two_servers_on_one_stream(broker: LocalBroker) -> None:
    ahead, behind = Mark(), Mark()
    async with opened(broker, ahead, max_messages=10) as one, opened(broker, behind, max_messages=10) as other:
        await fill(one, 25)
        await fill(other, 25)
        seen: list[int] = []
        other.follow("mars", lambda added: seen.extend(each.sequence for each in added))
        assert (await other.state("mars")).last == 50
        behind.reached = 20
        await holds(one, *range(21, 51))
        ahead.reached = 30
        await holds(other, *range(31, 51))
        ahead.reached = behind.reached = 50
        await holds(one, *range(41, 51))
        await fill(one, 1)
        ahead.reached = behind.reached = 51
        await holds(other, *range(42, 52))
        assert (await one.state("mars")) == (await other.state("mars"))
        assert seen == [51]


@in_event_loop
async def test_a_restart_changes_nothing(broker: LocalBroker) -> None:
    async with opened(broker, Mark(50), max_messages=10) as log:
        await fill(log, 50)
        await holds(log, *range(41, 51))
        before = await log.state("mars")
    async with opened(broker, Mark(), max_messages=5) as log:
        await holds(log, *range(41, 51))
        assert await log.state("mars") == before
        assert before.trimmed == 40
    async with opened(broker, Mark()) as log:
        assert (await log.state("mars")).trimmed == 40, "though the policy keeps everything now"


@in_event_loop
async def test_after_a_restart_thinned_out_streams_are_known_as_such(broker: LocalBroker) -> None:
    async with opened(broker, Mark(20), allow_duplicates=False) as log:
        await log.append(draft(1))
        await fill(log, 20, topics=2)
        await holds(log, 1, 20, 21)
    for allowed in (False, True):
        archived = Mark()
        async with opened(broker, archived, allow_duplicates=allowed) as log:
            assert (await log.state("mars")).trimmed == 20, "as far as nobody knows better"
            archived.reached = 19
            assert (await log.state("mars")).trimmed == 19


@in_event_loop
async def test_limits_from_before_are_taken_off_and_come_back(broker: LocalBroker) -> None:
    policy = {"max_messages": 40, "max_bytes": 10**6, "retention_ns": 3600 * SECOND, "allow_duplicates": False}
    applied = {"max_msgs": 40, "max_bytes": 10**6, "max_age": 3600 * SECOND, "max_msgs_per_subject": 1}
    async with opened(broker, None, **policy) as log:
        await fill(log, 30, topics=15)
        assert await sequences(log, "mars") == list(range(16, 31))
        assert await limits(broker) == applied

    async def unlimited() -> bool:
        return await limits(broker) == UNLIMITED

    archived = Mark()
    async with opened(broker, archived, **policy) as log:
        await until(unlimited)  # nobody has used the stream
        await fill(log, 50)
        await holds(log, *range(16, 81))
        assert (await log.state("mars")).trimmed == 15
        archived.reached = 30
        await holds(log, *range(31, 81))
    async with opened(broker, None, **policy) as log:
        assert (await log.state("mars")).count == 40
        assert await limits(broker) == applied


@in_event_loop
async def test_what_the_broker_has_thinned_out_before_counts_as_trimmed(broker: LocalBroker) -> None:
    async with opened(broker, None, allow_duplicates=False) as log:
        await log.append(draft(1))
        await fill(log, 20, topics=2)
    archived = Mark(5)
    async with opened(broker, archived, allow_duplicates=False) as log:
        await log.append(draft(99))
        await log.append(draft(98))
        await log.append(draft(98))
        state = await log.state("mars")
        assert (state.last, state.trimmed) == (24, 21), "the archive will never have all of the first 21"


def test_limits_of_a_server_without_an_archive(broker: LocalBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        archived = Mark()
        async with opened(broker, archived, max_messages=10) as log:
            await fill(log, 20)
            async with opened(broker, None, max_messages=15) as other:
                assert (await other.state("mars")).count == 15

                async def unlimited() -> bool:
                    return await limits(broker) == UNLIMITED

                await until(unlimited)
                await fill(other, 20)
                await holds(log, *range(6, 41))

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert said(caplog) == ["backend.jetstream.retention.limited"]


def test_an_archive_that_stays_behind_is_said_once(broker: LocalBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        archived = Mark()
        async with opened(broker, archived, patience=3 * SECOND, max_messages=5) as log:
            await fill(log, 20)
            await asyncio.sleep(0.3)
            assert log.held_back == frozenset()
            async with asyncio.timeout(60):
                while log.held_back != {"mars"}:
                    await asyncio.sleep(0.02)
            await holds(log, *range(1, 21))
            archived.reached = 20
            await holds(log, *range(16, 21))
            assert log.held_back == frozenset()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert said(caplog) == ["backend.jetstream.retention.waiting", "backend.jetstream.retention.resumed"]


@in_event_loop
async def test_a_full_stream_that_refuses_new_ones_removes_none(broker: LocalBroker) -> None:
    async with opened(broker, Mark(10), discard="new", max_messages=10, retention_ns=3600 * SECOND) as log:
        await fill(log, 10)
        with pytest.raises(LogError, match="maximum messages exceeded"):
            await log.append(draft(11))
        await holds(log, *range(1, 11))
        assert await limits(broker) == {**UNLIMITED, "max_msgs": 10}


@in_event_loop
async def test_an_archive_of_another_stream_is_not_relied_on(broker: LocalBroker) -> None:
    async with opened(broker, Mark(1000), max_messages=5, allow_duplicates=False) as log:
        await fill(log, 20, topics=3)
        await holds(log, *range(1, 21))
        assert (await log.append(draft(1))).sequence == 21


@pytest.mark.parametrize(
    "policy", [{"max_messages": 10, "allow_duplicates": True}, {"allow_duplicates": False}], ids=["number", "topics"]
)
@in_event_loop
async def test_replays_cross_the_boundary(broker: LocalBroker, policy: dict[str, Any]) -> None:
    archive = MemoryArchive()
    policies = {"tides": StoragePolicy(**policy)}
    log = JetStreamLog(BrokerOptions(nats_url=broker.url), policies, archived=archive.watermark)
    async with archived_hub(log, archive) as hub:
        for level in range(60):
            await publish(log, level=level % 5)
        await archive.take(log)
        await trimmed_to(log, 50)
        for level in range(10):
            await publish(log, level=level % 5)
        assert (await log.state("tides")).count < 70
        assert (await replayed(hub, Span(from_sequence=1))).sequences == list(range(1, 71))
