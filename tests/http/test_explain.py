"""POST /api/v1/explain on a server without an archive: words, counts, verdicts, refusals."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aviso_server.archive.flight_client import Slots
from aviso_server.errors import LogUnavailable
from aviso_server.http.response import HttpError
from aviso_server.http.routes.explanation import count, count_turn
from aviso_server.log.base import Batch
from aviso_server.log.memory import MemoryLog
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft
from aviso_server.store import Store
from tests.harness import Server
from tests.harness.broker import single
from tests.harness.client import ABSENT, JSON, Response, body
from tests.harness.ecpds import PASSWORD, USERNAME, FakeEcpds
from tests.harness.patience import PATIENCE
from tests.harness.tokens import SECRET, bearer, token

SQUARE = "(10,10,10,10.5,10.5,10.5,10.5,10,10,10)"
PAIRS = [[10, 10], [10, 10.5], [10.5, 10.5], [10.5, 10], [10, 10]]
CONFIG: dict[str, Any] = {
    "application": {"port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema_strict": False,
    "auth": {"enabled": True, "mode": "trusted_proxy", "jwt_secret": SECRET, "admin_roles": {"localrealm": ["admin"]}},
    "notification_schema": {
        "tide": {
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "level": {"type": "IntHandler", "required": False},
            },
            "topic": {"base": "tides", "key_order": ["port", "level"]},
        },
        "storm": {
            "identifier": {
                "name": {"type": "StringHandler", "required": False},
                "polygon": {"type": "PolygonHandler", "required": False},
            },
            "topic": {"base": "storms", "key_order": ["name"]},
        },
        "secret": {
            "identifier": {"name": {"type": "StringHandler", "required": False}},
            "topic": {"base": "secrets", "key_order": ["name"]},
            "auth": {"required": True, "read_roles": {"localrealm": ["reader"]}},
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIG, tmp_path_factory.mktemp("server")) as running:
        for port, level in (("oslo", 1), ("oslo", 5), ("bergen", 7), ("oslo", 9)):
            running.client.publish("tide", {"port": port, "level": level})
        for name, polygon in (("a", SQUARE), ("b", SQUARE), ("c", "(60,-5,60,-4,61,-4,60,-5)")):
            running.client.publish("storm", {"name": name, "polygon": polygon})
        running.client.publish("free", {"b": "x", "a": "1"})
        yield running


def explain(server: Server, request: Any, headers: tuple[tuple[str, str], ...] = JSON) -> Response:
    content = request if isinstance(request, bytes) else json.dumps(request).encode()
    return server.client.request("POST", "/api/v1/explain", content, headers)


def explained(server: Server, event_type: str, identifier: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = explain(server, body(event_type, identifier, **more))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    assert found["status"] == "success"
    assert found["request_id"] == answer.header("x-request-id")
    return found


def test_what_it_means(server: Server) -> None:
    found = explained(server, "tide", {"port": "oslo", "level": {"gte": 5}}, from_id="7")
    assert found["topic"] == "tides.oslo.*"
    assert found["meaning"] == {
        "sentence": "Notifications of event type 'tide' where port is \"oslo\", and level is 5 or greater.",
        "clauses": [
            {"field": "port", "operator": "eq", "value": "oslo", "sentence": 'port is "oslo"'},
            {"field": "level", "operator": "gte", "value": 5, "sentence": "level is 5 or greater"},
        ],
        "any_value": [],
        "area": None,
        "start": {
            "sequence": 7,
            "time": None,
            "sentence": "History from sequence 7 on, then what is published.",
        },
    }
    assert found["notification"] is None
    assert explained(server, "tide", {"port": "*"})["meaning"]["any_value"] == ["port", "level"]
    assert explained(server, "free", {"a": "*", "b": "x"})["meaning"]["any_value"] == ["a"]


def test_an_area(server: Server) -> None:
    meaning = explained(server, "storm", {"polygon": SQUARE})["meaning"]
    assert meaning["area"] == {"kind": "polygon", "value": PAIRS, "box": [10, 10, 10.5, 10.5]}
    assert meaning["any_value"] == ["name"]
    meaning = explained(server, "storm", {"point": "10.2,10.3"})["meaning"]
    assert meaning["area"] == {"kind": "point", "value": "10.2,10.3", "box": [10.2, 10.3, 10.2, 10.3]}


@pytest.mark.parametrize(
    ("event_type", "identifier", "count"),
    [
        ("tide", {"port": "oslo"}, 3),
        ("tide", {"port": "*"}, 4),
        ("tide", {"port": "oslo", "level": {"gte": 5}}, 2),
        ("tide", {"port": "nowhere"}, 0),
        ("storm", {"polygon": "(9,9,9,11,11,11,11,9,9,9)"}, 2),
        ("free", {"a": "*", "b": "x"}, 1),
        ("free", {"a": "*"}, 0),
        ("unheard-of", {"a": "*"}, 0),
    ],
)
def test_how_many(server: Server, event_type: str, identifier: dict[str, Any], count: int) -> None:
    matches = explained(server, event_type, identifier)["matches"]
    assert (matches["count"], matches["source"], matches["days"]) == (count, ["log"], 7)
    span = {"from_date": matches["from"], "to_id": str(matches["last_sequence"])}
    assert len(server.client.replay(event_type, identifier, **span).notifications) == count
    assert sum(each["count"] for each in matches["times"]["counts"]) == count


def test_a_question_about_one_notification_counts_nothing(server: Server) -> None:
    found = explained(server, "tide", {"port": "oslo"}, days=0, notification_id="tide@3")
    assert found["matches"] is None
    assert (found["notification"]["found"], found["notification"]["kept"]) == (True, False)
    assert found["notification"]["clauses"][0]["seen"] == "bergen"


@pytest.mark.parametrize(("days", "unit", "seconds"), [(1, "hour", 3600), (14, "hour", 3600), (30, "day", 86400)])
def test_when(server: Server, days: int, unit: str, seconds: int) -> None:
    matches = explained(server, "tide", {"port": "*"}, days=days)["matches"]
    times = matches["times"]
    starts = [datetime.fromisoformat(each["start"]).timestamp() for each in times["counts"]]
    assert times["unit"] == unit
    assert len(starts) in (days * 86400 // seconds, days * 86400 // seconds + 1)
    assert starts == [starts[0] + number * seconds for number in range(len(starts))], "no interval is left out"
    assert starts[0] % seconds == 0
    assert starts[-1] <= datetime.now(UTC).timestamp() < starts[-1] + 2 * seconds
    assert sum(each["count"] for each in times["counts"][-2:]) == 4


def test_where(server: Server) -> None:
    places = explained(server, "storm", {})["matches"]["places"]
    assert places["cells"] == [{"lat": 10, "lon": 10, "count": 2}, {"lat": 60, "lon": -5, "count": 1}]
    assert (places["degrees"], places["in_other_cells"], places["without_place"]) == (1, 0, 0)
    assert explained(server, "tide", {"port": "*"})["matches"]["places"] is None


def test_why_a_notification_is_kept_or_dropped(server: Server) -> None:
    wanted = {"port": "oslo", "level": {"gte": 5}}
    dropped = explained(server, "tide", wanted, notification_id="tide@3")["notification"]
    assert (dropped["found"], dropped["kept"], dropped["id"]) == (True, False, "tide@3")
    assert dropped["sentence"] == 'tide@3 is dropped, because it is not true that port is "oslo".'
    verdicts = [(each["field"], each["passed"], each["seen"]) for each in dropped["clauses"]]
    assert verdicts == [("port", False, "bergen"), ("level", True, "7")]
    kept = explained(server, "tide", wanted, notification_id="tide@2")["notification"]
    assert (kept["kept"], [each["passed"] for each in kept["clauses"]]) == (True, [True, True])
    assert datetime.fromisoformat(kept["time"]).year >= 2025
    for missing in ("tide@99", "tide@0"):
        unknown = explained(server, "tide", wanted, notification_id=missing)["notification"]
        assert (unknown["found"], unknown["kept"], unknown["clauses"]) == (False, None, [])


@pytest.mark.parametrize(
    "request_",
    [
        b"{",
        b"[]",
        {"identifier": {}},
        {"event_type": "tide"},
        body("tide", {}),
        body("tide", {"port": "oslo", "bogus": 1}),
        body("tide", {"port": "oslo", "level": {"near": 3}}),
        body("tide", {"port": "oslo"}, from_id="x"),
        body("tide", {"port": "oslo"}, from_id="1", from_date="2025-01-01T00:00:00Z"),
        body("tide", {"port": "oslo"}, to_id="1"),
        body("storm", {"polygon": "(1,2)"}),
        body("storm", {"point": "1,2", "polygon": SQUARE}),
        body("no spaces", {"a": 1}),
        body("secret", {}),
    ],
    ids=str,
)
def test_what_a_watch_refuses_is_refused_alike(server: Server, request_: Any) -> None:
    answer, watch = explain(server, request_), server.client.answer("watch", request_)
    assert answer.status == watch.status
    assert answer.status in (400, 401)
    ours, theirs = answer.json(), watch.json()
    assert {**ours, "request_id": None} == {**theirs, "request_id": None}


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ({"days": -1}, "INVALID_WATCH_REQUEST", "between 1 and 366, or be 0 to count nothing"),
        ({"days": 367}, "INVALID_WATCH_REQUEST", "between 1 and 366"),
        ({"days": "7"}, "INVALID_REQUEST_SHAPE", "'days' must be a whole number"),
        ({"days": True}, "INVALID_REQUEST_SHAPE", "'days' must be a whole number"),
        ({"notification_id": 3}, "INVALID_REQUEST_SHAPE", "'notification_id' must be a string"),
        ({"notification_id": "3"}, "INVALID_WATCH_REQUEST", "'tide@' and a sequence; got '3'"),
        ({"notification_id": "storm@3"}, "INVALID_WATCH_REQUEST", "'tide@' and a sequence"),
        ({"notification_id": "tide@-3"}, "INVALID_WATCH_REQUEST", "'tide@' and a sequence"),
        ({"hours": 3}, "UNKNOWN_FIELD", "days, notification_id"),
    ],
)
def test_its_own_refusals(server: Server, more: dict[str, Any], code: str, word: str) -> None:
    answer = explain(server, body("tide", {"port": "oslo"}, **more))
    assert (answer.status, answer.json()["code"]) == (400, code)
    assert word in answer.json()["message"]


def test_only_readers_get_an_explanation(server: Server) -> None:
    request = body("secret", {}, notification_id=ABSENT)
    assert explain(server, request).status == 401
    assert explain(server, request, (*JSON, *bearer(token("producer-user")))).status == 403
    assert explain(server, request, (*JSON, *bearer(token("reader-user")))).status == 200


def test_a_client_that_leaves_is_forgotten(server: Server) -> None:
    for _ in range(20):
        asking(server).close()
    time.sleep(0.2)
    assert explained(server, "tide", {"port": "*"})["matches"]["count"] == 4
    assert "Traceback" not in server.stdout + server.stderr


def asking(server: Server) -> socket.socket:
    """A connection over which an explanation has been asked for."""
    content = json.dumps(body("tide", {"port": "*"})).encode()
    connection = socket.create_connection((server.client.host, server.client.port), timeout=PATIENCE)
    head = f"POST /api/v1/explain HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_when_too_many_wait_others_are_sent_away(tmp_path: Path) -> None:
    """Two are answered at a time and 32 wait; whoever leaves makes room."""
    with single(tmp_path / "broker") as broker, Server(on_broker(broker.url), tmp_path / "server") as server:
        server.client.publish("tide", {"port": "oslo", "level": 1})
        broker.pause()  # nobody is done for a while
        waiting = [asking(server) for _ in range(2 + 32)]

        def refused() -> Response | None:
            """The refusal of one more; None if it has to wait too."""
            with asking(server) as connection:
                connection.settimeout(0.5)
                try:
                    found = http.client.HTTPResponse(connection)
                    found.begin()
                except TimeoutError:
                    return None
                return Response(found.status, tuple((k.lower(), v) for k, v in found.getheaders()), found.read())

        until(lambda: refused() is not None)
        answer = refused()
        assert answer is not None
        assert (answer.status, answer.header("retry-after")) == (503, "5")
        assert (answer.json()["code"], answer.json()["error"]) == ("SERVICE_UNAVAILABLE", "service_unavailable")
        assert answer.json()["message"] == "More than 32 others wait for an explanation; try again later"
        waiting.pop().close()
        until(lambda: refused() is None)
        for each in waiting:
            each.close()
        assert "Traceback" not in server.stdout + server.stderr


def test_nobody_waits_long_for_others_who_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.http.routes.explanation._TURN_SECONDS", 0.01)

    async def wait() -> None:
        slots = Slots(1)
        async with count_turn(slots):
            with pytest.raises(HttpError, match="set 'days' to 0") as refused:
                async with count_turn(slots):
                    pass
        assert refused.value.status == 503
        async with count_turn(slots):
            assert (slots.taken, slots.waiting) == (1, 0)
        assert slots.taken == 0

    asyncio.run(wait())


def test_counting_in_the_log_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.http.routes.explanation._LOG_SECONDS", 0.05)

    class SlowLog(MemoryLog):
        async def read(self, *_: Any, **__: Any) -> Batch:
            await asyncio.sleep(PATIENCE)
            raise AssertionError("nobody has stopped it")

    async def ask() -> None:
        log = SlowLog(10, 10)
        await log.open()
        stored = await log.append(Draft("tide", "tide.1", b"{}", b"1"))
        with pytest.raises(LogUnavailable, match="ask for fewer days"):
            await count(Store(log), Filter("tide", "tide", "tide.*"), stored.time - 1, 3600 * 10**9)

    asyncio.run(ask())


def on_broker(url: str) -> dict[str, Any]:
    return {**CONFIG, "notification_backend": {"kind": "jetstream", "jetstream": {"nats_url": url}}}


def test_pauses_between_batches_of_a_replay_are_not_for_explanations(tmp_path: Path) -> None:
    slow = {"replay_batch_size": 1, "replay_batch_delay_ms": 600_000}
    with Server({**CONFIG, "watch_endpoint": slow}, tmp_path) as server:
        for level in range(5):
            server.client.publish("tide", {"port": "oslo", "level": level})
        found = explained(server, "tide", {"port": "oslo"}, notification_id="tide@3")
        assert (found["matches"]["count"], found["notification"]["found"]) == (5, True)


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_reader_may_not_read_is_not_found(tmp_path: Path) -> None:
    """With the ECPDS plugin readers see their own destinations only; a verdict must not tell of others."""
    with FakeEcpds({"reader-user": ["CIP"]}) as ecpds:
        config = {
            **CONFIG,
            "ecpds": {
                "username": USERNAME,
                "password": PASSWORD,
                "match_key": "destination",
                "servers": [ecpds.url],
            },
            "notification_schema": {
                "dissemination": {
                    "identifier": {"destination": {"type": "StringHandler", "required": True}},
                    "topic": {"base": "diss", "key_order": ["destination"]},
                    "auth": {"required": True, "plugins": ["ecpds"]},
                }
            },
        }
        with Server(config, tmp_path) as server:
            admin, reader = ((*JSON, *bearer(token(name))) for name in ("admin-user", "reader-user"))
            for destination in ("CIP", "FOO"):
                request = body("dissemination", {"destination": destination})
                assert server.client.answer("notification", request, admin).status == 200
            assert explain(server, body("dissemination", {"destination": "FOO"}), reader).status == 403
            for user, sequence, found in ((reader, 1, True), (reader, 2, False), (admin, 2, True)):
                asked = body("dissemination", {"destination": "CIP"}, notification_id=f"dissemination@{sequence}")
                answer = explain(server, asked, user).json()
                assert answer["notification"]["found"] is found
                assert answer["matches"]["count"] == 1
