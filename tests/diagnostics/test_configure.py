"""What a running server writes: the right events, each with its request, and never a secret."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Server
from tests.harness.client import body

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {
        "kind": "in_memory",
        "jetstream": {"token": "s3cr3t-token", "nats_url": "nats://u:hush@h"},
    },
    "notification_schema_strict": False,
    "notification_schema": {
        "tide": {
            "topic": {"base": "tides", "key_order": ["port"]},
            "identifier": {"port": {"type": "StringHandler", "required": True}},
        }
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIG, tmp_path_factory.mktemp("logged")) as running:
        yield running


def records(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.stdout.splitlines()]


def found(server: Server, event: str, request_id: str | None = None) -> dict[str, Any]:
    """The record of an event; it may take a moment to arrive."""
    deadline = time.monotonic() + 60
    while True:
        for line in records(server):
            attributes = line["attributes"]
            if attributes.get("event.name") == event and request_id in (None, attributes.get("request_id")):
                return line
        assert time.monotonic() < deadline, f"no record {event} for {request_id}"
        time.sleep(0.02)


def test_start(server: Server) -> None:
    assert found(server, "startup.configuration.loaded")["attributes"]["event_types"] == ["tide"]
    dumped = found(server, "startup.configuration.dumped")
    assert dumped["attributes"]["configuration"]["notification_backend"]["kind"] == "in_memory"
    assert found(server, "startup.server.started")["severityText"] == "INFO"
    assert found(server, "configuration.schema_strict.explicit_disabled")["severityText"] == "WARN"
    assert "s3cr3t" not in server.stdout
    assert "hush" not in server.stdout


def test_keys_that_nothing_reads(tmp_path: Path) -> None:
    config = {**CONFIG, "watch_endpoints": {"replay_batch_size": 7}, "spare": 1}
    with Server(config, tmp_path) as server:
        found(server, "startup.server.started")
        warnings = [line for line in records(server) if line["severityText"] == "WARN"]
    unknown = sorted(line["body"].partition("config.yaml")[2] for line in warnings if "unknown key" in line["body"])
    assert [text.partition(": ")[2] for text in unknown] == [
        "watch_endpoints: unknown key, ignored; did you mean watch_endpoint?",
        "spare: unknown key, ignored; it has no effect",
    ]


@pytest.mark.parametrize(
    ("operation", "request_body", "event", "severity"),
    [
        ("notification", b"{", "api.request.parse.failed", "WARN"),
        ("watch", body("tide", {}, colour="red"), "api.request.parse.failed", "WARN"),
        ("notification", body("tide", {}), "api.request.validation.failed", "WARN"),
        ("replay", body("tide", {"port": "x"}), "api.request.validation.failed", "WARN"),
        ("notification", b" " * 300_000, "api.request.limit.reached", "WARN"),
        ("notification", body("tide", {"port": "x"}), "api.notification.processed", "INFO"),
        ("watch", body("tide", {"port": "x"}), "api.watch.stream.established", "INFO"),
        ("replay", body("tide", {"port": "x"}, from_id="1"), "api.replay.stream.established", "INFO"),
    ],
)
def test_requests(server: Server, operation: str, request_body: Any, event: str, severity: str) -> None:
    answer = server.client.answer(operation, request_body)
    line = found(server, event, answer.header("x-request-id"))
    assert line["severityText"] == severity
    assert (line["attributes"]["username"], line["attributes"]["auth_realm"]) == ("anonymous", "none")


@pytest.mark.parametrize(
    ("operation", "more", "event"),
    [
        ("notification", {}, "api.notification.processed"),
        ("watch", {}, "api.watch.stream.established"),
        ("replay", {"from_id": "1"}, "api.replay.stream.established"),
    ],
)
def test_event_type_and_topic_are_for_people(server: Server, operation: str, more: Any, event: str) -> None:
    answer = server.client.answer(operation, body("tide", {"port": "a.b*c"}, **more))
    said = found(server, event, answer.header("x-request-id"))["attributes"]
    assert said["event_type"] == "tide"
    assert said["topic"] == "tides.a.b*c"


def test_not_http(server: Server) -> None:
    with socket.create_connection((server.host, server.port), timeout=60) as client:
        client.sendall(b"hello\r\n\r\n")
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    [request_id] = [line[14:] for line in answer.decode().split("\r\n") if line.startswith("x-request-id: ")]
    assert found(server, "api.request.malformed", request_id)["severityText"] == "WARN"


def test_administration(server: Server) -> None:
    api = server.client
    wiped = api.delete("/api/v1/admin/wipe/stream", {"stream_name": "tide"})
    for event in ("admin.stream.wipe.requested", "admin.stream.wipe.succeeded"):
        assert found(server, event, wiped.header("x-request-id"))["severityText"] == "INFO"
    missing = api.delete("/api/v1/admin/wipe/stream", {"stream_name": "nobody"})
    assert found(server, "admin.stream.wipe.not_found", missing.header("x-request-id"))["severityText"] == "WARN"
    bad = api.delete("/api/v1/admin/notification/nonsense")
    assert found(server, "admin.notification.delete.invalid_id", bad.header("x-request-id"))["severityText"] == "WARN"
    everything = api.delete("/api/v1/admin/wipe/all")
    assert found(server, "admin.all.wipe.succeeded", everything.header("x-request-id"))


def test_credentials_sent_to_us_are_never_logged(server: Server) -> None:
    headers = (("Authorization", "Bearer hush.hush.hush"), ("Content-Type", "application/json"))
    server.client.answer("notification", b"{", headers)
    server.client.answer("notification", body("tide", {"port": "x"}), headers)
    assert "hush" not in server.stdout


def test_stop(tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path) as running:
        assert running.stop() == 0
        events = [line["attributes"].get("event.name") for line in records(running)]
    assert events[-3:] == ["startup.signal.sigterm.received", "startup.shutdown.received", "startup.server.stopped"]
