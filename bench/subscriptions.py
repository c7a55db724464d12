"""Subscriptions: what they cost a publish, and how fast they deliver. Run as `python -m bench.subscriptions`.

The sink is another process, reached over a real socket. In "publish", "memory", "delivery" and "dead" everything of
the server but HTTP runs in this process, on one core; "pull" and "lake" ask a server of its own over HTTP. Read the
ratios: both sides of each come from one run, in turns. "lake" makes an archive of a million notifications, which takes
a minute; `AVISO_BENCH_LAKE` names a folder that keeps it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import multiprocessing
import os
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
from bench import archived, workload
from tests.harness import Server
from tests.harness.client import JSON
from tests.subscriptions.scene import publish_batch

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
                began = time.process_time()  # others may use the machine
                for start in range(0, 500, 50):
                    await scene.log.append_many(drafts[start : start + 50])
                    await asyncio.sleep(0)
                feed = next(iter(scene.hub.feeds))
                while feed.passed < (await scene.log.state("wave")).last:
                    await asyncio.sleep(0)
                seconds[name].append(time.process_time() - began)
                await asyncio.sleep(0.3)  # the sinks are not part of it
        ratio = statistics.median(seconds["many"]) / statistics.median(seconds["few"])
        print(f"publish with 10,000 subscriptions against ten: {ratio:.2f} x the CPU time")


async def _idle_memory(url: str, path: Path) -> None:
    """What an idle push subscription with its own filter and sink holds, once it is made and after a restart."""
    count = 4000

    async def settle(scene: Scene) -> int:
        """Wait until all are idle; return the bytes in use."""
        while any(each.task is not None or each.cursor is None for each in scene.subscriptions.all):
            await asyncio.sleep(0.05)
        scene.subscriptions._client.close()  # connections that are not used are closed after half a minute
        await asyncio.sleep(0.1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async def prepared(scene: Scene) -> int:
        await scene.add("first", "first", delivery="push", sink=url)
        await _fill(scene, count, "first")
        return await settle(scene)

    tracemalloc.start()
    async with _scene(SqliteLog(path / "few")) as scene:
        await prepared(scene)
    async with _scene(SqliteLog(path / "few")) as scene:
        alone = await settle(scene)
    async with _scene(SqliteLog(path / "many")) as scene:
        before = await prepared(scene)
        for start in range(0, count, 100):
            some = range(start, start + 100)
            await asyncio.gather(*[scene.add(f"s{n}", f"sea-{n}", delivery="push", sink=f"{url}{n}") for n in some])
        made = await settle(scene) - before
        await scene.log.append_many([scene.draft(f"sea-{n}", n) for n in range(count)])
        while sum(each.state.delivered for each in scene.subscriptions.all) < 2 * count:
            await asyncio.sleep(0.05)
    async with _scene(SqliteLog(path / "many")) as scene:
        restarted = await settle(scene) - alone
    tracemalloc.stop()
    print(f"an idle subscription: {made / count:.0f} bytes when it was made, {restarted / count:.0f} after a restart")


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


_SCHEMA = {
    "wave": {
        "topic": {"base": "wave", "key_order": ["sea", "height"]},
        "identifier": {name: {"type": "StringHandler", "required": False} for name in ("sea", "height")},
    }
}


def _cpu(server: Server) -> float:
    """Seconds of CPU that a server has taken, without those of Spark's process."""
    words = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _post(server: Server, path: str, body: Any) -> Any:
    answer = server.client.request("POST", f"/api/v1/subscriptions{path}", msgspec.json.encode(body), JSON)
    if answer.status >= 300:
        raise RuntimeError(answer.body.decode())
    return answer.json()


async def _pull(path: Path) -> None:
    """Sixteen workers of one queue, each with a connection of its own."""
    count = 100_000
    configuration = {**workload.configuration("sqlite"), "notification_schema": _SCHEMA}
    with Server(configuration, path / "pull") as server:
        _post(server, "", {"name": "queue", "event_type": "wave", "identifier": {}})
        for start in range(0, count, 1000):
            identifiers = [{"sea": "x", "height": str(number)} for number in range(start, start + 1000)]
            notification = {"event_type": "wave", "payload": {"location": "x" * 300}}
            publish_batch(server.client, [{**notification, "identifier": each} for each in identifiers])
        done = 0

        async def work() -> None:
            nonlocal done
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

            async def ask(what: str, body: Any) -> Any:
                data = msgspec.json.encode(body)
                head = f"POST /api/v1/subscriptions/queue/{what} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}"
                writer.write(head.encode() + b"\r\ncontent-type: application/json\r\n\r\n" + data)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                return msgspec.json.decode(await reader.readexactly(size))

            while done < count:
                found = (await ask("pull", {"max": 100, "wait_seconds": 0.2}))["notifications"]
                if found:
                    answer = await ask("ack", {"leases": [each["lease"] for each in found]})
                    done += answer["done"]
            writer.close()

        began, cpu = time.perf_counter(), _cpu(server)
        await asyncio.gather(*[work() for _ in range(16)])
        spent, cores = time.perf_counter() - began, _cpu(server) - cpu
        print(f"pull with 16 workers over HTTP: {count / spent:,.0f}/s, {count / cores:,.0f} per second of its cores")


async def _lake(url: str, path: Path) -> None:
    """A subscription that begins a million notifications back, all of which the log has let go of."""
    rows = 1_000_000
    lake = Path(os.environ.get("AVISO_BENCH_LAKE") or path / "lake")
    if not lake.exists():
        archived.make(str(lake), rows)
    configuration = {
        **workload.configuration("sqlite", max_historical_notifications=2 * rows),
        "archive": {"enabled": True, "path": str(lake), "work_path": "work", "interval": "1s"},
        "notification_schema": {archived.NAME: archived.DEFINITION},
        "subscriptions": {"allow_sinks": ["127.0.0.1"]},
    }
    with Server(configuration, path / "lake-server") as server:
        while json.loads(server.client.get("/ready").body)["archive"]["state"] != "running":
            await asyncio.sleep(0.2)
        for number in range(3):
            name = f"lake-{number}"
            wanted = {"name": name, "event_type": archived.NAME, "identifier": {}, "from_id": "1", "batch": 1000}
            began, cpu = time.perf_counter(), _cpu(server)
            _post(server, "", {**wanted, "delivery": "push", "sink": url})
            while server.client.get(f"/api/v1/subscriptions/{name}").json()["delivered"] < rows:
                await asyncio.sleep(0.1)
            spent, cores = time.perf_counter() - began, _cpu(server) - cpu
            print(
                f"a million from the lake in batches of 1,000: {rows / spent:,.0f}/s, "
                f"{rows / cores:,.0f} per second of the server's cores, without Spark's"
            )


async def _run(names: Sequence[str], url: str, path: Path) -> None:
    parts = {
        "publish": lambda: _publish_cost(url),
        "memory": lambda: _idle_memory(url, path),
        "delivery": lambda: _delivery(url, path),
        "dead": lambda: _dead_sinks(url),
        "pull": lambda: _pull(path),
        "lake": lambda: _lake(url, path),
    }
    for name in names or parts:
        await parts[name]()


def main() -> None:
    """Measure all, or what the arguments name."""
    logging.disable()  # dead sinks are meant to be dead
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
