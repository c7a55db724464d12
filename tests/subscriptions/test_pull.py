"""Pull: workers share a queue, each notification with one of them at a time, and none is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aviso_server.subscriptions.subscription import MAX_BATCH
from tests.harness import Response, Server
from tests.harness.metrics import scrape, with_metrics
from tests.harness.patience import PATIENCE
from tests.subscriptions.receiver import until
from tests.subscriptions.scene import Api, configuration, publish


def heights(works: list[Any]) -> list[int]:
    return [each["event"]["data"]["payload"]["height"] for each in works]


def leases(works: list[Any]) -> dict[str, list[str]]:
    return {"leases": [each["lease"] for each in works]}


def test_what_is_acknowledged_is_done(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, 1, 2, 3)
    first = api.pull("queue", max=2)
    assert (heights(first), [each["attempt"] for each in first]) == ([1, 2], [1, 1])
    assert first[0]["event"]["type"] == "int.ecmwf.aviso.wave"
    shown = api.show("queue")
    assert (shown["in_flight"], shown["next_sequence"]) == (2, first[0]["event"]["sequence"])
    answer = api.ok("POST", "/queue/ack", leases(first))
    assert (answer["done"], answer["unknown"]) == (2, [])
    rest = api.pull("queue", max=10)
    assert heights(rest) == [3]
    api.ok("POST", "/queue/ack", leases(rest))
    shown = api.show("queue")
    assert (shown["in_flight"], shown["delivered"], shown["lag"]) == (0, 3, 0)
    assert api.pull("queue", max=10) == []
    assert api.ok("POST", "/queue/ack", leases(rest))["unknown"] == leases(rest)["leases"], "only once"


def test_what_nobody_pulls_grows_old(tmp_path: Path) -> None:
    config = with_metrics(configuration())
    with Server(config, tmp_path) as server:
        api = Api(server.client)

        def waits() -> bool:
            """Whether the answer and the metric say so; both must agree."""
            metric = scrape(server, config["metrics"]["port"]).value
            in_metrics = metric("aviso_subscription_lag_seconds", event_type="wave", delivery="pull")
            shown = api.show("queue")["lag_seconds"]
            assert (in_metrics > 0) == (shown > 0)
            return bool(shown > 0)

        api.make("queue", {"sea": "x"})
        assert not waits()
        publish(api.client, "x", 1)
        assert waits(), "nobody has come for it"
        work = api.pull("queue")
        assert waits(), "a worker has it, and has not acknowledged it"
        api.ok("POST", "/queue/ack", leases(work))
        assert not waits()
        assert api.pull("queue") == []
        publish(api.client, "y", 1)
        until(lambda: not waits(), lambda: "what it does not want counts")
        publish(api.client, "x", 2)
        until(waits)


def test_a_long_poll_ends_when_something_comes(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    found: list[list[Any]] = []
    worker = threading.Thread(target=lambda: found.append(api.pull("queue", max=5, wait_seconds=50)))
    began = time.monotonic()
    worker.start()
    publish(api.client, sea, 7)
    worker.join(PATIENCE)
    assert heights(found[0]) == [7]
    assert time.monotonic() - began < 50, "it has not waited to the end"


def test_a_long_poll_ends_in_time_without_anything(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    began = time.monotonic()
    assert api.pull("queue", wait_seconds=0.5) == []
    assert time.monotonic() - began >= 0.5


def test_history_can_be_pulled(api: Api, sea: str) -> None:
    publish(api.client, sea, *range(30))
    api.make("queue", {"sea": sea}, from_id="1")
    got: list[int] = []
    while works := api.pull("queue", max=7):
        got += heights(works)
        api.ok("POST", "/queue/ack", leases(works))
    assert got == list(range(30))


def test_all_of_the_largest_answer_can_be_acknowledged_at_once(api: Api, sea: str) -> None:
    publish(api.client, sea, *range(MAX_BATCH))
    api.make("queue", {"sea": sea}, from_id="1")
    works = api.pull("queue", max=MAX_BATCH, wait_seconds=30)
    assert heights(works) == list(range(MAX_BATCH))
    assert api.ok("POST", "/queue/ack", leases(works))["done"] == MAX_BATCH


def test_a_lease_that_ends_goes_to_another_worker(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, 1)
    lost = api.pull("queue", lease_seconds=1)
    assert api.pull("queue") == [], "one worker at a time"
    again = api.pull("queue", wait_seconds=30, lease_seconds=60)
    assert (heights(again), again[0]["attempt"]) == ([1], 2)
    assert api.ok("POST", "/queue/ack", leases(lost))["unknown"] == leases(lost)["leases"], "it is not yours any more"
    assert api.ok("POST", "/queue/ack", leases(again))["done"] == 1


def test_an_extended_lease_does_not_end(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, 1)
    works = api.pull("queue", lease_seconds=1)
    assert api.ok("POST", "/queue/extend", {**leases(works), "lease_seconds": 100})["done"] == 1
    assert api.pull("queue", wait_seconds=1.5) == []
    assert api.ok("POST", "/queue/ack", leases(works))["done"] == 1


def test_what_is_handed_back_comes_after_its_delay(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, 1, 2)
    works = api.pull("queue", max=2)
    began = time.monotonic()
    api.ok("POST", "/queue/nack", {**leases(works[:1]), "delay_seconds": 1})
    api.ok("POST", "/queue/nack", leases(works[1:]))
    assert heights(api.pull("queue", max=2)) == [2]
    again = api.pull("queue", max=2, wait_seconds=30)
    assert (heights(again), again[0]["attempt"]) == ([1], 2)
    assert time.monotonic() - began >= 1


def test_what_was_tried_too_often_is_parked_and_can_be_retried(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea}, max_attempts=2)
    publish(api.client, sea, 1, 2)
    for _ in range(2):
        (work,) = [each for each in api.pull("queue", max=2) if each["event"]["data"]["payload"] == {"height": 1}]
        api.ok("POST", "/queue/nack", leases([work]))
    assert api.pull("queue", max=2) == []
    (letter,) = api.ok("GET", "/queue/dead")["dead_letters"]
    assert (letter["attempts"], letter["event"]["data"]["payload"]) == (2, {"height": 1})
    assert api.show("queue")["dead_letters"] == 1
    assert api.ok("POST", "/queue/dead/retry")["count"] == 1
    again = api.pull("queue")
    assert heights(again) == [1]
    api.ok("POST", "/queue/ack", leases(again))
    assert api.ok("GET", "/queue/dead")["dead_letters"] == []
    assert api.show("queue")["dead_letters"] == 0


def test_workers_share_without_overlap(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, *range(200))
    got: Counter[int] = Counter()
    guard = threading.Lock()

    def work() -> None:
        while works := api.pull("queue", max=9):
            with guard:
                got.update(heights(works))
            api.ok("POST", "/queue/ack", leases(works))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert got == Counter(range(200))
    assert api.show("queue")["delivered"] == 200


def test_a_deleted_notification_is_not_handed_out_again(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    publish(api.client, sea, 1, 2)
    works = api.pull("queue", max=2)
    api.ok("POST", "/queue/nack", leases(works))
    gone = works[0]["event"]["sequence"]
    assert api.client.delete(f"/api/v1/admin/notification/wave@{gone}").status == 200
    api.ok("POST", "/queue/pause")
    api.ok("POST", "/queue/resume")
    assert heights(api.pull("queue", max=2)) == [2]


def test_a_paused_queue_gives_nothing_and_loses_nothing(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea})
    api.ok("POST", "/queue/pause")
    publish(api.client, sea, 1)
    answer = api.call("POST", "/queue/pull", {})
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_SUBSCRIPTION_REQUEST")
    api.ok("POST", "/queue/resume")
    assert heights(api.pull("queue")) == [1]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/queue/pull", {"max": 0}, "INVALID_REQUEST_SHAPE"),
        ("/queue/pull", {"max": 1001}, "INVALID_REQUEST_SHAPE"),
        ("/queue/pull", {"wait_seconds": 61}, "INVALID_REQUEST_SHAPE"),
        ("/queue/pull", {"lease": 1}, "UNKNOWN_FIELD"),
        ("/queue/ack", {"leases": []}, "INVALID_REQUEST_SHAPE"),
        ("/queue/ack", {"leases": [1]}, "INVALID_REQUEST_SHAPE"),
        ("/queue/test", None, "INVALID_SUBSCRIPTION_REQUEST"),
        ("/other/pull", {}, "SUBSCRIPTION_NOT_FOUND"),
    ],
)
def test_wrong_requests(api: Api, path: str, body: Any, code: str) -> None:
    api.make("queue")
    answer = api.call("POST", path, body)
    assert answer.json()["code"] == code


def test_a_server_that_stops_answers_workers_that_wait(tmp_path: Path) -> None:
    config = with_metrics(configuration())
    with Server(config, tmp_path) as server:
        api = Api(server.client)
        api.make("queue", {"sea": "calm"})
        answers: list[Response] = []
        waiting = {"wait_seconds": 60}  # longer than a server that stops waits for requests
        worker = threading.Thread(target=lambda: answers.append(api.call("POST", "/queue/pull", waiting)))
        worker.start()
        until(lambda: scrape(server, config["metrics"]["port"]).total("aviso_http_requests_in_flight") == 1)
        server.stop()
        worker.join(PATIENCE)
    assert [(each.status, each.json()["notifications"]) for each in answers] == [(200, [])]


def test_what_a_worker_has_outlives_a_changed_filter(api: Api, sea: str) -> None:
    api.make("queue", {"sea": sea, "height": {"lt": 10}})
    publish(api.client, sea, 1)
    (work,) = api.pull("queue", wait_seconds=30)
    api.ok("PATCH", "/queue", {"identifier": {"sea": sea, "height": {"gte": 10}}})
    publish(api.client, sea, 2, 12)
    api.ok("POST", "/queue/nack", {"leases": [work["lease"]]})
    got = [each["event"]["data"]["payload"]["height"] for each in api.pull("queue", max=10, wait_seconds=30)]
    got += [each["event"]["data"]["payload"]["height"] for each in api.pull("queue", max=10, wait_seconds=1)]
    assert got == [1, 12]
