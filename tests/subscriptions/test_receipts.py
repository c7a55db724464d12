"""Receipts: one event when a set is complete, or what is missing at the deadline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.times import SECOND, event_time
from aviso_server.subscriptions.cursor import Event
from aviso_server.subscriptions.receipts import Sets, close_overdue, collect, learn, learned
from aviso_server.subscriptions.subscription import ReceiptWish, State
from tests.harness import Server
from tests.harness.client import JSON
from tests.subscriptions.receiver import Receiver, until
from tests.subscriptions.scene import Api, configuration, publish

HOUR = 3600 * SECOND


def event(sequence: int, day: str, step: str, time: int) -> Event:
    body = {"data": {"identifier": {"day": day, "step": step}}, "sequence": sequence, "time": event_time(time)}
    return Event(sequence, json.dumps(body).encode())


def receipts(state: State) -> list[tuple[str, dict[str, Any]]]:
    found = [json.loads(state.outbox[number]) for number in sorted(state.outbox, reverse=True)]
    return [(each["type"].rpartition(".")[2], each["data"]) for each in found]


def chain(events: list[Event]) -> str:
    digest = bytes(32)
    for each in events:
        digest = hashlib.sha256(digest + hashlib.sha256(each.body).digest()).digest()
    return f"sha-256-chain:{digest.hex()}"


WISH = ReceiptWish(field="step", by=("day",), expected=("0", "6", "12"), deadline_seconds=3600)


@given(st.permutations(["0", "6", "12"]), st.permutations(["0", "6", "12"]), st.integers(0, 3))
def test_each_set_is_told_once_whatever_the_order(one: list[str], other: list[str], split: int) -> None:
    steps = [("a", step) for step in one] + [("b", step) for step in other[:split]]
    events = [event(n, day, step, n) for n, (day, step) in enumerate(steps, 1)]
    state = State(next=1)
    for each in events:  # one by one, or all at once: the same
        collect(state, WISH, [each], "s", "n")
    at_once = State(next=1)
    collect(at_once, WISH, events, "s", "n")
    assert receipts(state) == receipts(at_once)
    told = receipts(state)
    assert [data["set"]["day"] for _, data in told] == ["a", *(["b"] if split == 3 else [])]
    kind, data = told[0]
    assert (kind, data["count"], data["first_sequence"], data["last_sequence"]) == ("aviso_complete", 3, 1, 3)
    assert data["digest"] == chain(events[:3])
    assert data["late"] == []


def test_what_is_missing_at_the_deadline_and_what_was_late() -> None:
    state = State(next=1)
    collect(state, WISH, [event(1, "a", "0", 0), event(2, "a", "12", 10)], "s", "n")
    close_overdue(state, WISH, HOUR - 1, "s", "n")
    assert receipts(state) == []
    close_overdue(state, WISH, HOUR, "s", "n")
    close_overdue(state, WISH, HOUR + 1, "s", "n")
    ((kind, data),) = receipts(state)
    assert (kind, data["missing"], data["count"]) == ("aviso_incomplete", ["6"], 2)
    collect(state, WISH, [event(3, "a", "6", 2 * HOUR)], "s", "n")
    kind, data = receipts(state)[1]
    assert (kind, data["late"], data["count"], data["last_sequence"]) == ("aviso_complete", ["6"], 3, 3)


def test_history_is_judged_by_its_own_times() -> None:
    state = State(next=1)
    collect(state, WISH, [event(1, "a", "0", 0), event(2, "b", "0", 2 * HOUR)], "s", "n")
    assert [(kind, data["set"]["day"]) for kind, data in receipts(state)] == [("aviso_incomplete", "a")]


def test_values_are_learned_from_most_of_the_last_sets() -> None:
    wish = ReceiptWish(field="step", by=("day",), learn_sets=3)
    state = State(next=1)
    earlier = [("old", ["99"]), ("a", ["0", "6"]), ("b", ["0", "6", "7"]), ("c", ["0", "6"])]
    sets: Sets = {}
    learn(sets, wish, [event(n, day, step, n) for n, (day, steps) in enumerate(earlier) for step in steps])
    state.collecting().learned = learned(sets, wish)
    collect(state, wish, [event(10, "d", "6", 10), event(11, "d", "0", 11)], "s", "n")
    ((kind, data),) = receipts(state)
    assert (kind, data["expected"], data["set"]) == ("aviso_complete", 2, {"day": "d"})


@pytest.fixture(scope="module", params=["in_memory", "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration(request.param), tmp_path_factory.mktemp("receipts")) as running:
        yield running


def test_a_complete_set_is_pushed_and_pulled_once(server: Server) -> None:
    api = Api(server.client)
    wish = {"field": "height", "by": ["sea"], "expected": ["1", "2", "3"], "deadline_seconds": 3600}
    with Receiver() as receiver:
        api.push("sets", receiver.url, complete=wish)
        types = api.make("queue", complete=wish)["types"]
        assert types == ["int.ecmwf.aviso.aviso_complete", "int.ecmwf.aviso.aviso_incomplete"]
        publish(server.client, "north", 1, 3)
        publish(server.client, "south", 2)
        publish(server.client, "north", 2)
        (got,) = receiver.wait_for(1)
        (told,) = got.events
        assert told["type"] == "int.ecmwf.aviso.aviso_complete"
        assert (told["data"]["set"], told["data"]["count"]) == ({"sea": "north"}, 3)
        (work,) = api.pull("queue", max=5, wait_seconds=30)
        assert work["event"]["data"]["digest"] == told["data"]["digest"]
        assert api.ok("POST", "/queue/ack", {"leases": [work["lease"]]})["done"] == 1
        assert api.pull("queue", max=5) == []
        publish(server.client, "south", 1, 3)
        assert receiver.wait_for(2)[1].events[0]["data"]["set"] == {"sea": "south"}
        for name in ("sets", "queue"):
            api.ok("DELETE", f"/{name}")


def test_an_incomplete_set_is_told_at_its_deadline(server: Server) -> None:
    api = Api(server.client)
    wish = {"field": "height", "by": ["sea"], "expected": ["1", "2"], "deadline_seconds": 1}
    with Receiver() as receiver:
        api.push("sets", receiver.url, {"sea": "west"}, complete=wish)
        publish(server.client, "west", 1)
        (got,) = receiver.wait_for(1)
        assert got.events[0]["type"] == "int.ecmwf.aviso.aviso_incomplete"
        assert got.events[0]["data"]["missing"] == ["2"]
        publish(server.client, "west", 2)
        assert receiver.wait_for(2)[1].events[0]["data"]["late"] == ["2"]
        until(lambda: api.show("sets")["delivered"] == 2)
        api.ok("DELETE", "/sets")


@pytest.mark.parametrize(
    "wish",
    [
        {"field": "depth"},
        {"field": "height", "by": ["height"]},
        {"field": "height", "expected": ["01"]},
        {"by": ["sea"]},
    ],
)
def test_wishes_that_cannot_be_met(server: Server, wish: dict[str, Any]) -> None:
    body = {"name": "bad", "event_type": "wave", "identifier": {}, "complete": wish}
    assert Api(server.client).call("POST", "", body).status == 400


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_a_replay_ends_with_a_receipt_if_asked(server: Server, accept: str) -> None:
    sea = f"east {accept}"
    publish(server.client, sea, *range(250))
    publish(server.client, "elsewhere", 1)
    request = {"event_type": "wave", "identifier": {"sea": sea}, "from_id": "1"}
    headers = (*JSON, ("Accept", accept), ("Prefer", "receipt"))
    answer = server.client.request("POST", "/api/v1/replay", json.dumps(request).encode(), headers)
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines() if '{"' in line]
    events = [line for line in lines if '"specversion"' in line]
    (told,) = [json.loads(line) for line in lines if '"replay_receipt"' in line]
    first, last = (json.loads(events[place])["sequence"] for place in (0, -1))
    assert (told["count"], told["of"], told["first_sequence"], told["last_sequence"]) == (250, 250, first, last)
    assert told["watermark"] == last + 1, "up to there it is everything"
    assert told["digest"] == chain([Event(0, event.encode()) for event in events])
    without = server.client.request("POST", "/api/v1/replay", json.dumps(request).encode(), headers[:-1])
    assert b"replay_receipt" not in without.body
