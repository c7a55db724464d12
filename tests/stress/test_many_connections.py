"""A server at its limit of connections says so, and goes on serving."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

from tests.harness import Client, Server
from tests.harness.client import JSON, body, encode
from tests.stress.configuration import configuration

LIMIT = 10


def refused(client: Client) -> None:
    for response in (client.get("/health"), client.notify("tide", {"port": "oslo", "level": 1})):
        assert response.status == 503
        assert response.json()["code"] == "SERVICE_UNAVAILABLE"
        assert response.json()["request_id"] == response.header("x-request-id")
        assert response.header("retry-after") is not None


def test_the_limit_of_connections(tmp_path: Path) -> None:
    with Server(configuration(limits={"max_connections": LIMIT}), tmp_path) as server:
        client = server.client
        publisher = http.client.HTTPConnection(server.host, server.port, timeout=60)
        publisher.connect()
        watches = [client.watch("tide", {}) for _ in range(LIMIT - 1)]
        for watch in watches:
            watch.until("connection_established")
        for _ in range(3):
            refused(client)
        # those who are inside are served as before
        request = encode(body("tide", {"port": "oslo", "level": 1}, payload="inside"))
        publisher.request("POST", "/api/v1/notification", request, dict(JSON))
        assert publisher.getresponse().read().startswith(b'{"status":"success"')
        for watch in watches:
            assert watch.notification()["data"]["payload"] == "inside"
        refused(client)
        # and a place that becomes free is given away
        watches.pop().close()
        deadline = time.monotonic() + 60
        while client.get("/health").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.publish("tide", {"port": "oslo", "level": 1}, "again")
        for watch in watches:
            assert watch.notification()["data"]["payload"] == "again"
            watch.close()
        publisher.close()


def test_no_more_connections_than_the_system_has_files_for(tmp_path: Path) -> None:
    with Server(configuration(), tmp_path, open_files=100) as server:
        assert "no more than 36 connections are possible" in server.stdout
        assert "the system allows 100 open files" in server.stdout
        watches = [server.client.watch("tide", {}) for _ in range(36)]
        for watch in watches:
            watch.until("connection_established")
        for _ in range(3):
            refused(server.client)
        for watch in watches:
            watch.close()
