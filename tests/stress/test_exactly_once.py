"""Publishers, watchers, replays, deletes, wipes and restarts in random order: everyone gets everything once, in order.

The model is a list per event type. The server is a real process on disk that all runs share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.harness import EventStream, Server, StreamBroken
from tests.stress.configuration import configuration

EVENT_TYPES = ("tide", "gale")
SENTINEL = ("oslo", 5)  # passes every filter below
FILTERS: list[dict[str, Any]] = [
    {},
    {"port": "oslo"},
    {"level": {"gte": 3}},
    {"level": {"in": [1, 5]}},
    {"port": "oslo", "level": {"between": [2, 6]}},
]
MOST_WATCHES = 8
MOST_RESTARTS = 2

event_types = st.sampled_from(EVENT_TYPES)
filters = st.sampled_from(FILTERS)
places = st.floats(0, 1)


class Stored(NamedTuple):
    """What the model knows of a notification."""

    sequence: int
    port: str
    level: int

    def passes(self, wanted: dict[str, Any]) -> bool:
        """The meaning of the filters above, written anew."""
        level = wanted.get("level", {})
        return (
            wanted.get("port", self.port) == self.port
            and self.level >= level.get("gte", self.level)
            and self.level in level.get("in", [self.level])
            and level.get("between", [self.level] * 2)[0] <= self.level <= level.get("between", [self.level] * 2)[1]
        )


class Watch:
    """A client that watches, and the sequences it must get from this connection."""

    def __init__(
        self, stream: EventStream, event_type: str, wanted: dict[str, Any], expected: list[int], last: int
    ) -> None:
        self.stream = stream
        self.event_type = event_type
        self.wanted = wanted
        self.expected = expected
        self.last = last  # everything up to here was received or was there before

    @property
    def received(self) -> list[int]:
        """The sequences that came over this connection."""
        return [event["sequence"] for event in self.stream.notifications]

    def read_all(self) -> None:
        """Read what must come and compare."""
        while len(self.stream.notifications) < len(self.expected):
            self.stream.notification()
        assert self.received == self.expected
        self.last = max([self.last, *self.received])

    def read_rest(self) -> None:
        """Read what still comes over a connection that was cut: a part of what must come, in order."""
        with suppress(StreamBroken, ConnectionError):
            self.stream.rest()
        assert self.received == self.expected[: len(self.received)]
        self.last = max([self.last, *self.received])


class Model:
    """The process and all that was ever stored in it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.running = True
        self.held: dict[str, list[Stored]] = {name: [] for name in EVENT_TYPES}
        self.last = dict.fromkeys(EVENT_TYPES, 0)

    def matching(self, event_type: str, wanted: dict[str, Any], first: int = 1, last: int | None = None) -> list[int]:
        """The sequences a reader of that range must get."""
        last = self.last[event_type] if last is None else last
        return [
            each.sequence for each in self.held[event_type] if first <= each.sequence <= last and each.passes(wanted)
        ]


class Service(RuleBasedStateMachine):
    """Everything that clients and operators do."""

    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[Watch] = []
        self.parked: list[Watch] = []
        self.marks: list[tuple[int, dict[str, int]]] = []
        self.restarts = 0

    @property
    def client(self) -> Any:
        return self.model.server.client

    @initialize()
    def begin_empty(self) -> None:
        """Whatever an earlier run left behind: a server that holds nothing, and its numbering."""
        if not self.model.running:
            self.start()
        for name in EVENT_TYPES:
            self.client.publish(name, {"port": "oslo", "level": 1})
            self.model.last[name] = self.client.replay(name, {}).notifications[-1]["sequence"]
            self.model.held[name].clear()
        self.client.wipe_all()

    def start(self) -> None:
        self.model.server.start()
        self.model.running = True

    @rule(
        event_type=event_types, port=st.sampled_from(["oslo", "kiel"]), level=st.integers(1, 7), count=st.integers(1, 6)
    )
    def publish(self, event_type: str, port: str, level: int, count: int) -> None:
        identifier = {"port": port, "level": level}
        self.client.publish_many(event_type, [(identifier, number) for number in range(count)])
        for _ in range(count):
            self.model.last[event_type] += 1
            stored = Stored(self.model.last[event_type], port, level)
            self.model.held[event_type].append(stored)
            for watch in self.watches:
                if watch.event_type == event_type and stored.passes(watch.wanted):
                    watch.expected.append(stored.sequence)

    @rule()
    def mark_the_time(self) -> None:
        self.marks.append((time.time_ns(), dict(self.model.last)))

    @precondition(lambda self: len(self.watches) < MOST_WATCHES)
    @rule(event_type=event_types, wanted=filters)
    def watch_live(self, event_type: str, wanted: dict[str, Any]) -> None:
        stream = self.client.watch(event_type, wanted)
        stream.until("connection_established")
        self.watches.append(Watch(stream, event_type, wanted, [], self.model.last[event_type]))

    @precondition(lambda self: len(self.watches) < MOST_WATCHES)
    @rule(event_type=event_types, wanted=filters, place=places)
    def watch_from_a_sequence(self, event_type: str, wanted: dict[str, Any], place: float) -> None:
        self.watch_from(event_type, wanted, int(place * (self.model.last[event_type] + 2)))

    def watch_from(self, event_type: str, wanted: dict[str, Any], first: int) -> None:
        stream = self.client.watch(event_type, wanted, from_id=str(first))
        stream.until("replay_completed")
        expected = self.model.matching(event_type, wanted, first)
        watch = Watch(stream, event_type, wanted, expected, self.model.last[event_type])
        assert watch.received == expected
        self.watches.append(watch)

    @rule(event_type=event_types, wanted=filters, one=places, other=places)
    def replay(self, event_type: str, wanted: dict[str, Any], one: float, other: float) -> None:
        last = self.model.last[event_type]
        first, end = sorted(int(place * (last + 2)) for place in (one, other))
        whole = self.client.replay(event_type, wanted, from_id=str(first))
        part = self.client.replay(event_type, wanted, from_id=str(first), to_id=str(end))
        assert [event["sequence"] for event in whole.notifications] == self.model.matching(event_type, wanted, first)
        assert [event["sequence"] for event in part.notifications] == self.model.matching(
            event_type, wanted, first, end
        )
        assert whole.kinds[-2:] == part.kinds[-2:] == ["replay_completed", "connection-closing"]

    @precondition(lambda self: self.marks)
    @rule(event_type=event_types, wanted=filters, place=places)
    def replay_around_a_time(self, event_type: str, wanted: dict[str, Any], place: float) -> None:
        at, last = self.marks[int(place * (len(self.marks) - 1))]
        whole, fraction = divmod(at, 10**9)
        text = f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
        after = self.client.replay(event_type, wanted, from_date=text)
        before = self.client.replay(event_type, wanted, from_id="1", to_date=text)
        split = last[event_type]
        assert [event["sequence"] for event in after.notifications] == self.model.matching(
            event_type, wanted, split + 1
        )
        assert [event["sequence"] for event in before.notifications] == self.model.matching(
            event_type, wanted, 1, split
        )

    @precondition(lambda self: self.watches)
    @rule(place=places)
    def read(self, place: float) -> None:
        self.watches[int(place * (len(self.watches) - 1))].read_all()

    @precondition(lambda self: self.watches)
    @rule(place=places, reads=st.booleans())
    def disconnect(self, place: float, reads: bool) -> None:
        watch = self.watches.pop(int(place * (len(self.watches) - 1)))
        if reads:
            watch.read_all()
        watch.stream.close()
        self.parked.append(watch)

    @precondition(lambda self: self.parked and len(self.watches) < MOST_WATCHES)
    @rule(place=places)
    def reconnect(self, place: float) -> None:
        watch = self.parked.pop(int(place * (len(self.parked) - 1)))
        self.watch_from(watch.event_type, watch.wanted, watch.last + 1)

    @rule(event_type=event_types, place=places)
    def delete(self, event_type: str, place: float) -> None:
        held = self.model.held[event_type]
        if not held:
            return
        self.read_everything()
        gone = held.pop(int(place * (len(held) - 1)))
        path = f"/api/v1/admin/notification/{event_type}@{gone.sequence}"
        assert self.client.delete(path).status == 200
        assert self.client.delete(path).status == 404

    @rule(event_type=event_types)
    def wipe(self, event_type: str) -> None:
        self.read_everything()
        assert self.client.delete("/api/v1/admin/wipe/stream", {"stream_name": event_type}).status == 200
        self.model.held[event_type].clear()

    @precondition(lambda self: self.restarts < MOST_RESTARTS)
    @rule()
    def restart_in_order(self) -> None:
        self.restarts += 1
        self.model.running = False
        assert self.model.server.stop() == 0
        for watch in self.watches:
            watch.read_all()
            assert watch.stream.until("connection-closing").data["reason"] == "server_shutdown"
        self.come_back()

    @precondition(lambda self: self.restarts < MOST_RESTARTS)
    @rule()
    def restart_after_a_crash(self) -> None:
        self.restarts += 1
        self.model.running = False
        self.model.server.kill()
        for watch in self.watches:
            watch.read_rest()
        self.come_back()

    def come_back(self) -> None:
        self.start()
        for watch in self.watches:
            watch.stream.close()
        self.parked += self.watches
        self.watches = []

    def read_everything(self) -> None:
        for watch in self.watches:
            watch.read_all()

    def teardown(self) -> None:
        try:
            if self.model.running:
                for name in EVENT_TYPES:
                    self.publish(name, *SENTINEL, count=1)
                self.read_everything()
        finally:
            for watch in [*self.watches, *self.parked]:
                watch.stream.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process for all runs, but for the restarts."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as server:
        yield server


def test_exactly_once_in_order(server: Server) -> None:
    model = Model(server)

    class Run(Service):
        """The rules on this server."""

    Run.model = model
    run_state_machine_as_test(
        Run,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=(Phase.generate,),  # a failing run names its steps; making them fewer would take minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
