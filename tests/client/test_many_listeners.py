"""Many listeners in one client, as one loop over all of them."""

from __future__ import annotations

from typing import Any

from pyaviso import AvisoClient

from tests.client.listening import Open, open_streams, payloads, wait_until
from tests.harness import Server

LISTENERS = 150


def test_a_hundred_and_fifty_listeners_each_get_theirs(server: Server, client: AvisoClient, listen: Open) -> None:
    wanted = {
        f"listener {number}": {"event_type": "tide", "filter": {"gauge": str(number)}} for number in range(LISTENERS)
    }
    listening = listen(server, lambda: client.listen_many(wanted), streams=LISTENERS)
    rounds = 4
    for _ in range(rounds):
        batch = [
            {"event_type": "tide", "identifier": {"gauge": str(number)}, "payload": f"listener {number}"}
            for number in range(LISTENERS)
        ]
        assert all(result.ok for result in client.notify_many(batch))
    received = listening.take(rounds * LISTENERS)
    assert all(name == notification.payload for name, notification in received)
    assert sorted(name for name, _ in received) == sorted([*wanted] * rounds)


def test_all_of_them_may_want_the_same(server: Server, client: AvisoClient, listen: Open) -> None:
    wanted = {str(number): {"event_type": "wave"} for number in range(LISTENERS)}
    listening = listen(server, lambda: client.listen_many(wanted), streams=LISTENERS)
    for value in ("a", "b", "c"):
        client.notify(event_type="wave", identifier={"gauge": "all"}, payload=value)
    received: dict[str, list[str]] = {name: [] for name in wanted}
    for name, notification in listening.take(3 * LISTENERS):
        received[name].append(notification.payload)
    assert all(values == ["a", "b", "c"] for values in received.values())


def test_one_that_is_refused_does_not_stop_the_others(server: Server, client: AvisoClient, listen: Open) -> None:
    wanted: dict[str, dict[str, Any]] = {
        "good": {"event_type": "tide", "filter": {"gauge": "good"}},
        "bad": {"event_type": "nope"},
    }
    refused: dict[str, BaseException] = {}
    listening = listen(server, lambda: client.listen_many(wanted, on_error=refused.__setitem__))
    client.notify(event_type="tide", identifier={"gauge": "good"}, payload="still here")
    [(name, notification)] = listening.take()
    assert (name, notification.payload) == ("good", "still here")
    assert {name: getattr(error, "status", None) for name, error in refused.items()} == {"bad": 400}


def test_slow_one_holds_up_nobody_and_misses_nothing(server: Server, client: AvisoClient, listen: Open) -> None:
    wanted = {"gauge": "slow"}
    before = open_streams(server)
    slow = client.listen("tide", filter=wanted)  # nobody reads from it yet
    wait_until(lambda: open_streams(server) > before, "the slow one is connected")
    fast = listen(server, lambda: client.listen("tide", filter=wanted))
    numbers = range(600)
    server.client.publish_many("tide", [(wanted, [number, "x" * 20_000]) for number in numbers])
    assert [number for number, _ in payloads(fast.take(len(numbers)))] == [*numbers]
    client.notify(event_type="tide", identifier=wanted, payload="last")
    with slow:
        assert [number for number, _ in payloads(next(slow) for _ in numbers)] == [*numbers]
        assert next(slow).payload == "last"
