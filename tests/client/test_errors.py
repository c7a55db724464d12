"""How refusals of the server reach users of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyaviso import AvisoClient, HistoryGapError, HttpError, TransportError

from tests.client.configuration import configuration
from tests.client.connection import connect
from tests.harness import Server

Call = Callable[[AvisoClient], Any]
NOTIFY, WATCH, REPLAY = "INVALID_NOTIFICATION_REQUEST", "INVALID_WATCH_REQUEST", "INVALID_REPLAY_REQUEST"
ANN = {"customer": "ann"}


def notify(event_type: str, payload: Any = 1, **identifier: Any) -> Call:
    return lambda client: client.notify(event_type=event_type, identifier=identifier, payload=payload)


def listen(event_type: str, wanted: dict[str, Any], **options: Any) -> Call:
    return lambda client: next(client.listen(event_type, filter=wanted, **options))


CASES: list[tuple[Call, str, str]] = [
    (notify("nope"), "UNKNOWN_EVENT_TYPE", "unknown event type"),
    (notify("delivery", customer="ann"), NOTIFY, "missing for notify operation"),
    (notify("delivery", None, customer="ann", item=1), NOTIFY, "Payload is required"),
    (notify("delivery", customer="ann", item=1, colour="red"), NOTIFY, "colour"),
    (notify("delivery", customer="ann", item=[1]), NOTIFY, "item"),
    (notify("delivery", customer="ann", item={"gte": 1}), NOTIFY, "item"),
    (notify("area", name="x", polygon=[[0, 0], [1, 1], [0, 0]]), NOTIFY, "must be a valid polygon"),
    (notify("area", name="x", polygon="(1,2,3)"), NOTIFY, "odd number of values"),
    (notify("area", name="x", polygon="(0,0,0,1,1,1,0,0)", point="0,0"), NOTIFY, "point"),
    (listen("nope", {}), "UNKNOWN_EVENT_TYPE", "unknown event type"),
    (listen("delivery", {}), WATCH, "missing for watch operation"),
    (listen("delivery", {}, start_from=0, mode="replay_only"), REPLAY, "missing for replay operation"),
    (listen("delivery", {**ANN, "colour": "red"}), WATCH, "colour"),
    (listen("delivery", {**ANN, "item": {"near": 1}}), WATCH, "item"),
    (listen("delivery", {**ANN, "item": {"gte": 1, "lt": 5}}), WATCH, "item"),
    (listen("delivery", {**ANN, "item": {"between": [5, 1]}}), WATCH, "item"),
    (listen("delivery", ANN, start_from="not a date"), WATCH, "from_date"),
    (listen("delivery", ANN, start_from=0, until="not a date"), REPLAY, "to_date"),
    (listen("delivery", ANN, start_from="2025-01-02T00:00:00Z", until="2025-01-01T00:00:00Z"), REPLAY, "to_date"),
    (listen("area", {"polygon": "(0,0,0,1,1,1,0,0)", "point": [0, 0]}), WATCH, "point"),
    (listen("area", {"point": [91, 0]}), WATCH, "point"),
]


@pytest.mark.parametrize(("call", "code", "words"), CASES, ids=[f"{code}: {words}" for _, code, words in CASES])
def test_refusal_has_status_body_and_request_id(client: AvisoClient, call: Call, code: str, words: str) -> None:
    with pytest.raises(HttpError) as refusal:
        call(client)
    assert refusal.value.status == 400
    body = json.loads(refusal.value.body)
    assert body["code"] == code
    assert words in body["message"] + body.get("details", "")
    assert body["request_id"] == refusal.value.request_id
    assert f'"{refusal.value.request_id}"' in str(refusal.value)


def test_unknown_event_type_lists_the_configured_ones(client: AvisoClient) -> None:
    with pytest.raises(HttpError) as refusal:
        client.notify(event_type="nope", identifier={})
    configured = json.loads(refusal.value.body)["configured_event_types"]
    assert configured == ["area", "buoys", "delivery", "storm", "tide", "wave"]


def test_server_that_is_not_there(server: Server) -> None:
    with pytest.raises(TransportError):
        connect(server, base_url="http://127.0.0.1:1").schema()


def test_cap_on_history_reaches_the_listener(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = configuration("in_memory", watch_endpoint={"max_historical_notifications": 2})
    with Server(config, tmp_path_factory.mktemp("capped")) as capped:
        client = connect(capped)
        for number in range(3):
            client.notify(event_type="tide", identifier={"gauge": "cap"}, payload=number)
        for mode in ("replay_only", "watch"):
            listening = client.listen("tide", start_from=0, mode=mode)
            assert [next(listening).payload for _ in range(2)] == [0, 1]
            with pytest.raises(HistoryGapError) as gap:
                next(listening)
            assert (gap.value.reason, gap.value.max_allowed) == ("replay_limit_reached", 2)
