"""Publishing many at once: an outcome for each, all or nothing where it is asked for, and nothing around the checks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Client, Response, Server
from tests.harness.broker import single
from tests.harness.client import JSON, body, encode
from tests.harness.metrics import scrape, with_metrics
from tests.harness.tokens import SECRET, bearer, token

LINES = (("Content-Type", "application/x-ndjson"),)
Header = tuple[tuple[str, str], ...]

SCHEMA: dict[str, Any] = {
    "tide": {
        "topic": {"base": "tides", "key_order": ["port", "level"]},
        "identifier": {
            "port": {"type": "StringHandler", "required": True},
            "level": {"type": "IntHandler", "range": [1, 9], "required": True},
        },
    },
    "wind": {
        "payload": {"required": True},
        "topic": {"base": "wind", "key_order": ["port"]},
        "identifier": {"port": {"type": "StringHandler", "required": True}},
    },
}
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "limits": {"max_batch_bytes": 200_000, "max_batch_items": 1200, "max_body_bytes": 5_000},
}


def configuration(kind: str) -> dict[str, Any]:
    backend = {"kind": kind, "sqlite": {"path": "log"}, "in_memory": {"max_history_per_topic": 10_000}}
    kept = {} if kind == "in_memory" else {"storage_policy": {"allow_duplicates": True}}
    schema = {name: {**entry, **kept} for name, entry in SCHEMA.items()}
    return {**CONFIG, "notification_backend": backend, "notification_schema": schema}


@pytest.fixture(scope="module", params=["in_memory", "sqlite", "jetstream"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("batch")
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


def tide(number: int, port: str = "dover", **more: Any) -> dict[str, Any]:
    return body("tide", {"port": port, "level": number % 9 + 1}, payload=number, **more)


def wind(number: int, **more: Any) -> dict[str, Any]:
    return body("wind", {"port": "dover"}, payload=number, **more)


def post(api: Client, batch: Any, headers: Header = JSON, query: str = "") -> Response:
    return api.request("POST", f"/api/v1/notifications{query}", encode(batch), headers)


def lines(*items: Any) -> bytes:
    return b"\n".join(encode(item) for item in items)


def payloads(api: Client, event_type: str = "tide") -> list[Any]:
    identifier = {"port": "*", "level": {"gte": 1}} if event_type == "tide" else {"port": "*"}
    return [event["data"]["payload"] for event in api.replay(event_type, identifier).notifications]


def sequences(answer: Response) -> list[int | None]:
    return [outcome.get("sequence") for outcome in answer.json()["outcomes"]]


def test_outcomes_come_in_order_with_sequence_and_id(api: Client) -> None:
    answer = post(api, [tide(0), wind(1), tide(2), tide(3)])
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    told = answer.json()
    assert told["request_id"] == answer.header("x-request-id")
    assert (told["status"], told["stored"], told["replayed"], told["refused"]) == ("success", 4, 0, 0)
    events = [*api.replay("tide", {"port": "*", "level": {"gte": 1}}).notifications]
    events += api.replay("wind", {"port": "*"}).notifications
    stored = {event["id"]: event["data"]["payload"] for event in events}
    assert [outcome["status"] for outcome in told["outcomes"]] == ["success"] * 4
    assert [stored[outcome["id"]] for outcome in told["outcomes"]] == [0, 1, 2, 3]
    assert [outcome["id"].split("@") for outcome in told["outcomes"]] == [
        [name, str(number)] for name, number in zip(["tide", "wind", "tide", "tide"], sequences(answer), strict=True)
    ]
    first = sequences(answer)[0]
    assert first is not None
    assert [sequences(answer)[place] for place in (0, 2, 3)] == [first, first + 1, first + 2]


def test_the_answer_to_the_letter(api: Client) -> None:
    numbers = sequences(post(api, [tide(0), wind(0)]))
    tides, winds = [(number or 0) + 1 for number in numbers]

    def stored(name: str, number: int) -> bytes:
        return b'{"status":"success","sequence":%d,"id":"%b@%d"}' % (number, name.encode(), number)

    alike = post(api, [tide(1), tide(2), tide(3)]).body
    expected = b",".join([stored("tide", tides), stored("tide", tides + 1), stored("tide", tides + 2)])
    assert alike.endswith(b'"stored":3,"replayed":0,"refused":0,"outcomes":[' + expected + b"]}")
    mixed = post(api, [tide(1), wind(2), 3, tide(4)]).body
    assert b'"stored":3,"replayed":0,"refused":1,"outcomes":[' in mixed
    begin = b",".join([stored("tide", tides + 3), stored("wind", winds)])
    assert b'"outcomes":[' + begin + b',{"status":"error","code":"INVALID_REQUEST_SHAPE","field":null,' in mixed
    assert mixed.endswith(b"}," + stored("tide", tides + 4) + b"]}")
    one = post(api, [tide(1)]).body
    assert one.endswith(b'"stored":1,"replayed":0,"refused":0,"outcomes":[' + stored("tide", tides + 5) + b"]}")


def test_names_with_unusual_characters(tmp_path: Path) -> None:
    names = ['50%d "north"', "\u00fcber\\see"]
    schema = {name: {**SCHEMA["tide"], "topic": {**SCHEMA["tide"]["topic"], "base": f"base{place}"}}
              for place, name in enumerate(names)}  # fmt: skip
    config = {**configuration("in_memory"), "notification_schema": schema}
    items = [body(name, {"port": "x", "level": 1}) for name in names]
    with Server(config, tmp_path) as server:
        for batch in (items, items[:1] * 2, items[1:] * 2):
            told = post(server.client, batch).json()
            assert [(one["status"], one["id"]) for one in told["outcomes"]] == [
                ("success", f"{item['event_type']}@{one['sequence']}")
                for item, one in zip(batch, told["outcomes"], strict=True)
            ]


def test_lines(api: Client) -> None:
    batch = lines(tide(0), tide(1)) + b"\r\n\n  \n" + lines(tide(2)) + b"\n"
    for content_type in ("application/x-ndjson", "application/ndjson; charset=utf-8", "Application/JSONL"):
        answer = post(api, batch, (("Content-Type", content_type),))
        assert answer.status == 200, answer.body
        assert answer.json()["stored"] == 3
    assert payloads(api) == [0, 1, 2] * 3


def test_gzip(api: Client) -> None:
    for content, header in ((encode([tide(0)]), JSON), (lines(tide(1)), LINES)):
        answer = post(api, gzip.compress(content), (*header, ("Content-Encoding", "gzip")))
        assert answer.json()["stored"] == 1
    assert payloads(api) == [0, 1]


def test_no_notifications(api: Client) -> None:
    for batch, header in ((b"[]", JSON), (b"", LINES), (b"\n", LINES)):
        answer = post(api, batch, header)
        assert answer.status == 200
        assert (answer.json()["status"], answer.json()["outcomes"]) == ("success", [])


# item -> code, field, words
FAULTS: list[tuple[Any, str, str | None, str]] = [
    (3, "INVALID_REQUEST_SHAPE", None, "JSON object"),
    ({"identifier": {}}, "INVALID_REQUEST_SHAPE", None, "'event_type' must be present"),
    ({**tide(0), "colour": 1}, "UNKNOWN_FIELD", None, "Unknown field 'colour'"),
    (body("storm", {"a": 1}), "UNKNOWN_EVENT_TYPE", "event_type", "configured event types: tide, wind"),
    (body("tide", {"port": "x"}), "INVALID_NOTIFICATION_REQUEST", "level", "Required field 'level' is missing"),
    (body("tide", {"port": "x", "level": 10}), "INVALID_NOTIFICATION_REQUEST", "level", "10"),
    (body("tide", {"port": "x", "level": 1, "a": 1}), "INVALID_NOTIFICATION_REQUEST", "a", "Unknown field 'a'"),
    (body("wind", {"port": "x"}), "INVALID_NOTIFICATION_REQUEST", "payload", "Payload is required"),
    (body("tide", {"point": "1,2"}), "INVALID_NOTIFICATION_REQUEST", "point", "only supported for watch"),
    (tide(0, to_id="4"), "INVALID_NOTIFICATION_REQUEST", None, "to_id and to_date are only supported"),
    (tide(0, idempotency_key=""), "INVALID_NOTIFICATION_REQUEST", "idempotency_key", "1 to 255 printable"),
    (tide(0, idempotency_key=5), "INVALID_NOTIFICATION_REQUEST", "idempotency_key", "1 to 255 printable"),
    (body("wind", {"port": "x"}, payload="x" * 6000), "INVALID_NOTIFICATION_REQUEST", None, "the limit is 5000"),
]


@pytest.mark.parametrize(("item", "code", "field", "words"), FAULTS, ids=[words for *_, words in FAULTS])
def test_a_bad_notification_does_not_harm_the_others(
    api: Client, item: Any, code: str, field: str | None, words: str
) -> None:
    for batch, header in (([tide(1), item, tide(2)], JSON), (lines(tide(1), item, tide(2)), LINES)):
        answer = post(api, batch, header)
        assert answer.status == 200
        told = answer.json()
        assert (told["status"], told["stored"], told["refused"]) == ("partial", 2, 1)
        fault = told["outcomes"][1]
        assert (fault["status"], fault["code"], fault["field"]) == ("error", code, field)
        assert words in fault["message"]
    assert payloads(api) == [1, 2, 1, 2]


def test_deep_payloads(api: Client) -> None:
    for depth in (126, 500, 1000):
        deep = encode(wind(0)).replace(b'"payload": 0', b'"payload": ' + b"[" * depth + b"]" * depth)
        answer = post(api, b"[" + deep + b"," + encode(wind(1)) + b"]")
        assert answer.status == 200
        assert answer.json()["outcomes"][0]["field"] == "payload"
        assert answer.json()["stored"] == 1
    assert payloads(api, "wind") == [1, 1, 1]


def test_a_line_that_is_no_json(api: Client) -> None:
    answer = post(api, lines(tide(1)) + b"\n{oops\n" + lines(tide(2)), LINES)
    assert [outcome["status"] for outcome in answer.json()["outcomes"]] == ["success", "error", "success"]
    assert answer.json()["outcomes"][1]["code"] == "INVALID_JSON"


def test_only_bad_ones(api: Client) -> None:
    answer = post(api, [1, 2])
    assert (answer.status, answer.json()["status"], answer.json()["refused"]) == (200, "error", 2)


@pytest.mark.parametrize(
    ("batch", "query", "code", "words"),
    [
        (b"{", "", "INVALID_JSON", "Invalid JSON"),
        (b"[1,]", "", "INVALID_JSON", "Invalid JSON"),
        (b'{"notifications":[]}', "", "INVALID_REQUEST_SHAPE", "must be a JSON array"),
        (b"null", "", "INVALID_REQUEST_SHAPE", "must be a JSON array"),
        (b"[]", "?all_or_nothing=yes", "INVALID_NOTIFICATION_REQUEST", "must be true or false; got 'yes'"),
        (b"[]", "?dry_run=true&dry_run=false", "INVALID_NOTIFICATION_REQUEST", "'dry_run' is given twice"),
        (b"[]", "?all_or_nothin=true", "INVALID_NOTIFICATION_REQUEST", "accepted are all_or_nothing, dry_run"),
    ],
)
def test_a_bad_envelope_is_refused(api: Client, batch: bytes, query: str, code: str, words: str) -> None:
    answer = post(api, batch, query=query)
    assert (answer.status, answer.json()["code"]) == (400, code)
    assert words in answer.json()["message"]


def test_all_or_nothing(api: Client) -> None:
    query = "?all_or_nothing=true"
    refused = post(api, [tide(1), body("tide", {"port": "x"}), 3], query=query)
    assert (refused.status, refused.json()["code"]) == (400, "BATCH_REFUSED")
    assert "Nothing was stored: 2 of 3" in refused.json()["message"]
    assert [(fault["index"], fault["field"]) for fault in refused.json()["faults"]] == [(1, "level"), (2, None)]
    assert payloads(api) == []
    taken = post(api, [tide(1), tide(2)], query=query)
    assert (taken.status, taken.json()["stored"]) == (200, 2)
    assert post(api, [tide(1), 3], query="?all_or_nothing=false").json()["stored"] == 1
    assert payloads(api) == [1, 2, 1]


def test_a_dry_run_says_what_would_become_of_each_and_stores_nothing(api: Client) -> None:
    answer = post(api, [tide(1), body("tide", {"port": "x"}), 3], query="?dry_run=true")
    told = answer.json()
    assert (answer.status, told["status"]) == (200, "partial")
    assert (told["stored"], told["replayed"], told["refused"]) == (0, 0, 2)
    assert told["outcomes"][0] == {"status": "acceptable"}
    stored = post(api, [tide(1), body("tide", {"port": "x"}), 3]).json()
    assert told["outcomes"][1:] == stored["outcomes"][1:]
    assert payloads(api) == [1]
    refused = post(api, [tide(1), 3], query="?dry_run=true&all_or_nothing=true")
    assert (refused.status, refused.json()["code"]) == (400, "BATCH_REFUSED")


def test_all_or_nothing_of_several_event_types(server: Server, api: Client) -> None:
    answer = post(api, [tide(1), wind(2)], query="?all_or_nothing=true")
    if "kind: jetstream" in server.config_file.read_text():
        assert (answer.status, answer.json()["code"]) == (400, "INVALID_NOTIFICATION_REQUEST")
        assert "up to 1000 notifications of one event type" in answer.json()["message"]
        assert payloads(api) == []
    else:
        assert (answer.status, answer.json()["stored"]) == (200, 2)


def test_many(api: Client) -> None:
    answer = post(api, [tide(number) for number in range(1200)])
    numbers = sequences(answer)
    assert numbers == list(range(numbers[0] or 0, (numbers[0] or 0) + 1200))
    assert payloads(api) == list(range(1200))


def test_too_many_and_too_much(api: Client) -> None:
    answer = post(api, [1] * 1201)
    assert (answer.status, answer.body) == (413, b"The batch holds 1201 notifications; the limit is 1200")
    assert post(api, b" " * 200_001).status == 413
    assert post(api, gzip.compress(b" " * 200_001), (*JSON, ("Content-Encoding", "gzip"))).status == 413
    assert post(api, b"x" * 100, (*JSON, ("Content-Encoding", "gzip"))).status == 400
    assert payloads(api) == []


def test_watchers_see_a_batch(api: Client) -> None:
    with api.watch("tide", {"port": "*", "level": {"gte": 1}}) as stream:
        stream.next()
        numbers = sequences(post(api, [tide(number) for number in range(50)]))
        events = [stream.notification() for _ in range(50)]
    assert [event["sequence"] for event in events] == numbers
    assert [event["data"]["payload"] for event in events] == list(range(50))


def test_other_methods_and_paths(api: Client) -> None:
    assert api.get("/api/v1/notifications").status == 404
    assert api.request("POST", "/api/v1/notifications/", b"[]", JSON).status == 404


def test_counts(tmp_path: Path) -> None:
    config = with_metrics(configuration("sqlite"))
    port = config["metrics"]["port"]
    with Server(config, tmp_path) as server:
        api = server.client
        post(api, [tide(1), tide(2), 3, body("tide", {}), body("storm", {})])
        post(api, [1] * 1201)
        post(api, b" " * 200_001)
        post(api, [tide(1, idempotency_key="a"), tide(1, idempotency_key="a")])
        found = scrape(server, port)
    counted = {
        (name, status): found.value("aviso_notifications_total", event_type=name, status=status)
        for name, status in [("tide", "success"), ("tide", "error"), ("unknown", "error"), ("unknown", "rejected")]
    }
    assert list(counted.values()) == [4, 1, 1, 1]
    assert found.value("aviso_idempotent_replays_total", event_type="tide") == 1
    assert found.value("aviso_idempotent_replays_total", event_type="wind") == 0
    assert found.value("aviso_batch_notifications_count") == 2
    assert found.value("aviso_batch_notifications_sum") == 7
    assert found.value("aviso_limit_refusals_total", limit="batch_items") == 1
    assert found.value("aviso_limit_refusals_total", limit="batch_bytes") == 1
    assert found.value("aviso_limit", limit="batch_items") == 1200
    assert found.total("aviso_http_requests_total", route="/api/v1/notifications", status_code="200") == 2


def test_who_may_write_what(tmp_path: Path) -> None:
    guarded = {**SCHEMA["wind"], "auth": {"required": True, "write_roles": {"localrealm": ["writer"]}}}
    auth = {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    }
    schema = {"tide": SCHEMA["tide"], "wind": guarded}
    config = {**configuration("in_memory"), "notification_schema": schema, "auth": auth}
    with Server(config, tmp_path) as server:
        api = server.client
        nobody = post(api, [tide(1), wind(1)])
        assert (nobody.status, nobody.json()["code"]) == (401, "UNAUTHORIZED")
        assert nobody.header("www-authenticate") is not None
        assert post(api, [tide(2)]).json()["stored"] == 1
        reader = post(api, [tide(3), wind(3)], (*JSON, *bearer(token("reader-user"))))
        assert reader.status == 200
        outcomes = reader.json()["outcomes"]
        assert [outcome["status"] for outcome in outcomes] == ["success", "error"]
        assert (outcomes[1]["code"], outcomes[1]["field"]) == ("FORBIDDEN", "event_type")
        whole = post(api, [tide(4), wind(4)], (*JSON, *bearer(token("reader-user"))), "?all_or_nothing=true")
        assert (whole.status, whole.json()["code"]) == (400, "BATCH_REFUSED")
        assert [(fault["index"], fault["code"]) for fault in whole.json()["faults"]] == [(1, "FORBIDDEN")]
        assert post(api, [wind(5)], (*JSON, *bearer(token("admin-user")))).json()["stored"] == 1
        assert payloads(api) == [2, 3]


def test_a_log_that_fails(tmp_path: Path) -> None:
    with single(tmp_path / "broker") as broker:
        config = configuration("jetstream")
        config["notification_backend"]["jetstream"] = {
            "nats_url": broker.url, "discard_policy": "new", "publish_retry_attempts": 1,
        }  # fmt: skip
        small = {**SCHEMA["tide"], "storage_policy": {"allow_duplicates": True, "max_messages": 2}}
        config["notification_schema"] = {**SCHEMA, "tide": small}
        with Server(config, tmp_path) as server:
            partial = post(server.client, [wind(1), tide(1), tide(2), tide(3)])
            assert partial.status == 200
            assert [outcome["status"] for outcome in partial.json()["outcomes"]] == ["success", *["error"] * 3]
            assert partial.json()["outcomes"][1]["code"] == "NOTIFICATION_STORAGE_FAILED"
            nothing = post(server.client, [tide(1), tide(2), tide(3)])
            assert (nothing.status, nothing.json()["code"]) == (500, "NOTIFICATION_STORAGE_FAILED")
            assert payloads(server.client) == []


def test_json_is_kept_as_it_is(api: Client) -> None:
    values = ["Zürich ☃ 𝄞", {"b": [1.5, None], "a": True}, 2**53, "", [], False]
    answer = post(api, [body("wind", {"port": "x"}, payload=value) for value in values])
    assert answer.json()["stored"] == len(values)
    assert payloads(api, "wind") == values
    assert json.loads(answer.body) == answer.json()
