"""Browsers: a page of another site may read streams, change nothing, and not come by a strange name."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviso_server.config import inspect
from tests.harness import Server
from tests.harness.client import body, encode
from tests.harness.patience import PATIENCE
from tests.harness.tokens import SECRET, bearer, token

TIDE: dict[str, Any] = {
    "topic": {"base": "tide", "key_order": ["port"]},
    "identifier": {"port": {"type": "StringHandler", "required": False}},
    "payload": {"required": False},
}
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0, "base_url": "https://aviso.example.org/api"},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema": {"tide": TIDE},
}
PUBLISH = encode(body("tide", {"port": "oslo"}))
AUTH = {"enabled": True, "mode": "trusted_proxy", "jwt_secret": SECRET, "admin_roles": {"localrealm": ["admin"]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIG, tmp_path_factory.mktemp("browsers")) as running:
        yield running


def send(
    server: Server, line: str, host: str | None, content: bytes = b"", headers: dict[str, str] | None = None
) -> int:
    """The status of the answer to one request; `host` is the whole Host header."""
    lines = [f"{line} HTTP/1.1", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [] if host is None else [f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        received = b""
        while b"\r\n" not in received:
            part = connection.recv(65536)
            assert part, "the server hung up without an answer"
            received += part
    return int(received.split()[1])


def stored(server: Server) -> int:
    [stream] = [each for each in server.client.get("/api/v1/streams").json()["streams"] if each["stream"] == "tide"]
    return int(stream["count"])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "EVIL.example.", "localhost.evil.example", "1.2.3", "[::1].evil.example"],
)
@pytest.mark.parametrize("line", ["GET /api/v1/admin/overview", "DELETE /api/v1/admin/wipe/all", "GET /", "GET /ready"])
def test_a_name_that_was_made_to_point_here_is_refused(server: Server, host: str, line: str) -> None:
    server.client.publish("tide", {"port": "oslo"})
    assert send(server, line, host) == 403
    assert stored(server) > 0


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LOCALHOST:8000",
            "a.localhost",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.1.2.3",
            "[::1]:8000",
            "[::1]",
        ),
        *("aviso.example.org", "aviso.example.org:443", "aviso.example.org.", "aviso", "10.1.2.3:8000", None),
    ],
)
def test_its_own_names_and_addresses_are_welcome(server: Server, host: str | None) -> None:
    assert send(server, "GET /api/v1/admin/overview", host) == 200
    assert send(server, "POST /api/v1/notification", host, PUBLISH) == 200


def test_one_strange_name_of_two_is_enough(server: Server) -> None:
    assert send(server, "GET /health", "localhost", headers={"host": "evil.example"}) in (400, 403)


def test_more_names_can_be_allowed(tmp_path: Path) -> None:
    application = {**CONFIG["application"], "allowed_hosts": ["Notify.example.net", "other.example.net."]}
    with Server({**CONFIG, "application": application}, tmp_path) as server:
        for host in ("notify.example.net:8000", "other.example.net", "localhost", "aviso.example.org"):
            assert send(server, "GET /health", host) == 200, host
        assert send(server, "GET /health", "example.net") == 403
        # the console behind a proxy that gives the server another name than the browser has
        page = {"Origin": "https://notify.example.net", "Sec-Fetch-Site": "cross-site"}
        assert send(server, "POST /api/v1/notification", "localhost", PUBLISH, page) == 200


def test_on_other_addresses_only_configured_names_are_checked(tmp_path: Path) -> None:
    anywhere = {**CONFIG["application"], "host": "0.0.0.0"}
    with Server({**CONFIG, "application": anywhere}, tmp_path / "any") as server:
        server.host = "127.0.0.1"
        assert send(server, "GET /health", "whatever.example") == 200
    named = {**anywhere, "allowed_hosts": ["notify.example.net"]}
    with Server({**CONFIG, "application": named}, tmp_path / "named") as server:
        server.host = "127.0.0.1"
        assert send(server, "GET /health", "notify.example.net") == 200
        assert send(server, "GET /health", "whatever.example") == 403


def test_with_authentication_the_name_does_not_matter(tmp_path: Path) -> None:
    with Server({**CONFIG, "auth": AUTH}, tmp_path) as server:
        assert send(server, "GET /health", "whatever.example") == 200


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "https://aviso.example.org.evil.example"},
    ],
    ids=str,
)
def test_pages_of_other_sites_change_nothing(server: Server, page: dict[str, str]) -> None:
    server.client.publish("tide", {"port": "oslo"})
    before = stored(server)
    plain = {**page, "Content-Type": "text/plain"}
    for _ in range(3):  # what is sent again and again must not become welcome
        assert send(server, "POST /api/v1/notification", "127.0.0.1:8000", PUBLISH, plain) == 403
    assert send(server, "POST /api/v1/notifications", "127.0.0.1:8000", PUBLISH, plain) == 403
    wipe = encode({"stream_name": "tide"})
    assert send(server, "DELETE /api/v1/admin/wipe/stream", "127.0.0.1:8000", wipe, page) == 403
    assert send(server, "DELETE /api/v1/admin/wipe/all", "127.0.0.1:8000", b"", page) == 403
    assert send(server, "DELETE /api/v1/admin/notification/tide@1", "127.0.0.1:8000", b"", page) == 403
    assert stored(server) == before


def test_pages_of_other_sites_are_refused_with_authentication_too(tmp_path: Path) -> None:
    with Server({**CONFIG, "auth": AUTH}, tmp_path) as server:
        own = dict(bearer(token("admin-user")))
        assert send(server, "POST /api/v1/notification", "localhost", PUBLISH, own) == 200
        theirs = {**own, "Origin": "https://evil.example"}
        assert send(server, "POST /api/v1/notification", "localhost", PUBLISH, theirs) == 403


def test_pages_of_other_sites_may_read_streams(server: Server) -> None:
    page = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    for operation in ("watch", "replay", "explain"):
        request = encode(body("tide", {}, **({} if operation == "explain" else {"from_id": "1"})))
        assert send(server, f"POST /api/v1/{operation}", "127.0.0.1:8000", request, page) == 200, operation


@pytest.mark.parametrize(
    ("host", "page"),
    [
        ("127.0.0.1:8000", {"Origin": "http://127.0.0.1:8000"}),
        ("127.0.0.1:8000", {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}),
        ("localhost", {"Origin": "http://localhost"}),
        ("localhost:80", {"Origin": "http://localhost"}),
        # behind a proxy that takes TLS off: with the browser's Host, and with its own
        ("aviso.example.org", {"Origin": "https://aviso.example.org"}),
        ("127.0.0.1:8000", {"Origin": "https://aviso.example.org"}),
        ("127.0.0.1:8000", {"Origin": "https://unknown.example", "Sec-Fetch-Site": "same-origin"}),
        ("127.0.0.1:8000", {"Sec-Fetch-Site": "none"}),
    ],
    ids=str,
)
def test_its_own_pages_change_what_they_like(server: Server, host: str, page: dict[str, str]) -> None:
    assert send(server, "POST /api/v1/notification", host, PUBLISH, page) == 200


def test_the_express_lane_learns_no_head_of_another_site(server: Server) -> None:
    """On one connection, where the same head would go the short way."""
    head = f"POST /api/v1/notification HTTP/1.1\r\nHost: %s\r\n%sContent-Length: {len(PUBLISH)}\r\n\r\n"
    for host, more in (("evil.example", ""), ("localhost", "Origin: https://evil.example\r\n")):
        request = (head % (host, more)).encode() + PUBLISH
        with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
            for _ in range(4):
                connection.sendall(request)
                assert connection.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_the_refusal_says_what_is_accepted(server: Server) -> None:
    answer = server.client.request("DELETE", "/api/v1/admin/wipe/all", headers=[("Origin", "https://evil.example")])
    assert (answer.status, answer.json()["code"], answer.json()["error"]) == (403, "FORBIDDEN", "forbidden")
    assert "Origin" in json.dumps(answer.json()["message"])


@pytest.mark.parametrize(
    "host", ["https://aviso.example.org", "aviso.example.org:8000", "", "two names", "*.example.org"]
)
def test_what_is_no_host_name_is_refused_at_the_start(tmp_path: Path, host: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"application": {"allowed_hosts": ["good.example", host]}}))
    [problem] = inspect({}, file).problems
    assert problem.key == "application.allowed_hosts[1]"
