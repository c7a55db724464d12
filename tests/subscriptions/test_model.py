"""Subscriptions against a simple model, with random events and faults: nothing is skipped, nothing out of order.

The server's parts run in this process on a real SQLite log, the receiver is a real socket. A crash is what it is to a
process: everything in memory is gone, and the log is opened again.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from aviso_server.delivery.hub import Hub, Pace
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.event_type import Catalogue, EventType
from aviso_server.model.fields import FIELD_TYPES
from aviso_server.model.filter import Filter
from aviso_server.model.times import Span
from aviso_server.store import Store
from aviso_server.subscriptions.active import Active
from aviso_server.subscriptions.push import RetryPolicy
from aviso_server.subscriptions.registry import Limits, Subscriptions
from aviso_server.subscriptions.signatures import Vault
from aviso_server.subscriptions.sinks import SinkClient, SinkRules
from aviso_server.subscriptions.subscription import ANYBODY, Definition, Subscription

SEAS = ("north", "south")


class Sink:
    """Takes requests, fails as it likes, and remembers what came and what it took."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.trouble = 0.0  # how likely a request fails
        self.got: list[tuple[str, str, list[int]]] = []  # webhook-id, path, sequences
        self.took: list[tuple[str, list[int]]] = []  # path, sequences
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields["content-length"]))
                path = head.split()[1]
                if head.startswith("OPTIONS"):
                    writer.write(b"HTTP/1.1 200 OK\r\nwebhook-allowed-origin: *\r\ncontent-length: 0\r\n\r\n")
                    continue
                decoded = json.loads(body)
                sequences = [each["sequence"] for each in (decoded if isinstance(decoded, list) else [decoded])]
                self.got.append((fields["webhook-id"], path, sequences))
                fate = self._chance.random()
                if fate < self.trouble / 3:  # it failed
                    writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
                elif fate < self.trouble * 2 / 3:  # its answer is lost
                    self.took.append((path, sequences))
                    writer.transport.abort()
                    return
                elif fate < self.trouble:  # it hung up
                    writer.transport.abort()
                    return
                else:
                    self.took.append((path, sequences))
                    writer.write(b"HTTP/1.1 204 OK\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def anybody(subscription: Subscription, wanted: Filter) -> str | None:
    return None


class World:
    """A server's parts, what was published, and what the model expects."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.sink = Sink(self.chance)
        text = FIELD_TYPES["StringHandler"]
        fields: Any = {name: text(required=False) for name in ("sea", "height")}
        self.event_type = EventType(name="wave", fields=fields, base="wave", key_order=("sea", "height"))
        self.published: dict[int, str] = {}  # sequence and sea
        self.wanted: dict[str, list[int]] = {}  # path -> what the subscription has to get, in order
        self.filters: dict[str, str | None] = {}
        self.pulled: list[int] = []
        self.url = ""

    async def start(self) -> None:
        self.log = SqliteLog(self.directory)
        await self.log.open()
        self.hub = Hub(Store(self.log), "http://aviso.example", Pace(), event_types=["wave"])
        self.hub.start()
        self.subscriptions = Subscriptions(
            self.hub,
            Catalogue({"wave": self.event_type}, True),
            SinkClient(SinkRules(["127.0.0.1"]), 5.0),
            Vault(b"k" * 32),
            Limits(retries=RetryPolicy(0.01, 0.05)),
            "http://aviso.example",
            anybody,
        )
        await self.subscriptions.start()

    async def crash(self) -> None:
        """Lose everything in memory."""
        for active in list(self.subscriptions.all):
            self.subscriptions._timers.discard(active)
            active.close()
            self.subscriptions._states._dirty.clear()
        for task in self.subscriptions._tasks:
            task.cancel()
        await self.subscriptions._states.stop(0)
        self.subscriptions._client.close()
        await self.hub.stop()
        await self.log.close()
        await self.start()

    async def publish(self, count: int) -> None:
        for _ in range(count):
            sea = self.chance.choice(SEAS)
            stored = await self.log.append(self.event_type.check({"sea": sea, "height": "1"}))
            self.published[stored.sequence] = sea
            for path, wanted in self.filters.items():
                if wanted in (None, sea):
                    self.wanted[path].append(stored.sequence)

    async def make(self, name: str, sea: str | None, batch: int) -> None:
        definition = Definition(
            name=name,
            event_type="wave",
            identifier={} if sea is None else {"sea": sea},
            delivery="push",
            sink=f"{self.url}/{name}",
            batch=batch,
        )
        await self.subscriptions.create(definition, ANYBODY, Span(), "test")
        self.wanted[f"/{name}"], self.filters[f"/{name}"] = [], sea

    def active(self, name: str) -> Active:
        return self.subscriptions.find(ANYBODY, name)

    async def work(self) -> None:
        """One worker takes some, and acknowledges some of it."""
        works = await self.subscriptions.puller.pull(self.active("queue"), self.chance.randint(1, 5), 0, 1)
        done = [each for each in works if self.chance.random() < 0.8]
        if done and self.chance.random() < 0.9:
            found = await self.subscriptions.puller.ack(self.active("queue"), [each.lease for each in done])
            taken = [json.loads(bytes(each.event))["sequence"] for each, ok in zip(done, found, strict=True) if ok]
            self.pulled += taken
        left = [each.lease for each in works if each not in done]
        if left:
            await self.subscriptions.puller.nack(self.active("queue"), left, 0)

    def check(self, whole: bool) -> None:
        """Compare what came with the model."""
        for path, wanted in self.wanted.items():
            seen: dict[str, list[int]] = {}
            fresh: list[int] = []
            for name, where, sequences in self.sink.got:
                if where != path:
                    continue
                if name in seen:
                    assert seen[name] == sequences, "the same id means the same events"
                    continue
                seen[name] = sequences
                fresh += sequences
            assert fresh == wanted[: len(fresh)], f"{path}: in order, none skipped, none twice under another id"
            if whole:
                took = {sequence for where, sequences in self.sink.took if where == path for sequence in sequences}
                assert took == set(wanted), f"{path}: every one of them"


@pytest.mark.parametrize("seed", range(6))
def test_random_events_and_faults_end_as_in_the_model(seed: int, tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path / "log", seed)
        world.url = await world.sink.start()
        await world.start()
        await world.make("single", "north", 1)
        await world.make("batches", None, 4)
        queue = Definition(name="queue", event_type="wave", identifier={}, max_attempts=0)
        await world.subscriptions.create(queue, ANYBODY, Span(), "test")
        chance = world.chance
        for _ in range(60):
            act = chance.random()
            if act < 0.45:
                await world.publish(chance.randint(1, 6))
            elif act < 0.6:
                await world.work()
            elif act < 0.7:
                world.sink.trouble = chance.choice([0.0, 0.5, 0.95])
            elif act < 0.78:
                await world.crash()
            elif act < 0.86:
                name = chance.choice(["single", "batches"])
                await world.subscriptions.pause(world.active(name), "test")
                await world.publish(chance.randint(0, 4))
                await world.subscriptions.resume(world.active(name), "test")
            else:
                await asyncio.sleep(chance.random() * 0.05)
            world.check(whole=False)
        world.sink.trouble = 0.0
        for name in ("single", "batches"):
            await world.subscriptions.resume(world.active(name), "test")
        deadline = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < deadline:
            await world.work()
            done = all(
                {s for where, sequences in world.sink.took if where == path for s in sequences} == set(wanted)
                for path, wanted in world.wanted.items()
            )
            if done and set(world.pulled) == set(world.published):
                break
            await asyncio.sleep(0.02)
        world.check(whole=True)
        assert sorted(world.pulled) == sorted(world.published), "each was acknowledged once"
        await world.subscriptions.stop()
        await world.hub.stop()
        await world.log.close()

    asyncio.run(run())
