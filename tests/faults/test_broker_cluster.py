"""Three brokers and two servers, all of them killed in turn while clients publish and listen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.faults.recorder import Publisher, Watcher, assert_record, configuration
from tests.harness import Server
from tests.harness.broker import ask, cluster, wait_until


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[LocalBroker]]:
    with cluster(tmp_path) as brokers:
        wait_until(lambda: "error" not in ask(brokers[0].url, "INFO"))
        yield brokers


@pytest.fixture
def servers(brokers: list[LocalBroker], tmp_path: Path) -> Iterator[list[Server]]:
    urls = ",".join(broker.url for broker in brokers)
    with ExitStack() as running:
        yield [
            running.enter_context(Server(configuration(urls, replicas=3), tmp_path / f"server{number}"))
            for number in (1, 2)
        ]


def leader_and_health(brokers: list[LocalBroker]) -> tuple[str, bool]:
    """Who leads the stream, and whether all its replicas are level."""
    for broker in brokers:
        if broker.running:
            info = ask(broker.url, "STREAM.INFO.TIDE")
            members = info.get("cluster", {})
            level = [peer.get("current") and not peer.get("offline") for peer in members.get("replicas", [])]
            return members.get("leader", ""), len(level) == 2 and all(level)
    return "", False


@pytest.mark.long  # three brokers elect a leader again and again
def test_nothing_is_lost_while_brokers_and_servers_die(brokers: list[LocalBroker], servers: list[Server]) -> None:
    with ExitStack() as running:
        publishers = [running.enter_context(Publisher(name, servers)) for name in ("a", "b", "c")]
        wanted: list[dict[str, Any]] = [{}, {"place": "b"}, {"level": {"gte": 5}}]
        watchers = [running.enter_context(Watcher(servers[::step], each)) for step in (1, -1) for each in wanted]
        wait_until(lambda: all(len(publisher.acknowledged) > 20 for publisher in publishers))
        killed_leader = False
        for broker in brokers:
            wait_until(lambda: leader_and_health(brokers)[1])
            killed_leader |= leader_and_health(brokers)[0] == broker.name
            broker.kill()
            time.sleep(1)
            broker.start()
        if not killed_leader:
            wait_until(lambda: leader_and_health(brokers)[1])
            leader = leader_and_health(brokers)[0]
            (broker,) = [broker for broker in brokers if broker.name == leader]
            broker.kill()
            broker.start()
        for server in servers:
            server.kill()
            server.start()
            time.sleep(0.5)
        for server in servers:
            server.restart()
            time.sleep(0.5)
        before = [len(publisher.acknowledged) for publisher in publishers]
        wait_until(lambda: all(len(p.acknowledged) > n + 20 for p, n in zip(publishers, before, strict=True)))
        for publisher in publishers:
            publisher.stop()
        assert_record(publishers, watchers, servers[0])
    assert sum(len(publisher.acknowledged) for publisher in publishers) > 200
