"""P. The ECPDS plugin, against servers that play ECPDS."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.conftest import Launch
from tests.conformance.samples import DISSEMINATION
from tests.conformance.test_o_auth import assert_denied
from tests.harness import Client, Response
from tests.harness.client import body
from tests.harness.ecpds import PASSWORD, USERNAME, FakeEcpds
from tests.harness.tokens import SECRET, bearer, token
from tests.harness.web_service import Said


@pytest.fixture(scope="module")
def backend() -> str:
    """Who may has nothing to do with where notifications are kept: one backend is enough."""
    return "in_memory"


@pytest.fixture
def ecpds() -> Iterator[FakeEcpds]:
    """A server that knows of one destination."""
    with FakeEcpds({"reader-user": ["CIP"]}) as running:
        yield running


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


@pytest.fixture
def api(launch: Launch, ecpds: FakeEcpds) -> Client:
    """A client of a server with the plugin."""
    return launch(settings([f"{ecpds.url}/"])).client


def ask(
    api: Client, destination: Any = "CIP", name: str | None = "reader-user", operation: str = "watch", **start: Any
) -> Response:
    start = start or ({"from_id": "1"} if operation == "replay" else {})
    header = () if name is None else bearer(token(name))
    return api.answer(operation, body("dissemination", {"class": "od", "destination": destination}, **start), header)


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_211_destinations(api: Client, operation: str) -> None:
    assert ask(api, "CIP", operation=operation).status == 200
    assert_denied(ask(api, "UNKNOWN", operation=operation), 403)


@pytest.mark.parametrize("destination", ["*", {"in": ["CIP"]}, {"eq": "CIP"}, "cip", "CIP "])
def test_case_211_only_one_destination_and_only_exactly(api: Client, destination: Any) -> None:
    assert_denied(ask(api, destination), 403)


def test_case_212_no_destinations(api: Client, ecpds: FakeEcpds) -> None:
    assert_denied(ask(api, name="somebody-else"), 403)
    assert ecpds.users == ["somebody-else"]


def test_case_213_admin(api: Client, ecpds: FakeEcpds) -> None:
    assert ask(api, "UNKNOWN", "admin-user").status == 200
    assert ecpds.asked == []


def test_case_214_anonymous(api: Client, ecpds: FakeEcpds) -> None:
    assert_denied(ask(api, name=None), 401, ["Bearer"])
    assert ecpds.asked == []


def test_the_order_of_checks(api: Client, ecpds: FakeEcpds) -> None:
    for response in (ask(api, "UNKNOWN", from_id="x"), ask(api, ["UNKNOWN"])):
        assert (response.status, response.json()["code"]) == (400, "INVALID_WATCH_REQUEST")
    assert ecpds.asked == []


@pytest.mark.parametrize("status", [500, 401, 403, 404, 204, 302])
def test_case_215_upstream_fails(api: Client, ecpds: FakeEcpds, status: int) -> None:
    ecpds.answer = lambda asked: Said(status)
    assert_denied(ask(api), 503)
    ecpds.answer = ecpds.usual
    assert ask(api).status == 200, "a failure must not be remembered"


def test_case_215_upstream_is_asked_once(api: Client, ecpds: FakeEcpds) -> None:
    ecpds.answer = lambda asked: Said(500)
    assert_denied(ask(api), 503)
    assert len(ecpds.asked) == 1


def test_case_215_upstream_is_slow(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch(settings([ecpds.url], request_timeout_seconds=1)).client
    ecpds.delay = 3
    began = time.monotonic()
    assert_denied(ask(api), 503)
    assert time.monotonic() - began < 2.5


def test_case_216_asked_once(api: Client, ecpds: FakeEcpds) -> None:
    for destination, status in (("CIP", 200), ("UNKNOWN", 403), ("CIP", 200)):
        assert ask(api, destination).status == status
    assert ecpds.users == ["reader-user"]


def test_case_216_asked_once_by_many(api: Client, ecpds: FakeEcpds) -> None:
    ecpds.delay = 0.5
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: ask(api), range(10)))
    assert [answer.status for answer in answers] == [200] * 10
    assert ecpds.users == ["reader-user"]


def test_case_216_many_fail_together(api: Client, ecpds: FakeEcpds) -> None:
    def fail(asked: object) -> Said:
        time.sleep(0.5)
        return Said(500)

    ecpds.answer = fail
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: ask(api), range(5)))
    assert [answer.status for answer in answers] == [503] * 5
    assert len(ecpds.asked) == 1


def test_the_first_to_ask_may_leave(api: Client, ecpds: FakeEcpds) -> None:
    ecpds.delay = 0.6
    impatient = Client(api.host, api.port, timeout=0.2)
    with pytest.raises(TimeoutError):
        ask(impatient)
    assert ask(api).status == 200
    assert ecpds.users == ["reader-user"]


def test_answers_are_forgotten(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch(settings([ecpds.url], cache_ttl_seconds=1)).client
    assert ask(api).status == 200
    ecpds.destinations["reader-user"] = []
    assert ask(api).status == 200
    time.sleep(1.1)
    assert_denied(ask(api), 403)


def test_only_so_many_users_are_remembered(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch(settings([ecpds.url], max_entries=2)).client
    for name in ("a", "b", "a", "c", "a", "b"):
        ask(api, name=name)
    assert ecpds.users == ["a", "b", "c", "b"], "the one that was used longest ago is forgotten"


@pytest.mark.parametrize("name", ["u+s er&name", "é/%2F?id=x#", "a=b;c"])
def test_case_217_names(api: Client, ecpds: FakeEcpds, name: str) -> None:
    ecpds.destinations[name] = ["CIP"]
    assert ask(api, name=name).status == 200
    assert ecpds.users == [name]


def test_case_218_publishing(api: Client, ecpds: FakeEcpds) -> None:
    request = body("dissemination", {**DISSEMINATION, "destination": "UNKNOWN"}, payload="x")
    assert api.answer("notification", request, bearer(token("admin-user"))).status == 200
    assert_denied(api.answer("notification", request, bearer(token("reader-user"))), 403)
    assert ecpds.asked == []


def test_case_219_one_of_two(launch: Launch, ecpds: FakeEcpds) -> None:
    with FakeEcpds() as broken:
        broken.answer = lambda asked: Said(500)
        tolerant = launch(settings([ecpds.url, broken.url], partial_outage_policy="any_success")).client
        assert ask(tolerant).status == 200
        assert (len(ecpds.asked), len(broken.asked)) == (1, 1)
        strict = launch(settings([ecpds.url, broken.url])).client
        assert_denied(ask(strict), 503)
        assert (len(ecpds.asked), len(broken.asked)) == (2, 2)
        ecpds.answer = broken.answer
        assert_denied(ask(tolerant, name="somebody-else"), 503)


def test_case_219_both_together(launch: Launch, ecpds: FakeEcpds) -> None:
    with FakeEcpds({"reader-user": ["OTHER"]}) as other:
        api = launch(settings([ecpds.url, other.url])).client
        assert [ask(api, name).status for name in ("CIP", "OTHER", "THIRD")] == [200, 200, 403]


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
def test_case_220_not_a_list(api: Client, ecpds: FakeEcpds, text: bytes) -> None:
    ecpds.answer = lambda asked: Said(200, text)
    assert_denied(ask(api), 503)


def test_case_220_records(launch: Launch, ecpds: FakeEcpds) -> None:
    ecpds.destinations["reader-user"] = [
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
    api = launch(settings([ecpds.url])).client
    for name in ("OFF", "TEXT", "ONE", "UNSAID", "None", "5", "BY_ID", "CIP"):
        assert_denied(ask(api, name), 403)
    assert ask(api, "GOOD").status == 200
    by_id = launch(settings([ecpds.url], target_field="id")).client
    assert [ask(by_id, name).status for name in ("BY_ID", "GOOD")] == [200, 403]


def test_an_unknown_event_type_is_no_way_around_the_plugin(launch: Launch, ecpds: FakeEcpds) -> None:
    api = launch({**settings([ecpds.url]), "notification_schema_strict": False}).client
    request = body("diss", {"a": "CIP"}, from_id="1")
    assert_denied(api.answer("replay", request, bearer(token("reader-user"))), 403)
    assert_denied(api.answer("replay", request), 401, ["Bearer"])


def test_secrets_are_not_logged(launch: Launch, ecpds: FakeEcpds) -> None:
    server = launch(settings([ecpds.url]), environment={"RUST_LOG": "trace"})
    ask(server.client)
    ecpds.answer = lambda asked: Said(500)
    ask(server.client, name="somebody-else")
    server.stop()
    output = server.stdout + server.stderr
    assert "auth.ecpds.check.allowed" in output
    assert "auth.ecpds.check.unavailable" in output
    assert "auth.ecpds.fetch.failed" in output
    sent = ecpds.asked[0].headers["authorization"].split()[1]
    assert [word for word in (PASSWORD, sent, SECRET) if word in output] == []
