"""Whose subscriptions are whose, what is refused, and what outlives a restart or a kill."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from standardwebhooks import Webhook

from tests.harness import Client, Server
from tests.harness.client import JSON, encode
from tests.harness.tokens import SECRET, bearer, token
from tests.subscriptions.receiver import Got, Receiver, Reply, until
from tests.subscriptions.scene import Api, configuration, publish

AUTH = {
    "enabled": True,
    "mode": "trusted_proxy",
    "jwt_secret": SECRET,
    "admin_roles": {"localrealm": ["admin"]},
}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration("in_memory", max_per_user=3), tmp_path_factory.mktemp("open")) as running:
        yield running


@pytest.fixture
def api(open_server: Server) -> Iterator[Api]:
    api = Api(open_server.client)
    yield api
    for each in api.ok("GET")["subscriptions"]:
        api.ok("DELETE", f"/{each['id']}")


def guarded(kind: str = "in_memory") -> dict[str, Any]:
    config = {**configuration(kind), "auth": AUTH}
    config["notification_schema"]["wave"]["auth"] = {
        "required": True,
        "read_roles": {"localrealm": ["reader"]},
        "write_roles": {"localrealm": ["producer"]},
    }
    return config


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(guarded(), tmp_path_factory.mktemp("closed")) as running:
        yield running


def as_(client: Client, name: str, **changes: Any) -> Api:
    return Api(client, bearer(token(name, **changes)))


BASE = {"name": "mine", "event_type": "wave", "identifier": {}}


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({**BASE, "name": "no blanks"}, 400, "INVALID_REQUEST_SHAPE", "name"),
        ({**BASE, "name": ""}, 400, "INVALID_REQUEST_SHAPE", "name"),
        ({**BASE, "event_type": "tide"}, 400, "UNKNOWN_EVENT_TYPE", "tide"),
        ({**BASE, "identifier": {"depth": 1}}, 400, "INVALID_SUBSCRIPTION_REQUEST", "depth"),
        ({**BASE, "identifier": {"height": {"gte": "x"}}}, 400, "INVALID_SUBSCRIPTION_REQUEST", "height"),
        ({**BASE, "identifier": []}, 400, "INVALID_REQUEST_SHAPE", "identifier"),
        ({**BASE, "from_id": "x"}, 400, "INVALID_SUBSCRIPTION_REQUEST", "from_id"),
        ({**BASE, "from_id": "1", "from_date": "2025-01-01T00:00:00Z"}, 400, "INVALID_SUBSCRIPTION_REQUEST", "from_"),
        ({**BASE, "delivery": "push"}, 400, "INVALID_SUBSCRIPTION_REQUEST", "sink"),
        ({**BASE, "delivery": "fax"}, 400, "INVALID_REQUEST_SHAPE", "fax"),
        ({**BASE, "sink": "https://a.example/"}, 400, "INVALID_SUBSCRIPTION_REQUEST", "sink"),
        ({**BASE, "batch": 0}, 400, "INVALID_REQUEST_SHAPE", "batch"),
        ({**BASE, "max_attempts": -1}, 400, "INVALID_SUBSCRIPTION_REQUEST", "max_attempts"),
        ({**BASE, "retry_for_seconds": 10**9}, 400, "INVALID_SUBSCRIPTION_REQUEST", "retry_for_seconds"),
        ({**BASE, "color": "blue"}, 400, "UNKNOWN_FIELD", "color"),
        ([], 400, "INVALID_REQUEST_SHAPE", "object"),
        (
            {**BASE, "delivery": "push", "sink": "https://10.0.0.1/"},
            400,
            "INVALID_SUBSCRIPTION_REQUEST",
            "not a public address",
        ),
        (
            {**BASE, "delivery": "push", "sink": "https://a.example/", "mode": "binary", "batch": 2},
            400,
            "INVALID_SUBSCRIPTION_REQUEST",
            "batch",
        ),
        (
            {**BASE, "delivery": "push", "sink": "https://a.example/", "headers": {"host": "b"}},
            400,
            "INVALID_SUBSCRIPTION_REQUEST",
            "host",
        ),
    ],
)
def test_what_is_refused(api: Api, body: Any, status: int, code: str, words: str) -> None:
    answer = api.call("POST", "", body)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert words in answer.json()["message"]


def pages(api: Api, limit: int) -> list[list[str]]:
    """Follow the list page by page."""
    found, after = [], ""
    while True:
        page = api.ok("GET", f"?limit={limit}{after}")
        found.append([each["name"] for each in page["subscriptions"]])
        if page["next"] is None:
            return found
        after = f"&after={quote(page['next'])}"


def test_the_list_comes_in_pages(api: Api) -> None:
    assert pages(api, 1) == [[]]
    for name in ("b", "c", "a"):
        api.make(name)
    assert pages(api, 1) == [["a"], ["b"], ["c"]]
    assert pages(api, 2) == [["a", "b"], ["c"]]
    assert pages(api, 3) == [["a", "b", "c"]]
    page = api.ok("GET", "?limit=2")
    api.ok("DELETE", "/b")
    following = api.ok("GET", f"?after={quote(page['next'])}")
    assert [each["name"] for each in following["subscriptions"]] == ["c"], "the last one of the page is gone"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "'limit' must be from 1 to 1000; got '0'"),
        ("limit=1001", "'limit' must be from 1 to 1000; got '1001'"),
        ("limit=ten", "'limit' must be from 1 to 1000; got 'ten'"),
        ("limit=", "'limit' must be from 1 to 1000; got ''"),
        ("limit=%D9%A1", "'limit' must be from 1 to 1000"),
        ("limit=1&limit=2", "'limit' is given twice"),
        ("after=b", "'after' must be what 'next' says in the page before; got 'b'"),
        ("page=2", "Unknown parameter 'page'; accepted are limit, after"),
    ],
)
def test_pages_that_are_refused(api: Api, query: str, words: str) -> None:
    answer = api.call("GET", f"?{query}")
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_SUBSCRIPTION_REQUEST")
    assert words in answer.json()["message"]


def test_pages_go_over_all_owners_for_administrators_only(closed_server: Server) -> None:
    readers = [as_(closed_server.client, name, roles=["reader"]) for name in ("ann", "an+n&é", "zoe")]
    for reader in readers:
        for name in ("one", "two"):
            reader.make(name)
    admin = as_(closed_server.client, "root", roles=["admin"])
    listed = [name for page in pages(admin, 1) for name in page]
    assert listed == ["one", "two"] * 3
    first = admin.ok("GET", "?limit=1")["next"]
    mine = readers[2].ok("GET", f"?after={quote(first)}")["subscriptions"]
    assert {each["owner"] for each in mine} <= {"localrealm/zoe"}, "a place in the list of others shows nothing of them"
    for reader in readers:
        for name in ("one", "two"):
            reader.ok("DELETE", f"/{name}")


def test_a_name_is_taken_once_and_there_is_a_limit(api: Api) -> None:
    made = api.make("a")
    answer = api.call("POST", "", {**BASE, "name": "a"})
    assert (answer.status, answer.json()["code"]) == (409, "SUBSCRIPTION_EXISTS")
    api.make("b")
    api.make("c")
    answer = api.call("POST", "", {**BASE, "name": "d"})
    assert (answer.status, answer.json()["code"]) == (403, "TOO_MANY_SUBSCRIPTIONS")
    assert "max_per_user" in answer.json()["message"]
    assert [each["name"] for each in api.ok("GET")["subscriptions"]] == ["a", "b", "c"]
    assert api.show(made["id"])["name"] == "a", "an id is as good as a name"
    assert api.call("DELETE", "/a").status == 204
    assert api.call("GET", "/a").json()["code"] == "SUBSCRIPTION_NOT_FOUND"
    api.make("d")


def test_changes(api: Api) -> None:
    api.make("a", {"sea": "x"})
    api.make("b")
    assert api.ok("PATCH", "/a", {"max_attempts": 3})["max_attempts"] == 3
    assert api.show("a")["identifier"] == {"sea": "x"}
    assert api.call("PATCH", "/a", {"name": "b"}).status == 409
    assert api.ok("PATCH", "/a", {"name": "c"})["name"] == "c"
    assert api.call("GET", "/a").status == 404
    replaced = api.ok("PUT", "/c", {"name": "c", "event_type": "wave", "identifier": {"height": 1}})
    assert (replaced["identifier"], replaced["max_attempts"]) == ({"height": 1}, 10)
    assert api.call("PATCH", "/c", {"delivery": "push", "sink": "http://127.0.0.1:9/"}).status == 400
    assert api.call("PATCH", "/c", {"nothing": 1}).json()["code"] == "UNKNOWN_FIELD"
    assert api.ok("GET", "/c")["changed_by"] == "anybody"


def test_everybody_has_their_own_and_administrators_see_all(closed_server: Server) -> None:
    client = closed_server.client
    reader, other = as_(client, "reader-user"), as_(client, "other", roles=["reader"])
    producer, admin = as_(client, "producer-user"), as_(client, "admin-user")
    nobody = Api(client)
    made = reader.make("mine")
    assert made["owner"] == "localrealm/reader-user"
    other.make("mine")
    assert [each["owner"] for each in reader.ok("GET")["subscriptions"]] == ["localrealm/reader-user"]
    assert [each["owner"] for each in admin.ok("GET")["subscriptions"]] == [
        "localrealm/other",
        "localrealm/reader-user",
    ]
    assert other.call("GET", f"/{made['id']}").status == 404, "nobody learns that it is there"
    assert other.call("DELETE", f"/{made['id']}").status == 404
    assert admin.ok("POST", f"/{made['id']}/pause")["changed_by"] == "localrealm/admin-user"
    answer = producer.call("POST", "", BASE)
    assert (answer.status, answer.json()["code"]) == (403, "FORBIDDEN")
    for method, path in [("GET", ""), ("POST", ""), ("GET", "/mine"), ("POST", "/mine/pull")]:
        assert nobody.call(method, path, BASE if method == "POST" else None).status == 401
    for api in (reader, other):
        api.ok("DELETE", "/mine")


def test_roles_are_checked_again_at_every_delivery(tmp_path: Path) -> None:
    config = guarded("sqlite")
    with Receiver() as receiver, Server(config, tmp_path) as server:
        reader, producer = as_(server.client, "reader-user"), as_(server.client, "producer-user")
        reader.push("mine", receiver.url)
        reader.make("queue")
        post(producer, 1)
        receiver.wait_for(1)
        server.stop()
        config["notification_schema"]["wave"]["auth"]["read_roles"] = {"localrealm": ["chief"]}
        again = Server(config, tmp_path)
        with again:
            reader, producer = as_(again.client, "reader-user"), as_(again.client, "producer-user")
            post(producer, 2)
            until(lambda: "no role" in reader.show("mine")["problem"])
            assert len(receiver.posts) == 1
            answer = reader.call("POST", "/queue/pull", {})
            assert answer.status == 400
            assert "no role" in answer.json()["message"]
            for kept in ("deliveries", "dead"):
                assert reader.call("GET", f"/mine/{kept}").status == 403, (
                    "what was delivered before is not shown either"
                )
            # with credentials that have the role, the owner's subscription has it too
            chief = as_(again.client, "reader-user", roles=["chief"])
            chief.ok("POST", "/mine/resume")
            assert receiver.wait_for(2)[1].events[0]["data"]["payload"] == {"height": 2}
            assert len(chief.pull("queue", max=5)) == 2


def post(api: Api, height: int) -> None:
    request = {"event_type": "wave", "identifier": {"sea": "x", "height": height}, "payload": {"height": height}}
    answer = api.client.request("POST", "/api/v1/notification", encode(request), (*JSON, *api.headers))
    assert answer.status == 200, answer.body


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    config = configuration("sqlite")
    with Receiver() as receiver:
        with Server(config, tmp_path) as server:
            api = Api(server.client)
            secret = api.push("mine", receiver.url, {"sea": "x"}, headers={"x-mine": "yes"})["secret"]
            api.make("queue", {"sea": "x"})
            publish(server.client, "x", 1, 2)
            receiver.wait_for(2)
            works = api.pull("queue", max=1, lease_seconds=600)
            publish(server.client, "y", *range(150))
        with Server(config, tmp_path) as server:
            api = Api(server.client)
            publish(server.client, "x", 3)
            assert receiver.wait_for(3)[2].events[0]["data"]["payload"] == {"height": 3}
            assert receiver.posts[2].headers["x-mine"] == "yes"
            Webhook(secret).verify(receiver.posts[2].body, receiver.posts[2].headers)
            assert api.ok("POST", "/queue/ack", {"leases": [works[0]["lease"]]})["done"] == 1, "a lease holds on"
            rest = api.pull("queue", max=5)
            assert [each["event"]["data"]["payload"]["height"] for each in rest] == [2, 3]
            until(lambda: api.show("mine")["lag"] == 0)
            assert len(receiver.posts) == 3


def test_after_a_kill_nothing_is_missing_and_what_comes_twice_has_the_same_id(tmp_path: Path) -> None:
    config = configuration("sqlite")
    with Receiver() as receiver:
        server = Server(config, tmp_path)
        for round_ in range(3):
            with server:
                api = Api(server.client)
                if not round_:
                    api.push("single", receiver.url, {"sea": "x"})
                    api.push("batches", receiver.url, {"sea": "x"}, batch=7)
                publish(server.client, "x", *range(round_ * 20, round_ * 20 + 20))
                server.signal(signal.SIGKILL)
                server.wait()
                server.stop()
            server = Server(config, tmp_path)
        with server:
            api = Api(server.client)
            until(lambda: {api.show(name)["lag"] for name in ("single", "batches")} == {0})
            ids = {each["id"]: each["name"] for each in api.ok("GET")["subscriptions"]}
        for identity in ids:
            got = [each for each in receiver.posts if identity in each.headers["webhook-id"]]
            check_at_least_once(got, 60)


def check_at_least_once(got: list[Got], last: int, first: int = 1) -> None:
    """Everything is there, in order but for repetitions, which have the same id and the same body."""
    by_id: dict[str, bytes] = {}
    reached = first - 1
    for each in got:
        name = each.headers["webhook-id"]
        if name in by_id:
            assert by_id[name] == each.body
            continue
        by_id[name] = each.body
        for event in each.events:
            assert event["sequence"] == reached + 1, "none is skipped"
            reached = event["sequence"]
    assert reached == last


def test_secrets_are_not_in_the_database(tmp_path: Path) -> None:
    with Receiver() as receiver, Server(configuration("sqlite"), tmp_path) as server:
        made = Api(server.client).push("mine", receiver.url, headers={"authorization": "Bearer very-secret-indeed"})
        directory = next(tmp_path.rglob("log.sqlite")).parent
        (key,) = directory.glob("subscriptions.key")
        assert key.stat().st_mode & 0o077 == 0
        with closing(sqlite3.connect(directory / "log.sqlite")) as connection:
            stored = b"".join(value for (value,) in connection.execute("SELECT value FROM records"))
        assert b"very-secret-indeed" not in stored
        assert made["secret"].removeprefix("whsec_").encode() not in stored
        assert "very-secret-indeed" not in server.stdout + server.stderr
        assert made["secret"] not in server.stdout + server.stderr


def test_every_change_is_in_the_log_with_who_did_it(closed_server: Server) -> None:
    reader = as_(closed_server.client, "reader-user")
    reader.make("seen")
    for call in ("pause", "resume"):
        reader.ok("POST", f"/seen/{call}")
    reader.ok("PATCH", "/seen", {"max_attempts": 2})
    reader.ok("DELETE", "/seen")

    def lines(event: str) -> list[str]:
        found = closed_server.stdout.splitlines()
        return [line for line in found if f'"subscription.{event}"' in line and '"seen"' in line]

    for event in ("created", "paused", "resumed", "changed", "deleted"):
        until(lambda event=event: len(lines(event)) == 1, lambda event=event: event)  # type: ignore[misc]  # bound now
        assert "localrealm/reader-user" in lines(event)[0]


def test_wipe_and_retention_do_not_stop_a_subscription(tmp_path: Path) -> None:
    config = configuration("sqlite")
    config["notification_schema"]["wave"]["storage_policy"] = {"max_messages": 5}
    healed = False
    with Receiver(lambda got: Reply(200 if healed else 500)) as receiver, Server(config, tmp_path) as server:
        api = Api(server.client)
        api.push("mine", receiver.url)
        publish(server.client, "x", 1)
        receiver.wait_for(1)
        api.ok("POST", "/mine/pause")
        publish(server.client, "x", *range(2, 13))
        healed = True
        api.ok("POST", "/mine/resume")
        until(lambda: api.show("mine")["lag"] == 0)
        (gap,) = api.show("mine")["gaps"]
        assert (gap["first"], gap["last"]) == (1, 7), "said, not silent"
        assert receiver.sequences[-5:] == [8, 9, 10, 11, 12]
        server.client.wipe_all()
        publish(server.client, "x", 99)
        until(lambda: receiver.sequences[-1] == 13)
        assert len(api.show("mine")["gaps"]) == 1
