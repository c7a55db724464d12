"""Publishers with idempotency keys who repeat what was not answered, while the server dies again and again.

Everything they published is there, each once, whatever was under way when the server died.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness import Client, Server
from tests.harness.broker import single, wait_until
from tests.harness.client import JSON, body, encode
from tests.harness.patience import PATIENCE
from tests.stress.configuration import configuration

ROUNDS = 8  # at least
MOST_ROUNDS = 60  # until the server has died after something was stored and before the answer was out
PUBLISHERS = 8
BATCH = 20


class Publisher:
    """Publishes 0, 1, 2, ...; a request without an answer is sent again with the same keys."""

    def __init__(self, name: int, batches: bool) -> None:
        self.name = name
        self.batches = batches
        self.next = 0
        self.places: dict[int, int] = {}  # the sequence of each number, as the server said
        self.repeated = 0
        self.unfinished = False  # a request has no answer yet

    def run(self, client: Client, until: float) -> None:
        """Publish until the connection breaks; after `until` only finish what is begun."""
        connection = http.client.HTTPConnection(client.host, client.port, timeout=PATIENCE)
        try:
            while time.monotonic() < until or self.unfinished:
                self.unfinished = True
                self._publish(connection)
                self.unfinished = False
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    def _publish(self, connection: http.client.HTTPConnection) -> None:
        numbers = range(self.next, self.next + (BATCH if self.batches else 1))
        items = [body("tide", {"port": f"p{self.name}", "level": 1}, payload=[self.name, number]) for number in numbers]
        if not self.batches:
            told = self._ask(connection, "notification", items[0], {"Idempotency-Key": f"{self.name}/{self.next}"})
            outcomes = [told]
        elif self.name % 2:
            told = self._ask(connection, "notifications", items, {"Idempotency-Key": f"{self.name}/{self.next}"})
            outcomes = told["outcomes"]
        else:
            named = [
                {**item, "idempotency_key": f"{self.name}/{number}"}
                for item, number in zip(items, numbers, strict=True)
            ]
            outcomes = self._ask(connection, "notifications", named, {})["outcomes"]
        for number, outcome in zip(numbers, outcomes, strict=True):
            self.places[number] = outcome["sequence"]
        self.next = numbers[-1] + 1

    def _ask(self, connection: http.client.HTTPConnection, route: str, request: Any, headers: dict[str, str]) -> Any:
        connection.request("POST", f"/api/v1/{route}", encode(request), {**dict(JSON), **headers})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer.decode()
        self.repeated += b'"replayed":true' in answer or response.getheader("idempotency-replayed") == "true"
        return json.loads(answer)


@pytest.fixture(params=["sqlite", "jetstream"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server whose notifications outlive it."""
    config = configuration()
    with single(tmp_path / "broker") as broker:
        if request.param == "jetstream":
            config["notification_backend"] = {"kind": "jetstream", "jetstream": {"nats_url": broker.url}}
            for entry in config["notification_schema"].values():
                entry["storage_policy"] = {"allow_duplicates": True}
        server = Server(config, tmp_path / "server")
        yield server
        server.kill()


def wait_for_all(publishers: list[Publisher]) -> None:
    """Wait until each has got on."""
    before = [each.next for each in publishers]
    wait_until(lambda: all(each.next > number for each, number in zip(publishers, before, strict=True)))


@pytest.mark.long  # the server starts again after each kill, as often as it takes
def test_everything_is_stored_exactly_once(server: Server) -> None:
    random = Random(7)
    publishers = [Publisher(name, batches=name >= PUBLISHERS // 2) for name in range(PUBLISHERS)]
    for turn in range(MOST_ROUNDS + 1):
        client = server.start().client
        last = turn >= ROUNDS and any(publisher.repeated for publisher in publishers)
        until = time.monotonic() + (0.3 if last else 600)
        threads = [threading.Thread(target=each.run, args=[client, until]) for each in publishers]
        for thread in threads:
            thread.start()
        if not last:
            wait_for_all(publishers)
            time.sleep(random.uniform(0.0, 0.4))
            server.kill()
        for thread in threads:
            thread.join(180)
            assert not thread.is_alive()
        if last:
            break
    assert not any(publisher.unfinished for publisher in publishers)
    stored = {
        event["sequence"]: tuple(event["data"]["payload"])
        for event in server.client.replay("tide", {"port": "*", "level": 1}).notifications
    }
    assert sorted(stored) == list(range(1, len(stored) + 1))
    told = {
        sequence: (publisher.name, number) for publisher in publishers for number, sequence in publisher.places.items()
    }
    assert stored == told, "what publishers were told is what is there, nothing less and nothing twice"
    assert all(publisher.next > ROUNDS for publisher in publishers)
    assert last, "some of it was stored when the server died"
    for publisher in publishers:
        numbers = [number for _, (name, number) in sorted(stored.items()) if name == publisher.name]
        assert numbers == sorted(numbers)
