"""Idempotency keys: the same key gives the first outcome, other content is refused, over restarts and crashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Client, Response, Server
from tests.harness.broker import single
from tests.harness.client import JSON, encode
from tests.harness.tokens import SECRET, bearer, token
from tests.http.test_batch import SCHEMA, configuration, payloads, post, sequences, tide, wind

Header = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module", params=["in_memory", "sqlite", "jetstream"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keys")
    config = configuration(request.param)
    if request.param != "jetstream":
        with Server(config, directory) as running:
            yield running
        return
    with single(directory / "broker") as broker:
        config["notification_backend"]["jetstream"] = {"nats_url": broker.url}
        with Server(config, directory) as running:
            yield running


@pytest.fixture
def api(server: Server) -> Client:
    server.client.wipe_all()
    return server.client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A key that no other test uses."""
    return request.node.name[:200]


def key(text: str) -> Header:
    return (*JSON, ("Idempotency-Key", text))


def publish(api: Client, request: Any, headers: Header) -> Response:
    return api.request("POST", "/api/v1/notification", encode(request), headers)


def place(answer: Response) -> tuple[int, bool]:
    """The sequence in an answer, and whether it was there before."""
    assert answer.status == 200, answer.body
    return answer.json()["sequence"], answer.header("idempotency-replayed") == "true"


def test_the_first_outcome_again(api: Client, name: str) -> None:
    first = publish(api, tide(1), key(name))
    assert first.json().keys() == {"status", "request_id", "processed_at", "sequence", "id"}
    sequence, replayed = place(first)
    assert first.json()["id"] == f"tide@{sequence}"
    assert not replayed
    publish(api, tide(2), JSON)
    for _ in range(3):
        again = publish(api, tide(1), key(name))
        assert place(again) == (sequence, True)
        assert again.json()["id"] == first.json()["id"]
        assert again.json()["request_id"] != first.json()["request_id"]
    assert payloads(api) == [1, 2]
    [event] = api.replay("tide", {"port": "*", "level": 2}).notifications
    assert event["sequence"] == sequence


def test_without_a_key_nothing_changes(api: Client) -> None:
    answer = publish(api, tide(1), JSON)
    assert answer.json().keys() == {"status", "request_id", "processed_at"}
    assert publish(api, tide(1), JSON).status == 200
    assert payloads(api) == [1, 1]


def test_what_means_the_same_is_the_same(api: Client, name: str) -> None:
    sequence, _ = place(publish(api, {**tide(1), "payload": {"a": 1, "b": 2}}, key(name)))
    other = b'{ "payload":{"b":2,"a":1}, "identifier":{"level":"2","port":"dover"},"event_type":"tide" }'
    assert place(publish(api, other, key(f'"{name}"'))) == (sequence, True)


@pytest.mark.parametrize(
    "other",
    [tide(2), tide(1, port="calais"), wind(1), {**tide(1), "payload": None}],
    ids=["payload", "identifier", "event type", "no payload"],
)
def test_other_content_is_refused(api: Client, name: str, other: Any) -> None:
    sequence, _ = place(publish(api, tide(1), key(name)))
    answer = publish(api, other, key(name))
    assert (answer.status, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert "use a new key" in answer.json()["message"]
    assert answer.json().keys() == {"code", "error", "message", "details", "request_id"}
    assert place(publish(api, tide(1), key(name))) == (sequence, True)
    assert (payloads(api), payloads(api, "wind")) == ([1], [])


@pytest.mark.parametrize("text", ["", " ", '""', "x" * 256, "a\tb", "schlüssel"])
def test_what_is_no_key(api: Client, text: str) -> None:
    answer = api.request(
        "POST", "/api/v1/notification", encode(tide(1)), (*JSON, ("Idempotency-Key", text.encode().decode("latin-1")))
    )
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_NOTIFICATION_REQUEST")
    assert "1 to 255 printable ASCII characters" in answer.json()["message"]
    assert payloads(api) == []


def test_a_refused_notification_does_not_take_its_key(api: Client, name: str) -> None:
    assert publish(api, {**tide(1), "identifier": {}}, key(name)).status == 400
    assert place(publish(api, tide(1), key(name)))[1] is False


def test_a_removed_notification_is_not_published_again(api: Client, name: str) -> None:
    sequence, _ = place(publish(api, tide(1), key(name)))
    assert api.delete(f"/api/v1/admin/notification/tide@{sequence}").status == 200
    assert place(publish(api, tide(1), key(name))) == (sequence, True)
    assert payloads(api) == []


def test_one_key_on_both_routes(api: Client, name: str) -> None:
    sequence, _ = place(publish(api, tide(1), key(name)))
    answer = post(api, [tide(1, idempotency_key=name), tide(2, idempotency_key=f"{name} 2"), tide(3)])
    assert [outcome.get("replayed", False) for outcome in answer.json()["outcomes"]] == [True, False, False]
    assert sequences(answer)[0] == sequence
    assert (answer.json()["stored"], answer.json()["replayed"]) == (2, 1)
    assert answer.header("idempotency-replayed") is None
    assert place(publish(api, tide(2), key(f"{name} 2"))) == (sequences(answer)[1], True)
    assert payloads(api) == [1, 2, 3]


def test_items_with_keys_again(api: Client, name: str) -> None:
    batch = [tide(number, idempotency_key=f"{name} {number}") for number in range(20)]
    first = post(api, batch[:12])
    again = post(api, batch[:12])
    assert sequences(again) == sequences(first)
    assert again.header("idempotency-replayed") == "true"
    everything = post(api, batch)
    assert sequences(everything)[:12] == sequences(first)
    assert (everything.json()["stored"], everything.json()["replayed"]) == (8, 12)
    assert payloads(api) == list(range(20))


def test_an_item_with_a_used_key(api: Client, name: str) -> None:
    post(api, [tide(1, idempotency_key=name)])
    batch = [tide(2, idempotency_key=name), tide(3, idempotency_key=f"{name} 3")]
    mixed = post(api, batch)
    fault, good = mixed.json()["outcomes"]
    assert (fault["code"], fault["field"]) == ("IDEMPOTENCY_KEY_REUSED", "idempotency_key")
    assert good["status"] == "success"
    batch[1] = tide(4, idempotency_key=f"{name} 4")
    whole = post(api, batch, query="?all_or_nothing=true")
    assert (whole.status, whole.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert payloads(api) == [1, 3]


def test_a_key_for_a_whole_batch(api: Client, name: str) -> None:
    batch = [tide(1), 3, wind(2), tide(1)]
    first = post(api, batch, key(name))
    assert (first.json()["stored"], first.json()["refused"]) == (3, 1)
    again = post(api, batch, key(name))
    assert [outcome.pop("replayed", None) for outcome in again.json()["outcomes"]] == [True, None, True, True]
    assert sequences(again) == sequences(first)
    assert (payloads(api), payloads(api, "wind")) == ([1, 1], [2])
    for other in ([*batch, tide(9)], batch[:1], [tide(1), tide(5), wind(2), tide(1)], [wind(7)]):
        refused = post(api, other, key(name))
        assert (refused.status, refused.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert (payloads(api), payloads(api, "wind")) == ([1, 1], [2])
    assert post(api, batch[:1], key(f"{name} other")).json()["stored"] == 1
    assert place(publish(api, tide(1), key(name)))[1] is False, "the key of a batch is none of a notification"


def test_a_whole_batch_that_is_all_there(api: Client, name: str) -> None:
    first = post(api, [tide(1), tide(2)], key(name), "?all_or_nothing=true")
    again = post(api, [tide(1), tide(2)], key(name), "?all_or_nothing=true")
    assert (first.header("idempotency-replayed"), again.header("idempotency-replayed")) == (None, "true")
    assert sequences(first) == sequences(again)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("kind", ["sqlite", "jetstream"])
def test_keys_outlive_the_process(tmp_path: Path, kind: str, end: str) -> None:
    with single(tmp_path / "broker") as broker:
        config = configuration(kind)
        config["notification_backend"]["jetstream"] = {"nats_url": broker.url}
        server = Server(config, tmp_path)
        with server:
            sequence, _ = place(publish(server.client, tide(1), key("a")))
            batch = sequences(post(server.client, [tide(2), tide(3)], key("b")))
            getattr(server, end)()
            server.start()
            assert place(publish(server.client, tide(1), key("a"))) == (sequence, True)
            assert sequences(post(server.client, [tide(2), tide(3)], key("b"))) == batch
            assert publish(server.client, tide(2), key("a")).status == 422
            assert payloads(server.client) == [1, 2, 3]


def test_how_long_keys_are_remembered(tmp_path: Path) -> None:
    config = {**configuration("sqlite"), "idempotency": {"retention": "1s"}}
    with Server(config, tmp_path) as server:
        first, _ = place(publish(server.client, tide(1), key("a")))
        found = place(publish(server.client, tide(1), key("a")))
        while found == (first, True):
            found = place(publish(server.client, tide(1), key("a")))
        assert found == (first + 1, False)


def test_keys_of_different_users_are_different(tmp_path: Path) -> None:
    auth = {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    }
    config = {**configuration("in_memory"), "auth": auth, "notification_schema": SCHEMA}
    with Server(config, tmp_path) as server:
        api = server.client
        callers: list[Header] = [(), bearer(token("reader-user")), bearer(token("admin-user"))]
        told = [place(publish(api, tide(number), (*key("a"), *caller))) for number, caller in enumerate(callers)]
        assert told == [(1, False), (2, False), (3, False)]
        assert place(publish(api, tide(1), (*key("a"), *callers[1]))) == (2, True)
