"""The watch on a real log, with the clock in our hand: nothing is said twice, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aviso_server.delivery.hub import Hub, Pace
from aviso_server.lateness.watch import ModelFiles, StateFile, Watch
from aviso_server.log.base import Log, StoragePolicy
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.lateness import DAY, Learned, Rhythm, Watched, day_text, encode, file_name
from aviso_server.store import Store
from tests.model.event_types import event_type

HOUR = 3600
TIDE = event_type("tide", {"port": "StringHandler", "date": "DateHandler"}, base="tides", order=["port", "date"])
WATCHED = Watched(event_type="tide", stream="tides", by=("port",), date="date", tolerance=1800)
DAY_0 = 20_003


def model(*ports: str) -> Learned:
    """Every port is expected at six, and overdue at half past."""
    rhythms = [
        Rhythm(
            values=(port,),
            weekdays=0b1111111,
            earliest=6 * HOUR,
            expected=6 * HOUR,
            overdue=6 * HOUR + 1800,
            spread=0,
            seen=40,
        )
        for port in ports
    ]
    return Learned(event_type="tide", learned_at=0, until=0, by=("port",), date="date", rhythms=tuple(rhythms))


class Scene:
    """A log, a folder with models and one with state; watches come and go."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.log = log
        self.folder = folder
        self.now = 0.0  # hours since the beginning of the first day
        self.hub = Hub(Store(log), "http://localhost", Pace())
        self.write(model("oslo", "bergen"))

    def write(self, learned: Learned) -> None:
        """A new model, put in the place of the old one."""
        draft = self.folder / "draft"
        draft.write_bytes(encode(learned))
        (self.folder / "models").mkdir(exist_ok=True)
        draft.replace(self.folder / "models" / file_name("tide"))

    def watch(self, state: str = "state") -> Watch:
        """A watch as a server that has just started has it."""
        models = ModelFiles(self.folder / "models", [WATCHED])
        file = StateFile(self.folder / state)
        return Watch([(WATCHED, TIDE)], self.hub.store, models, file, self.clock)

    def clock(self) -> int:
        return int((DAY_0 * DAY + self.now * HOUR) * 10**9)

    async def at(self, hour: float, watch: Watch) -> None:
        """Let the watch look at this hour."""
        self.now = hour
        await watch.step()

    async def publish(self, port: str, day: int = 0) -> None:
        """A notification arrives."""
        await self.log.append(TIDE.check({"port": port, "date": day_text(DAY_0 + day)}, None))

    async def said(self) -> list[tuple[str, str]]:
        """All that was published about late notifications: the combination and its status."""
        last = (await self.log.state("aviso_lateness")).last
        batch = await self.log.read("aviso_lateness", 1, last, 100)
        values: list[dict[str, Any]] = [msgspec.json.decode(each.identifier) for each in batch.notifications]
        return [(each["combination"], each["status"]) for each in values]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@asynccontextmanager
async def scene(folder: Path, policy: StoragePolicy | None = None) -> AsyncIterator[Scene]:
    log = SqliteLog(folder / "log", {} if policy is None else {"tides": policy})
    await log.open()
    made = Scene(log, folder)
    try:
        yield made
    finally:
        await made.hub.stop()
        await log.close()


def test_overdue_and_arrived_are_published_once(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            watch = made.watch()
            await made.at(3, watch)
            await made.publish("bergen")
            await made.at(6.4, watch)
            assert await made.said() == []
            await made.at(6.6, watch)
            await made.at(6.7, watch)
            assert await made.said() == [("port=oslo", "overdue")]
            assert msgspec.to_builtins(watch.describe().overdue) == [
                {
                    "event_type": "tide",
                    "combination": "port=oslo",
                    "expected_at": "2024-10-07T06:00:00Z",
                    "since": "2024-10-07T06:30:00Z",
                }
            ]
            await made.publish("oslo")
            await made.at(6.8, watch)
            assert await made.said() == [("port=oslo", "overdue"), ("port=oslo", "arrived")]
            assert watch.describe().overdue == []
            assert dict(watch.published) == {("tide", "overdue"): 1, ("tide", "arrived"): 1}
            await watch.stop()

    asyncio.run(story())


def test_two_watches_on_one_log_say_everything_once(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            one, other = made.watch("one"), made.watch("other")
            for hour in (3, 6.6, 7):
                await made.at(hour, one)
                await made.at(hour, other)
            await made.publish("oslo")
            await made.publish("bergen")
            await made.at(8, one)
            await made.at(8, other)
            assert sorted(await made.said()) == [
                (f"port={port}", status) for port in ("bergen", "oslo") for status in ("arrived", "overdue")
            ]
            await one.stop()
            await other.stop()

    asyncio.run(story())


@pytest.mark.parametrize("crash_at", [6.4, 6.6, 6.9])
def test_a_crash_at_any_moment_neither_repeats_nor_forgets(folder: Path, crash_at: float) -> None:
    """The watch goes on with whatever the state file had at any earlier moment."""

    async def story() -> None:
        async with scene(folder) as made:
            watch = made.watch()
            await made.at(3, watch)
            for hour in (6.4, 6.6, 6.9):
                await made.at(hour, watch)
                if hour == crash_at:
                    shutil.copytree(folder / "state", folder / "kept", copy_function=shutil.copy2)
            assert sorted(await made.said()) == [("port=bergen", "overdue"), ("port=oslo", "overdue")]
            await made.publish("oslo")  # nobody listens any more
            watch._following["tide"].close()
            again = made.watch("kept")
            await made.at(7.0, again)
            await made.at(8.0, again)
            announced = sorted(await made.said())
            assert announced.count(("port=bergen", "overdue")) == 1
            assert announced.count(("port=oslo", "overdue")) == 1
            # the state before the judgement: when it looks again oslo is there, and nothing is to be said
            assert announced.count(("port=oslo", "arrived")) == (0 if crash_at == 6.4 else 1)
            await again.stop()

    asyncio.run(story())


def test_what_arrived_during_a_pause_is_no_false_alarm(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            watch = made.watch()
            await made.at(3, watch)
            await watch.stop()
            await made.publish("oslo")  # by another server of the same log
            again = made.watch()
            await made.at(12, again)
            assert await made.said() == []  # publishers that waited get their time
            await made.at(12.4, again)
            assert await made.said() == []
            await made.publish("bergen")
            await made.at(12.6, again)
            assert await made.said() == []
            await again.stop()

    asyncio.run(story())


def test_what_is_gone_from_the_log_is_not_judged(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder, StoragePolicy(max_messages=2)) as made:
            watch = made.watch()
            await made.at(3, watch)
            await watch.stop()
            await made.publish("oslo")
            for _ in range(4):
                await made.publish("narvik")
            again = made.watch()
            await made.at(12, again)
            await made.at(13, again)
            assert await made.said() == []  # whether oslo came nobody knows
            await made.at(24 + 7, again)
            assert sorted(await made.said()) == [("port=bergen", "overdue"), ("port=oslo", "overdue")]
            await again.stop()

    asyncio.run(story())


def test_a_new_model_is_taken_up_and_a_wrong_one_is_left_alone(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            watch = made.watch()
            await made.at(3, watch)
            assert watch.describe().watched == 2
            made.write(model("oslo", "bergen", "narvik"))
            await made.at(3.1, watch)
            assert watch.describe().watched == 3
            made.write(msgspec.structs.replace(model("oslo"), by=("other",)))
            await made.at(3.2, watch)
            (folder / "models" / file_name("tide")).write_bytes(b"{")
            await made.at(3.3, watch)
            (folder / "models" / file_name("tide")).unlink()
            await made.at(3.4, watch)
            assert watch.describe().watched == 3
            await watch.stop()

    asyncio.run(story())


def test_without_a_model_what_arrives_is_read_later(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            watch = made.watch()
            await made.at(3, watch)
            await watch.stop()
            (folder / "models" / file_name("tide")).unlink()
            again = made.watch()
            await made.at(4, again)
            await made.publish("oslo")
            await made.at(5, again)
            made.write(model("oslo", "bergen"))
            await made.at(7, again)
            assert await made.said() == [("port=bergen", "overdue")]
            await again.stop()

    asyncio.run(story())


def test_a_damaged_state_begins_anew(folder: Path) -> None:
    async def story() -> None:
        async with scene(folder) as made:
            (folder / "state").mkdir()
            (folder / "state" / "state.json").write_bytes(b"not JSON")
            watch = made.watch()
            await made.at(3, watch)
            await made.at(7, watch)
            assert len(await made.said()) == 2
            await watch.stop()

    asyncio.run(story())
