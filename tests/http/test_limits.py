"""The limits at work: each with its status, its words and the time to come back."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from aviso_server.http.limits import Buckets, Clients, Memory, resident_bytes
from tests.config.configurations import inspected, keys
from tests.harness import Client, Server
from tests.harness.broker import wait_until
from tests.harness.client import body
from tests.harness.metrics import scrape, with_metrics
from tests.harness.patience import PATIENCE

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "in_memory"},
}


@contextmanager
def limited(directory: Path, **limits: Any) -> Iterator[tuple[Server, int]]:
    config = with_metrics({**CONFIG, "limits": limits})
    with Server(config, directory) as server:
        yield server, config["metrics"]["port"]


def test_request_rate(tmp_path: Path) -> None:
    with limited(tmp_path, requests_per_second=1, request_burst=3) as (server, port):
        api = server.client
        answers = [api.get("/api/v1/schema") for _ in range(6)]
        assert [answer.status for answer in answers[:3]] == [200] * 3
        refused = answers[-1]
        assert refused.status == 429
        assert refused.json()["code"] == "TOO_MANY_REQUESTS"
        assert refused.json()["request_id"] == refused.header("x-request-id")
        assert int(refused.header("retry-after") or "") >= 1
        assert [api.get("/health").status for _ in range(10)] == [200] * 10, "probes are not limited"
        assert scrape(server, port).value("aviso_limit_refusals_total", limit="requests_per_second") >= 2
        wait_until(lambda: api.get("/api/v1/schema").status == 200)


def test_request_rate_behind_a_trusted_proxy(tmp_path: Path) -> None:
    limits = {"requests_per_second": 1, "request_burst": 1, "trusted_proxies": ["127.0.0.0/8"]}
    with limited(tmp_path, **limits) as (server, _):
        api = server.client

        def status(address: str) -> int:
            return api.request("GET", "/api/v1/schema", headers=[("X-Forwarded-For", address)]).status

        assert status("192.0.2.1") == 200
        assert status("192.0.2.1") == 429
        assert status("192.0.2.2") == 200
        assert status("203.0.113.9, 192.0.2.1") == 429, "what a client claims of itself does not count"


def test_forwarded_addresses_of_strangers_do_not_count(tmp_path: Path) -> None:
    with limited(tmp_path, requests_per_second=1, request_burst=1) as (server, _):
        statuses = [
            server.client.request("GET", "/api/v1/schema", headers=[("X-Forwarded-For", f"192.0.2.{n}")]).status
            for n in range(4)
        ]
        assert statuses[0] == 200
        assert 429 in statuses


def test_connections_per_client(tmp_path: Path) -> None:
    with limited(tmp_path, max_connections_per_client=2) as (server, port):
        with server.client.watch("x", {"a": "b"}) as first, server.client.watch("x", {"a": "b"}) as second:
            first.next()
            second.next()
            refused = server.client.get("/api/v1/schema")
            assert refused.status == 429
            assert refused.header("retry-after") == "5"
            assert refused.header("connection") == "close"
            assert "2 connections" in refused.json()["message"]
            assert scrape(server, port).value("aviso_limit_refusals_total", limit="connections_per_client") == 1
        deadline = time.monotonic() + 60
        while server.client.get("/api/v1/schema").status != 200:
            assert time.monotonic() < deadline, "connections that are gone must not count"
            time.sleep(0.05)


def test_memory_watermark(tmp_path: Path) -> None:
    with limited(tmp_path, memory_watermark_bytes=1) as (server, port):
        for operation in ("notification", "watch", "replay"):
            refused = server.client.answer(operation, body("x", {"a": "b"}))
            assert refused.status == 503
            assert refused.json()["code"] == "SERVICE_UNAVAILABLE"
            assert refused.header("retry-after") == "5"
        assert server.client.get("/health").status == 200
        assert server.client.get("/api/v1/schema").status == 200
        assert scrape(server, port).value("aviso_limit_refusals_total", limit="memory") == 3


def test_enough_memory(tmp_path: Path) -> None:
    with limited(tmp_path, memory_watermark_bytes=2**40) as (server, _):
        server.client.publish("x", {"a": "b"})


def _sent(server: Server, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back until the server hangs up, which may be while the client still sends."""
    received = b""
    with (
        socket.create_connection((server.host, server.port), timeout=PATIENCE) as client,
        suppress(BrokenPipeError, ConnectionResetError),
    ):
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        while chunk := client.recv(65536):
            received += chunk
    return received


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    limits = {"header_timeout_seconds": 1, "body_timeout_seconds": 1, "idle_timeout_seconds": 1}
    with limited(tmp_path_factory.mktemp("impatient"), **limits) as found:
        yield found


def test_headers_that_never_end(impatient: tuple[Server, int]) -> None:
    server, port = impatient
    before = scrape(server, port).value("aviso_limit_refusals_total", limit="header_timeout")
    answer = _sent(server, b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-A: 1\r\n", b"X-B: 1\r\n", pause=0.3)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"x-request-id: " in answer
    assert b"headers" in answer
    assert scrape(server, port).value("aviso_limit_refusals_total", limit="header_timeout") == before + 1


def test_a_client_that_says_nothing(impatient: tuple[Server, int]) -> None:
    began = time.monotonic()
    assert _sent(impatient[0]) == b""
    assert time.monotonic() - began > 0.5


def test_a_body_that_never_ends(impatient: tuple[Server, int]) -> None:
    server, port = impatient
    before = scrape(server, port).value("aviso_limit_refusals_total", limit="body_timeout")
    head = b"POST /api/v1/notification HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    answer = _sent(server, head, b'{"event', b'_type"', pause=0.3)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"body" in answer
    assert scrape(server, port).value("aviso_limit_refusals_total", limit="body_timeout") == before + 1


def test_a_second_request_that_never_ends(impatient: tuple[Server, int]) -> None:
    answer = _sent(impatient[0], b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /hea", pause=0.2)
    first, _, second = answer.partition(b'{"status":"ok"}')
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(impatient: tuple[Server, int]) -> None:
    server, port = impatient
    before = scrape(server, port).value("aviso_limit_refusals_total", limit="idle_timeout")
    answer = _sent(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.endswith(b'{"status":"ok"}')
    assert scrape(server, port).value("aviso_limit_refusals_total", limit="idle_timeout") > before


def test_patience_does_not_end_streams_or_slow_but_steady_requests(impatient: tuple[Server, int]) -> None:
    api = Client(impatient[0].host, impatient[0].port)
    with api.watch("x", {"a": "b"}) as stream:
        stream.next()
        time.sleep(2.5)
        api.publish("x", {"a": "b"})
        while stream.next().kind != "notification":
            pass


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_fills_at_its_rate_and_no_further_than_its_size() -> None:
    clock = Clock()
    buckets = Buckets(rate=10, burst=3, clock=clock)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a") == pytest.approx(0.1)
    assert buckets.take("b") == 0
    clock.now += 0.125
    assert buckets.take("a") == 0
    clock.now += 1000
    assert [buckets.take("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_buckets_are_forgotten_oldest_first() -> None:
    buckets = Buckets(rate=1, burst=1, clock=Clock(), most_clients=2)
    for client in ("a", "b", "c"):
        assert buckets.take(client) == 0
    assert len(buckets) == 2
    assert buckets.take("c") > 0
    assert buckets.take("a") == 0, "forgotten, so it begins anew"


def test_memory_is_looked_at_only_now_and_then() -> None:
    clock, readings = Clock(), iter([50, 150, 50])
    memory = Memory(100, lambda: next(readings), clock)
    assert not memory.above
    assert not memory.above
    clock.now += 1
    assert memory.above
    clock.now += 1
    assert not memory.above


def test_memory_of_this_process_is_known() -> None:
    assert 10 * 2**20 < resident_bytes() < 2**40


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", "203.0.113.5", "192.0.2.1"),  # a stranger cannot speak for others
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "203.0.113.5, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "rubbish", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, rubbish", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("::ffff:10.0.0.1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_addresses_through_proxies(peer: str, forwarded: str, address: str, tmp_path: Path) -> None:
    clients = Clients([ip_network("10.0.0.0/8")])
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    assert clients.address({"client": (peer, 1), "headers": headers}) == address


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ("trusted_proxies: [10.0.0.0/8, nowhere]", "limits.trusted_proxies[1]"),
        ("request_burst: 5", "limits.request_burst"),
        ("requests_per_second: 0", "limits.requests_per_second"),
        ("header_timeout_seconds: 0", "limits.header_timeout_seconds"),
        ("max_identifier_bytes: -1", "limits.max_identifier_bytes"),
    ],
)
def test_limits_that_make_no_sense(limits: str, key: str, tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, f"limits: {{{limits}}}")) == {key}
