"""Several servers on one broker: one serves each subscription, another takes over, and the former one is fenced."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.harness import Server
from tests.harness.broker import single
from tests.harness.metrics import scrape, with_metrics
from tests.subscriptions.receiver import Receiver, until
from tests.subscriptions.scene import Api, configuration, publish
from tests.subscriptions.test_registry import check_at_least_once


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with single(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def config(broker: LocalBroker, tmp_path: Path) -> dict[str, Any]:
    config = configuration("jetstream", key_file=str(tmp_path / "key"))
    config["notification_backend"]["jetstream"] = {"nats_url": broker.url}
    return config


@pytest.fixture
def servers(config: dict[str, Any], tmp_path: Path) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        made = [Server(config, tmp_path / name) for name in ("one", "two")]
        for server in made:
            stack.callback(server.stop)
            server.start()
        yield made
        for server in made:
            if server._process is None:
                continue
            api = Api(server.client)
            for each in api.ok("GET")["subscriptions"]:
                api.call("DELETE", f"/{each['id']}")
            server.client.wipe_all()
            break


def test_any_server_knows_and_changes_what_another_has_made(servers: list[Server]) -> None:
    one, two = (Api(server.client) for server in servers)
    with Receiver() as receiver:
        one.push("mine", receiver.url, {"sea": "a"})
        until(lambda: two.call("GET", "/mine").status == 200)
        publish(two.client, "a", 1)
        receiver.wait_for(1)
        two.ok("POST", "/mine/pause")
        until(lambda: one.show("mine")["status"] == "paused")
        publish(one.client, "a", 2)
        two.ok("PATCH", "/mine", {"batch": 3})
        two.ok("POST", "/mine/resume")
        receiver.wait_for(2)
        until(lambda: one.show("mine")["batch"] == 3)
        until(lambda: two.show("mine")["delivered"] == 2)
        assert len(receiver.posts) == 2
        two.ok("DELETE", "/mine")
        until(lambda: one.call("GET", "/mine").status == 404)


def test_the_server_that_workers_come_to_says_how_far_they_are(config: dict[str, Any], tmp_path: Path) -> None:
    configs = [with_metrics(config) for _ in range(2)]
    with Server(configs[0], tmp_path / "one") as one, Server(configs[1], tmp_path / "two") as two:

        def lags(series: str) -> list[bool]:
            """Which of the servers report that something waits."""
            found = [scrape(server, each["metrics"]["port"]) for server, each in zip((one, two), configs, strict=True)]
            return [each.value(series, event_type="wave", delivery="pull") > 0 for each in found]

        made, used = Api(one.client), Api(two.client)
        made.make("queue", {"sea": "a"})
        until(lambda: used.call("GET", "/queue").status == 200)
        publish(two.client, "a", 1)
        for series in ("aviso_subscription_lag", "aviso_subscription_lag_seconds"):
            assert lags(series) == [True, False], "nobody has come: it is that of the server where it was made"
        (work,) = used.pull("queue", max=5, wait_seconds=30)
        used.ok("POST", "/queue/ack", {"leases": [work["lease"]]})
        publish(two.client, "b", 1)
        for series in ("aviso_subscription_lag", "aviso_subscription_lag_seconds"):
            until(lambda series=series: lags(series) == [False, False])  # type: ignore[misc]  # a default binds it
        made.ok("DELETE", "/queue")
        one.client.wipe_all()


def test_a_name_is_given_away_once_over_all_servers(servers: list[Server]) -> None:
    apis = [Api(server.client) for server in servers]
    for number in range(10):
        body = {"name": f"same-{number}", "event_type": "wave", "identifier": {}}
        with ThreadPoolExecutor(len(apis)) as together:
            answers = list(together.map(lambda api, body=body: api.call("POST", "", body), apis))
        assert sorted(each.status for each in answers) == [201, 409]
    until(lambda: all(len(api.ok("GET")["subscriptions"]) == 10 for api in apis))
    apis[0].ok("DELETE", "/same-0")
    until(lambda: apis[1].call("GET", "/same-0").status == 404)
    apis[1].make("same-0")


def test_workers_share_a_queue_over_all_servers(servers: list[Server]) -> None:
    one, two = (Api(server.client) for server in servers)
    one.make("queue", {"sea": "b"})
    until(lambda: two.call("GET", "/queue").status == 200)
    publish(one.client, "b", *range(30))
    got: list[int] = []
    for round_ in range(100):
        api, other = (one, two) if round_ % 2 else (two, one)
        works = api.pull("queue", max=4, wait_seconds=2 if len(got) < 30 else 0)
        if works:
            got += [each["event"]["data"]["payload"]["height"] for each in works]
            leases = {"leases": [each["lease"] for each in works]}
            assert other.ok("POST", "/queue/ack", leases)["done"] == len(works), "another server takes it"
        if len(got) >= 30 and not works:
            break
    assert got == list(range(30)), "each once, and in order"


@pytest.mark.long  # servers are killed and give signs of life, which takes seconds by design
def test_when_the_owner_is_killed_another_takes_over_without_a_gap(servers: list[Server]) -> None:
    one, two = (Api(server.client) for server in servers)
    with Receiver() as receiver:
        first = two.client
        one.push("mine", receiver.url, {"sea": "c"}, from_id="1")
        identity = one.show("mine")["id"]
        until(lambda: two.call("GET", "/mine").status == 200)
        publish(first, "c", *range(10))
        until(lambda: len(receiver.posts) > 3)
        servers[0].signal(signal.SIGKILL)
        servers[0].wait()
        killed = time.monotonic()
        publish(first, "c", *range(10, 20))
        until(lambda: len({got.headers["webhook-id"] for got in receiver.posts}) == 20)
        assert time.monotonic() - killed < 20, "seconds, on a machine that is three times slower"
        assert any('"subscription.taken_over"' in line for line in servers[1].stdout.splitlines())
        start = receiver.posts[0].sequences[0]
        check_at_least_once(receiver.posts, start + 19, start)
        assert identity in receiver.posts[-1].headers["webhook-id"]


@pytest.mark.long  # a server is stopped for longer than others wait for it
def test_a_server_that_was_asleep_is_fenced(servers: list[Server]) -> None:
    one, two = (Api(server.client) for server in servers)
    with Receiver() as receiver:
        one.push("mine", receiver.url, {"sea": "d"})
        until(lambda: two.call("GET", "/mine").status == 200)
        publish(two.client, "d", 1)
        receiver.wait_for(1)
        servers[0].signal(signal.SIGSTOP)
        try:
            until(lambda: any('"subscription.taken_over"' in line for line in servers[1].stdout.splitlines()))
            publish(two.client, "d", 2, 3)
            until(lambda: len({got.headers["webhook-id"] for got in receiver.posts}) == 3)
        finally:
            servers[0].signal(signal.SIGCONT)
        publish(two.client, "d", *range(4, 30))
        until(lambda: len({got.headers["webhook-id"] for got in receiver.posts}) == 29)
        until(lambda: {one.show("mine")["lag"], two.show("mine")["lag"]} == {0})
        start = receiver.posts[0].sequences[0]
        check_at_least_once(receiver.posts, start + 28, start)
        shown = two.show("mine")
        assert shown["delivered"] >= 28
        # whatever the former owner wrote was refused: the cursor has not moved back
        time_seen = [two.show("mine")["next_sequence"] for _ in range(5)]
        assert min(time_seen) == start + 29


@pytest.mark.long  # a broker is killed and started again
def test_an_outage_of_the_broker_loses_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    with single(tmp_path / "own") as broker, Receiver() as receiver:
        config["notification_backend"]["jetstream"] = {"nats_url": broker.url}
        with Server(config, tmp_path / "server") as server:
            api = Api(server.client)
            api.push("mine", receiver.url, {"sea": "e"})
            publish(server.client, "e", 1, 2)
            receiver.wait_for(2)
            broker.kill()
            broker.start()
            until(lambda: server.client.notify("wave", {"sea": "e", "height": 3}, {"height": 3}).status == 200)
            until(lambda: 3 in [event["data"]["payload"]["height"] for g in receiver.posts for event in g.events])
            check_at_least_once(receiver.posts, receiver.posts[-1].sequences[-1])
