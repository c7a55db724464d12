"""One connection, byte by byte: requests in pieces, in a row, after a refusal, and at the end of the server."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness import Server
from tests.harness.client import encode
from tests.harness.metrics import scrape, with_metrics

UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
IDLE_SECONDS = 1
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema": {
        "tide": {
            "payload": {"required": False},
            "topic": {"base": "tide", "key_order": ["port"]},
            "identifier": {"port": {"type": "StringHandler", "max_length": 8, "required": False}},
        }
    },
    "limits": {"max_body_bytes": 5000, "idle_timeout_seconds": IDLE_SECONDS},
}


class Answer(NamedTuple):
    status: int
    head: bytes
    body: Any


class Line:
    """One connection of a publisher, byte by byte."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection((server.host, server.port), timeout=60)
        self._received = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def answer(self) -> Answer:
        """The next answer."""
        while b"\r\n\r\n" not in self._received:
            self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]  # every answer has one
        while len(self._received) < length:
            self._read()
        body, self._received = self._received[:length], self._received[length:]
        return Answer(int(head.split()[1]), head, json.loads(body) if body.startswith(b"{") else body)

    def silent_for(self, seconds: float) -> bool:
        """True if nothing comes and nobody hangs up."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) is None
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(60)

    def _read(self) -> None:
        chunk = self.socket.recv(65536)
        if not chunk:
            raise ConnectionError("the server hung up")
        self._received += chunk


def head(body: bytes, *more: bytes) -> bytes:
    lines = (b"POST /api/v1/notification HTTP/1.1", b"Host: x", *more, b"Content-Length: %d" % len(body), b"", b"")
    return b"\r\n".join(lines)


def request(port: str, payload: Any = None, *more: bytes) -> bytes:
    body = encode({"event_type": "tide", "identifier": {"port": port}, "payload": payload})
    return head(body, *more) + body


def stored(server: Server) -> list[Any]:
    stream = server.client.replay("tide", {}, from_id="1")
    return [frame.data["data"]["payload"] for frame in stream.frames if frame.event == "replay"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIG, tmp_path_factory.mktemp("connection")) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.client.wipe_all()
    return running


def names(answer: Answer) -> list[bytes]:
    return [line.split(b":")[0] for line in answer.head.split(b"\r\n")[1:]]


def test_every_answer_is_like_the_first(server: Server) -> None:
    with Line(server) as line:
        answers = []
        for number in range(20):
            line.send(request("dover", 100 + number))
            answers.append(line.answer())
    assert [answer.status for answer in answers] == [200] * 20
    assert {tuple(names(answer)) for answer in answers} == {tuple(names(answers[0]))}
    assert {b"date", b"x-request-id", b"content-type", b"content-length"} <= set(names(answers[0]))
    for answer in answers:
        assert set(answer.body) == {"status", "request_id", "processed_at"}
        assert b"x-request-id: " + answer.body["request_id"].encode() in answer.head
        assert UUID.fullmatch(answer.body["request_id"].encode())
    assert len({answer.body["request_id"] for answer in answers}) == 20
    assert stored(server) == list(range(100, 120))


def test_requests_sent_without_waiting_are_answered_in_order(server: Server) -> None:
    with Line(server) as line:
        line.send(request("dover", 10))
        assert line.answer().status == 200
        line.send(request("dover", 11), request("dover", 12))  # one piece
        line.send(request("dover", 13))
        for number in range(14, 60):
            line.send(request("dover", number))
        assert [line.answer().status for _ in range(49)] == [200] * 49
    assert stored(server) == list(range(10, 60))


def test_a_body_that_comes_later_or_in_pieces(server: Server) -> None:
    whole = request("dover", 10)
    with Line(server) as line:
        for cut in (len(whole), whole.index(b"{"), whole.index(b"{") + 5, 10, 1):
            line.send(whole[:cut])
            time.sleep(0.05)
            line.send(whole[cut:])
            assert line.answer().status == 200
    assert stored(server) == [10] * 5


def test_the_body_of_a_refused_request_is_no_request(server: Server) -> None:
    hidden = request("calais", "smuggled")
    with Line(server) as line:
        line.send(request("dover", 1))
        line.send(request("dover", 1))
        assert [line.answer().status for _ in range(2)] == [200, 200]
        warm = request("calais", "smuggled")
        line.send(warm)
        assert line.answer().status == 200
        too_large = b"x" * 6000
        line.send(head(too_large))
        assert line.answer().status == 413
        line.send(hidden.ljust(6000))
        assert line.silent_for(0.5)
    assert stored(server) == [1, 1, "smuggled"]


def test_headers_that_mean_something_are_not_overlooked(server: Server) -> None:
    plain = encode({"event_type": "tide", "identifier": {"port": "dover"}})
    for special in (b"Content-Encoding: gzip", b"Connection: close"):
        for _ in range(3):
            with Line(server) as line:
                line.send(head(plain, special) + plain)
                if special.startswith(b"Connection"):
                    assert line.answer().status == 200
                    assert line.socket.recv(1) == b""
                else:
                    assert line.answer().status == 400


def test_an_idle_publisher_is_hung_up_on_and_a_busy_one_is_not(server: Server) -> None:
    with Line(server) as line:
        for _ in range(6):
            line.send(request("dover", 1))
            assert line.answer().status == 200
            assert line.silent_for(IDLE_SECONDS * 0.6)
        line.socket.settimeout(IDLE_SECONDS * 3)
        assert line.socket.recv(1) == b""


def test_requests_are_counted(tmp_path: Path) -> None:
    config = with_metrics(CONFIG)
    with Server(config, tmp_path) as server, Line(server) as line:
        for payload in (1, 1, 1, 1, 1):
            line.send(request("dover", payload))
            assert line.answer().status == 200
        found = scrape(server, config["metrics"]["port"])
    route = {"route": "/api/v1/notification", "method": "POST"}
    assert found.value("aviso_http_requests_total", **route, status_code="200") == 5
    assert found.value("aviso_http_request_duration_seconds_count", **route) == 5
    assert found.value("aviso_http_requests_in_flight", method="POST") == 0
    assert found.value("aviso_notifications_total", event_type="tide", status="success") == 5


def test_a_full_disk_is_told_and_over_when_there_is_room(tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path) as server, Line(server) as line:
        for _ in range(3):
            line.send(request("dover", 1))
            assert line.answer().status == 200
        before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        line.send(request("dover", 2))
        refused = line.answer()
        assert refused.status == 500
        assert refused.body["code"] == "NOTIFICATION_STORAGE_FAILED"
        assert list(refused.body) == sorted(refused.body)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        deadline = time.monotonic() + 60
        while True:
            line.send(request("dover", 3))
            if line.answer().status == 200:
                break
            assert time.monotonic() < deadline
        assert stored(server) == [1, 1, 1, 3]


def test_leaving_while_publishers_are_busy(tmp_path: Path) -> None:
    acknowledged = 0
    with Server(CONFIG, tmp_path) as server:
        with Line(server) as line:
            for number in range(500):
                if number == 200:
                    server.signal(signal.SIGTERM)
                try:
                    line.send(request("dover", 1000 + number))
                    assert line.answer().status == 200
                except ConnectionError:
                    break
                acknowledged += 1
        assert server.wait() == 0
        assert acknowledged >= 200
        server.start()
        assert stored(server)[:acknowledged] == list(range(1000, 1000 + acknowledged))
