"""Many publishers while the server dies again and again: what was acknowledged is there, once, and in order."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness import Client, Server, StreamBroken
from tests.harness.broker import wait_until
from tests.harness.client import JSON, body, encode
from tests.stress.configuration import configuration

ROUNDS = 12
PUBLISHERS = 12

Told = tuple[int, int]  # publisher, number


class Publisher:
    """Publishes 0, 1, 2, ... and remembers which were acknowledged; no number is sent twice."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.number = 0
        self.acknowledged: list[Told] = []

    def run(self, client: Client) -> None:
        """Publish until the connection breaks."""
        connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
        try:
            while True:
                told = (self.name, self.number)
                self.number += 1
                request = encode(body("tide", {"port": f"p{self.name}", "level": 1}, payload=told))
                connection.request("POST", "/api/v1/notification", request, dict(JSON))
                response = connection.getresponse()
                response.read()
                assert response.status == 200
                self.acknowledged.append(told)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()


class Witness:
    """A watcher who remembers what it saw."""

    def __init__(self) -> None:
        self.seen: dict[int, Told] = {}

    def run(self, client: Client, first: int) -> None:
        """Watch from a sequence on until the connection breaks."""
        try:
            with client.watch("tide", {}, from_id=str(first)) as stream:
                while True:
                    event = stream.notification()
                    assert event["sequence"] not in self.seen, "nothing comes twice"
                    self.seen[event["sequence"]] = told(event)
        except (StreamBroken, OSError):
            pass


def wait_for_more(publishers: list[Publisher]) -> None:
    """Wait until there is something to lose."""
    before = sum(len(each.acknowledged) for each in publishers)
    wait_until(lambda: sum(len(each.acknowledged) for each in publishers) > before + PUBLISHERS)


def told(event: dict[str, Any]) -> Told:
    publisher, number = event["data"]["payload"]
    return publisher, number


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server on disk."""
    server = Server(configuration(), tmp_path)
    yield server
    server.kill()


def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(server: Server) -> None:
    random = Random(5)
    publishers = [Publisher(name) for name in range(PUBLISHERS)]
    witness = Witness()
    for _ in range(ROUNDS):
        client = server.start().client
        threads = [threading.Thread(target=each.run, args=[client]) for each in publishers]
        threads.append(threading.Thread(target=witness.run, args=[client, max(witness.seen, default=0) + 1]))
        for thread in threads:
            thread.start()
        wait_for_more(publishers)
        time.sleep(random.uniform(0.0, 0.4))
        server.kill()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    server.start()
    stored = [(event["sequence"], told(event)) for event in server.client.replay("tide", {}).notifications]

    assert [sequence for sequence, _ in stored] == list(range(1, len(stored) + 1))
    assert len({each for _, each in stored}) == len(stored), "nothing is stored twice"
    assert {each for publisher in publishers for each in publisher.acknowledged} <= {each for _, each in stored}
    for publisher in publishers:
        numbers = [number for _, (name, number) in stored if name == publisher.name]
        assert numbers == sorted(numbers)
    assert witness.seen.items() <= dict(stored).items(), "what a watcher has seen keeps its sequence"
    assert sorted(witness.seen) == list(range(1, max(witness.seen) + 1)), "a watcher who reconnects misses nothing"
    server.client.publish("tide", {"port": "oslo", "level": 1}, [99, 0])
    last = server.client.replay("tide", {"port": "oslo"}).notifications[-1]
    assert last["sequence"] == len(stored) + 1
