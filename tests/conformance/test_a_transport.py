"""A. Transport and operations."""

from __future__ import annotations

import gzip
import json
import re
import socket
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

from aviso_server import __version__
from tests.conformance.conftest import Launch
from tests.conformance.expectations import UUID
from tests.conformance.samples import MARS
from tests.harness import Client, Response
from tests.harness.client import JSON, body, encode
from tests.harness.metrics import free_port

LIMIT = 262_144


def assert_not_found(response: Response) -> None:
    assert response.status == 404
    assert response.body == b""
    assert response.header("content-length") == "0"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert response.header("location") is None
    assert not [name for name, _ in response.headers if name.startswith("access-control-")]


def test_case_001_health(api: Client) -> None:
    response = api.get("/health")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    assert response.json() == {"status": "ok"}
    assert UUID.fullmatch(response.header("x-request-id") or "")


def test_case_002_a_request_id_of_the_client_is_ignored(api: Client) -> None:
    response = api.request("GET", "/health", headers=[("X-Request-ID", "abc")])
    assert UUID.fullmatch(response.header("x-request-id") or "")
    sent = "6f0c0000-0000-4000-8000-000000000001"
    assert api.request("GET", "/health", headers=[("X-Request-ID", sent)]).header("x-request-id") != sent


def test_case_003_request_ids_differ(api: Client) -> None:
    assert len({api.get("/health").header("x-request-id") for _ in range(5)}) == 5


def test_case_004_trailing_slash(api: Client) -> None:
    assert_not_found(api.get("/health/"))


def test_case_005_head(api: Client) -> None:
    assert_not_found(api.request("HEAD", "/health"))


def test_case_006_wrong_method_on_health(api: Client) -> None:
    assert_not_found(api.request("POST", "/health", b""))


def test_case_007_get_on_notification(api: Client) -> None:
    assert_not_found(api.get("/api/v1/notification"))


def test_case_008_put_on_watch(api: Client) -> None:
    assert_not_found(api.request("PUT", "/api/v1/watch", b"{}"))


def test_case_009_options_on_watch(api: Client) -> None:
    preflight = [("Origin", "http://localhost"), ("Access-Control-Request-Method", "POST")]
    assert_not_found(api.request("OPTIONS", "/api/v1/watch", headers=preflight))


def test_case_010_no_redirect(api: Client) -> None:
    assert_not_found(api.request("POST", "/api/v1/replay/", encode(body("mars", MARS, from_id="1")), JSON))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", "/api/v1"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/redoc"),
        ("HEAD", "/"),
        ("HEAD", "/api/v1/schema"),
        ("GET", "/api/v1/schema/"),
        ("POST", "/api/v1/schema"),
        ("PATCH", "/api/v1/notification"),
        ("TRACE", "/health"),
        ("FOO", "/health"),
        ("get", "/health"),
        ("FOO", "/api/v1/notification"),
        ("GET", "//health"),
    ],
)
def test_unknown_routes_are_empty(api: Client, method: str, path: str) -> None:
    assert_not_found(api.request(method, path))


def test_what_is_not_http_has_a_request_id_too(api: Client) -> None:
    for said in (b"hello\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00"):
        with socket.create_connection((api.host, api.port), timeout=60) as connection:
            connection.sendall(said)
            status, *headers = b"".join(iter(lambda: connection.recv(4096), b"")).decode().split("\r\n")
        assert status == "HTTP/1.1 400 Bad Request"
        (request_id,) = [line.partition(": ")[2] for line in headers if line.startswith("x-request-id: ")]
        assert UUID.fullmatch(request_id)


def test_case_011_home_page(api: Client) -> None:
    response = api.get("/")
    assert response.status == 200
    assert response.header("content-type") == "text/html; charset=utf-8"
    assert __version__ in response.body.decode()
    assert b"{{" not in response.body
    assert UUID.fullmatch(response.header("x-request-id") or "")


@pytest.fixture(scope="module")
def site(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, Any]:
    """A server with its own static files, and where they are."""
    files = tmp_path_factory.mktemp("static")
    (files / "index.html").write_text("<p>{{SERVER_VERSION}} and {{SERVER_VERSION}}</p>")
    (files / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (files.parent / "secret.txt").write_text("not for everybody")
    return launch({"application": {"static_files_path": str(files)}}).client, files


def test_every_version_mark_is_replaced(site: tuple[Client, Any]) -> None:
    client, _ = site
    assert client.get("/").body.decode() == f"<p>{__version__} and {__version__}</p>"


def test_case_012_index_file_removed(site: tuple[Client, Any]) -> None:
    client, files = site
    (files / "index.html").rename(files / "elsewhere.html")
    try:
        response = client.get("/")
    finally:
        (files / "elsewhere.html").rename(files / "index.html")
    assert response.status == 200
    assert response.header("content-type") == "text/html; charset=utf-8"
    assert response.body


def test_case_013_static_files(site: tuple[Client, Any]) -> None:
    client, _ = site
    response = client.get("/static/logo.png")
    assert response.status == 200
    assert response.body == b"\x89PNG\r\n\x1a\n"
    assert response.header("content-type") == "image/png"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert client.get("/static/missing.png").status == 404


def test_static_directories_are_listed(site: tuple[Client, Any]) -> None:
    client, _ = site
    response = client.get("/static/")
    assert response.status == 200
    assert b"logo.png" in response.body


@pytest.mark.parametrize("path", ["../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "/etc/hostname"])
def test_static_files_end_at_their_directory(site: tuple[Client, Any], path: str) -> None:
    client, _ = site
    assert client.get(f"/static/{path}").status == 404


OPERATIONS = {
    ("/", "get"),
    ("/health", "get"),
    ("/api/v1/notification", "post"),
    ("/api/v1/watch", "post"),
    ("/api/v1/replay", "post"),
    ("/api/v1/schema", "get"),
    ("/api/v1/schema/{event_type}", "get"),
    ("/api/v1/admin/notification/{notification_id}", "delete"),
    ("/api/v1/admin/wipe/stream", "delete"),
    ("/api/v1/admin/wipe/all", "delete"),
}


def test_case_014_openapi(api: Client) -> None:
    response = api.get("/api-docs/openapi.json")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    document = response.json()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "Aviso Notification Service API"
    assert document["info"]["version"] == __version__
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described >= OPERATIONS
    tags = {tag["name"] for tag in document["tags"]}
    assert tags >= {"health", "general", "schema", "notification", "streaming", "admin"}


def test_openapi_security(api: Client) -> None:
    document = api.get("/api-docs/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer_jwt"] | {"description": ""} == {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "",
    }
    assert schemes["basic"] | {"description": ""} == {"type": "http", "scheme": "basic", "description": ""}
    paths = document["paths"]
    for path in ("notification", "watch", "replay"):
        needs = paths[f"/api/v1/{path}"]["post"]["security"]
        assert {json.dumps(need) for need in needs} == {"{}", '{"bearer_jwt": []}', '{"basic": []}'}
    for path in ("notification/{notification_id}", "wipe/stream", "wipe/all"):
        needs = paths[f"/api/v1/admin/{path}"]["delete"]["security"]
        assert {json.dumps(need) for need in needs} == {'{"bearer_jwt": []}', '{"basic": []}'}


def test_case_015_swagger_ui(api: Client) -> None:
    response = api.get("/swagger-ui/")
    assert response.status == 200
    assert (response.header("content-type") or "").startswith("text/html")
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert_not_found(api.get("/swagger-ui"))


def test_case_016_no_metrics_on_the_main_port(api: Client) -> None:
    assert_not_found(api.get("/metrics"))


def test_case_017_metrics_on_their_own_port(launch: Launch) -> None:
    port = free_port()
    server = launch({"metrics": {"enabled": True, "port": port}})
    response = Client(server.host, port).get("/metrics")
    assert response.status == 200
    assert response.header("content-type") == "text/plain; version=0.0.4"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert re.search(rb'^aviso_build_info\{version="[^"]+"\} 1(\.0)?$', response.body, re.MULTILINE)


def test_case_018_content_type_is_not_looked_at(api: Client) -> None:
    response = api.answer("notification", body("mars", MARS), headers=(("Content-Type", "text/plain"),))
    assert response.status == 200


def test_case_019_no_content_type(api: Client) -> None:
    assert api.answer("notification", body("mars", MARS), headers=()).status == 200
    assert api.answer("replay", body("mars", {"class": "od"}, from_id="1"), headers=()).status == 200
    assert api.answer("watch", body("mars", {"class": "od"}), headers=()).status == 200


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_case_020_encoded_body(api: Client, encoding: str) -> None:
    request = ENCODINGS[encoding](encode(body("mars", MARS, payload=encoding)))
    response = api.answer("notification", request, headers=(*JSON, ("Content-Encoding", encoding)))
    assert response.status == 200, response.body
    (event,) = api.replay("mars", {"class": "od"}).notifications
    assert event["data"]["payload"] == encoding


def sized(size: int, **members: Any) -> bytes:
    """A valid mars request of exactly this many bytes."""
    request = encode(body("mars", MARS, **members, payload=""))
    return request[:-2] + b"x" * (size - len(request)) + request[-2:]


@pytest.mark.parametrize("operation", ["notification", "watch", "replay"])
def test_case_021_body_limit(api: Client, operation: str) -> None:
    start = {"from_id": "1"} if operation == "replay" else {}
    assert len(sized(LIMIT, **start)) == LIMIT
    assert api.answer(operation, sized(LIMIT, **start)).status == 200
    response = api.answer(operation, sized(LIMIT + 1, **start))
    assert response.status == 413
    assert response.header("content-type") == "text/plain; charset=utf-8"
    assert UUID.fullmatch(response.header("x-request-id") or "")
    assert 0 < len(response.body) < 200
    assert not response.body.startswith(b"{")


def test_the_limit_counts_decoded_bytes(api: Client) -> None:
    encoded = (*JSON, ("Content-Encoding", "gzip"))
    assert api.answer("notification", gzip.compress(sized(LIMIT)), headers=encoded).status == 200
    assert api.answer("notification", gzip.compress(sized(LIMIT + 1)), headers=encoded).status == 413


def test_size_is_checked_before_syntax(api: Client) -> None:
    assert api.answer("notification", b"x" * (LIMIT + 1)).status == 413


def test_ordinary_answers_are_not_compressed(api: Client) -> None:
    response = api.request("GET", "/api/v1/schema", headers=[("Accept-Encoding", "gzip, deflate, br, zstd")])
    assert response.header("content-encoding") is None
    assert response.json()["status"] == "success"
