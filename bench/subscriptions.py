"""Subscriptions: what they cost a publish, and how fast they deliver. Run as `python -m bench.subscriptions`.

Everything of the server but HTTP runs in this process, on one core; the sink is another process. Read the ratios: both
sides of each come from one run, in turns.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from aviso_server.delivery.hub import Hub, Pace
from aviso_server.log.base import Log
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.event_type import Catalogue, EventType
from aviso_server.model.fields import FIELD_TYPES
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft
from aviso_server.model.times import Span
from aviso_server.store import Store
from aviso_server.subscriptions.push import RetryPolicy
from aviso_server.subscriptions.registry import Limits, Subscriptions
from aviso_server.subscriptions.signatures import Vault
from aviso_server.subscriptions.sinks import SinkClient, SinkRules
from aviso_server.subscriptions.subscription import ANYBODY, Definition, Subscription

__all__: list[str] = []

_PAYLOAD = b'{"location":"' + b"x" * 300 + b'"}'


class _Sink(asyncio.Protocol):
    """Says 204 to everything, as fast as it can."""

    counted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (head := self.data.find(b"\r\n\r\n")) >= 0:
            at = self.data.find(b"content-length: ")
            size = int(self.data[at + 16 : self.data.find(b"\r\n", at)])
            if len(self.data) < head + 4 + size:
                return
            self.data = self.data[head + 4 + size :]
            self.transport.write(b"HTTP/1.1 204 OK\r\nwebhook-allowed-origin: *\r\ncontent-length: 0\r\n\r\n")


def _serve_sink(port: Any) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Sink, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


async def _nobody(subscription: Subscription, wanted: Filter) -> str | None:
    return None


def _event_type() -> EventType:
    text = FIELD_TYPES["StringHandler"]
    return EventType(
        name="wave", fields={name: text(required=False) for name in ("sea", "height")}, base="wave",
        key_order=("sea", "height"),
    )  # fmt: skip


class Scene:
    """A log with subscriptions, and nothing in front of it."""

    def __init__(self, log: Log, in_flight: int = 10_000) -> None:
        self.log = log
        self.event_type = _event_type()
        self.hub = Hub(Store(log), "http://aviso.example", Pace(), event_types=["wave"])
        self.subscriptions = Subscriptions(
            self.hub,
            Catalogue({"wave": self.event_type}, True),
            SinkClient(SinkRules(["127.0.0.1"]), 2.0),
            Vault(b"k" * 32),
            Limits(per_user=10**6, in_flight=in_flight, retries=RetryPolicy(0.2, 1.0)),
            "http://aviso.example",
            _nobody,
        )

    def draft(self, sea: str, height: int) -> Draft:
        return self.event_type.check({"sea": sea, "height": str(height)}, {"location": "x" * 300})

    async def add(self, name: str, sea: str, **more: Any) -> Any:
        wanted = Definition(name=name, event_type="wave", identifier={"sea": sea} if sea else {}, **more)
        span = Span(from_sequence=1) if more.get("from_start") else Span()
        active, _ = await self.subscriptions.create(wanted, ANYBODY, span, "bench")
        return active


@asynccontextmanager
async def _scene(log: Log, in_flight: int = 10_000) -> AsyncIterator[Scene]:
    await log.open()
    scene = Scene(log, in_flight)
    scene.hub.start()
    await scene.subscriptions.start()
    try:
        yield scene
    finally:
        await scene.subscriptions.stop()
        await scene.hub.stop()
        await log.close()


async def _fill(scene: Scene, count: int, sea: str = "x") -> None:
    for start in range(0, count, 5000):
        await scene.log.append_many([scene.draft(sea, start + n) for n in range(min(5000, count - start))])


async def _add_many(scene: Scene, count: int, url: str) -> None:
    for start in range(0, count, 100):
        numbers = range(start, min(start + 100, count))
        await asyncio.gather(*[scene.add(f"s{n}", f"sea-{n}", delivery="push", sink=url) for n in numbers])


async def _publish_cost(url: str) -> None:
    """A publish with 10,000 push subscriptions whose filters do not match, against one with ten."""
    async with _scene(MemoryLog(10**6)) as few, _scene(MemoryLog(10**6)) as many:
        for scene, count in ((few, 10), (many, 10_000)):
            await _add_many(scene, count, url)
        await asyncio.sleep(1)
        seconds: dict[str, list[float]] = {"few": [], "many": []}
        for _ in range(7):
            for name, scene in (("few", few), ("many", many)):
                drafts = [scene.draft("nobody's", n) for n in range(500)]
                began = time.perf_counter()
                for start in range(0, 500, 50):
                    await scene.log.append_many(drafts[start : start + 50])
                    await asyncio.sleep(0)
                feed = next(iter(scene.hub.feeds))
                while feed.passed < (await scene.log.state("wave")).last:
                    await asyncio.sleep(0)
                seconds[name].append(time.perf_counter() - began)
                await asyncio.sleep(0.3)  # the sinks are not part of it
        ratio = statistics.median(seconds["many"]) / statistics.median(seconds["few"])
        print(f"publish with 10,000 subscriptions against ten: {ratio:.2f} x")


async def _idle_memory(url: str, path: Path) -> None:
    count = 2000
    async with _scene(SqliteLog(path / "memory")) as scene:
        await scene.add("first", "first", delivery="push", sink=url)
        await _fill(scene, 10, "first")
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await _add_many(scene, count, url)
        while any(each.task is not None for each in scene.subscriptions.all):
            await asyncio.sleep(0.05)
        scene.subscriptions._client.close()  # connections that are not used are closed after half a minute
        await asyncio.sleep(0.1)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        print(f"an idle subscription: {used / count:.0f} bytes")


async def _delivery(url: str, path: Path) -> None:
    for batch, count in ((1, 20_000), (100, 300_000)):
        async with _scene(SqliteLog(path / f"log{batch}")) as scene:
            await _fill(scene, count)
            began, cpu = time.perf_counter(), time.process_time()
            active = await scene.add("one", "x", delivery="push", sink=url, batch=batch)
            await scene.subscriptions.change(active, active.definition, Span(from_sequence=1), "bench", True)
            while active.state.delivered < count:
                await asyncio.sleep(0.01)
            spent, cores = time.perf_counter() - began, time.process_time() - cpu
            words = "singly" if batch == 1 else f"in batches of {batch}"
            print(
                f"to one sink {words}: {count / spent:,.0f}/s, {count / cores:,.0f} per second of this process's cores"
            )


async def _dead_sinks(url: str) -> None:
    """How long ten good sinks wait for a notification, alone and beside a hundred dead ones."""
    async with _scene(MemoryLog(10**6)) as alone, _scene(MemoryLog(10**6)) as crowded:
        for scene in (alone, crowded):
            for number in range(10):
                await scene.add(f"good{number}", "x", delivery="push", sink=url)
        for number in range(100):
            # nobody listens there; consent was given before they died
            active = await scene.add(f"dead{number}", "x", delivery="push", sink=url)
            wanted = msgspec.structs.replace(active.subscription.wanted, sink="http://127.0.0.1:9/")
            active.subscription = msgspec.structs.replace(active.subscription, wanted=wanted)
        waits: dict[str, list[float]] = {"alone": [], "crowded": []}
        for number in range(300):
            for name, scene in (("alone", alone), ("crowded", crowded)):
                good = [each for each in scene.subscriptions.all if each.definition.name.startswith("good")]
                began = time.perf_counter()
                await scene.log.append(scene.draft("x", number))
                while any(each.state.delivered <= number for each in good):
                    await asyncio.sleep(0)
                waits[name].append(time.perf_counter() - began)
        p99 = {name: sorted(found)[int(len(found) * 0.99)] * 1000 for name, found in waits.items()}
        ratio = p99["crowded"] / p99["alone"]
        print(f"p99 beside 100 dead sinks: {ratio:.2f} x ({p99['alone']:.1f} ms alone, {p99['crowded']:.1f} ms)")


async def _pull(path: Path) -> None:
    count = 100_000
    async with _scene(SqliteLog(path / "pull")) as scene:
        await _fill(scene, count)
        active = await scene.add("queue", "x")
        await scene.subscriptions.change(active, active.definition, Span(from_sequence=1), "bench", True)
        done = 0

        async def work() -> None:
            nonlocal done
            while done < count:
                works = await scene.subscriptions.puller.pull(active, 100, 0.2, 60)
                if works:
                    found = await scene.subscriptions.puller.ack(active, [each.lease for each in works])
                    done += sum(found)

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[work() for _ in range(16)])
        spent, cores = time.perf_counter() - began, time.process_time() - cpu
        print(f"pull with 16 workers: {count / spent:,.0f}/s, {count / cores:,.0f} per second of this process's cores")


async def _run(names: Sequence[str], url: str, path: Path) -> None:
    parts = {
        "publish": lambda: _publish_cost(url),
        "memory": lambda: _idle_memory(url, path),
        "delivery": lambda: _delivery(url, path),
        "dead": lambda: _dead_sinks(url),
        "pull": lambda: _pull(path),
    }
    for name in names or parts:
        await parts[name]()


def main() -> None:
    """Measure all, or what the arguments name."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ours, theirs = multiprocessing.Pipe()
    sink = multiprocessing.Process(target=_serve_sink, args=(theirs,), daemon=True)
    sink.start()
    url = f"http://127.0.0.1:{ours.recv()}/"
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(_run(sys.argv[1:], url, Path(directory)))
    sink.kill()


if __name__ == "__main__":
    main()
