"""A simulated world for the real code of subscriptions: servers that crash, hang and share a log, and sinks that fail.

Loop, clock, log, archive, records and sinks are simulated, as in `tests/delivery/simulation.py`; registry, cursors,
push, pull, hub and store are the real ones. A crash is what it is to a process: nothing that the server does later has
an effect. Meanwhile filters change, notifications are deleted, wiped, archived and removed by retention.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import secrets
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest import mock

import msgspec

from aviso_server.delivery.hub import Hub, Pace
from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import Change, Record
from aviso_server.model.event_type import Catalogue
from aviso_server.model.filter import Filter
from aviso_server.model.times import SECOND, Span
from aviso_server.store import Store
from aviso_server.subscriptions.active import Active
from aviso_server.subscriptions.push import RetryPolicy
from aviso_server.subscriptions.registry import Limits, NoSuchSubscription, Subscriptions
from aviso_server.subscriptions.signatures import Vault
from aviso_server.subscriptions.sinks import Answer, NotSent, Sink, SinkClient, SinkRules
from aviso_server.subscriptions.subscription import ANYBODY, Definition, Subscription
from tests.archive.memory_archive import MemoryArchive
from tests.delivery.scene import TIDE
from tests.delivery.simulation import PORTS, SimulatedLog, SimulatedLoop, Step

__all__ = ["make_schedule", "simulate"]

T = TypeVar("T")

DEAD_AFTER = 4.0  # seconds without a sign of life after which others may take over
LEASE = 30  # seconds
ANSWERED = 300.0  # seconds after which nobody waits for an answer
HEARD = 25.0  # seconds within which all servers have heard of a change, and what they had begun has ended
NAMES = {"single": ("oslo", 1, "block"), "batches": (None, 4, "block"), "parking": (None, 3, "park")}
SERVER: ContextVar[Server | None] = ContextVar("SERVER", default=None)


class Records:
    """What is durable beside the log: survives every crash, and tells what was removed."""

    def __init__(self, on_saved: Callable[[Change], None]) -> None:
        self.newest = 0
        self.records: dict[str, Record] = {}
        self.on_saved = on_saved

    def save(self, change: Change) -> int | None:
        known = self.records.get(change.key)
        if (known.revision if known is not None and known.value else 0) != change.expected:
            return None
        self.newest += 1
        self.records[change.key] = Record(change.key, self.newest, change.value)
        self.on_saved(change)
        return self.newest


class ServerRecords:
    """The records as one server reaches them: slow, sometimes not at all, and not any more after a crash."""

    def __init__(self, records: Records, world: World, shared: bool) -> None:
        self.shared = shared
        self.dead = False
        self.away_until = 0.0  # the network is down
        self.last_sign = -1.0
        self._records = records
        self._world = world

    async def load(self, prefix: str) -> Sequence[Record]:
        await self._reach()
        found = [each for key, each in sorted(self._records.records.items()) if key.startswith(prefix)]
        return [each for each in found if each.value]

    async def changed(self, after: int) -> Sequence[Record]:
        await self._reach()
        found = [each for each in self._records.records.values() if each.revision > after]
        return sorted((each for each in found if each.value or self.shared), key=lambda each: each.revision)

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        await self._reach()
        revisions = [self._records.save(change) for change in changes]
        if changes[0].key.startswith("server.") and revisions[0] is not None:
            self.last_sign = self._world.loop.time()
        if self.shared and self._world.chance.random() < self._world.lossy:
            raise LogUnavailable("the broker did not answer in time")  # but it has stored it
        await self._reach()
        return revisions

    async def _reach(self) -> None:
        chance, loop = self._world.chance, self._world.loop
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() * 0.01)
        while loop.time() < self.away_until:
            await asyncio.sleep(0.5)
            if chance.random() < 0.1:
                raise LogUnavailable("the broker is away")
        if self.dead:
            await loop.create_future()


class SimulatedSinks(SinkClient):
    """The sinks of all subscriptions at the other end of a simulated network."""

    def __init__(self, world: World, server: Server) -> None:
        super().__init__(SinkRules(["sink.example"]), 15.0)
        self._world = world
        self._server = server

    async def send(
        self, key: str, sink: Sink, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Answer:
        if self._server.records.dead:
            await self._world.loop.create_future()
        if method == b"OPTIONS":
            return Answer(200, {"webhook-allowed-origin": "*"}, b"", 0.0)
        try:
            async with asyncio.timeout(15.0):
                return await self._world.receive(self._server, sink.target.strip("/"), dict(headers), body)
        except TimeoutError:
            raise NotSent("no answer within 15 s") from None


class Server:
    """One server: all that is lost in a crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records = ServerRecords(world.records, world, world.shared)
        self.tasks: set[asyncio.Task[Any]] = set()
        log = ServerLog(world.log, self.records)
        store = Store(log, world.archive)  # type: ignore[arg-type]  # a log, but for what is delegated
        self.hub = Hub(store, "http://localhost", Pace(buffer_bytes=600), clock=world.now)
        self.subscriptions = Subscriptions(
            self.hub,
            Catalogue({"tide": TIDE}, True),
            SimulatedSinks(world, self),
            Vault(b"k" * 32),
            Limits(retries=RetryPolicy(1.0, 5.0), in_flight=20),
            "http://localhost",
            world.guard,
            world.now,
        )

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something as this server: its tasks end with a crash."""
        SERVER.set(self)
        task = asyncio.ensure_future(work())
        SERVER.set(None)
        return await task

    async def start(self) -> None:
        self.hub.start()
        while True:
            try:
                return await self.subscriptions.start()
            except LogError:
                await asyncio.sleep(1.0)

    async def stop(self) -> None:
        await self.subscriptions.stop()
        await self.hub.stop()

    async def crash(self) -> None:
        """Nothing that this server does from now on has an effect."""
        self.records.dead = True
        for pause in (0.001, 0.2, 0.2):  # a live feed restarts itself after a moment
            for feed in list(self.hub.feeds):
                feed.close()
            while self.tasks:
                for task in list(self.tasks):
                    task.cancel()
                await asyncio.sleep(0.001)
            await asyncio.sleep(pause)


class ServerLog:
    """The log as one server sees it: the same for all, with its own way to the records."""

    def __init__(self, log: SimulatedLog, records: ServerRecords) -> None:
        self._log = log
        self.records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Edition(msgspec.Struct, frozen=True):
    """A filter that a subscription has had, and since when."""

    port: str | None
    since: float

    def wants(self, identifier: bytes) -> bool:
        return self.port is None or b'"%b"' % self.port.encode() in identifier


class Request(msgspec.Struct, frozen=True):
    """A request that a sink got."""

    webhook_id: str
    name: str
    sequences: list[int]
    time: float


class Held(msgspec.Struct):
    """A notification that a worker has."""

    lease: str
    until: float


def make_schedule(seed: int) -> list[Step]:
    """Make a schedule at random."""
    chance = random.Random(seed)
    steps: list[Step] = [("make",)]
    for _ in range(chance.randrange(5, 50)):
        who = chance.randrange(4)
        match chance.randrange(21):
            case 0 | 1 | 2 | 3:
                steps.append(("publish", chance.randrange(1, 12), chance.choice(PORTS)))
            case 4 | 5 | 6:
                steps.append(("work", who, chance.randrange(1, 7), chance.choice((0.0, 0.0, 5.0))))
            case 7:
                steps.append(("set_trouble", chance.choice((0.0, 0.5, 0.95))))
            case 8:
                steps.append(("pause", who, chance.choice(list(NAMES))))
            case 9:
                steps.append(("resume", who, chance.choice([*NAMES, "queue"])))
            case 10:
                steps.append(("crash", who))
            case 11:
                steps.append(("restart", who))
            case 12:
                steps.append(("partition", who, chance.choice((0.5, 10.0))))
            case 13:
                steps.append(("fail", chance.choice((0.01, 5.0))))
            case 14:
                steps.append(("retry", who, chance.choice(("parking", "queue"))))
            case 15 | 16:
                steps.append(("change", who, chance.choice([*NAMES, "queue"]), chance.choice((None, *PORTS))))
            case 17:
                steps.append(("delete", who, chance.random()))
            case 18 if chance.random() < 0.3:
                steps.append(("wipe", who))
            case 18:
                steps.append(("archive_some", chance.random()))
            case 19:
                steps.append(("trim", chance.random()))
            case _:
                steps.append(("wait", chance.choice((0.0, 0.01, 0.06, 1.0, 40.0))))
    return steps


class World:
    """Carries a schedule out and compares what the sinks and workers got with what was published."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.chance = random.Random(f"world {seed}")
        self.loop = loop
        self.log = SimulatedLog(self.chance)
        self.archive = self.chance.choice((MemoryArchive(run=self.chance.choice((1, 5, 50))), None))
        self.records = Records(self._note_filter)
        self.shared = self.chance.random() < 0.5
        self.trouble = 0.0  # how likely a request to a sink fails
        self.lossy = 0.0  # how likely the broker's answer is lost
        self.was_lossy = False
        self.servers: list[Server] = []
        self.longest_silence = 0.0  # of a server that sends
        self.editions: dict[str, list[Edition]] = {}
        self.got: list[Request] = []
        self.took: dict[str, dict[int, list[float]]] = {name: {} for name in NAMES}
        self.answered: dict[tuple[str, int], float] = {}
        self.repeated: list[tuple[str, int]] = []  # though the sink's answer was not lost
        self.losses: list[tuple[float, float]] = []  # when servers crashed, or could not reach the broker
        self.removed: set[int] = set()  # deleted or wiped: they need not arrive
        self.handed: dict[int, list[float]] = {}  # to workers, and when
        self.held: dict[int, Held] = {}
        self.acknowledged: set[int] = set()
        self.unsure: set[int] = set()  # their acknowledgement was not answered
        self.tasks: set[asyncio.Task[Any]] = set()
        loop.set_task_factory(self._make_task)

    def _make_task(self, loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        server = SERVER.get()
        if server is not None:
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
        return task

    def now(self) -> int:
        return int((1_000_000 + self.loop.time()) * SECOND)

    async def guard(self, subscription: Subscription, wanted: Filter) -> str | None:
        if self.chance.random() < 0.3:
            await asyncio.sleep(0)
        return None

    async def run(self, steps: Sequence[Step]) -> None:
        await self.log.open()
        for _ in range(2 if self.shared else 1):
            await self._start_server()
        for verb, *values in steps:
            await getattr(self, verb)(*values)
            self._check_laws()
        self.trouble = self.lossy = 0.0
        self.log.failing = False
        for server in self.servers:
            server.records.away_until = 0.0
        await asyncio.sleep(10.0)
        for name in (*NAMES, "queue"):
            if self.servers[0].subscriptions.find(ANYBODY, name).status == "paused":
                await self.resume(0, name)
        for port in PORTS:  # under the last filters
            await self.publish(1, port)
        for _ in range(60):
            await asyncio.sleep(5.0)
            await self.work(0, 7, 0.0, True)
            await self.retry(0, "queue")
            await self.retry(0, "parking")
            if not self.missing():
                break
        self._check_laws()
        assert not self.missing(), f"everything arrives: {self.missing()}"
        assert not self.tasks, "somebody was never answered"
        for server in self.servers:
            await server.run(server.stop)
        await asyncio.sleep(20.0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left behind: {left}"
        assert not self.loop.unhandled, f"errors that nobody handled: {self.loop.unhandled}"

    # the model

    def _note_filter(self, change: Change) -> None:
        """Note which filter a subscription has from now on: what is stored counts, whoever was told."""
        if change.key.startswith("subscription.") and change.value:
            wanted = msgspec.json.decode(change.value, type=Subscription).wanted
            known, port = self.editions.setdefault(wanted.name, []), wanted.identifier.get("port")
            if not known or known[-1].port != port:
                known.append(Edition(port, self.loop.time()))

    def missing(self) -> dict[str, int]:
        """Return the first notification of each subscription that no filter it has had explains the absence of."""
        arrived: dict[str, Mapping[int, Sequence[float]]] = dict(self.took)
        done = self.acknowledged | self.unsure | self.removed
        arrived["queue"] = {sequence: time for sequence, time in self.handed.items() if sequence in done}
        last = len(self.log.stored)
        found = {name: self._unexplained(name, each, last, self._gaps(name)) for name, each in arrived.items()}
        return {name: sequence for name, sequence in found.items() if sequence is not None}

    def _unexplained(
        self, name: str, arrived: Mapping[int, Sequence[float]], last: int, optional: Collection[int]
    ) -> int | None:
        """Return the first sequence that no filter explains the arrival or absence of, each from some cursor on."""
        editions, first = self.editions[name], 0
        slack = HEARD if self.shared else 0.1
        if name in ("queue", "parking"):
            slack = math.inf  # a lease, or a dead letter, of an earlier filter comes again when it ends, or is retried

        def explains(number: int, identifier: bytes, time: float) -> bool:
            until = editions[number + 1].since + slack if number + 1 < len(editions) else math.inf
            return editions[number].wants(identifier) and editions[number].since <= time <= until

        for each in self.log.stored[:last]:
            times = arrived.get(each.sequence)
            missing = each.sequence in optional or each.sequence in self.removed
            for number in range(first, len(editions)):
                wants = editions[number].wants(each.identifier)
                if times is None and (missing or not wants):
                    break
                if times is not None and any(explains(number, each.identifier, time) for time in times):
                    break
                if (
                    times is not None
                    and not wants
                    and all(
                        self._was_lost(time)
                        and any(explains(earlier, each.identifier, time) for earlier in range(number))
                        for time in times
                    )
                ):
                    break  # sent under an earlier filter by a server that could not save how far it was
            else:
                return each.sequence
            first = number
        return None

    def _gaps(self, name: str) -> set[int]:
        """Return the sequences of which the subscription says that retention was faster."""
        active = self.servers[0].subscriptions.find(ANYBODY, name)
        return {sequence for gap in active.state.gaps for sequence in range(gap.first, gap.last + 1)}

    def _sent(self, name: str) -> dict[int, list[float]]:
        """Return when each sequence was sent, in the order of their first times."""
        sent: dict[int, list[float]] = {}
        for request in self.got:
            if request.name == name:
                for sequence in request.sequences:
                    sent.setdefault(sequence, []).append(request.time)
        return sent

    def _take(self, name: str, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self.took[name].setdefault(sequence, []).append(self.loop.time())

    def _trimmed(self) -> int:
        return self.log._stream("tides").state().trimmed

    def _check_laws(self) -> None:
        assert self.longest_silence <= DEAD_AFTER, "a server that others take for dead sends nothing"
        assert not self.repeated, f"again only after a crash or a lost answer: {self.repeated}"
        gone = self.removed | set(range(1, self._trimmed() + 1))
        for name, (_, _, policy) in NAMES.items():
            known: dict[str, list[int]] = {}
            ids: dict[int, Request] = {}
            for each in self.got:
                if each.name != name:
                    continue
                before = known.setdefault(each.webhook_id, each.sequences)
                kept = [sequence for sequence in before if sequence in each.sequences or sequence not in gone]
                assert kept == each.sequences, "the same id means the same events, but for those that were removed"
                if policy == "block":
                    for sequence in each.sequences:
                        other = ids.setdefault(sequence, each)
                        assert other.webhook_id == each.webhook_id or self._changed(name, other.time, each.time), (
                            "the same event has the same id, unless the filter has changed"
                        )
            if policy == "block":
                sent = self._sent(name)
                assert not self._disorder(name, sent), "in order"
                lasting = [each for each, times in sent.items() if not self._was_lost_to(name, times[-1])]
                if lasting:
                    broken = self._unexplained(name, sent, max(lasting), gone)
                    assert broken is None, f"none is skipped, none comes that is not wanted: {name} {broken}"

    def _disorder(self, name: str, sent: Mapping[int, Sequence[float]]) -> bool:
        """Return whether one was first sent after a later one.

        It may be if only the new filter wants it, and the place where that began was not the newest one: the server
        that had sent the later one could not save that before it crashed.
        """
        highest = 0
        for sequence, (first, *_) in sent.items():
            if sequence < highest:
                earlier = sent[highest][0]
                if not (self._changed(name, earlier, first) and self._was_lost(earlier)):
                    return True
            highest = max(highest, sequence)
        return False

    def _was_lost_to(self, name: str, sent: float) -> bool:
        """Return whether a change of the filter may begin before something that was sent earlier."""
        return self._was_lost(sent) and self._changed(name, sent, self.loop.time())

    def _changed(self, name: str, start: float, end: float) -> bool:
        return any(start - HEARD <= edition.since <= end for edition in self.editions[name][1:])

    async def _start_server(self) -> None:
        server = Server(self)
        self.servers.append(server)
        await server.run(server.start)

    async def receive(self, server: Server, name: str, headers: dict[bytes, bytes], body: bytes) -> Answer:
        """Be the sink: take a request, or fail in one of many ways."""
        if self.shared:
            self.longest_silence = max(self.longest_silence, self.loop.time() - server.records.last_sign)
        decoded = json.loads(body)
        sequences = [each["sequence"] for each in (decoded if isinstance(decoded, list) else [decoded])]
        began = self.loop.time()
        for sequence in sequences:
            answered = self.answered.get((name, sequence))
            if answered is not None and not self._was_lost(answered):
                self.repeated.append((name, sequence))
        await asyncio.sleep(self.chance.random() * 0.02)
        self.got.append(Request(headers[b"webhook-id"].decode(), name, sequences, began))
        if self.chance.random() >= self.trouble:
            self._take(name, sequences)
            await asyncio.sleep(self.chance.random() * 0.02)
            self.answered.update({(name, sequence): self.loop.time() for sequence in sequences})
            return Answer(204, {}, b"", 0.0)
        match self.chance.randrange(5):
            case 0:
                self._take(name, sequences)
                raise NotSent("the answer is lost")
            case 1:
                self._take(name, sequences)
                await self.loop.create_future()  # it never answers
            case 2:
                return Answer(503, {"retry-after": "7"}, b"", 0.0)
            case 3 if len(sequences) > 1 and NAMES[name][2] == "park":
                return Answer(413, {}, b"", 0.0)
        return Answer(500, {}, b"no", 0.0)

    def _was_lost(self, answered: float) -> bool:
        """Return whether an answer may have been forgotten: what it moved is saved within a second."""
        return self.was_lossy or any(start - 1.0 <= answered <= end + 1.0 for start, end in self.losses)

    # steps

    def _server(self, who: int) -> Server:
        return self.servers[who % len(self.servers)]

    async def _ask(self, who: int, name: str, what: Callable[[Subscriptions, Active], Awaitable[T]]) -> T | None:
        """Ask a server something about a subscription; None if it cannot be done now."""
        server = self._server(who)
        if server.records.dead:
            return None  # it crashes right now: there is nobody to connect to
        subscriptions = server.subscriptions
        try:
            active = subscriptions.find(ANYBODY, name)
            async with asyncio.timeout(ANSWERED):
                return await server.run(lambda: what(subscriptions, active))
        except (LogError, NoSuchSubscription):
            return None
        except TimeoutError:
            raise AssertionError("somebody was never answered") from None

    async def make(self) -> None:
        subscriptions = self.servers[0].subscriptions
        for name, (port, batch, policy) in NAMES.items():
            wanted = Definition(
                name=name,
                event_type="tide",
                identifier={} if port is None else {"port": port},
                delivery="push",
                sink=f"http://sink.example/{name}",
                batch=batch,
                on_failure="park" if policy == "park" else "block",
                max_attempts=2 if policy == "park" else 0,
            )
            await self.servers[0].run(lambda wanted=wanted: subscriptions.create(wanted, ANYBODY, Span(), "x"))  # type: ignore[misc]  # bound now
        queue = Definition(name="queue", event_type="tide", identifier={}, max_attempts=4)
        await self.servers[0].run(lambda: subscriptions.create(queue, ANYBODY, Span(), "x"))
        await asyncio.sleep(2.0)
        self.lossy = self.chance.choice((0.0, 0.0, 0.05))
        self.was_lossy = self.lossy > 0.0

    async def publish(self, count: int, port: str) -> None:
        await self.log.append_many([TIDE.check({"port": port, "level": 3}, "x")] * count)

    async def work(self, who: int, most: int, wait: float, all_of_it: bool = False) -> None:
        """A worker takes some, and acknowledges some of it."""
        task = asyncio.create_task(self._work(who, most, wait, all_of_it))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if all_of_it:
            await task

    async def _work(self, who: int, most: int, wait: float, all_of_it: bool) -> None:
        began = self.loop.time()
        with suppress(asyncio.CancelledError):  # a crash of the server
            works = await self._ask(who, "queue", lambda it, active: it.puller.pull(active, most, wait, LEASE)) or []
            sequences = [json.loads(bytes(each.event))["sequence"] for each in works]
            assert sequences == sorted(sequences), "a worker gets them in order"
            stale = [self.held[each].lease for each in sequences if each in self.held]
            for sequence, each in zip(sequences, works, strict=True):
                self.handed.setdefault(sequence, []).append(self.loop.time())
                known = self.held.get(sequence)
                assert known is None or known.until <= self.loop.time(), "one worker at a time"
                self.held[sequence] = Held(each.lease, began + LEASE)
            if stale:
                found = await self._ask(who, "queue", lambda it, active: it.puller.ack(active, stale))
                assert not any(found or ()), "a lease that has ended is worth nothing"
            done = works if all_of_it else [each for each in works if self.chance.random() < 0.7]
            if done:
                leases = {int(each.lease.partition(".")[0]): each.lease for each in done}
                self.unsure.update(leases)  # until the answer comes, which may be lost
                found = await self._ask(who, "queue", lambda it, active: it.puller.ack(active, list(leases.values())))
                if found is not None:
                    self.unsure -= leases.keys()
                    self.acknowledged.update(sequence for sequence, ok in zip(leases, found, strict=True) if ok)
            left = [each.lease for each in works if each not in done]
            if left and self.chance.random() < 0.5:
                for lease in left:
                    self.held[int(lease.partition(".")[0])].until = 0.0
                await self._ask(who, "queue", lambda it, active: it.puller.nack(active, left, 0))

    async def set_trouble(self, likely: float) -> None:
        self.trouble = likely

    async def pause(self, who: int, name: str) -> None:
        await self._ask(who, name, lambda it, active: it.pause(active, "x"))

    async def resume(self, who: int, name: str) -> None:
        await self._ask(who, name, lambda it, active: it.resume(active, "x"))

    async def retry(self, who: int, name: str) -> None:
        await self._ask(who, name, lambda it, active: it.retry(active, None, "x"))

    async def change(self, who: int, name: str, port: str | None) -> None:
        """Change a filter."""

        async def changed(it: Subscriptions, active: Active) -> None:
            wanted = msgspec.structs.replace(active.definition, identifier={} if port is None else {"port": port})
            await it.change(active, wanted, Span(), "x", True)

        await self._ask(who, name, changed)

    async def delete(self, who: int, part: float) -> None:
        """An administrator removes one notification."""
        if self.log.stored:
            sequence = self.log.stored[int(len(self.log.stored) * part)].sequence
            self.removed.add(sequence)
            await self._server(who).hub.store.delete("tides", sequence)

    async def wipe(self, who: int) -> None:
        """An administrator removes everything."""
        self.removed.update(each.sequence for each in self.log.stored)
        await self._server(who).hub.store.wipe("tides")

    async def archive_some(self, part: float) -> None:
        if self.archive is not None:
            await self.archive.take(self.log, int(len(self.log.stored) * part))

    async def trim(self, part: float) -> None:
        """Retention removes the oldest: what is archived, if there is an archive."""
        reach = len(self.log.stored) if self.archive is None else self.archive.reach.get("tides", 0)
        self.log.trim("tides", int(reach * part))

    async def crash(self, who: int) -> None:
        server = self._server(who)
        self.losses.append((self.loop.time(), self.loop.time()))
        await server.crash()
        self.servers.remove(server)
        await self._start_server()

    async def restart(self, who: int) -> None:
        server = self._server(who)
        await server.run(server.stop)
        self.servers.remove(server)
        await self._start_server()

    async def partition(self, who: int, seconds: float) -> None:
        """The broker cannot be reached from one server."""
        if self.shared:
            self._server(who).records.away_until = self.loop.time() + seconds
            self.losses.append((self.loop.time(), self.loop.time() + seconds))

    async def fail(self, seconds: float) -> None:
        self.log.failing = True
        await asyncio.sleep(seconds)
        self.log.failing = False

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def simulate(seed: int, steps: Sequence[Step]) -> str | None:
    """Carry a schedule out; return the law that it breaks, None if it breaks none."""
    loop = SimulatedLoop(random.Random(f"loop {seed}"))
    ids = random.Random(f"ids {seed}")
    random.seed(f"delays {seed}")
    try:
        with (
            mock.patch.object(secrets, "token_hex", lambda size: ids.randbytes(size).hex()),
            mock.patch.object(secrets, "token_bytes", ids.randbytes),
        ):
            loop.run_until_complete(World(seed, loop).run(steps))
    except AssertionError as error:
        return str(error).partition("\n")[0] or repr(traceback.extract_tb(error.__traceback__)[-1])
    finally:
        for _ in range(3):  # a live feed restarts itself
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(1.0))
        loop.close()
    return None
