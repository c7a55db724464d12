"""Publishers and watchers that go on through every failure, and a record of what they were told and what they got."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tests.harness import Client, EventStream, Server, StreamBroken
from tests.harness.broker import wait_until
from tests.harness.client import body

__all__ = ["Loop", "Publisher", "Watcher", "assert_record", "configuration", "stored"]

EVENT_TYPE = "tide"
SCHEMA = {
    "tide": {
        "topic": {"base": "tide", "key_order": ["place", "level"]},
        "identifier": {
            "place": {"type": "StringHandler", "required": False},
            "level": {"type": "IntHandler", "range": [0, 9], "required": False},
        },
        "storage_policy": {"allow_duplicates": True},
    }
}


def configuration(nats_url: str, replicas: int | None = None, **backend: Any) -> dict[str, Any]:
    """A server that does not give up soon, on these brokers."""
    jetstream = {
        "nats_url": nats_url,
        "max_reconnect_attempts": 0,
        "reconnect_delay_ms": 200,
        "publish_retry_attempts": 8,
        "timeout_seconds": 5,
        **({"replicas": replicas} if replicas else {}),
        **backend,
    }
    return {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "jetstream", "jetstream": jetstream},
        "watch_endpoint": {"sse_heartbeat_interval_sec": 1},
        "notification_schema": SCHEMA,
    }


class Loop:
    """Something that goes on in a thread until it is told to stop."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End and wait."""
        self.stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not self.failures, self.failures

    def run(self) -> None:
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failures.append(error)


class Publisher(Loop):
    """Publishes numbers, each once, to one of the servers; a number without an answer is not sent again."""

    def __init__(self, name: str, servers: Sequence[Server], pause: float = 0.01) -> None:
        super().__init__()
        self.name = name
        self.acknowledged: list[str] = []
        self.doubtful: list[str] = []
        self._servers = servers
        self._pause = pause

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            server = self._servers[number % len(self._servers)]
            payload = f"{self.name}-{number}"
            identifier = {"place": self.name, "level": number % 10}
            try:
                client = Client(server.host, server.port, timeout=60)
                status = client.notify(EVENT_TYPE, identifier, payload).status
            except (OSError, StreamBroken, EOFError):
                status = 0
            (self.acknowledged if status == 200 else self.doubtful).append(payload)
            time.sleep(self._pause if status else 0.2)


class Watcher(Loop):
    """Listens from the beginning on, and after each break goes on with the next sequence at another server."""

    def __init__(self, servers: Sequence[Server], identifier: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.identifier = dict(identifier or {})
        self.received: list[tuple[int, str]] = []
        self.reasons: Counter[str] = Counter()
        self._servers = servers

    def run(self) -> None:
        attempt = 0
        while not self.stopping.is_set():
            attempt += 1
            server = self._servers[attempt % len(self._servers)]
            following = self.received[-1][0] + 1 if self.received else 1
            request = body(EVENT_TYPE, self.identifier, from_id=str(following))
            try:
                with Client(server.host, server.port, timeout=60).open("watch", request) as stream:
                    if stream.status == 200:
                        self._listen(stream)
            except (OSError, StreamBroken, EOFError):
                pass
            time.sleep(0.05)

    def _listen(self, stream: EventStream) -> None:
        while not self.stopping.is_set():
            frame = stream.next(timeout=10)
            if frame.kind == "notification":
                self.received.append((frame.data["sequence"], frame.data["data"]["payload"]))
            elif frame.kind == "connection-closing":
                self.reasons[frame.data["reason"]] += 1


def stored(server: Server, identifier: Mapping[str, Any] | None = None) -> list[tuple[int, str]]:
    """What a replay gives, as watchers record it."""
    events = server.client.replay(EVENT_TYPE, identifier or {}).notifications
    return [(event["sequence"], event["data"]["payload"]) for event in events]


def assert_record(publishers: Sequence[Publisher], watchers: Sequence[Watcher], server: Server) -> None:
    """Acknowledged is stored once; stored is delivered once and in order, to everyone who asked for it."""
    everything = stored(server)
    counts = Counter(payload for _, payload in everything)
    assert [sequence for sequence, _ in everything] == sorted({sequence for sequence, _ in everything})
    assert max(counts.values()) == 1, [payload for payload, count in counts.items() if count > 1]
    for publisher in publishers:
        missing = [payload for payload in publisher.acknowledged if payload not in counts]
        assert not missing, missing
        kept = [payload for _, payload in everything if payload.startswith(f"{publisher.name}-")]
        numbers = [int(payload.rpartition("-")[2]) for payload in kept]
        assert numbers == sorted(numbers), "a publisher that waits for its answers is stored in its order"
    for watcher in watchers:
        expected = stored(server, watcher.identifier)
        wait_until(lambda w=watcher, e=expected: len(w.received) >= len(e))  # type: ignore[misc]
        assert watcher.received == expected, json.dumps([watcher.received[-5:], expected[-5:]])
