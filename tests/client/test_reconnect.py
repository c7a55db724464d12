"""Long listeners: connections end after their time, and the client comes back without a trace of it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from pyaviso import AvisoClient

from tests.client.configuration import BACKENDS, configuration
from tests.client.connection import connect
from tests.client.listening import Listening, Open, open_streams, payloads, sequences, wait_until
from tests.harness import Server


def publish(client: AvisoClient, event_type: str, payload: object) -> None:
    client.notify(event_type=event_type, identifier={"gauge": "g"}, payload=payload)


def test_end_of_a_connections_time_is_not_noticed(tmp_path: Path, listen: Open) -> None:
    seconds = 2
    config = configuration(watch_endpoint={"connection_max_duration_sec": seconds})
    with Server(config, tmp_path / "server") as server:
        client = connect(server)
        publish(client, "tide", 0)
        listeners = [
            listen(server, lambda: client.listen("tide", start_from=0)),
            listen(server, lambda: client.listen("tide", filter={"gauge": "g"}, start_from=0)),
        ]
        number, until = 0, time.monotonic() + 2 * seconds + 0.5
        while time.monotonic() < until:
            number += 1
            publish(client, "tide", number)
            time.sleep(0.005)
        publish(client, "tide", "last")
        for listening in listeners:
            assert payloads(listening.up_to("last")) == [*range(number + 1), "last"]
        wait_until(lambda: open_streams(server) >= 3 * len(listeners), "each listener has had three connections")


@pytest.mark.parametrize("backend", BACKENDS)
def test_unfiltered_listeners_see_no_gap_while_several_event_types_are_in_use(
    tmp_path: Path, listen: Open, backend: str
) -> None:
    with Server(configuration(backend), tmp_path / "server") as server:
        client = connect(server)
        early: dict[str, Listening] = {}
        late: dict[str, Listening] = {}
        for event_type in ("tide", "wave"):
            early[event_type] = listen(server, partial(client.listen, event_type))
        for number in range(1, 31):
            for event_type in ("tide", "wave", "wave")[: 1 + number % 3]:
                publish(client, event_type, number)
            if number == 15:
                for event_type in ("tide", "wave"):
                    late[event_type] = listen(server, partial(client.listen, event_type, start_from=0))
        for event_type in ("tide", "wave"):
            publish(client, event_type, "last")
            for listening in (early[event_type], late[event_type]):
                received = listening.up_to("last")
                assert sequences(received) == list(range(1, len(received) + 1))
                assert len(received) == {"tide": 31, "wave": 31}[event_type]
