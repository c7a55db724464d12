"""A simulated world for the real delivery code: one seed gives one schedule, and time passes only when nobody works.

The event loop, its clock, the threads, the log's delays and the sockets are simulated; hub, feeds, watchers, replays,
history and store are the real ones. A schedule of a few hundred steps takes some milliseconds.
"""

from __future__ import annotations

import asyncio
import functools
import random
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from aviso_server.delivery.clients import ClientWriter, Replay, Watcher
from aviso_server.delivery.hub import Hub, Pace
from aviso_server.delivery.live import LiveFeed
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch, StreamState
from aviso_server.log.memory import MemoryLog
from aviso_server.model.notification import Box, Draft, Notification
from aviso_server.model.times import Span
from aviso_server.store import Store
from tests.archive.memory_archive import MemoryArchive
from tests.delivery.scene import TIDE, Reader

__all__ = ["Step", "in_simulated_time", "make_schedule", "shortest", "simulate"]

HEARTBEAT = 10.0  # seconds
SLACK = 1.0  # seconds that a heartbeat may be late
PORTS = ("oslo", "kiel")
ERRORS: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError, ConnectionResetError)

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedLoop(asyncio.BaseEventLoop):
    """Callbacks in the order of asyncio, a clock that jumps to the next timer, and threads that take random times."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._now = 0.0
        self._selector = self  # asyncio asks it to wait for sockets: there are none, so only time passes
        self._clock_resolution = 1e-9
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "everybody waits for something that never comes"
        self._now += timeout or self._chance.random() * 1e-4  # work takes a moment too
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # no real threads
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._chance.random() * 0.01, run)
        return future

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def in_simulated_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test that needs no threads or sockets; its pauses take no time, however slow the machine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=lambda: SimulatedLoop(random.Random(0))) as runner:
            runner.run(test(*args, **kwargs))
            loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        assert loop.unhandled == []

    return run


class SimulatedLog(MemoryLog):
    """A log whose calls take random times, may fail for a while, and whose retention waits for the archive."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(10**9, 10**9)
        self.stored: list[Notification] = []  # all that was ever stored
        self.failing = False
        self.failures = 0
        self.delay = 0.001  # seconds
        self._chance = chance

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        await self._take_time()
        stored = await super().append_many(drafts)
        self.stored.extend(stored)
        await self._take_time()
        return stored

    async def state(self, stream: str) -> StreamState:
        await self._take_time()
        return await super().state(stream)

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        await self._take_time()
        if self.failing:
            self.failures += 1
            raise LogUnavailable("the disk is on fire")
        found = await super().read(stream, start, end, limit, box)
        await self._take_time()
        return found

    def trim(self, stream: str, through: int) -> None:
        for sequence in range(self._stream(stream).state().first, through + 1):
            self._stream(stream).trim(sequence)

    async def _take_time(self) -> None:
        match self._chance.randrange(4):
            case 0:
                await asyncio.sleep(0)
            case 1:
                await asyncio.sleep(self._chance.random() * self.delay)


class ThreadedSimulatedLog(SimulatedLog):
    """The same, but reads happen in threads, where batches are rendered too."""

    async def read_in_thread(
        self, stream: str, start: int, end: int, limit: int, topics: bool, work: Callable[[Batch, int], T]
    ) -> T:
        await self._take_time()
        if self.failing:
            self.failures += 1
            raise LogUnavailable("the disk is on fire")
        found = await MemoryLog.read(self, stream, start, end, limit)
        trimmed = (await MemoryLog.state(self, stream)).trimmed
        result = work(found, trimmed)
        await self._take_time()
        return result


class Client(Reader):
    """A reader at the end of a socket that may be slow, stop, or fail in any way."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.always_read = True  # it was never slow, stopped or broken
        self.error: Exception | None = None
        self.delay = 0.0
        self.times: list[float] = []  # when something came, after the stream was opened
        self._chance = chance

    async def send(self, message: Any) -> None:
        self._fail()
        if self.delay:
            await asyncio.sleep(self._chance.random() * self.delay)
        await super().send(message)
        self._fail()
        self.times.append(asyncio.get_running_loop().time())

    def hang_up(self) -> None:
        super().hang_up()
        self._fail()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class Opened(msgspec.Struct):
    """A stream of a client, and what it is to get."""

    stream: Watcher | Replay
    client: Client
    port: str | None
    first: int
    last: int | None = None  # None: without end
    left: bool = False


Step = tuple[Any, ...]


def make_schedule(seed: int) -> list[Step]:
    """Make a schedule at random."""
    chance = random.Random(seed)
    steps: list[Step] = [("watch", None, None)]
    for _ in range(chance.randrange(5, 60)):
        who = chance.randrange(12)
        match chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                steps.append(("publish", chance.randrange(1, 25), chance.choice((0, 50, 400)), chance.choice(PORTS)))
            case 6 | 7:
                steps.append(("watch", chance.choice((None, *PORTS)), chance.choice((None, None, 0.0, 0.5, 1.0))))
            case 8:
                steps.append(("replay", chance.choice((None, *PORTS)), chance.choice((0.0, 0.5))))
            case 9:
                steps.append(("stop", who))
            case 10:
                steps.append(("resume", who))
            case 11:
                steps.append(("slow", who, chance.choice((0.001, 0.1, 20.0))))
            case 12:
                steps.append(("break", who, chance.randrange(len(ERRORS))))
            case 13:
                steps.append(("leave", who))
            case 14:
                steps.append(("archive", chance.random()))
            case 15:
                steps.append(("trim", chance.random()))
            case 16 if chance.random() < 0.2:
                steps.append(("fail", chance.choice((0.001, 5.0))))
            case 16 if chance.random() < 0.2:
                steps.append((chance.choice(("hang", "deafen")), chance.choice((0.0, 1.0, 60.0))))
            case 17:
                steps.append(("delay", chance.choice((0.001, 0.1, 30.0))))
            case _:
                steps.append(("wait", chance.choice((0.0, 0.001, 0.01, 3.0, 15.0))))
    return steps


class World:
    """Carries a schedule out."""

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.chance = random.Random(f"world {seed}")
        self.loop = loop
        self.log = self.chance.choice((SimulatedLog, ThreadedSimulatedLog))(self.chance)
        self.memory_archive = MemoryArchive(run=self.chance.choice((1, 5, 50)))
        self.opened: list[Opened] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.standstills = 0  # of live feeds
        archive = self.chance.choice((self.memory_archive, None))
        pace = Pace(
            heartbeat_interval=HEARTBEAT,
            max_duration=10**6,
            stall=10**6,
            buffer_bytes=self.chance.choice((1, 600, 5_000, 10**6)),
            batch_size=3,
            batch_delay=self.chance.choice((0.0, 0.0, 0.0, 12.0)),
        )
        self.has_archive = archive is not None
        self.hub = Hub(Store(self.log, archive), "http://localhost", pace, clock=lambda: int(loop.time() * 10**9))

    async def run(self, steps: Sequence[Step]) -> None:
        await self.log.open()
        self.hub.start()
        for verb, *values in steps:
            await getattr(self, verb)(*values)
        self.log.failing, self.log.delay = False, 0.001
        for each in self.opened:
            each.client.delay = 0.0
            each.client.resume()
        for _ in range(40):
            await asyncio.sleep(10.0 + 4.0 * self.hub.pace.batch_delay)
            if not self.tasks and all(map(self.is_done, self.opened)):
                break
        for each in self.opened:
            self.check(each)
        assert not self.tasks, "a publisher was never answered"
        assert self.hub.restarts <= self.standstills, "a live feed failed"
        for each in self.opened:
            self.hub.release(each.stream)
        await self.hub.stop()
        await asyncio.sleep(1.0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left behind: {left}"
        assert not self.loop.unhandled, f"errors that nobody handled: {self.loop.unhandled}"

    def expected(self, each: Opened) -> list[int]:
        return [
            notification.sequence
            for notification in self.log.stored
            if each.first <= notification.sequence <= (each.last or notification.sequence)
            and (each.port is None or b'"%b"' % each.port.encode() in notification.identifier)
        ]

    def is_done(self, each: Opened) -> bool:
        client = each.client
        if client.ended or each.left or client.error is not None:
            return True
        return isinstance(each.stream, Watcher) and client.sequences == self.expected(each)

    def check(self, each: Opened) -> None:
        client, expected = each.client, self.expected(each)
        received = client.sequences
        assert received == expected[: len(received)], "each matching one once and in order"
        if each.left or client.error is not None:
            return
        if "error" in client.kinds:
            assert self.log.failures, "an error without a reason"
            return
        assert received == expected, "nothing is missing"
        if isinstance(each.stream, Replay):
            assert client.kinds[-2:] == ["replay_completed", "connection-closing"], "it ends"
        else:
            assert not client.ended, "a watch goes on"
            gaps = [later - earlier for earlier, later in zip(client.times, client.times[1:], strict=False)]
            assert not client.always_read or max(gaps, default=0) <= HEARTBEAT + SLACK, "a heartbeat is missing"

    async def publish(self, count: int, size: int, port: str) -> None:
        drafts = [TIDE.check({"port": port, "level": 3}, "x" * size)] * count
        task = asyncio.create_task(self.hub.store.append_many(drafts))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def watch(self, port: str | None, back: float | None) -> None:
        client = Client(self.chance)
        wanted = TIDE.compile({} if port is None else {"port": port}, "watch")
        watcher = await self.hub.watcher(wanted, ClientWriter(client.send, client.hang_up), "the-request")
        first = watcher.position
        if back is None:
            watcher.go_live()
        else:
            first = max(1, int(first * back))
            watcher.go_back(Span(from_sequence=first), None)
        self.hub.begin(watcher)
        client.times = [self.loop.time()]
        self.opened.append(Opened(watcher, client, port, first))

    async def replay(self, port: str | None, back: float) -> None:
        client = Client(self.chance)
        wanted = TIDE.compile({} if port is None else {"port": port}, "replay")
        last = (await self.hub.store.state(wanted.stream)).last
        first = max(1, int(last * back))
        replay = self.hub.replay(wanted, ClientWriter(client.send, client.hang_up), "the-request")
        replay.begin(Span(from_sequence=first), last, None)
        self.opened.append(Opened(replay, client, port, first, last or -1))

    def _client(self, who: int) -> Client:
        client = self.opened[who % len(self.opened)].client
        client.always_read = False
        return client

    async def stop(self, who: int) -> None:
        self._client(who).stop()

    async def resume(self, who: int) -> None:
        self._client(who).resume()

    async def slow(self, who: int, seconds: float) -> None:
        self._client(who).delay = seconds

    async def __break(self, who: int, kind: int) -> None:
        self._client(who).error = ERRORS[kind]("the transport is broken")

    async def leave(self, who: int) -> None:
        each = self.opened[who % len(self.opened)]
        each.left = True
        self.hub.release(each.stream)

    async def archive(self, part: float) -> None:
        if self.has_archive and not self.log.failing:
            await self.memory_archive.take(self.log, int(len(self.log.stored) * part))

    async def trim(self, part: float) -> None:
        if self.has_archive:
            self.log.trim("tides", int(self.memory_archive.reach.get("tides", 0) * part))

    async def fail(self, seconds: float) -> None:
        self.log.failing = True
        await asyncio.sleep(seconds)
        self.log.failing = False

    async def hang(self, seconds: float) -> None:
        """The live feeds wait for something that never comes."""
        self.standstills += len(self.hub.feeds)
        for feed in self.hub.feeds:
            feed._pass_on = partial(self._hang_once, feed)  # type: ignore[method-assign]  # for this one
        await asyncio.sleep(seconds)

    async def _hang_once(self, feed: LiveFeed, batch: Sequence[Notification]) -> None:
        del feed._pass_on
        await self.loop.create_future()

    async def deafen(self, seconds: float) -> None:
        """The log tells the live feeds nothing more."""
        self.standstills += len(self.hub.feeds)
        for hold in self.log._followers._holds.get("tides", ()):
            hold.active = False
        await asyncio.sleep(seconds)

    async def delay(self, seconds: float) -> None:
        self.log.delay = seconds

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


setattr(World, "break", World._World__break)  # type: ignore[attr-defined]  # `break` is no name for a method


def simulate(seed: int, steps: Sequence[Step]) -> str | None:
    """Carry a schedule out; return the law that it breaks, None if it breaks none."""
    loop = SimulatedLoop(random.Random(f"loop {seed}"))
    try:
        loop.run_until_complete(World(seed, loop).run(steps))
    except AssertionError as error:
        return str(error).partition("\n")[0] or repr(traceback.extract_tb(error.__traceback__)[-1])
    finally:
        loop.close()
    return None


def shortest(
    seed: int, steps: Sequence[Step], simulate: Callable[[int, Sequence[Step]], str | None] = simulate
) -> list[Step]:
    """Leave out every step of a failing schedule without which it still fails."""
    kept = list(steps)
    for place in reversed(range(1, len(kept))):
        fewer = kept[:place] + kept[place + 1 :]
        if simulate(seed, fewer) is not None:
            kept = fewer
    return kept
