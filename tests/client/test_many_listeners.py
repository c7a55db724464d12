"""Many listeners in one client, as one loop over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyaviso import AvisoClient, MultiNotificationIterator

from tests.client.listening import Listening, payloads, wait_until
from tests.harness import Server

LISTENERS = 150
Closing = Callable[[MultiNotificationIterator], Listening]


@pytest.fixture
def listen_to() -> Iterator[Closing]:
    """Reads from many listeners without waiting until they are connected, and closes them at the end of the test."""
    with ExitStack() as closing:

        def read(notifications: MultiNotificationIterator) -> Listening:
            listening = Listening(notifications)
            closing.callback(listening.close)
            return listening

        yield read


def test_a_hundred_and_fifty_listeners_each_get_theirs(client: AvisoClient, listen_to: Closing) -> None:
    names = [f"listener {number}" for number in range(LISTENERS)]
    wanted = {name: {"event_type": "tide", "filter": {"gauge": name}, "start_from": 0} for name in names}
    listening = listen_to(client.listen_many(wanted))
    # who has the first round is connected, so the others are live
    for number in range(4):
        batch = [{"event_type": "tide", "identifier": {"gauge": name}, "payload": [name, number]} for name in names]
        assert all(result.ok for result in client.notify_many(batch))
        received = listening.take(LISTENERS)
        assert sorted(name for name, _ in received) == sorted(names)
        assert all(notification.payload == [name, number] for name, notification in received)


def test_all_of_them_may_want_the_same(client: AvisoClient, listen_to: Closing) -> None:
    wanted = {str(number): {"event_type": "wave", "start_from": 0} for number in range(LISTENERS)}
    listening = listen_to(client.listen_many(wanted))
    for value in ("a", "b", "c"):
        client.notify(event_type="wave", identifier={"gauge": "all"}, payload=value)
        received = listening.take(LISTENERS)
        assert sorted(name for name, _ in received) == sorted(wanted)
        assert {notification.payload for _, notification in received} == {value}


def test_one_that_is_refused_does_not_stop_the_others(client: AvisoClient, listen_to: Closing) -> None:
    wanted: dict[str, dict[str, Any]] = {
        "good": {"event_type": "tide", "filter": {"gauge": "good"}, "start_from": 0},
        "bad": {"event_type": "nope"},
    }
    refused: dict[str, BaseException] = {}
    listening = listen_to(client.listen_many(wanted, on_error=refused.__setitem__))
    wait_until(lambda: "bad" in refused, "the bad one is refused")
    client.notify(event_type="tide", identifier={"gauge": "good"}, payload="still here")
    [(name, notification)] = listening.take()
    assert (name, notification.payload) == ("good", "still here")
    assert {name: getattr(error, "status", None) for name, error in refused.items()} == {"bad": 400}


def test_slow_one_holds_up_nobody_and_misses_nothing(server: Server, client: AvisoClient, listen_to: Closing) -> None:
    wanted = {"gauge": "slow"}
    slow = client.listen("tide", filter=wanted, start_from=0)  # nobody reads from it yet
    fast = listen_to(client.listen_many({"fast": {"event_type": "tide", "filter": wanted, "start_from": 0}}))
    numbers = range(600)
    server.client.publish_many("tide", [(wanted, [number, "x" * 20_000]) for number in numbers])
    assert [notification.payload[0] for _, notification in fast.take(len(numbers))] == [*numbers]
    client.notify(event_type="tide", identifier=wanted, payload="last")
    with slow:
        assert [number for number, _ in payloads(next(slow) for _ in numbers)] == [*numbers]
        assert next(slow).payload == "last"
