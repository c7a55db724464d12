"""Keys on a broker: several servers, and what a server that died between two steps has left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aviso_server.errors import KeyInDoubt, LogError
from aviso_server.log.base import Key, Keyed, KeyPolicy, StoragePolicy
from aviso_server.log.jetstream.broker_tables import Claim, Keys
from aviso_server.log.jetstream.client import BrokerOptions, Connection
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from tests.harness.broker import ask, publish, single
from tests.log.key_contract import found, keyed
from tests.log.scenario import draft, everything, in_event_loop, opened, sequences

WINDOW = 2  # seconds
SECOND = 1_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with single(tmp_path / "broker") as running:
        yield running


def make(broker: LocalBroker, latest_only: bool = False) -> JetStreamLog:
    policies = {"mars": StoragePolicy(allow_duplicates=not latest_only)}
    return JetStreamLog(BrokerOptions(nats_url=broker.url), policies)


async def short_window(broker: LocalBroker, latest_only: bool = False) -> None:
    """A stream whose broker recognises message ids for a moment only."""
    config = {
        "name": "MARS",
        "subjects": ["mars.>"],
        "duplicate_window": WINDOW * SECOND,
        "max_msgs_per_subject": 1 if latest_only else -1,
    }
    await asyncio.to_thread(ask, broker.url, "STREAM.CREATE.MARS", config)


async def claim(broker: LocalBroker, entry: Keyed, after: int) -> Claim:
    """What a server leaves behind that dies after its claim."""
    connection = Connection(BrokerOptions(nats_url=broker.url))
    await connection.open()
    assert entry.key is not None
    [claimed] = await Keys(connection, BrokerOptions(), KeyPolicy()).claim([(entry.key, after)])
    await connection.close()
    assert claimed.fresh
    return claimed


async def die_after_publish(broker: LocalBroker, entry: Keyed, after: int) -> None:
    """What a server leaves behind that dies before it settles a key."""
    assert entry.key is not None
    claimed = await claim(broker, entry, after)
    headers = {
        "aviso_identifier": entry.draft.identifier.decode(),
        "Nats-Msg-Id": f"aviso-{entry.key.name.hex()}-{claimed.number}",
    }
    await asyncio.to_thread(publish, broker.url, (entry.draft.topic, entry.draft.payload, headers))


@in_event_loop
async def test_a_server_that_died_before_it_published(broker: LocalBroker) -> None:
    async with opened(make(broker)) as log:
        await log.append(draft(0))
        await claim(broker, keyed("a", 1), 1)
        assert found(await log.append_keyed([keyed("a", 1)], True)) == [2]
        assert found(await log.append_keyed([keyed("a", 1)], True)) == [-2]
        await claim(broker, keyed("b", 2), 2)
        assert found(await log.append_keyed([keyed("b", 3)], False)) == ["KeyReused"]


@in_event_loop
async def test_a_server_that_died_before_it_settled(broker: LocalBroker) -> None:
    async with opened(make(broker)) as log:
        await log.append(draft(0))
        await die_after_publish(broker, keyed("a", 1), 1)
        await log.append(draft(5))
        entries = [keyed("a", 1), keyed("b", 2)]
        assert found(await log.append_keyed(entries, True)) == [-2, 4]
        assert found(await log.append_keyed(entries, True)) == [-2, -4]
        assert await sequences(log, "mars") == [1, 2, 3, 4]


@in_event_loop
async def test_the_same_after_the_broker_has_forgotten_the_message_ids(broker: LocalBroker) -> None:
    await short_window(broker)
    async with opened(make(broker)) as log:
        await log.append(draft(0))
        await die_after_publish(broker, keyed("a", 1), 1)
        await claim(broker, keyed("b", 2), 2)
        await log.append(draft(1))
        await asyncio.sleep(WINDOW)
        assert found(await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)) == [-2, 4]
        assert found(await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)) == [-2, -4]
        assert await sequences(log, "mars") == [1, 2, 3, 4]


@in_event_loop
async def test_where_only_the_newest_of_a_topic_is_kept(broker: LocalBroker) -> None:
    await short_window(broker, latest_only=True)
    async with opened(make(broker, latest_only=True)) as log:
        await log.append(draft(0))
        await die_after_publish(broker, keyed("replaced", 1), 1)
        await die_after_publish(broker, keyed("newest", 2), 2)
        await claim(broker, keyed("never sent", 3), 3)
        await log.append(draft(1))
        await asyncio.sleep(WINDOW)
        entries = [keyed("replaced", 1), keyed("newest", 2), keyed("never sent", 3)]
        with pytest.raises(KeyInDoubt, match="look whether it has arrived"):
            await log.append_keyed(entries, True)
        assert found(await log.append_keyed(entries, False)) == ["KeyInDoubt", -3, 5]
        assert [one.sequence for one in await everything(log, "mars")] == [1, 3, 4, 5]


@in_event_loop
async def test_what_was_wiped_is_in_doubt_and_not_stored_again(broker: LocalBroker) -> None:
    await short_window(broker)
    async with opened(make(broker)) as log:
        await log.append(draft(0))
        await die_after_publish(broker, keyed("a", 1), 1)
        await log.wipe("mars")
        await asyncio.sleep(WINDOW)
        with pytest.raises(KeyInDoubt):
            await log.append_keyed([keyed("a", 1)], True)
        assert await sequences(log, "mars") == []


@in_event_loop
async def test_two_servers_store_each_key_once(broker: LocalBroker) -> None:
    async with opened(make(broker)) as one, opened(make(broker)) as other:
        entries = [keyed(f"k{number}", number) for number in range(300)]
        calls = [
            log.append_keyed(entries[start : start + 20], whole)
            for start in range(0, 300, 10)
            for log, whole in ((one, True), (other, False))
        ]
        told: dict[Key, set[int | str]] = {}
        starts = [start for start in range(0, 300, 10) for _ in (one, other)]
        for start, outcomes in zip(starts, await asyncio.gather(*calls), strict=True):
            for entry, place in zip(entries[start : start + 20], found(outcomes), strict=True):
                assert entry.key is not None
                told.setdefault(entry.key, set()).add(abs(place) if isinstance(place, int) else place)
        assert all(len(places) == 1 for places in told.values())
        held = await everything(one, "mars")
        assert sorted(each.payload for each in held) == sorted(draft(number).payload for number in range(300))


@in_event_loop
async def test_a_notification_that_the_broker_refuses_frees_its_key(broker: LocalBroker) -> None:
    policies = {"mars": StoragePolicy(allow_duplicates=True, max_messages=2)}
    async with opened(JetStreamLog(BrokerOptions(nats_url=broker.url, discard_policy="new"), policies)) as log:
        await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)
        for entries in ([keyed("c", 3)], [keyed("c", 3), keyed("d", 4)]):
            with pytest.raises(LogError, match="maximum messages exceeded"):
                await log.append_keyed(entries, True)
        await log.delete("mars", 1)
        assert found(await log.append_keyed([keyed("c", 5)], True)) == [3], "nothing was stored under it before"
        assert found(await log.append_keyed([keyed("a", 1)], True)) == [-1]


@in_event_loop
async def test_a_broker_that_restarts_knows_the_keys(broker: LocalBroker) -> None:
    async with opened(make(broker)) as log:
        assert found(await log.append_keyed([keyed(f"k{number}", number) for number in range(10)], True)) == [
            number + 1 for number in range(10)
        ]
    broker.kill()
    broker.start()
    async with opened(make(broker)) as log:
        entries = [keyed(f"k{number}", number) for number in range(11)]
        assert found(await log.append_keyed(entries, True)) == [*[-number - 1 for number in range(10)], 11]


@in_event_loop
async def test_keys_are_no_stream_of_notifications(broker: LocalBroker) -> None:
    async with opened(make(broker)) as log:
        await log.append_keyed([keyed("a", 1)], True)
        assert list(await log.streams()) == ["mars"]
        info = await asyncio.to_thread(ask, broker.url, "STREAM.INFO._AVISO_KEYS")
        assert info["config"]["max_age"] == 7 * 86_400 * SECOND
        assert info["state"]["messages"] == 1
    changed = JetStreamLog(BrokerOptions(nats_url=broker.url), keys=KeyPolicy(retention_ns=3600 * SECOND, max_keys=9))
    async with opened(changed) as log:
        assert found(await log.append_keyed([keyed("a", 1)], True)) == [-1]
        config = (await asyncio.to_thread(ask, broker.url, "STREAM.INFO._AVISO_KEYS"))["config"]
        assert (config["max_age"], config["max_msgs"]) == (3600 * SECOND, 9)


@in_event_loop
async def test_what_is_stored_together(broker: LocalBroker) -> None:
    async with opened(make(broker)) as log:
        assert await log.indivisible([draft(number) for number in range(1000)])
        assert not await log.indivisible([draft(number) for number in range(1001)])
        assert not await log.indivisible([draft(1), draft(1, "diss")])
