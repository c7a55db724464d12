"""A rolling restart as the chart has it: every pod is replaced while clients publish and listen, and nobody notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.client.connection import connect
from tests.client.listening import Listening
from tests.deploy.cluster import Pod, Service
from tests.deploy.rendering import documents
from tests.faults.recorder import Publisher, Watcher, assert_record, configuration, stored
from tests.harness.broker import single, wait_until


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The chart for two servers on a real broker, with ports that are free here."""
    with single(tmp_path / "broker") as broker:
        config = {**configuration(broker.url), "metrics": {"enabled": False}}
        yield documents({"replicaCount": 2, "preStopSeconds": 3, "config": config})


@pytest.mark.long  # every pod is given its time to end
def test_every_pod_is_replaced_and_nothing_is_lost_or_doubled(
    deployment: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    replicas = deployment["Deployment"]["spec"]["replicas"]
    rolling = deployment["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}, "one more is ready before one leaves"
    with ExitStack() as running:

        def started(number: int) -> Pod:
            pod = Pod(deployment, tmp_path / f"pod{number}")
            running.callback(pod.kill)
            return pod

        service = running.enter_context(Service())
        first = [started(number) for number in range(replicas)]
        for pod in first:
            pod.wait_until_ready()
        service.pods = tuple(first)
        everyone = cast(Any, [service])
        publishers = [running.enter_context(Publisher(name, everyone)) for name in ("a", "b")]
        watchers = [running.enter_context(Watcher(everyone, wanted)) for wanted in ({}, {"place": "b"}) * replicas]
        listening = Listening(connect(cast(Any, service)).listen("tide", start_from=0))
        running.callback(listening.close)
        wait_until(lambda: all(watcher.received for watcher in watchers))
        for number, old in enumerate(first):
            new = started(replicas + number)
            new.wait_until_ready()
            service.pods = (*(pod for pod in service.pods if pod is not old), new)
            code, left = old.end()
            assert code == 0
            assert left > 0, "it was done within its grace period"
        before = [len(publisher.acknowledged) for publisher in publishers]
        wait_until(lambda: all(len(each.acknowledged) > count for each, count in zip(publishers, before, strict=True)))
        for publisher in publishers:
            publisher.stop()
            assert publisher.doubtful == [], "no publish was refused or cut off"
        assert_record(publishers, watchers, cast(Any, service))
        ended = sum(watcher.reasons["server_shutdown"] for watcher in watchers)
        assert ended >= len(watchers), "each first pod said goodbye to those who were there"
        everything = stored(cast(Any, service))
        received = listening.take(len(everything))
        assert [(each.sequence, each.payload) for each in received] == everything
