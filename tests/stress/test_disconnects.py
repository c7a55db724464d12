"""Clients that vanish without a word are let go."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import Client, Server
from tests.stress.configuration import configuration
from tests.stress.sockets import open_sockets, request, reset

COUNT = 20
WATCH = request("watch", "tide", {})
CHILD = """
import socket, sys, time
connections = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
for connection in connections:
    connection.sendall(sys.argv[4].encode())
    connection.recv(100)
print("open", flush=True)
time.sleep(60)
"""


class Measured(Server):
    """A server that tells how many streams it has open; its watchers get a sign of life every second."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.metrics = Client("127.0.0.1", free.getsockname()[1])
        settings = configuration(
            watch_endpoint={"sse_heartbeat_interval_sec": 1, "buffer_bytes": 65_536},
            metrics={"enabled": True, "port": self.metrics.port},
        )
        super().__init__(settings, directory)

    def open_streams(self) -> float:
        """How many streams the server believes to have open."""
        lines = self.metrics.get("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("aviso_sse_connections_active{"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """One server for all tests here."""
    with Measured(tmp_path_factory.mktemp("server")) as server:
        assert isinstance(server, Measured)
        yield server


def connected(server: Measured, sent: bytes = WATCH) -> list[socket.socket]:
    connections = [socket.create_connection((server.host, server.port), timeout=60) for _ in range(COUNT)]
    for connection in connections:
        connection.sendall(sent)
    return connections


def opened(server: Measured) -> list[socket.socket]:
    connections = connected(server)
    for connection in connections:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    return connections


def idle(server: Measured) -> int:
    """The number of sockets of the server when nobody is connected."""
    deadline, counts = time.monotonic() + 60, [-2, -1]
    while counts[-1] != counts[-2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        counts.append(open_sockets(server))
    return counts[-1]


def freed(server: Measured, before: int) -> None:
    """Wait until all connections of the test are gone, and see that the server is well."""
    deadline = time.monotonic() + 60
    while open_sockets(server) > before:
        assert time.monotonic() < deadline, f"{open_sockets(server)} sockets, {before} before"
        time.sleep(0.05)
    while server.open_streams():
        assert time.monotonic() < deadline, f"{server.open_streams()} streams are still open"
        time.sleep(0.05)
    with server.client.watch("tide", {}) as stream:
        stream.until("connection_established")
        server.client.publish("tide", {"port": "oslo", "level": 1}, "still there")
        assert stream.notification()["data"]["payload"] == "still there"


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [reset, socket.socket.close, half_close])
def test_watchers_that_leave(server: Measured, leave: Callable[[socket.socket], None]) -> None:
    before = idle(server)
    connections = opened(server)
    assert open_sockets(server) == before + COUNT
    assert server.open_streams() == COUNT
    for connection in connections:
        leave(connection)
    freed(server, before)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("behind", [WATCH, b"GET /health HTTP/1.1\r\n\r\n", b"GET /hea", b"no request\r\n\r\n"])
@pytest.mark.parametrize("leave", [reset, socket.socket.close, half_close])
def test_watchers_that_leave_with_another_request_behind(
    server: Measured, leave: Callable[[socket.socket], None], behind: bytes
) -> None:
    before = idle(server)
    with server.client.watch("tide", {}) as other:
        other.until("connection_established")
        connections = connected(server, WATCH + behind)
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        for connection in connections:
            leave(connection)
        for number in range(3):
            server.client.publish("tide", {"port": "oslo", "level": 1}, number)
            assert other.notification()["data"]["payload"] == number
        assert server.client.get("/ready").json() == {"status": "ready", "backend_connected": True}
    freed(server, before)
    for connection in connections:
        connection.close()
    assert "Traceback" not in server.stdout + server.stderr


def test_leaving_with_requests_behind_streams(tmp_path: Path) -> None:
    with Measured(tmp_path) as server:
        assert isinstance(server, Measured)
        connections = [
            each for behind in (b"", WATCH, WATCH[:-5], b"GET /hea") for each in connected(server, WATCH + behind)
        ]
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        for connection in connections[::2]:
            reset(connection)
        server.client.publish("tide", {"port": "oslo", "level": 1})
        server.signal(signal.SIGTERM)
        assert server.wait() == 0  # in half of the grace period
        for connection in connections[1::2]:
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
            assert b"server_shutdown" in received
            connection.close()
        assert "Traceback" not in server.stdout + server.stderr


def test_watchers_that_leave_while_the_server_waits_for_them(server: Measured) -> None:
    before = idle(server)
    connections = opened(server)
    server.client.publish_many("tide", [({"port": "oslo", "level": 1}, "x" * 100_000)] * 60)
    for connection in connections:
        reset(connection)
    freed(server, before)


def test_clients_that_are_killed(server: Measured) -> None:
    before = idle(server)
    arguments = [server.host, str(server.port), str(COUNT), WATCH.decode()]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        assert open_sockets(server) >= before + COUNT
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    freed(server, before)


@pytest.mark.parametrize("sent", [b"", WATCH[:20], WATCH[:-5]], ids=["nothing", "half a head", "half a body"])
def test_requests_that_are_never_finished(server: Measured, sent: bytes) -> None:
    before = idle(server)
    connections = connected(server, sent)
    time.sleep(0.1)
    for connection in connections:
        reset(connection)
    freed(server, before)


def test_clients_that_leave_in_the_middle_of_history(server: Measured) -> None:
    before = idle(server)
    server.client.publish_many("gale", [({"port": "oslo", "level": 1}, "x" * 100_000)] * 60)
    for operation in ("watch", "replay"):
        connections = connected(server, request(operation, "gale", {}, from_id="1"))
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            reset(connection)
    freed(server, before)
    assert "Traceback" not in server.stdout + server.stderr
