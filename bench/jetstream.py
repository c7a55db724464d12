"""The log on a broker: beside sqlite over HTTP, and beside what one would do with a broker at first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import nats
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from aviso_server.log.base import StoragePolicy
from aviso_server.log.jetstream.client import BrokerOptions
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Draft
from bench import workload
from bench.machine import Bench, Measured, Replayed, Target
from bench.table import Row, alternate, compare, single
from tests.harness.broker import brokers_of_a_cluster

__all__ = ["run"]

PUBLISHERS = 256
WATCHERS = 200
KEEP = {workload.EVENT_TYPE: StoragePolicy(allow_duplicates=True)}


def run(bench: Bench, quick: bool) -> list[Row]:
    """Publishing to a broker that syncs its disk, publishing, fan-out and replay over HTTP, a consumer per watcher."""
    rows = _durable(bench, quick)
    with LocalBroker(bench.directory / "broker") as broker:
        configuration = workload.configuration("jetstream")
        configuration["notification_backend"]["jetstream"] = {"nats_url": broker.url}
        entry = configuration["notification_schema"][workload.EVENT_TYPE]
        entry = {**entry, "storage_policy": {"allow_duplicates": True}}
        configuration["notification_schema"] = {workload.EVENT_TYPE: entry}
        servers = {
            "jetstream": bench.server(configuration, "jetstream"),
            "sqlite": bench.server(workload.configuration("sqlite"), "sqlite"),
        }
        bodies = workload.write(workload.bodies(), bench.directory / "bodies")
        filters = workload.write(workload.everything(), bench.directory / "filters")
        seconds = 1 if quick else 3

        def measured(rounds: int, **options: Any) -> dict[str, list[Measured]]:
            load = {name: partial(bench.run, each, bodies=bodies, **options) for name, each in servers.items()}
            return alternate(rounds, load)

        measured(1, publishers=64, seconds=1)
        published = measured(2 if quick else 5, publishers=64, seconds=seconds)
        rows.append(_beside("publish over HTTP, 64 connections", "publishes/s", published, _publishes))
        for watchers in (WATCHERS, 1000):
            live = measured(
                1 if quick else 3,
                publishers=16,
                watchers=watchers,
                filters=filters,
                seconds=seconds,
                deliveries=watchers,
                drain=20,
            )
            for each in live["jetstream"]:
                if each.missing or each.refused or each.lost:
                    raise RuntimeError(f"not every event reached every watcher: {each}")
            aim = 0.8 if watchers == 1000 else None
            rows.append(_beside(f"fan-out to {watchers:,} watchers", "deliveries/s", live, _deliveries, aim))
            if watchers == WATCHERS:
                naive = asyncio.run(_consumer_per_watcher(broker.url, 200 if quick else 1000))
                ours = [each.deliveries_per_second for each in live["jetstream"]]
                what = f"fan-out to {WATCHERS} watchers"
                rows.append(compare("jetstream", what, "deliveries/s", ours, "a consumer each", [naive] * len(ours)))
        rows += _replay(bench, broker, servers, quick)
    return rows


def _durable(bench: Bench, quick: bool) -> list[Row]:
    """Publishing where an acknowledgement means a disk: one broker, and the three of the durable profile."""
    with LocalBroker(bench.directory / "durable", sync_always=True) as broker:
        rows = _publishing(broker.url, 1, "one broker", quick)
    with ExitStack() as running:
        brokers = brokers_of_a_cluster(bench.directory / "cluster", sync_always=True)
        for each in brokers:
            running.enter_context(each)
        urls = ",".join([each.url for each in brokers])
        uvloop.run(_have_stream(urls))
        return rows + _publishing(urls, len(brokers), f"{len(brokers)} replicas", quick)


def _publishing(urls: str, replicas: int, where: str, quick: bool) -> list[Row]:
    seconds = 1.0 if quick else 3.0
    found = alternate(
        2 if quick else 5,
        {
            "ours": lambda: uvloop.run(_publish(urls, replicas, seconds)),
            "one at a time": lambda: uvloop.run(_publish_one_by_one(urls, 1, seconds)),
            "one by one, all in flight": lambda: uvloop.run(_publish_one_by_one(urls, PUBLISHERS, seconds)),
        },
    )
    what = f"{PUBLISHERS} publishers, {where}, disks synced always"
    return [
        compare("jetstream", what, "publishes/s", found["ours"], rival, found[rival], at_least=aim)
        for rival, aim in (("one at a time", 10), ("one by one, all in flight", None))
    ]


def _replay(bench: Bench, broker: LocalBroker, servers: dict[str, Target], quick: bool) -> list[Row]:
    """The newest notifications of the broker's stream, out of the log and over HTTP; sqlite's stream over HTTP."""
    count = 50_000 if quick else 200_000
    rounds = 2 if quick else 5
    last = uvloop.run(_fill(broker.url, count))
    rates = [uvloop.run(_read(broker.url, last - count + 1, last)) for _ in range(rounds)]
    starts = {"jetstream": last - count + 1, "sqlite": 1}
    asked = {
        name: workload.write(workload.everything(from_id=str(start)), bench.directory / f"replay-{name}")
        for name, start in starts.items()
    }
    found: dict[str, list[Replayed]] = alternate(
        rounds, {name: partial(bench.replay, servers[name], asked[name]) for name in starts}
    )
    if any(each.deliveries != count for each in found["jetstream"]):
        raise RuntimeError(f"a replay did not bring {count:,} events: {found['jetstream']}")
    over_http = compare(
        "jetstream",
        f"replay of {count:,} over HTTP",
        "events/s",
        [each.events_per_second for each in found["jetstream"]],
        "sqlite",
        [each.events_per_second for each in found["sqlite"]],
    )
    return [
        single("jetstream", f"read {count:,} notifications from the log", "events/s", rates),
        _with_aim(over_http, 100_000),
    ]


def _with_aim(row: Row, aim: int) -> Row:
    members = {name: getattr(row, name) for name in row.__struct_fields__}
    return Row(**{**members, "aim": f">= {aim:,} {row.unit}", "met": row.value >= aim})


def _beside(
    what: str,
    unit: str,
    results: dict[str, list[Measured]],
    rate: Callable[[Measured], float],
    at_least: float | None = None,
) -> Row:
    ours, theirs = ([rate(each) for each in results[name]] for name in ("jetstream", "sqlite"))
    return compare("jetstream", what, unit, ours, "sqlite", theirs, at_least=at_least)


def _publishes(measured: Measured) -> float:
    return measured.publishes_per_second


def _deliveries(measured: Measured) -> float:
    return measured.deliveries_per_second


def _draft(number: int) -> Draft:
    identifier = workload.identifier(number)
    topic = ".".join([workload.EVENT_TYPE, *[identifier[key] for key in workload.KEYS]])
    payload = compact({"location": "s3://products/od/0001/20250706/1200/enfo/" + "x" * 160, "size": 1, "t": "0" * 19})
    return Draft(workload.EVENT_TYPE, topic, compact(identifier), payload)


DRAFTS = [_draft(number) for number in range(64)]  # made before: what is measured is storing them


async def _have_stream(urls: str) -> None:
    """The stream with a replica on every broker, which a new cluster needs some seconds for."""
    log = JetStreamLog(BrokerOptions(nats_url=urls, replicas=3, publish_retry_attempts=12), KEEP)
    await log.open()
    await log.append(DRAFTS[0])
    await log.close()


async def _publish(urls: str, replicas: int, seconds: float) -> float:
    log = JetStreamLog(BrokerOptions(nats_url=urls, replicas=replicas), KEEP)
    await log.open()
    await log.append(DRAFTS[0])
    rate = await _rate(PUBLISHERS, lambda number: log.append(DRAFTS[number % len(DRAFTS)]), seconds)
    await log.close()
    return rate


async def _publish_one_by_one(urls: str, publishers: int, seconds: float) -> float:
    """Each message waits for its own acknowledgement; so do the others that are on their way meanwhile."""
    client = await nats.connect(urls.split(","))
    stream = client.jetstream()

    def publish(number: int) -> Any:
        draft = DRAFTS[number % len(DRAFTS)]
        return stream.publish(draft.topic, draft.payload, timeout=60)

    rate = await _rate(publishers, publish, seconds)
    await client.close()
    return rate


async def _rate(publishers: int, publish: Callable[[int], Any], seconds: float) -> float:
    count, began = 0, time.perf_counter()

    async def publisher() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await publish(count)
            count += 1

    await asyncio.gather(*(publisher() for _ in range(publishers)))
    return count / (time.perf_counter() - began)


async def _consumer_per_watcher(url: str, events: int) -> float:
    """Deliveries per second when each watcher has a consumer of its own, as one would do it at first."""
    client = await nats.connect(url)
    stream = client.jetstream()
    received = 0
    done = asyncio.Event()

    async def take(_: Any) -> None:
        nonlocal received
        received += 1
        if received == WATCHERS * events:
            done.set()

    for _ in range(WATCHERS):
        # the client writes into what it is given, so that two with one configuration would hear each other's
        config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE)
        await stream.subscribe(
            f"{workload.EVENT_TYPE}.>", cb=take, config=config, manual_ack=True, pending_msgs_limit=-1
        )
    began = time.perf_counter()
    for number in range(events):
        await stream.publish(_draft(number).topic, _draft(number).payload)
    try:
        async with asyncio.timeout(60):
            await done.wait()
    except TimeoutError:
        pass  # some were lost on the way; what has arrived counts
    rate = received / (time.perf_counter() - began)
    await client.close()
    return rate


async def _fill(url: str, count: int) -> int:
    """Bring the stream to at least so many notifications; the newest sequence."""
    log = JetStreamLog(BrokerOptions(nats_url=url), KEEP)
    await log.open()
    while (await log.state(workload.EVENT_TYPE)).last < count:
        await log.append_many([_draft(number) for number in range(1000)])
    last = (await log.state(workload.EVENT_TYPE)).last
    await log.close()
    return last


async def _read(url: str, start: int, end: int) -> float:
    log = JetStreamLog(BrokerOptions(nats_url=url), KEEP)
    await log.open()
    found, began = 0, time.perf_counter()
    while start <= end:
        batch = await log.read(workload.EVENT_TYPE, start, end, 4096)
        start, found = batch.next, found + len(batch.notifications)
    rate = found / (time.perf_counter() - began)
    await log.close()
    return rate
