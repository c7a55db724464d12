"""Publishing with the client: what it gets back, and what listeners get."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from uuid import UUID

import pytest
from pyaviso import Anonymous, AsyncAvisoClient, AvisoClient, Bearer, HttpError

from tests.client.connection import connect
from tests.client.listening import Open, payloads, sequences
from tests.harness import Server

STORM = {"region": "south", "severity": "4", "anomaly": "42.5", "run_time": "1200", "day": "20250706"}
DEEPEST = 125  # levels of a payload; the client reads 127 in all


def test_answer_says_when_and_under_which_id_it_was_processed(client: AvisoClient) -> None:
    answer = client.notify(event_type="storm", identifier=STORM)
    assert answer.status == "success"
    assert str(UUID(answer.request_id)) == answer.request_id
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", answer.processed_at)


def test_text_and_numbers_come_back_as_the_same_canonical_text(
    server: Server, client: AvisoClient, listen: Open
) -> None:
    listening = listen(server, lambda: client.listen("storm"))
    client.notify(event_type="storm", identifier=STORM)
    client.notify(
        event_type="storm",
        identifier={"region": "SOUTH", "severity": 4, "anomaly": 42.50, "run_time": 12, "day": "2025-07-06"},
    )
    text, numbers = listening.take(2)
    assert text.identifier == numbers.identifier == STORM


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "",
        "4",
        "naïve ☂ \U0001f300 \u2028",
        4,
        -0.5,
        9007199254740993,
        18446744073709551615,
        True,
        False,
        [],
        {},
        {"b": [1, 2.5, None, {"a": "c"}], "a": {"type": "connection_established"}},
        ["x" * 100_000],
    ],
    ids=lambda payload: repr(payload)[:24],
)
def test_payload_comes_back_unchanged(server: Server, client: AvisoClient, listen: Open, payload: Any) -> None:
    listening = listen(server, lambda: client.listen("tide"))
    client.notify(event_type="tide", identifier={"gauge": "p"}, payload=payload)
    [notification] = listening.take()
    assert notification.payload == payload
    assert type(notification.payload) is type(payload)


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = [value]
    return value


def test_deepest_payload_that_is_accepted_can_be_read(server: Server, client: AvisoClient, listen: Open) -> None:
    listening = listen(server, lambda: client.listen("tide"))
    client.notify(event_type="tide", identifier={"gauge": "deep"}, payload=nested(DEEPEST))
    [notification] = listening.take()
    assert notification.payload == nested(DEEPEST)
    with pytest.raises(HttpError) as refusal:
        client.notify(event_type="tide", identifier={"gauge": "deep"}, payload=nested(DEEPEST + 1))
    assert refusal.value.status == 400


def test_whole_event_is_a_cloudevent(server: Server, client: AvisoClient, listen: Open) -> None:
    listening = listen(server, lambda: client.listen("delivery", filter={"customer": "ann"}))
    client.notify(event_type="delivery", identifier={"customer": "ann", "item": 7}, payload="box")
    [notification] = listening.take()
    event = notification.cloudevent
    assert event["id"] == f"delivery@{notification.sequence}"
    assert event["sequence"] == notification.sequence
    assert event["specversion"] == "1.0"
    assert event["type"] == "int.ecmwf.aviso.delivery"
    assert event["source"] == "http://aviso.example"
    assert event["datacontenttype"] == "application/json"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|\+00:00)", event["time"])
    assert event["data"] == {"identifier": {"customer": "ann", "item": "7"}, "payload": "box"}


def test_many_at_once_are_numbered_without_a_hole(client: AvisoClient) -> None:
    batch = [{"event_type": "wave", "identifier": {"gauge": "many"}, "payload": number} for number in range(200)]
    results = client.notify_many(batch, concurrency=32)
    assert [result.index for result in results] == list(range(200))
    assert all(result.ok for result in results)
    assert len({result.response.request_id for result in results if result.response}) == 200
    stored = list(client.listen("wave", start_from=0, mode="replay_only"))
    assert sorted(payloads(stored)) == list(range(200))
    assert sequences(stored) == list(range(1, 201))


def test_one_refusal_among_many_is_reported_where_it_happened(client: AvisoClient) -> None:
    results = client.notify_many(
        [
            {"event_type": "storm", "identifier": STORM},
            {"event_type": "storm", "identifier": {**STORM, "severity": 8}},
            {"event_type": "storm", "identifier": STORM},
        ]
    )
    assert [result.ok for result in results] == [True, False, True]
    error = results[1].error
    assert isinstance(error, HttpError)
    assert error.status == 400
    assert "severity" in error.body


def test_asynchronous_client_publishes_and_listens(server: Server) -> None:
    async def scenario() -> list[Any]:
        client = AsyncAvisoClient(base_url=server.url, auth=Anonymous())
        before = (await client.schema()).event_types
        await client.notify(event_type="delivery", identifier={"customer": "async", "item": 1}, payload=before)
        replay = client.listen("delivery", filter={"customer": "async"}, start_from=0, mode="replay_only")
        return [notification.payload async for notification in replay]

    assert asyncio.run(scenario()) == [["area", "buoys", "delivery", "storm", "tide", "wave"]]


def test_credentials_are_ignored_by_a_server_without_authentication(server: Server) -> None:
    client = connect(server, auth=Bearer("nobody asked"))
    assert client.notify(event_type="storm", identifier=STORM).status == "success"
