"""An altered notification over HTTP: an `error` frame and the end of the stream, never a frame that is not JSON."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviso_server.log.sqlite.database import DATABASE
from tests.harness import Server
from tests.harness.client import JSON, body, encode
from tests.harness.patience import PATIENCE
from tests.harness.sse import EventStream
from tests.stress.configuration import configuration

COUNT = 300
DAMAGED = 200


def publish(server: Server, count: int, size: int = 20) -> None:
    pairs = [({"port": "oslo", "level": number}, f"needle-{number:05d}" + "x" * size) for number in range(1, count + 1)]
    server.client.publish_many("tide", pairs)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has one byte altered: the quotation mark that ends a payload."""
    with Server(configuration(), tmp_path_factory.mktemp("damaged")) as server:
        publish(server, COUNT)
        server.stop()
        file = server.directory / "log" / DATABASE
        content = bytearray(file.read_bytes())
        needle = b'"needle-%05d%b"' % (DAMAGED, b"x" * 20)
        assert content.count(needle) == 1
        content[content.index(needle) + len(needle) - 1] ^= 0x40
        file.write_bytes(content)
        yield server.start()


def assert_sound_up_to_the_damage(stream: EventStream) -> None:
    found = [(each["sequence"], each["data"]["payload"][:12]) for each in stream.notifications]
    assert found == [(number, f"needle-{number:05d}") for number in range(1, len(found) + 1)]
    assert len(found) < DAMAGED
    *_, error, closing = [frame for frame in stream.frames if frame.event != "heartbeat"]
    assert (error.event, error.data["error"]) == ("error", "stream_processing_failed")
    assert f"1 notification (sequence {DAMAGED})" in error.data["message"]
    assert (closing.event, closing.data["reason"]) == ("connection-closing", "end_of_stream")


@pytest.mark.parametrize("identifier", [{"port": "*"}, {"port": "oslo", "level": {"gte": 0}}], ids=["all", "filtered"])
@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_history_ends_with_an_error_at_an_altered_notification(
    damaged: Server, operation: str, identifier: dict[str, Any]
) -> None:
    with damaged.client.open(operation, body("tide", identifier, from_id="1"), JSON) as stream:
        stream.rest()
        assert_sound_up_to_the_damage(stream)


def test_what_lies_behind_the_damage_is_served(damaged: Server) -> None:
    with damaged.client.replay("tide", {"port": "*"}, from_id=str(DAMAGED + 1)) as stream:
        stream.rest()
        assert [each["sequence"] for each in stream.notifications] == [*range(DAMAGED + 1, COUNT + 1)]
        assert stream.kinds[-2:] == ["replay_completed", "connection-closing"]


def test_a_slow_watcher_that_catches_up_from_the_log_gets_an_error(tmp_path: Path) -> None:
    with Server(configuration(), tmp_path) as server:
        request = encode(body("tide", {"port": "*"}))
        with EventStream(server.host, server.port, "/api/v1/watch", request, JSON, receive_buffer=4096) as slow:
            publish(server, COUNT, 100_000)
            with sqlite3.connect(tmp_path / "log" / DATABASE, timeout=PATIENCE) as connection:
                changed = connection.execute(
                    "UPDATE stream_1 SET payload = substr(payload, 1, length(payload) - 1) WHERE sequence = ?",
                    (DAMAGED,),
                )
                assert changed.rowcount == 1
            connection.close()
            slow.rest()
            assert_sound_up_to_the_damage(slow)
