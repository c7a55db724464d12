"""J. What happens when the log under a running server fails. Real faults in a real database."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.conformance.conftest import Launch
from tests.conformance.expectations import payloads
from tests.conformance.samples import MARS
from tests.harness import Client, Server
from tests.harness.client import body

OD = {"class": "od"}


@pytest.fixture(scope="module", params=["sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    """Memory does not fail."""
    return str(request.param)


@pytest.fixture
def fragile(launch: Launch) -> Server:
    """A server of its own for each fault, with one notification stored."""
    server = launch()
    server.client.publish("mars", MARS, "before")
    return server


def database(server: Server) -> Path:
    (path,) = [
        path
        for path in (server.directory / "log").rglob("*")
        if path.is_file() and path.read_bytes()[:15] == b"SQLite format 3"
    ]
    return path


@contextmanager
def tables_missing(server: Server, *columns: str) -> Iterator[None]:
    """Take away the tables that have all of these columns, as a damaged database would."""
    with closing(sqlite3.connect(database(server), isolation_level=None)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        chosen = [
            name for name in names if not name.startswith("sqlite_") and columns_of(connection, name) >= {*columns}
        ]
        assert chosen
        for name in chosen:
            connection.execute(f'ALTER TABLE "{name}" RENAME TO "gone_{name}"')
        try:
            yield
        finally:
            for name in chosen:
                connection.execute(f'ALTER TABLE "gone_{name}" RENAME TO "{name}"')


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}


@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_case_149_history_cannot_be_read(fragile: Server, operation: str) -> None:
    with tables_missing(fragile, "payload"), fragile.client.open(operation, body("mars", OD, from_id="1")) as stream:
        assert stream.status == 200
        stream.rest()
    assert stream.kinds == ["replay_started", "error", "connection-closing"]
    error = next(frame.data for frame in stream.frames if frame.event == "error")
    assert set(error) == {"error", "message", "topic", "request_id"}
    assert error["error"] == "stream_processing_failed"
    assert error["topic"] == "mars.od.*.*.*.*.*.*"
    assert error["request_id"] == stream.request_id
    assert stream.frames[-1].data["reason"] == "end_of_stream"
    assert payloads(fragile.client.replay("mars", OD)) == ["before"]


def test_case_150_end_of_a_replay_cannot_be_found(fragile: Server) -> None:
    """Where a replay ends has to be known before it begins."""
    with tables_missing(fragile):
        request = body("mars", OD, from_id="1", to_date="2100-01-01T00:00:00Z")
        response = fragile.client.answer("replay", request)
    assert response.status == 500
    refusal = response.json()
    assert set(refusal) == {"code", "details", "error", "message", "request_id", "topic"}
    assert refusal["code"] == "SSE_STREAM_INITIALIZATION_FAILED"
    assert refusal["error"] == "SSE stream creation failed"
    assert refusal["topic"] == "mars.od.*.*.*.*.*.*"
    assert refusal["request_id"] == response.header("x-request-id")
    assert payloads(fragile.client.replay("mars", OD)) == ["before"]


@contextmanager
def disk_full(server: Server) -> Iterator[None]:
    """No file of the process may grow."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


def assert_storage_failed(client: Client) -> None:
    response = client.notify("mars", MARS, "lost")
    assert response.status == 500
    assert response.header("content-type") == "application/json"
    refusal = response.json()
    assert set(refusal) == {"code", "details", "error", "message", "request_id"}
    assert refusal["code"] == "NOTIFICATION_STORAGE_FAILED"
    assert refusal["error"] == "Notification Storage Failed"
    assert refusal["request_id"] == response.header("x-request-id")


def test_case_151_disk_full(fragile: Server) -> None:
    client = fragile.client
    with client.watch("mars", OD) as watch:
        watch.until("connection_established")
        with disk_full(fragile):
            assert_storage_failed(client)
            assert_storage_failed(client)
            assert client.get("/health").status == 200
            assert payloads(client.replay("mars", OD)) == ["before"]
        client.publish("mars", MARS, "after")
        event = watch.notification()
    assert event["data"]["payload"] == "after"
    stored = client.replay("mars", OD).notifications
    assert [event["data"]["payload"] for event in stored] == ["before", "after"]
    assert [event["sequence"] for event in stored] == [1, 2]
    fragile.restart()
    assert fragile.client.replay("mars", OD).notifications == stored
