"""Listening with the client: live, from a point in the past, up to a point, with filters."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyaviso import AvisoClient

from tests.client.configuration import configuration
from tests.client.connection import connect
from tests.client.listening import Open, payloads, sequences
from tests.harness import Server


def publish(client: AvisoClient, gauge: str, *values: Any) -> None:
    for value in values:
        client.notify(event_type="tide", identifier={"gauge": gauge}, payload=value)


def replay(client: AvisoClient, gauge: str, **span: Any) -> list[Any]:
    return list(client.listen("tide", filter={"gauge": gauge}, **span))


def test_live_listener_gets_what_comes_and_nothing_from_before(
    server: Server, client: AvisoClient, listen: Open
) -> None:
    publish(client, "live", "before")
    listening = listen(server, lambda: client.listen("tide", filter={"gauge": "live"}))
    publish(client, "other", "not wanted")
    publish(client, "live", 1, 2, 3)
    assert payloads(listening.take(3)) == [1, 2, 3]


def test_start_from_an_id_means_after_it_then_live(server: Server, client: AvisoClient, listen: Open) -> None:
    publish(client, "id", "a", "b", "c")
    first = replay(client, "id", start_from=0, mode="replay_only")[0].sequence
    listening = listen(server, lambda: client.listen("tide", filter={"gauge": "id"}, start_from=first))
    publish(client, "id", "d")
    assert payloads(listening.take(3)) == ["b", "c", "d"]


@pytest.mark.parametrize("ahead", [0, 1, 1000])
def test_start_at_or_past_the_end_is_live(server: Server, client: AvisoClient, listen: Open, ahead: int) -> None:
    publish(client, "end", "old")
    last = replay(client, "end", start_from=0, mode="replay_only")[-1].sequence
    listening = listen(server, lambda: client.listen("tide", filter={"gauge": "end"}, start_from=last + ahead))
    publish(client, "end", "new")
    assert payloads(listening.take()) == ["new"]
    assert replay(client, "end", start_from=last + 1000, mode="replay_only") == []


def test_start_from_a_date(server: Server, client: AvisoClient, listen: Open) -> None:
    publish(client, "date", "a", "b", "c")
    second = replay(client, "date", start_from=0, mode="replay_only")[1].cloudevent["time"]
    listening = listen(server, lambda: client.listen("tide", filter={"gauge": "date"}, start_from=second))
    publish(client, "date", "d")
    assert payloads(listening.take(3)) == ["b", "c", "d"]
    assert payloads(replay(client, "date", start_from="2020-01-01T00:00:00.000000Z", mode="replay_only")) == list(
        "abcd"
    )
    assert replay(client, "date", start_from="2120-01-01T00:00:00.000000Z", mode="replay_only") == []


def test_replay_ends_by_itself(client: AvisoClient) -> None:
    publish(client, "replay", *range(250))
    assert payloads(replay(client, "replay", start_from=0, mode="replay_only")) == list(range(250))
    assert replay(client, "nothing here", start_from=0, mode="replay_only") == []


def test_replay_until_an_id_or_a_date(client: AvisoClient) -> None:
    publish(client, "until", "a", "b", "c", "d")
    a, b, c, d = replay(client, "until", start_from=0, mode="replay_only")
    assert payloads(replay(client, "until", start_from=a.sequence, until=c.sequence)) == ["b", "c"]
    assert payloads(replay(client, "until", start_from=a.sequence, until=d.sequence + 1000)) == ["b", "c", "d"]
    time = {note.payload: note.cloudevent["time"] for note in (a, b, c, d)}
    assert payloads(replay(client, "until", start_from=time["b"], until=time["c"])) == ["b", "c"]
    assert payloads(replay(client, "until", start_from=0, until=time["b"])) == ["a", "b"]
    assert payloads(replay(client, "until", start_from=time["d"], until=d.sequence)) == ["d"]
    assert replay(client, "until", start_from="2020-01-01T00:00:00Z", until="2020-01-02T00:00:00Z") == []


def test_history_and_live_meet_without_loss_or_repetition(server: Server, client: AvisoClient, listen: Open) -> None:
    publish(client, "seam", *range(300))
    stop, published = threading.Event(), list(range(300))

    def publish_on() -> None:
        while not stop.is_set():
            publish(client, "seam", len(published))
            published.append(len(published))

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        listeners = [
            listen(server, lambda: client.listen("tide", filter={"gauge": "seam"}, start_from=0)) for _ in range(5)
        ]
    finally:
        stop.set()
        publisher.join()
    publish(client, "seam", "last")
    for listening in listeners:
        received = listening.up_to("last")
        assert payloads(received) == [*published, "last"]
        assert sequences(received) == sorted(sequences(received))


STORMS = [
    {"region": "north", "severity": 1, "anomaly": 10.0, "run_time": "0000", "day": "20250101"},
    {"region": "south", "severity": 4, "anomaly": 42.5, "run_time": "0600", "day": "20250102"},
    {"region": "east", "severity": 5, "anomaly": 50.0, "run_time": "1200", "day": "20250103"},
    {"region": "south", "severity": 7, "anomaly": 99.9, "run_time": "1200", "day": "20250104"},
]


@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        ({}, [0, 1, 2, 3]),
        ({"severity": 4}, [1]),
        ({"severity": "4"}, [1]),
        ({"severity": {"eq": 4}}, [1]),
        ({"severity": {"gte": 5}}, [2, 3]),
        ({"severity": {"gt": 5}}, [3]),
        ({"severity": {"lt": 4}}, [0]),
        ({"severity": {"lte": 4}}, [0, 1]),
        ({"severity": {"between": [4, 5]}}, [1, 2]),
        ({"severity": {"in": [1, 7]}}, [0, 3]),
        ({"anomaly": {"between": [40.0, 50.0]}}, [1, 2]),
        ({"region": {"in": ["north", "east"]}}, [0, 2]),
        ({"region": "South"}, [1, 3]),
        ({"region": "south", "severity": {"gt": 4}}, [3]),
        ({"run_time": 12}, [2, 3]),
        ({"day": "2025-01-02"}, [1]),
        ({"severity": 6}, []),
    ],
    ids=str,
)
def test_filters(
    server: Server, client: AvisoClient, listen: Open, wanted: dict[str, Any], matching: list[int]
) -> None:
    listening = listen(server, lambda: client.listen("storm", filter=wanted))
    for number, identifier in enumerate(STORMS):
        client.notify(event_type="storm", identifier=identifier, payload=number)
    assert payloads(listening.take(len(matching))) == matching
    history = payloads(client.listen("storm", filter=wanted, start_from=0, mode="replay_only"))
    assert set(history) == set(matching)
    assert history == matching * (len(history) // len(matching) if matching else 0)


def test_event_types_without_a_schema(tmp_path_factory: pytest.TempPathFactory, listen: Open) -> None:
    config = {**configuration(), "notification_schema": {}}
    with Server(config, tmp_path_factory.mktemp("generic")) as server:
        client = connect(server)
        assert (client.schema().event_types, client.schema().total_schemas) == ([], 0)
        listening = listen(server, lambda: client.listen("anything", filter={"colour": "red", "size": "*"}))
        for colour, size in (("red", "1"), ("blue", "2"), ("red", "3")):
            client.notify(event_type="anything", identifier={"colour": colour, "size": size}, payload=size)
        assert payloads(listening.take(2)) == ["1", "3"]
        wanted = {"colour": "*", "size": "*"}
        history = list(client.listen("anything", filter=wanted, start_from=0, mode="replay_only"))
        assert sequences(history) == [1, 2, 3]
        assert history[0].identifier == {"colour": "red", "size": "1"}
