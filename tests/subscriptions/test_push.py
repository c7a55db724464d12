"""Push: real receivers over real sockets get everything, in order, signed; and what fails comes again."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.subscriptions.receiver import Got, Receiver, Reply, until
from tests.subscriptions.scene import Api, configuration, publish


def heights(got: list[Got]) -> list[int]:
    return [event["data"]["payload"]["height"] for each in got for event in each.events]


def test_what_matches_arrives_in_order_as_cloud_events(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        made = api.push("mine", receiver.url, {"sea": sea, "height": {"gte": 3}})
        assert made["status"] == "active"
        assert receiver.asked[0].headers["webhook-request-origin"] == "aviso.example"
        publish(api.client, sea, 1, 2, 3, 4, 5)
        publish(api.client, "elsewhere", 9)
        got = receiver.wait_for(3)
        assert heights(got) == [3, 4, 5]
        (event,) = got[0].events
        assert (event["specversion"], event["type"], event["id"]) == (
            "1.0",
            "int.ecmwf.aviso.wave",
            f"wave@{event['sequence']}",
        )
        assert got[0].headers["content-type"].startswith("application/cloudevents+json")
        until(lambda: api.show("mine")["delivered"] == 3)
        shown = api.show("mine")
        assert (shown["health"], shown["lag"], shown["dead_letters"]) == ("ok", 0, 0)
        assert len(receiver.posts) == 3


def test_signatures_are_what_the_published_library_checks(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        first = api.push("mine", receiver.url, {"sea": sea})["secret"]
        publish(api.client, sea, 1)
        (got,) = receiver.wait_for(1)
        assert Webhook(first).verify(got.body, got.headers)["data"]["payload"] == {"height": 1}
        second = api.ok("POST", "/mine/rotate")["secret"]
        assert second != first
        publish(api.client, sea, 2)
        got = receiver.wait_for(2)[1]
        for secret in (first, second):  # for a day both are good
            Webhook(secret).verify(got.body, got.headers)
        with pytest.raises(Exception, match="signature"):
            Webhook(base64.b64encode(b"another secret, of another one").decode()).verify(got.body, got.headers)
        assert "secret" not in api.show("mine") or api.show("mine")["secret"] is None


def test_signatures_with_a_public_key(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        made = api.push("mine", receiver.url, {"sea": sea}, signature="v1a")
        publish(api.client, sea, 1)
        (got,) = receiver.wait_for(1)
        assert made["public_key"] == made["secret"]
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(made["public_key"].removeprefix("whpk_")))
        version, _, signature = got.headers["webhook-signature"].partition(",")
        assert version == "v1a"
        signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
        public.verify(base64.b64decode(signature), signed)


def test_binary_mode_has_attributes_in_headers(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        api.push("mine", receiver.url, {"sea": sea}, mode="binary")
        publish(api.client, sea, 7)
        (got,) = receiver.wait_for(1)
        assert got.headers["content-type"] == "application/json"
        assert got.headers["ce-type"] == "int.ecmwf.aviso.wave"
        assert got.headers["ce-specversion"] == "1.0"
        assert b'"payload":{"height":7}' in got.body
        assert b"specversion" not in got.body


def test_history_comes_first_and_in_batches(api: Api, sea: str) -> None:
    publish(api.client, sea, *range(25))
    with Receiver() as receiver:
        api.push("mine", receiver.url, {"sea": sea}, from_id="1", batch=10)
        until(lambda: len(heights(receiver.posts)) == 25)
        publish(api.client, sea, 25)
        until(lambda: len(heights(receiver.posts)) == 26)
        assert heights(receiver.posts) == list(range(26))
        assert max(len(got.events) for got in receiver.posts) == 10
        assert receiver.posts[0].headers["content-type"].startswith("application/cloudevents-batch+json")


def test_a_sink_that_fails_gets_the_same_again_in_order(api: Api, sea: str) -> None:
    def answer(got: Got) -> Reply:
        return Reply(200 if len(receiver.posts) >= 3 else 503, body=b"not yet")

    with Receiver(answer) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1, 2)
        got = receiver.wait_for(5)
        assert heights(got) == [1, 1, 1, 1, 2]
        assert len({each.headers["webhook-id"] for each in got[:4]}) == 1
        assert got[4].headers["webhook-id"] != got[0].headers["webhook-id"]
        until(lambda: api.show("mine")["delivered"] == 2)
        tried = api.ok("GET", "/mine/deliveries")["deliveries"]
        assert [each["status"] for each in tried] == [200, 200, 503, 503, 503]
        assert tried[-1]["answer"] == "not yet"


def test_a_batch_that_failed_is_sent_again_as_it_was(api: Api, sea: str) -> None:
    publish(api.client, sea, *range(8))

    def answer(got: Got) -> Reply:
        if len(receiver.posts) == 1:
            publish(api.client, sea, 100)  # must not slip into the batch that is sent again
        return Reply(None if len(receiver.posts) < 2 else 200)

    with Receiver(answer) as receiver:
        api.push("mine", receiver.url, {"sea": sea}, from_id="1", batch=50)
        until(lambda: heights(receiver.posts)[-1:] == [100])
        first, again = receiver.posts[0], receiver.posts[1]
        assert (first.body, first.headers["webhook-id"]) == (again.body, again.headers["webhook-id"])


@pytest.mark.parametrize("as_date", [False, True])
def test_the_sink_says_when_to_come_again(api: Api, sea: str, as_date: bool) -> None:
    times: list[float] = []

    def answer(got: Got) -> Reply:
        times.append(time.monotonic())
        # a date has no fractions of a second
        wish = formatdate(time.time() + 3, usegmt=True) if as_date else "2"
        return Reply(429, (("Retry-After", wish),)) if len(times) == 1 else Reply()

    with Receiver(answer) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1)
        receiver.wait_for(2)
        assert times[1] - times[0] >= 2.0


def test_410_disables_and_nothing_is_lost(api: Api, sea: str) -> None:
    gone = True
    with Receiver(lambda got: Reply(410 if gone else 200)) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1, 2)
        until(lambda: api.show("mine")["status"] == "disabled")
        assert len(receiver.posts) == 1
        assert "410" in api.show("mine")["reason"]
        gone = False
        assert api.ok("POST", "/mine/resume")["status"] == "active"
        assert heights(receiver.wait_for(3)) == [1, 1, 2]


def test_park_and_go_on(api: Api, sea: str) -> None:
    healed = False

    def answer(got: Got) -> Reply:
        bad = any(event["data"]["payload"]["height"] == 2 for event in got.events) and not healed
        return Reply(422, body=b"I do not like twos") if bad else Reply()

    with Receiver(answer) as receiver:
        api.push("mine", receiver.url, {"sea": sea}, on_failure="park", max_attempts=2, batch=5)
        api.ok("POST", "/mine/pause")
        publish(api.client, sea, 1, 2, 3, 4)
        api.ok("POST", "/mine/resume")
        until(lambda: api.show("mine")["delivered"] == 3)
        (letter,) = api.ok("GET", "/mine/dead")["dead_letters"]
        assert (letter["status"], letter["answer"], letter["attempts"]) == (422, "I do not like twos", 2)
        assert letter["event"]["data"]["payload"] == {"height": 2}
        assert api.show("mine")["dead_letters"] == 1
        assert api.ok("POST", "/mine/dead/retry", {"sequences": [letter["sequence"]]})["count"] == 1
        until(lambda: api.ok("GET", "/mine/dead")["dead_letters"][0]["attempts"] == 3)
        healed = True
        assert api.ok("POST", "/mine/dead/retry")["count"] == 1
        until(lambda: api.ok("GET", "/mine/dead")["dead_letters"] == [])
        assert heights(receiver.posts)[-1] == 2
        assert api.show("mine")["dead_letters"] == 0


def test_block_in_order_until_somebody_skips(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(500 if got.events[0]["data"]["payload"]["height"] == 2 else 200)) as receiver:
        api.push("mine", receiver.url, {"sea": sea}, on_failure="block", max_attempts=2)
        publish(api.client, sea, 1, 2, 3)
        until(lambda: api.show("mine")["health"] == "blocked")
        (letter,) = api.ok("GET", "/mine/dead")["dead_letters"]
        assert letter["blocking"] is True
        assert 3 not in heights(receiver.posts)
        assert api.ok("POST", "/mine/dead/skip", {"sequences": [letter["sequence"]]})["count"] == 1
        until(lambda: heights(receiver.posts)[-1] == 3)
        until(lambda: api.show("mine")["health"] == "ok")
        assert api.ok("GET", "/mine/dead")["dead_letters"] == []


def test_without_consent_nothing_is_sent(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(200, body=b"hello"), consents=False) as receiver:
        made = api.push("mine", receiver.url, {"sea": sea})
        assert made["status"] == "unconfirmed"
        assert "WebHook-Allowed-Origin" in made["reason"]
        publish(api.client, sea, 1)
        receiver.consents = True
        posts = len(receiver.posts)  # the challenge
        assert api.ok("POST", "/mine/resume")["status"] == "active"
        assert heights(receiver.wait_for(posts + 1)[posts:]) == [1]


def test_pausing_does_not_stand_in_for_consent(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(200, body=b"hello"), consents=False) as receiver:
        assert api.push("mine", receiver.url, {"sea": sea})["status"] == "unconfirmed"
        assert api.ok("POST", "/mine/pause")["status"] == "unconfirmed"
        assert api.ok("POST", "/mine/resume")["status"] == "unconfirmed"
        publish(api.client, sea, 1)
        assert all(event["type"] == "int.ecmwf.aviso.challenge" for got in receiver.posts for event in got.events)


def test_the_consent_of_one_sink_is_not_that_of_another(api: Api, sea: str) -> None:
    asked, changed = threading.Event(), threading.Event()

    def late(got: Got) -> Reply:
        """Agree, but only after the subscription has got another sink."""
        asked.set()
        changed.wait(60)
        return Reply(200, body=got.events[0]["data"]["challenge"].encode())

    with Receiver(late, consents=False) as first, Receiver(lambda got: Reply(200), consents=False) as victim:
        making = threading.Thread(target=api.push, args=("mine", first.url, {"sea": sea}))
        making.start()
        assert asked.wait(60)
        assert api.ok("PATCH", "/mine", {"sink": victim.url})["status"] == "unconfirmed"
        changed.set()
        making.join(60)
        assert api.show("mine")["status"] == "unconfirmed"


def test_a_paused_subscription_with_another_sink_stays_paused(api: Api, sea: str) -> None:
    with Receiver() as first, Receiver() as second:
        api.push("mine", first.url, {"sea": sea})
        api.ok("POST", "/mine/pause")
        assert api.ok("PATCH", "/mine", {"sink": second.url})["status"] == "paused"
        assert api.ok("POST", "/mine/resume")["status"] == "active"


def test_consent_by_a_challenge(api: Api, sea: str) -> None:
    def answer(got: Got) -> Reply:
        (event,) = got.events
        challenged = event["type"] == "int.ecmwf.aviso.challenge"
        return Reply(200, body=event["data"]["challenge"].encode() if challenged else b"")

    with Receiver(answer, consents=False) as receiver:
        assert api.push("mine", receiver.url, {"sea": sea})["status"] == "active"
        publish(api.client, sea, 4)
        assert heights(receiver.wait_for(2)[1:]) == [4]


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ('{{"challenge": "{0}"}}', "active"),
        ('"{0}"', "active"),
        (" {0}\n", "active"),
        ('{{"received": {{"challenge": "{0}"}}}}', "unconfirmed"),
        ("<p>You have sent {0}</p>", "unconfirmed"),
        ('["{0}"]', "unconfirmed"),
    ],
)
def test_an_echo_is_no_consent(api: Api, sea: str, form: str, status: str) -> None:
    def answer(got: Got) -> Reply:
        return Reply(200, body=form.format(got.events[0]["data"]["challenge"]).encode())

    with Receiver(answer, consents=False) as receiver, Receiver(lambda got: Reply(200, body=got.body), False) as echo:
        assert api.push("mine", receiver.url, {"sea": sea})["status"] == status
        assert api.push("echo", echo.url, {"sea": sea})["status"] == "unconfirmed"


def test_no_test_event_without_consent(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(200), consents=False) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        before = len(receiver.posts)
        answer = api.call("POST", "/mine/test")
        assert (answer.status, "resume" in answer.body.decode()) == (400, True)
        assert len(receiver.posts) == before


def test_rotating_twice_breaks_nobody(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        secrets = [api.push("mine", receiver.url, {"sea": sea})["secret"]]
        secrets += [api.ok("POST", "/mine/rotate")["secret"] for _ in range(2)]
        publish(api.client, sea, 1)
        (got,) = receiver.wait_for(1)
        for secret in secrets:
            Webhook(secret).verify(got.body, got.headers)


def test_another_kind_of_signature_shows_its_secret(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        first = api.push("mine", receiver.url, {"sea": sea}, signature="v1a")["secret"]
        second = api.ok("PATCH", "/mine", {"signature": "v1"})["secret"]
        assert first != second
        publish(api.client, sea, 1)
        (got,) = receiver.wait_for(1)
        Webhook(second).verify(got.body, got.headers)
        assert api.ok("PATCH", "/mine", {"batch": 2}).get("secret") is None


def test_own_headers_are_sent_and_not_shown(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        made = api.push("mine", receiver.url, {"sea": sea}, headers={"Authorization": "Bearer of-mine"})
        publish(api.client, sea, 1)
        (got,) = receiver.wait_for(1)
        assert got.headers["authorization"] == "Bearer of-mine"
        assert "of-mine" not in str(made)
        assert "of-mine" not in str(api.ok("GET", "/mine/deliveries"))
        api.ok("PATCH", "/mine", {"batch": 2})
        publish(api.client, sea, 2)
        assert receiver.wait_for(2)[1].headers["authorization"] == "Bearer of-mine"


def test_a_redirect_is_a_failure(api: Api, sea: str) -> None:
    with Receiver() as other, Receiver(lambda got: Reply(307, (("Location", other.url),))) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1)
        receiver.wait_for(2)
        assert api.show("mine")["health"] == "failing"
        assert other.posts == []


def test_a_test_event(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(202, body=b"thanks")) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        tried = api.ok("POST", "/mine/test")["delivery"]
        assert (tried["status"], tried["answer"]) == (202, "thanks")
        assert receiver.posts[0].events[0]["type"] == "int.ecmwf.aviso.test"
        assert api.show("mine")["delivered"] == 0


def test_a_changed_filter_holds_from_the_cursor_on(api: Api, sea: str) -> None:
    with Receiver() as receiver:
        api.push("mine", receiver.url, {"sea": sea, "height": {"lt": 10}})
        publish(api.client, sea, 1, 11)
        receiver.wait_for(1)
        until(lambda: api.show("mine")["lag"] == 0)
        api.ok("PATCH", "/mine", {"identifier": {"sea": sea}})
        publish(api.client, sea, 2, 12)
        assert heights(receiver.wait_for(3)) == [1, 2, 12]
        api.ok("PATCH", "/mine", {"from_id": "1"})
        until(lambda: heights(receiver.posts) == [1, 2, 12, 1, 11, 2, 12])


def test_pausing_waits_for_the_answer_that_is_on_its_way(api: Api, sea: str) -> None:
    arrived = threading.Event()

    def slow(got: Got) -> Reply:
        arrived.set()
        time.sleep(0.5)
        return Reply()

    with Receiver(slow) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1)
        assert arrived.wait(60)
        assert api.ok("POST", "/mine/pause")["delivered"] == 1
        api.ok("POST", "/mine/resume")
        publish(api.client, sea, 2)
        assert heights(receiver.wait_for(2)) == [1, 2], "none twice"


def test_resuming_tries_at_once(tmp_path: Path) -> None:
    config = configuration("in_memory", retry_delay_ms=3_600_000, max_retry_delay_ms=3_600_000)
    with Server(config, tmp_path) as server, Receiver(lambda got: Reply(200 if healed else 500)) as receiver:
        healed = False
        api = Api(server.client)
        api.push("mine", receiver.url)
        publish(api.client, "x", 1)
        receiver.wait_for(1)
        until(lambda: api.show("mine")["attempts"] == 1)
        healed = True
        api.ok("POST", "/mine/resume")
        until(lambda: api.show("mine")["delivered"] == 1)


def test_what_is_on_its_way_is_not_delivered_yet(api: Api, sea: str) -> None:
    arrived, answered = threading.Event(), threading.Event()

    def slow(got: Got) -> Reply:
        arrived.set()
        answered.wait(PATIENCE)
        return Reply()

    with Receiver(slow) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1)
        assert arrived.wait(PATIENCE)
        shown = api.show("mine")
        answered.set()
        assert (shown["lag"], shown["lag_seconds"] > 0) == (1, True)
        until(lambda: api.show("mine")["lag_seconds"] == 0)


def test_a_failing_sink_is_named_as_what_stands_in_the_way(api: Api, sea: str) -> None:
    with Receiver(lambda got: Reply(503, body=b"not now")) as receiver:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1)
        until(lambda: api.show("mine")["health"] == "failing")
        assert api.show("mine")["problem"] == "the sink answered 503"
        receiver.answer = lambda got: Reply(None)
        until(lambda: api.show("mine")["problem"] == "the connection was closed before an answer came")


def test_one_slow_sink_costs_nobody_else_anything(api: Api, sea: str) -> None:
    stuck = threading.Event()

    def slow(got: Got) -> Reply:
        stuck.wait(60)
        return Reply()

    try:
        with Receiver(slow) as one, Receiver() as other:
            api.push("slow", one.url, {"sea": sea})
            api.push("quick", other.url, {"sea": sea})
            publish(api.client, sea, *range(50))
            assert heights(other.wait_for(50)) == list(range(50))
            assert one.posts == []
            stuck.set()
            assert heights(one.wait_for(50)) == list(range(50))
    finally:
        stuck.set()


def test_deleting_ends_the_delivery_that_is_under_way(api: Api, sea: str) -> None:
    hold = threading.Event()

    def answer(got: Got) -> Reply:
        hold.wait(PATIENCE)
        return Reply()

    with Receiver(answer) as receiver, Receiver() as other:
        api.push("mine", receiver.url, {"sea": sea})
        publish(api.client, sea, 1, 2, 3)
        time.sleep(0.2)
        api.ok("DELETE", "/mine")
        api.push("mine", other.url, {"sea": sea})  # the name is free at once, and the cursor is a new one
        hold.set()
        publish(api.client, sea, 4)
        assert heights(other.wait_for(1)) == [4]
        assert len(receiver.posts) <= 1, "no more than what was on its way"


RECEIVING = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_OPTIONS(self):
        self.answer()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        os.write(file, self.headers["webhook-id"].encode() + b"\\t" + body + b"\\n")
        self.answer()
    def answer(self):
        self.send_response(200)
        self.send_header("WebHook-Allowed-Origin", "*")
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass

file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_receiver_that_is_killed_misses_nothing(api: Api, sea: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = tmp_path / "kept"

    def start() -> subprocess.Popen[bytes]:
        started = subprocess.Popen([sys.executable, "-c", RECEIVING, str(port), str(kept)])
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        return started

    def got() -> list[Got]:
        lines = kept.read_bytes().splitlines() if kept.exists() else []
        parts = [line.partition(b"\t") for line in lines]
        return [Got("POST", "", {"webhook-id": name.decode()}, body) for name, _, body in parts]

    receiver = start()
    try:
        api.push("mine", f"http://127.0.0.1:{port}/", {"sea": sea}, batch=3)
        for round_ in range(3):
            publish(api.client, sea, *range(20 * round_, 20 * round_ + 10))
            until(lambda: len(got()) > 0)
            receiver.kill()
            receiver.wait()
            publish(api.client, sea, *range(20 * round_ + 10, 20 * round_ + 20))
            receiver = start()
            until(lambda last=20 * round_ + 19: heights(got())[-1:] == [last])  # type: ignore[misc]  # bound now
        first = {each.headers["webhook-id"]: each for each in got()}
        assert heights(list(first.values())) == list(range(60))
        assert all(each.body == first[each.headers["webhook-id"]].body for each in got())
    finally:
        receiver.kill()
