"""N. Limits of the in_memory backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.configuration import changed, conformance, read
from tests.conformance.conftest import Launch
from tests.conformance.expectations import payloads
from tests.conformance.samples import DISSEMINATION, MARS, but
from tests.harness import Client, Server, StartFailed

OD = {"class": "od"}


@pytest.fixture(scope="module", params=["in_memory"])
def backend(request: pytest.FixtureRequest) -> str:
    """These limits belong to one backend."""
    return str(request.param)


@pytest.fixture
def small(launch: Launch) -> Client:
    """A server that keeps one notification per topic and two topics."""
    return launch({"notification_backend": {"in_memory": {"max_history_per_topic": 1, "max_topics": 2}}}).client


def publish(client: Client, *steps: int) -> None:
    for step in steps:
        client.publish("mars", but(MARS, step=step), step)


def test_case_190_newest_of_a_topic(small: Client) -> None:
    small.publish("mars", MARS, "first")
    small.publish("mars", MARS, "second")
    (event,) = small.replay("mars", OD).notifications
    assert event["data"]["payload"] == "second"
    assert event["sequence"] == 2


def test_case_191_evicted_topic(small: Client) -> None:
    publish(small, 1, 2, 1, 3)
    assert payloads(small.replay("mars", OD)) == [1, 3]


def test_case_191_topics_of_all_streams_count(small: Client) -> None:
    publish(small, 1)
    small.publish("dissemination", DISSEMINATION, "x")
    small.publish("dissemination", but(DISSEMINATION, step=2), "y")
    assert payloads(small.replay("mars", OD)) == []
    assert payloads(small.replay("dissemination", {**OD, "destination": "FOO"})) == ["x", "y"]


def test_one_notification_per_topic_by_default(tmp_path: Path) -> None:
    configuration = conformance("in_memory", without=["notification_backend"]) | {
        "notification_backend": {"kind": "in_memory"}
    }
    with Server(configuration, tmp_path) as server:
        publish(server.client, 1, 1, 2)
        assert [event["sequence"] for event in server.client.replay("mars", OD).notifications] == [2, 3]


def test_case_192_sequences_belong_to_a_stream(launch: Launch) -> None:
    client = launch().client
    publish(client, 1)
    client.publish("dissemination", DISSEMINATION, "x")
    publish(client, 2)
    assert [event["id"] for event in client.replay("mars", OD).notifications] == ["mars@1", "mars@2"]
    (event,) = client.replay("dissemination", {**OD, "destination": "FOO"}).notifications
    assert event["id"] == "dissemination@1"


def test_case_193_restart(launch: Launch) -> None:
    server = launch()
    publish(server.client, 1, 2)
    server.restart()
    assert server.client.replay("mars", OD).notifications == []
    publish(server.client, 3)
    assert [event["id"] for event in server.client.replay("mars", OD).notifications] == ["mars@1"]


POLICIES = {
    "retention_time": "7d",
    "max_messages": 5000,
    "max_size": "64Mi",
    "allow_duplicates": True,
    "compression": True,
}


@pytest.mark.parametrize("member", POLICIES)
def test_case_194_no_storage_policy(tmp_path: Path, member: str) -> None:
    plain = changed(read("plain"), {"notification_schema": {"tide": {"storage_policy": {member: POLICIES[member]}}}})
    plain["notification_backend"] = {"kind": "in_memory"}
    with pytest.raises(StartFailed) as failure:
        Server(plain, tmp_path).start()
    assert failure.value.exit_code != 0
    assert f"storage_policy.{member}" in failure.value.output
