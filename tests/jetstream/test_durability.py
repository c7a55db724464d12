"""Streams on the broker that keep less than the configuration promises."""

from __future__ import annotations

from pathlib import Path

from tests.harness import Server
from tests.harness.broker import ask, publish, single
from tests.jetstream.recorder import configuration


def test_a_stream_in_memory_with_too_few_replicas_is_named_at_the_start(tmp_path: Path) -> None:
    with single(tmp_path / "broker") as broker:
        plain = {"name": "TIDE", "subjects": ["tide.>"], "storage": "memory", "num_replicas": 1}
        assert "error" not in ask(broker.url, "STREAM.CREATE.TIDE", plain)
        publish(broker.url, ("tide.x.1", b"1", None))
        with Server(configuration(broker.url, replicas=3), tmp_path / "server") as server:
            said = server.stdout + server.stderr
            assert "stream TIDE is kept in memory on the broker" in said
            assert "stream TIDE has 1 replica(s) on the broker, though replicas is 3" in said
