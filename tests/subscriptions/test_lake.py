"""Subscriptions that are further back than the log reaches: a real lake, a real Spark, and a kill of it in between."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.subscriptions.receiver import Got, Receiver, Reply, until
from tests.subscriptions.scene import Api, configuration, publish, publish_batch
from tests.subscriptions.test_registry import check_at_least_once

COUNT = 100_000
PADDING = "x" * 500  # so that all of it is more than is read ahead
KEPT = 100  # notifications that the log keeps

pytestmark = pytest.mark.long  # Spark starts, archives, and is killed and started again


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has let go of nearly everything."""
    config = configuration("sqlite")
    config["notification_backend"]["sqlite"] = {"path": "log"}
    config["archive"] = {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"}
    config["notification_schema"]["wave"]["storage_policy"] = {"max_messages": KEPT}
    with Server(config, tmp_path_factory.mktemp("lake")) as running:
        api = Api(running.client)
        api.make("early")  # made before there was anything, and away for long
        for start in range(0, COUNT, 1000):
            publish_batch(running.client, [wave(number) for number in range(start, start + 1000)])
        until(lambda: trimmed(running) >= COUNT - KEPT, lambda: running.stdout[-3000:], seconds=600)
        yield running


def wave(height: int) -> dict[str, Any]:
    identifier = {"sea": "x", "height": height}
    return {"event_type": "wave", "identifier": identifier, "payload": {"height": height, "padding": PADDING}}


def trimmed(server: Server) -> int:
    streams = server.client.get("/api/v1/streams").json()["streams"]
    return max([each["trimmed"] for each in streams], default=0)


def archive_state(server: Server) -> str:
    return str(server.client.get("/ready").json()["archive"]["state"])


def spark(server: Server) -> int:
    return int((server.directory / "archive" / "_lock").read_text())


def test_a_worker_that_was_away_gets_everything_in_order(server: Server) -> None:
    api, got = Api(server.client), list[int]()
    while len(got) < COUNT:
        works: list[Any] = api.pull("early", max=1000, wait_seconds=30)
        assert works, f"{len(got)} of {COUNT} came, then nothing: {api.show('early')}"
        got += [each["event"]["sequence"] for each in works]
        api.ok("POST", "/early/ack", {"leases": [each["lease"] for each in works]})
    assert got == list(range(1, COUNT + 1))
    assert (api.show("early")["lag"], api.show("early")["gaps"]) == (0, [])


def test_a_sink_gets_everything_through_a_kill_of_spark(server: Server) -> None:
    """History from the lake, then from the log, then what is published meanwhile."""
    api, goes_on = Api(server.client), threading.Event()

    def answer(got: Got) -> Reply:
        if len(receiver.posts) >= 3:
            goes_on.wait(PATIENCE)
        return Reply()

    def delivered() -> int:
        return int(api.show("late")["delivered"])

    with Receiver(answer) as receiver:
        api.push("late", receiver.url, from_id="1", batch=1000)
        until(lambda: len(receiver.posts) >= 3)
        killed = spark(server)
        os.kill(killed, signal.SIGKILL)
        publish(server.client, "x", *range(500))
        until(lambda: archive_state(server) == "restarting")
        assert delivered() < COUNT - KEPT, "the kill was in the middle of it"
        goes_on.set()
        until(lambda: archive_state(server) == "running", lambda: server.stdout[-3000:], seconds=600)
        until(lambda: delivered() == COUNT + 500, lambda: f"{api.show('late')}", seconds=600)
        check_at_least_once(receiver.posts, COUNT + 500)
        assert len({got.headers["webhook-id"] for got in receiver.posts}) == len(receiver.posts), "nobody has crashed"
        shown = api.show("late")
        assert (shown["lag"], shown["gaps"], shown["dead_letters"]) == (0, [], 0)
        until(lambda: spark(server) != killed, seconds=600)  # the new process reads before it archives
    api.ok("DELETE", "/late")


def test_a_selective_filter_is_answered_by_the_lake(server: Server) -> None:
    api = Api(server.client)
    with Receiver() as receiver:
        api.push("few", receiver.url, {"height": {"between": [7000, 7009]}}, from_id="1", batch=5)
        until(lambda: api.show("few")["delivered"] == 10, lambda: f"{api.show('few')}", seconds=600)
        assert receiver.sequences == list(range(7001, 7011))
    api.ok("DELETE", "/few")
