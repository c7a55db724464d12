"""J. Stream scripts that need their own configuration: pacing, limits, ends and faults."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.conformance.conftest import Launch
from tests.conformance.expectations import steps
from tests.conformance.samples import MARS, but
from tests.harness import Client, EventStream
from tests.harness.broker import wait_until
from tests.harness.client import JSON, body, encode
from tests.harness.patience import PATIENCE

OD = {"class": "od"}


def publish(client: Client, count: int, first: int = 0) -> None:
    client.publish_many("mars", ((but(MARS, step=step), step) for step in range(first, first + count)))


@pytest.fixture(scope="module")
def hurried(launch: Launch) -> Client:
    """Heartbeats every second, two seconds per watch, and a replay that takes longer than that."""
    endpoint = {
        "sse_heartbeat_interval_sec": 1,
        "connection_max_duration_sec": 2,
        "replay_batch_size": 1,
        "replay_batch_delay_ms": 100,
    }
    client = launch({"watch_endpoint": endpoint}).client
    publish(client, 25)
    return client


def assert_closed_after(stream: EventStream, asked: float, seconds: float) -> None:
    closing = stream.frames[-1]
    assert (closing.event, closing.data["reason"]) == ("connection-closing", "max_duration_reached")
    assert seconds - 0.1 < closing.at - asked < seconds + PATIENCE


def test_case_141_142_heartbeats_and_duration(hurried: Client) -> None:
    """One heartbeat at once and then one per second; two seconds end a watch, but not a replay."""
    asked = time.monotonic()
    with (
        hurried.watch("mars", OD) as live,
        hurried.watch("mars", OD, from_id="1") as replaying,
        hurried.open("replay", body("mars", OD, from_id="1")) as replay,
    ):
        readers = [threading.Thread(target=stream.rest) for stream in (live, replaying, replay)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert live.frames[0].data["connection_will_close_in_seconds"] == 2
    assert_closed_after(live, asked, 2)
    assert_closed_after(replaying, asked, 2)
    assert "replay_completed" not in replaying.kinds

    assert live.frames[1].event == "heartbeat"
    assert [frame.event for frame in live.frames].count("heartbeat") in (2, 3)
    assert "heartbeat" in {frame.event for frame in replaying.frames}

    assert replay.frames[-1].data["reason"] == "end_of_stream"
    assert replay.frames[-1].at - asked > 2.3
    assert steps(replay) == list(range(25))
    assert "heartbeat" not in {frame.event for frame in replay.frames}


def test_case_143_shutdown(launch: Launch) -> None:
    server = launch()
    publish(server.client, 2)
    with server.client.watch("mars", OD) as live, server.client.watch("mars", OD, from_id="1") as both:
        live.until("connection_established")
        both.until("replay_completed")
        server.signal(signal.SIGTERM)
        for stream in (live, both):
            closing = stream.rest()[-1]
            assert closing.event == "connection-closing"
            assert closing.data["reason"] == "server_shutdown"
            assert closing.data["request_id"] == stream.request_id
            assert stream.ended
    assert server.wait() == 0


@pytest.fixture(scope="module")
def paced_server(launch: Launch) -> Client:
    return launch({"watch_endpoint": {"replay_batch_size": 100, "replay_batch_delay_ms": 100}}).client


@pytest.fixture
def paced(paced_server: Client) -> Client:
    """A server that pauses between batches and holds 250 notifications."""
    paced_server.wipe_all()
    publish(paced_server, 250)
    return paced_server


def test_case_144_batches(paced: Client) -> None:
    def pauses() -> list[int]:
        """After how many notifications the server paused, as far as a client sees it who may be slow itself."""
        began = time.monotonic()
        stream = paced.replay("mars", OD)
        assert time.monotonic() - began >= 0.2
        assert steps(stream) == list(range(250))
        arrivals = [frame.at for frame in stream.frames if frame.kind == "notification"]
        return [place for place in (100, 200) if arrivals[place] - arrivals[place - 1] > 0.08]

    wait_until(lambda: pauses() == [100, 200])


def test_case_147_published_while_replaying(paced: Client) -> None:
    with paced.watch("mars", OD, from_id="1") as stream:
        stream.until("notification")
        publish(paced, 10, first=250)
        while len(stream.notifications) < 260:
            stream.notification()
        publish(paced, 1, first=260)
        stream.notification()
    assert steps(stream) == list(range(261))
    events = [frame.event for frame in stream.frames if frame.kind == "notification"]
    assert events == ["replay"] * 250 + ["live-notification"] * 11
    assert stream.kinds.index("replay_completed") == 251


def test_a_replay_ends_at_its_boundary(paced: Client) -> None:
    with paced.open("replay", body("mars", OD, from_id="1")) as stream:
        stream.until("notification")
        publish(paced, 5, first=250)
        stream.rest()
    assert steps(stream) == list(range(250))


@pytest.fixture(scope="module")
def capped(launch: Launch) -> Client:
    """A server that replays at most two notifications; it holds three of class od and two of class rd."""
    client = launch({"watch_endpoint": {"max_historical_notifications": 2}}).client
    for step, kind in enumerate(["od", "rd", "od", "rd", "od"]):
        client.publish("mars", {**MARS, "class": kind, "step": step})
    return client


def assert_limited(stream: EventStream) -> None:
    assert stream.kinds == [
        "replay_started",
        "notification",
        "notification",
        "notification_replay_limit_reached",
        "connection-closing",
    ]
    limit = next(frame for frame in stream.frames if frame.kind == "notification_replay_limit_reached")
    assert limit.event == "replay-control"
    assert set(limit.data) == {"type", "topic", "max_allowed", "message", "timestamp"}
    assert limit.data["max_allowed"] == 2
    assert isinstance(limit.data["message"], str)
    assert stream.frames[-1].data["reason"] == "end_of_stream"


@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_case_148_over_the_cap(capped: Client, operation: str) -> None:
    with capped.open(operation, body("mars", OD, from_id="1")) as stream:
        stream.rest()
    assert_limited(stream)
    assert steps(stream) == [0, 2]


def test_case_148_exactly_at_the_cap(capped: Client) -> None:
    stream = capped.replay("mars", {"class": "rd"})
    assert stream.kinds == ["replay_started", *["notification"] * 2, "replay_completed", "connection-closing"]
    with capped.watch("mars", {"class": "rd"}, from_id="1") as watch:
        watch.until("replay_completed")


def test_case_148_filtered_out_does_not_count(capped: Client) -> None:
    stream = capped.replay("mars", {"class": "*", "step": {"between": [3, 4]}})
    assert steps(stream) == [3, 4]
    assert "replay_completed" in stream.kinds


def test_case_148_live_is_never_limited(capped: Client) -> None:
    with capped.watch("mars", {"class": "zz"}) as stream:
        stream.until("connection_established")
        for step in range(4):
            capped.publish("mars", {**MARS, "class": "zz", "step": step})
        assert [stream.notification()["data"]["identifier"]["step"] for _ in range(4)] == ["0", "1", "2", "3"]


def test_batches_are_not_delayed_by_default(launch: Launch) -> None:
    client = launch().client
    publish(client, 320)
    stream = client.replay("mars", OD)
    assert steps(stream) == list(range(320))
    arrivals = [frame.at for frame in stream.frames if frame.kind == "notification"]
    assert min(arrivals[edge] - arrivals[edge - 1] for edge in (100, 200, 300)) < 0.08


def test_requests_in_flight_are_answered_on_shutdown(launch: Launch) -> None:
    """What was answered with 200 before the end is what the log holds; nobody gets a broken answer."""
    server = launch()
    request = encode(body("mars", MARS))
    answers: list[int] = []

    def publisher() -> None:
        for _ in range(10_000):
            try:
                answers.append(server.client.request("POST", "/api/v1/notification", request, JSON).status)
            except OSError:
                return

    threads = [threading.Thread(target=publisher) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(answers) < 20:
        time.sleep(0.01)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    for thread in threads:
        thread.join()
    assert set(answers) == {200}


def test_defaults_of_the_watch_endpoint(launch: Launch) -> None:
    """A section with one member keeps the defaults of the others."""
    server = launch({"watch_endpoint": {"replay_batch_size": 7}})
    with server.client.watch("mars", OD) as stream:
        assert stream.next().data["connection_will_close_in_seconds"] == 3600
        assert server.client.replay("mars", OD).frames[0].data["batch_size"] == 7
