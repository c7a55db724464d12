"""P. The ECPDS plugin, against servers that play ECPDS."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.conformance.conftest import Launch
from tests.conformance.samples import DISSEMINATION
from tests.conformance.test_o_auth import assert_denied
from tests.harness import Client, Response, Server
from tests.harness.broker import wait_until
from tests.harness.client import body
from tests.harness.ecpds import PASSWORD, USERNAME, FakeEcpds
from tests.harness.tokens import SECRET, bearer, token
from tests.harness.web_service import Said


@pytest.fixture(scope="module")
def backend() -> str:
    """Who may has nothing to do with where notifications are kept: one backend is enough."""
    return "in_memory"


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeEcpds]:
    """The ECPDS server of this module."""
    with FakeEcpds() as running:
        yield running


@pytest.fixture
def reader() -> str:
    """A user of one destination whom the server under test has never seen: it remembers those it has."""
    return f"reader-{uuid4()}"


@pytest.fixture
def ecpds(upstream: FakeEcpds, reader: str) -> FakeEcpds:
    """The ECPDS server, which gives its usual answers and was asked nothing yet."""
    upstream.answer, upstream.delay = upstream.usual, 0.0
    upstream.destinations = {reader: ["CIP"]}
    upstream.asked.clear()
    upstream.users.clear()
    return upstream


def settings(servers: Sequence[str], **changes: Any) -> dict[str, Any]:
    return {
        "auth": {
            "enabled": True,
            "mode": "trusted_proxy",
            "jwt_secret": SECRET,
            "admin_roles": {"localrealm": ["admin"]},
        },
        "ecpds": {
            "username": USERNAME,
            "password": PASSWORD,
            "match_key": "destination",
            "servers": list(servers),
            **changes,
        },
        "notification_schema": {"dissemination": {"auth": {"required": True, "plugins": ["ecpds"]}}},
    }


@pytest.fixture(scope="module")
def server(launch: Launch, upstream: FakeEcpds) -> Server:
    """A server with the plugin."""
    return launch(settings([f"{upstream.url}/"]))


@pytest.fixture
def api(server: Server, ecpds: FakeEcpds) -> Client:
    """A client of that server."""
    return server.client


def ask(api: Client, name: str | None, destination: Any = "CIP", operation: str = "watch", **start: Any) -> Response:
    start = start or ({"from_id": "1"} if operation == "replay" else {})
    header = () if name is None else bearer(token(name))
    return api.answer(operation, body("dissemination", {"class": "od", "destination": destination}, **start), header)


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_211_destinations(api: Client, reader: str, operation: str) -> None:
    assert ask(api, reader, operation=operation).status == 200
    assert_denied(ask(api, reader, "UNKNOWN", operation=operation), 403)


@pytest.mark.parametrize("destination", ["*", "cip", "CIP "])
def test_case_211_only_one_destination_and_only_exactly(api: Client, reader: str, destination: str) -> None:
    assert_denied(ask(api, reader, destination), 403)


def test_leaving_the_destination_out_is_no_way_around(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    header = (*bearer(token(reader)), ("Prefer", "handling=lenient"))
    assert_denied(api.answer("replay", body("dissemination", {"class": "od"}, from_id="1"), header), 403)
    assert ecpds.asked == []


def test_a_constraint_is_not_one_destination(launch: Launch, ecpds: FakeEcpds) -> None:
    number = {"identifier": {"num": {"required": True}}, "auth": {"required": True, "plugins": ["ecpds"]}}
    changes = settings([ecpds.url], match_key="num")
    api = launch({**changes, "notification_schema": {"probe": number}}).client
    ecpds.destinations["reader-user"] = ["5"]
    for value, status in ((5, 200), ({"eq": 5}, 403), ({"in": [5]}, 403), ({"gte": 5}, 403)):
        answer = api.answer("watch", body("probe", {"num": value}), bearer(token("reader-user")))
        assert answer.status == status, answer.body


def test_case_212_no_destinations(api: Client, ecpds: FakeEcpds) -> None:
    assert_denied(ask(api, "nobody"), 403)
    assert ecpds.users == ["nobody"]


def test_case_213_admin(api: Client, ecpds: FakeEcpds) -> None:
    assert ask(api, "admin-user", "UNKNOWN").status == 200
    assert ecpds.asked == []


def test_case_214_anonymous(api: Client, ecpds: FakeEcpds) -> None:
    assert_denied(ask(api, None), 401, ["Bearer"])
    assert ecpds.asked == []


def test_the_order_of_checks(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    for response in (ask(api, reader, "UNKNOWN", from_id="x"), ask(api, reader, ["UNKNOWN"])):
        assert (response.status, response.json()["code"]) == (400, "INVALID_WATCH_REQUEST")
    assert ecpds.asked == []


@pytest.mark.parametrize("status", [500, 401, 403, 404, 204, 302])
def test_case_215_upstream_fails(api: Client, ecpds: FakeEcpds, reader: str, status: int) -> None:
    ecpds.answer = lambda asked: Said(status)
    assert_denied(ask(api, reader), 503)
    ecpds.answer = ecpds.usual
    assert ask(api, reader).status == 200, "a failure must not be remembered"


def test_case_215_upstream_is_asked_once(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    ecpds.answer = lambda asked: Said(500)
    assert_denied(ask(api, reader), 503)
    assert len(ecpds.asked) == 1


def test_case_215_upstream_is_slow(launch: Launch, ecpds: FakeEcpds, reader: str) -> None:
    api = launch(settings([ecpds.url], request_timeout_seconds=1)).client
    ecpds.delay = 20
    began = time.monotonic()
    assert_denied(ask(api, reader), 503)
    assert time.monotonic() - began < 15


def test_case_216_asked_once(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    for destination, status in (("CIP", 200), ("UNKNOWN", 403), ("CIP", 200)):
        assert ask(api, reader, destination).status == status
    assert ecpds.users == [reader]


def test_case_216_asked_once_by_many(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    ecpds.delay = 0.5
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: ask(api, reader), range(10)))
    assert [answer.status for answer in answers] == [200] * 10
    assert ecpds.users == [reader]


def test_case_216_many_fail_together(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    def fail(asked: object) -> Said:
        time.sleep(1.5)  # until all have asked, on a busy machine too
        return Said(500)

    ecpds.answer = fail
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: ask(api, reader), range(5)))
    assert [answer.status for answer in answers] == [503] * 5
    assert len(ecpds.asked) == 1


def test_the_first_to_ask_may_leave(api: Client, ecpds: FakeEcpds, reader: str) -> None:
    ecpds.delay = 0.6
    impatient = Client(api.host, api.port, timeout=0.2)
    with pytest.raises(TimeoutError):
        ask(impatient, reader)
    assert ask(api, reader).status == 200
    assert ecpds.users == [reader]


def test_answers_are_forgotten(launch: Launch, ecpds: FakeEcpds, reader: str) -> None:
    api = launch(settings([ecpds.url], cache_ttl_seconds=2)).client
    assert ask(api, reader).status == 200
    ecpds.destinations[reader] = []
    assert ask(api, reader).status == 200
    wait_until(lambda: ask(api, reader).status != 200)
    assert_denied(ask(api, reader), 403)


def test_only_so_many_users_are_remembered(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch(settings([ecpds.url], max_entries=2)).client
    for name in ("a", "b", "a", "c", "a", "b"):
        ask(api, name)
    assert ecpds.users == ["a", "b", "c", "b"], "the one that was used longest ago is forgotten"


@pytest.mark.parametrize("name", ["u+s er&name", "é/%2F?id=x#", "a=b;c"])
def test_case_217_names(api: Client, ecpds: FakeEcpds, name: str) -> None:
    ecpds.destinations[name] = ["CIP"]
    assert ask(api, name).status == 200
    assert ecpds.users == [name]


def test_case_218_publishing(api: Client, ecpds: FakeEcpds) -> None:
    request = body("dissemination", {**DISSEMINATION, "destination": "UNKNOWN"}, payload="x")
    assert api.answer("notification", request, bearer(token("admin-user"))).status == 200
    assert_denied(api.answer("notification", request, bearer(token("reader-user"))), 403)
    assert ecpds.asked == []


def test_case_219_one_of_two(launch: Launch, ecpds: FakeEcpds, reader: str) -> None:
    with FakeEcpds() as broken:
        broken.answer = lambda asked: Said(500)
        tolerant = launch(settings([ecpds.url, broken.url], partial_outage_policy="any_success")).client
        assert ask(tolerant, reader).status == 200
        assert (len(ecpds.asked), len(broken.asked)) == (1, 1)
        strict = launch(settings([ecpds.url, broken.url])).client
        assert_denied(ask(strict, reader), 503)
        assert (len(ecpds.asked), len(broken.asked)) == (2, 2)
        ecpds.answer = broken.answer
        assert_denied(ask(tolerant, "somebody-else"), 503)


def test_case_219_both_together(launch: Launch, ecpds: FakeEcpds, reader: str) -> None:
    with FakeEcpds({reader: ["OTHER"]}) as other:
        api = launch(settings([ecpds.url, other.url])).client
        assert [ask(api, reader, name).status for name in ("CIP", "OTHER", "THIRD")] == [200, 200, 403]


@pytest.mark.parametrize(
    "text",
    [
        b'{"success":"no","destinationList":[{"name":"CIP","active":true}]}',
        b'{"success":"Yes","destinationList":[{"name":"CIP","active":true}]}',
        b'{"success":true,"destinationList":[{"name":"CIP","active":true}]}',
        b'{"destinationList":[{"name":"CIP","active":true}]}',
        b'{"success":"yes"}',
        b'{"success":"yes","destinationList":{"name":"CIP"}}',
        b'["yes"]',
        b"yes",
        b"",
        b"[" * 100_000,
    ],
)
def test_case_220_not_a_list(api: Client, ecpds: FakeEcpds, reader: str, text: bytes) -> None:
    ecpds.answer = lambda asked: Said(200, text)
    assert_denied(ask(api, reader), 503)


def test_case_220_records(launch: Launch, api: Client, ecpds: FakeEcpds, reader: str) -> None:
    ecpds.destinations[reader] = [
        {"name": "OFF", "active": False},
        {"name": "TEXT", "active": "true"},
        {"name": "ONE", "active": 1},
        {"name": "UNSAID"},
        {"active": True},
        {"name": None, "active": True},
        {"name": 5, "active": True},
        {"id": "BY_ID", "active": True},
        None,
        ["CIP"],
        {"name": "GOOD", "active": True},
    ]
    for name in ("OFF", "TEXT", "ONE", "UNSAID", "None", "5", "BY_ID", "CIP"):
        assert_denied(ask(api, reader, name), 403)
    assert ask(api, reader, "GOOD").status == 200
    by_id = launch(settings([ecpds.url], target_field="id")).client
    assert [ask(by_id, reader, name).status for name in ("BY_ID", "GOOD")] == [200, 403]


def test_an_unknown_event_type_is_no_way_around_the_plugin(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch({**settings([ecpds.url]), "notification_schema_strict": False}).client
    request = body("diss", {"a": "CIP"}, from_id="1")
    assert_denied(api.answer("replay", request, bearer(token("reader-user"))), 403)
    assert_denied(api.answer("replay", request), 401, ["Bearer"])


def test_secrets_are_not_logged(launch: Launch, ecpds: FakeEcpds, reader: str) -> None:
    server = launch(settings([ecpds.url]), environment={"RUST_LOG": "trace"})
    ask(server.client, reader)
    ecpds.answer = lambda asked: Said(500)
    ask(server.client, "somebody-else")
    server.stop()
    output = server.stdout + server.stderr
    assert "auth.ecpds.check.allowed" in output
    assert "auth.ecpds.check.unavailable" in output
    assert "auth.ecpds.fetch.failed" in output
    sent = ecpds.asked[0].headers["authorization"].split()[1]
    assert [word for word in (PASSWORD, sent, SECRET) if word in output] == []
