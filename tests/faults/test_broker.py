"""One broker that hangs, restarts or loses a stream, and servers that have to live with it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.faults.recorder import Publisher, Watcher, assert_record, configuration, stored
from tests.harness import Server
from tests.harness.broker import ask, publish, single, wait_until

TIDE = {"place": "x", "level": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with single(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def servers(broker: LocalBroker, tmp_path: Path) -> Iterator[list[Server]]:
    with ExitStack() as running:
        yield [
            running.enter_context(Server(configuration(broker.url), tmp_path / f"server{number}")) for number in (1, 2)
        ]


def test_publish_here_watch_there_remove_elsewhere(servers: list[Server], tmp_path: Path) -> None:
    one, other = servers
    with other.client.watch("tide", {}) as watch:
        watch.until("connection_established")
        one.client.publish("tide", TIDE, "a")
        event = watch.notification()
        assert (event["id"], event["data"]["payload"]) == ("tide@1", "a")
        one.client.publish("tide", TIDE, "b")
        assert other.client.delete("/api/v1/admin/notification/tide@1").status == 200
        assert stored(one) == [(2, "b")]
        assert one.client.delete("/api/v1/admin/wipe/stream", {"stream_name": "tide"}).status == 200
        assert stored(other) == []
        one.client.publish("tide", TIDE, "c")
        assert [watch.notification()["id"] for _ in range(2)] == ["tide@2", "tide@3"]


def test_ten_times_as_many_watchers_are_still_one_consumer(broker: LocalBroker, servers: list[Server]) -> None:
    with ExitStack() as running:
        for number in range(40):
            stream = running.enter_context(servers[0].client.watch("tide", {"level": number % 10}))
            stream.until("connection_established")
        wait_until(lambda: ask(broker.url, "CONSUMER.LIST.TIDE")["total"] == 1)


@pytest.mark.long  # a publish waits five seconds for its answer
def test_a_broker_that_dies_and_one_that_hangs(broker: LocalBroker, servers: list[Server]) -> None:
    with ExitStack() as running:
        publishers = [running.enter_context(Publisher(name, servers)) for name in ("a", "b")]
        watchers = [running.enter_context(Watcher(servers, each)) for each in ({}, {"place": "a"})]
        wait_until(lambda: all(len(publisher.acknowledged) > 10 for publisher in publishers))
        broker.kill()
        wait_until(lambda: servers[0].client.get("/ready").status == 503)
        assert servers[0].client.get("/health").status == 200
        broker.start()
        wait_until(lambda: servers[0].client.get("/ready").status == 200)
        wait_until(lambda: all(len(publisher.acknowledged) > 20 for publisher in publishers))
        broker.pause()
        time.sleep(6)  # longer than a publish waits for its answer
        broker.resume()
        before = [len(publisher.acknowledged) for publisher in publishers]
        wait_until(lambda: all(len(p.acknowledged) > n + 10 for p, n in zip(publishers, before, strict=True)))
        for publisher in publishers:
            publisher.stop()
        assert_record(publishers, watchers, servers[0])
        assert not watchers[0].reasons["end_of_stream"], "a connection that comes back is no reason to close"


@pytest.mark.long  # a publish waits five seconds for its answer
def test_an_answer_that_was_lost_is_not_stored_twice(broker: LocalBroker, servers: list[Server]) -> None:
    """The broker stores while nobody listens: it hangs with the notification in its socket, and goes on later."""
    servers[0].client.publish("tide", TIDE, "first")
    broker.pause()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(servers[0].client.notify("tide", TIDE, str(n)).status))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    time.sleep(5.5)
    broker.resume()
    for thread in threads:
        thread.join(120)
    assert answers == [200] * 20
    assert sorted(int(payload) for _, payload in stored(servers[0])[1:]) == list(range(20))


def test_a_stream_deleted_behind_our_back(broker: LocalBroker, servers: list[Server]) -> None:
    one, other = servers
    for payload in range(3):
        one.client.publish("tide", TIDE, payload)
    with other.client.watch("tide", {}) as watch:
        watch.until("connection_established")
        ask(broker.url, "STREAM.DELETE.TIDE")
        closing = watch.until("connection-closing")
        assert closing.data["reason"] == "end_of_stream"
    wait_until(lambda: "backend.jetstream.subscription.failed" in other.stdout)
    one.client.publish("tide", TIDE, "again")
    assert stored(other) == [(4, "again")], "numbers are not used twice"
    with other.client.watch("tide", {}) as watch:
        watch.until("connection_established")
        one.client.publish("tide", TIDE, "and again")
        assert watch.notification()["sequence"] == 5


def test_a_purge_behind_our_back_that_took_unseen_notifications(broker: LocalBroker, servers: list[Server]) -> None:
    """A server that stands still asks for no more than a few hundred; the rest is purged before it goes on."""
    server, other = servers
    server.client.publish("tide", TIDE, "seen")
    with server.client.watch("tide", {}) as watch:
        watch.until("connection_established")
        server.signal(signal.SIGSTOP)
        try:
            publish(broker.url, *[("tide.x.1", b'"unseen"', None) for _ in range(1500)])
            ask(broker.url, "STREAM.PURGE.TIDE")
        finally:
            server.signal(signal.SIGCONT)
        other.client.publish("tide", TIDE, "later")
        watch.rest()
    got = [event["sequence"] for event in watch.notifications]
    assert got == list(range(2, 2 + len(got))), "nothing is skipped on the way"
    assert len(got) < 1500
    assert watch.frames[-1].data["reason"] == "end_of_stream"
    wait_until(lambda: "were removed before they were seen" in server.stdout)
    assert stored(server) == [(1502, "later")]


def test_a_purge_that_took_nothing_unseen_closes_nobody(broker: LocalBroker, servers: list[Server]) -> None:
    server, other = servers
    with server.client.watch("tide", {}) as watch:
        watch.until("connection_established")
        other.client.publish("tide", TIDE, "before")
        assert watch.notification()["sequence"] == 1
        ask(broker.url, "STREAM.PURGE.TIDE")
        other.client.publish("tide", TIDE, "after")
        assert watch.notification()["sequence"] == 2
