"""Listeners over a restart of the server: nothing is lost and nothing comes twice."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyaviso import AvisoError, JsonFileStore

from tests.client.configuration import configuration
from tests.client.connection import connect, server_with_steady_address
from tests.client.listening import Open, payloads, sequences
from tests.harness import Server


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[Server]:
    """A server that can be restarted under the same address."""
    with server_with_steady_address(configuration(), tmp_path / "server") as running:
        yield running


class Publisher:
    """Publishes one number after the other, as fast as the server takes them, whatever happens to it."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[int] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish `last` as the last one and be done."""
        self._stop.set()
        self._thread.join()
        connect(self._server).notify(event_type="tide", identifier={"gauge": "g"}, payload="last")

    def _publish(self) -> None:
        client, number = connect(self._server), 0
        while not self._stop.is_set():
            try:
                client.notify(event_type="tide", identifier={"gauge": "g"}, payload=number)
                self.acknowledged.append(number)
            except AvisoError:
                self.failed.append(number)
                self._stop.wait(0.02)
            number += 1


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_listeners_find_back_and_miss_nothing(steady: Server, listen: Open, end: signal.Signals) -> None:
    client = connect(steady)
    raw = steady.client.watch("tide", {})
    listeners = [
        listen(steady, lambda: client.listen("tide")),
        listen(steady, lambda: client.listen("tide", filter={"gauge": "g"})),
        listen(steady, lambda: client.listen("tide", start_from=0)),
        listen(steady, lambda: client.listen("tide", start_from="2020-01-01T00:00:00Z")),
    ]
    publisher = Publisher(steady)
    before = [listening.take(20) for listening in listeners]  # who has received nothing yet would come back live
    steady.signal(end)
    assert steady.wait() == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    if end is signal.SIGTERM:
        assert raw.until("connection-closing").data["reason"] == "server_shutdown"
    raw.close()
    steady.start()
    client.notify(event_type="wave", identifier={"gauge": "the client's connections are good for publishing too"})
    publisher.stop()
    for head, listening in zip(before, listeners, strict=True):
        received = head + listening.up_to("last")
        numbers = payloads(received)[:-1]
        assert set(publisher.acknowledged) <= set(numbers)
        assert numbers == sorted(set(numbers)), "each once and in order"
        assert set(numbers) <= {*publisher.acknowledged, *publisher.failed}
        assert sequences(received) == list(range(1, len(received) + 1))


BIG = "x" * 20_000


@pytest.mark.parametrize(
    ("end", "until", "expected"),
    [
        (signal.SIGTERM, "2120-01-01T00:00:00Z", [1000]),
        (signal.SIGKILL, 900, [900]),
        (signal.SIGKILL, None, [1000, 1001]),  # without an end, what came meanwhile may be part of it
    ],
    ids=["SIGTERM, end in the future", "SIGKILL, until 900", "SIGKILL, no end"],
)
def test_replay_goes_on_where_it_was_cut_off(
    steady: Server, end: signal.Signals, until: int | str | None, expected: list[int]
) -> None:
    steady.client.publish_many("tide", [({"gauge": "g"}, [number, BIG]) for number in range(1, 1001)])
    client = connect(steady)
    replay = client.listen("tide", start_from=0, until=until, mode="replay_only")
    received = [next(replay) for _ in range(10)]  # and then no more, so that the server cannot finish
    steady.signal(end)
    assert steady.wait() == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    steady.start()
    steady.client.publish("tide", {"gauge": "g"}, [1001, BIG])
    received += replay
    numbers = [number for number, _ in payloads(received)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers[-1] in expected


def test_position_in_a_file_outlives_client_and_server(steady: Server, listen: Open, tmp_path: Path) -> None:
    def publish(*values: str) -> None:
        steady.client.publish_many("tide", [({"gauge": "g"}, value) for value in values])

    def session(flush: bool) -> Any:
        store = JsonFileStore(tmp_path / "state.json")
        return connect(steady, state_store=store, flush_cursor_on_exit=flush).listen("tide")

    first = listen(steady, lambda: session(flush=True))
    publish("a", "b", "c")
    assert payloads(first.take(3)) == ["a", "b", "c"]
    first.close()
    publish("d", "e")
    steady.restart()
    publish("f")
    second = listen(steady, lambda: session(flush=False))
    publish("g")
    assert payloads(second.take(4)) == ["d", "e", "f", "g"]
    second.close()
    publish("h")
    third = listen(steady, lambda: session(flush=True))
    assert payloads(third.take(2)) == ["g", "h"], "without a flush the last one is committed by the next"
