"""Any sequence of calls leaves a log in the state a plain list would be in."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aviso_server.log.base import Log, StoragePolicy, StreamState
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.scenario import draft, everything, size

T = TypeVar("T")

STREAMS = ("free", "few", "latest", "small")
POLICIES = {
    "FEW": StoragePolicy(max_messages=4),
    "latest": StoragePolicy(allow_duplicates=False),
    "Small": StoragePolicy(max_bytes=300),
}

boxes = st.none() | st.builds(lambda lat, lon: Box(lat, lon, lat + 0.1, lon + 0.1), *[st.floats(-80, 80)] * 2)
drafts = st.builds(
    draft, number=st.integers(0, 3), stream=st.sampled_from(STREAMS), box=boxes, padding=st.integers(0, 60)
)


class Model:
    """One stream as a plain list."""

    def __init__(self) -> None:
        self.held: list[Notification] = []
        self.last = 0
        self.last_time = 0
        self.trimmed = 0

    def add(self, one: Draft, now: int) -> Notification:
        self.last += 1
        self.last_time = max(self.last_time, now)
        stored = Notification(self.last, self.last_time, one.topic, one.identifier, one.payload, one.box)
        self.held.append(stored)
        return stored

    def trim(self, one: Notification) -> None:
        self.held.remove(one)
        self.trimmed = max(self.trimmed, one.sequence)

    def bytes(self) -> int:
        return sum(len(one.topic) + len(one.identifier) + len(one.payload) for one in self.held)

    def state(self) -> StreamState:
        first = self.held[0].sequence if self.held else self.last + 1
        return StreamState(first, self.last, len(self.held), self.bytes(), self.trimmed)


class LogMachine(RuleBasedStateMachine):
    """Calls of the Log protocol in any order. What a log removes by itself is told by `conform`."""

    survives_restart: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.now = 1_000
        self.models: dict[str, Model] = {}
        self.heard: dict[str, list[Notification]] = {stream: [] for stream in STREAMS}
        self.told: dict[str, list[Notification]] = {stream: [] for stream in STREAMS}
        self.log: Log

    def make(self) -> Log:
        raise NotImplementedError

    def conform(self, added: list[tuple[str, Notification]]) -> None:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    @initialize()
    def open(self) -> None:
        self.log = self.make()
        self.run(self.log.open())
        for stream in STREAMS:
            self.log.follow(stream, self.heard[stream].extend)

    @rule(step=st.integers(-5, 10))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(one=drafts)
    def append(self, one: Draft) -> None:
        expected = self.models.setdefault(one.stream, Model()).add(one, self.now)
        self.told[one.stream].append(expected)
        self.conform([(one.stream, expected)])

        async def append() -> Notification:
            return await self.log.append(one)

        assert self.run(append()) == expected

    @rule(several=st.lists(drafts, max_size=8))
    def append_many(self, several: list[Draft]) -> None:
        added = [(one.stream, self.models.setdefault(one.stream, Model()).add(one, self.now)) for one in several]
        for stream, stored in added:
            self.told[stream].append(stored)
        self.conform(added)
        assert list(self.run(self.log.append_many(several))) == [stored for _, stored in added]

    @rule(stream=st.sampled_from(STREAMS), back=st.integers(-1, 6))
    def delete(self, stream: str, back: int) -> None:
        model = self.models.get(stream, Model())
        sequence = model.last - back
        found = [one for one in model.held if one.sequence == sequence]
        assert self.run(self.log.delete(stream, sequence)) is bool(found)
        if found:
            model.held.remove(found[0])
            self.after_delete(stream, found[0])

    def after_delete(self, stream: str, gone: Notification) -> None:
        """A log may have to remember that."""

    @rule(stream=st.sampled_from(STREAMS))
    def wipe(self, stream: str) -> None:
        model = self.models.get(stream)
        assert self.run(self.log.wipe(stream)) == (None if model is None else len(model.held))
        if model is not None:
            model.held.clear()
        self.after_wipe(stream)

    def after_wipe(self, stream: str) -> None:
        """A log may have to remember that."""

    @precondition(lambda self: self.survives_restart)
    @rule()
    def restart(self) -> None:
        self.run(self.log.close())
        self.open()

    @rule(stream=st.sampled_from(STREAMS), start=st.integers(0, 12), length=st.integers(0, 12), limit=st.integers(1, 9))
    def read(self, stream: str, start: int, length: int, limit: int) -> None:
        held = self.models.get(stream, Model()).held
        found = self.run(everything(self.log, stream, start, start + length, limit))
        assert found == [one for one in held if start <= one.sequence <= start + length]

    @rule(stream=st.sampled_from(STREAMS), box=boxes.filter(bool), limit=st.integers(1, 9))
    def read_box(self, stream: str, box: Box, limit: int) -> None:
        held = self.models.get(stream, Model()).held
        found = self.run(everything(self.log, stream, limit=limit, box=box))
        wanted = [one for one in held if one.box is not None and one.box.overlaps(box)]
        assert [one for one in found if one in wanted] == wanted
        assert all(one in held for one in found)

    @rule(stream=st.sampled_from(STREAMS), step=st.integers(-30, 5))
    def dates(self, stream: str, step: int) -> None:
        model = self.models.get(stream, Model())
        time = self.now + step
        since = [one.sequence for one in model.held if one.time >= time]
        until = [one.sequence for one in model.held if one.time <= time]
        assert self.run(self.log.first_since(stream, time)) == min(since, default=model.last + 1)
        assert self.run(self.log.last_until(stream, time)) == max(until, default=model.state().first - 1)

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "log"):
            return
        for stream in STREAMS:
            assert self.run(self.log.state(stream)) == self.models.get(stream, Model()).state()
            assert self.heard[stream] == self.told[stream]
        assert list(self.run(self.log.streams())) == sorted(self.models)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.run(self.log.close())
        self.runner.close()
        self.directory.cleanup()


class SqliteMachine(LogMachine):
    survives_restart = True

    def make(self) -> Log:
        return SqliteLog(Path(self.directory.name), POLICIES, clock=lambda: self.now)

    def conform(self, added: list[tuple[str, Notification]]) -> None:
        for stream, model in self.models.items():
            if stream == "latest":
                newest = {one.topic: one.sequence for one in model.held}
                for one in [one for one in model.held if newest[one.topic] != one.sequence]:
                    model.trim(one)
            while (stream == "few" and len(model.held) > 4) or (stream == "small" and model.bytes() > 300):
                model.trim(model.held[0])


class MemoryMachine(LogMachine):
    """Two per topic, five topics over all streams."""

    survives_restart = False

    def __init__(self) -> None:
        super().__init__()
        self.accepted = 0
        self.topics: dict[tuple[str, str], list[tuple[int, Notification]]] = {}

    def make(self) -> Log:
        return MemoryLog(max_history_per_topic=2, max_topics=5, clock=lambda: self.now)

    def conform(self, added: list[tuple[str, Notification]]) -> None:
        for stream, stored in added:
            key = (stream, stored.topic)
            self.accepted += 1
            if key not in self.topics:
                if len(self.topics) == 5:
                    self.evict()
                self.topics[key] = []
            self.topics[key].append((self.accepted, stored))
            if len(self.topics[key]) > 2:
                self.models[stream].trim(self.topics[key].pop(0)[1])

    def evict(self) -> None:
        filled = {key: places[-1][0] for key, places in self.topics.items() if places}
        leaving = min(filled, key=lambda key: filled[key]) if filled else next(iter(self.topics))
        for _, stored in self.topics.pop(leaving):
            self.models[leaving[0]].trim(stored)

    def after_delete(self, stream: str, gone: Notification) -> None:
        places = self.topics[stream, gone.topic]
        places[:] = [place for place in places if place[1] is not gone]

    def after_wipe(self, stream: str) -> None:
        self.topics = {key: places for key, places in self.topics.items() if key[0] != stream}


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_model_counts_bytes_as_the_limits_do() -> None:
    model = Model()
    model.add(draft(1, padding=10), 0)
    assert model.bytes() == size(draft(1, padding=10))
