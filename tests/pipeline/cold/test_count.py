"""Counting in the archive: what Spark adds up is what `Filter.matches` lets through, by time and by place."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aviso_server.archive.bridge import Address, call
from aviso_server.errors import PipelineError
from aviso_server.model.constraint import Constraint
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from aviso_server.model.schema import GenericType, read_point
from aviso_server.model.tally import Tally
from aviso_server.pipeline.archive.layout import stream_folder
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.tombstones import Tombstones, mark_deleted, mark_wiped
from aviso_server.pipeline.bridge.operations import ArchiveOperations
from aviso_server.pipeline.bridge.server import Bridge
from aviso_server.pipeline.cold.replay import ColdReplay
from tests.model.event_types import event_type
from tests.pipeline.cold.scene import SECOND, numbered, read, store
from tests.pipeline.quick import CORES

MINUTE = 60 * SECOND
NOTHING = Tombstones()
WORDS = ["north", "Ñandú"]
KINDS = {"type": "EnumHandler", "values": WORDS}
# Numbers were text at first, and there were no shapes.
OLD = event_type(
    "storm", {"name": "StringHandler", "size": "StringHandler", "kind": "StringHandler"}, "storms", ["name"]
)
NEW = event_type(
    "storm",
    {"name": "StringHandler", "size": "IntHandler", "kind": KINDS, "polygon": "PolygonHandler"},
    "storms",
    ["name"],
)


def square(lat: float, lon: float) -> str:
    return f"({lat},{lon},{lat},{lon + 0.7},{lat + 0.3},{lon + 0.7},{lat + 0.3},{lon},{lat},{lon})"


def storms() -> list[Notification]:
    chance = random.Random(5)
    told = {"spatial_geometry": square(51, 10)}
    old = [
        OLD.check(
            {"name": chance.choice("abc"), "size": chance.choice(["5", "05", "0x1F", "x"]), "kind": kind},
            chance.choice([None, told]),
        )
        for kind in chance.choices(["north", "NORTH", "ÑANDÚ"], k=80)
    ]
    new: list[Draft] = []
    for _ in range(170):
        polygon = square(round(chance.uniform(50, 54), 2), round(chance.uniform(9, 12), 2))
        fields = {"name": chance.choice("abc"), "size": chance.randrange(40), "kind": chance.choice(WORDS)}
        new.append(NEW.check({**fields, "polygon": polygon}))
    return numbered([*old, *new])


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[ColdReplay, list[Notification]]:
    root, every = tmp_path_factory.mktemp("storms"), storms()
    store(root, OLD, every[:60], last=65)
    store(root, NEW, every[65:150], first=66)  # some were archived after the change
    store(root, NEW, every[150:])
    return ColdReplay(spark, str(root)), [each for each in every if not 60 < each.sequence <= 65]


def counted(cold: ColdReplay, wanted: Filter, start: int = 1, end: int = 2**62, hidden: Tombstones = NOTHING) -> Tally:
    return cold.count(wanted, start, end, MINUTE, hidden, threading.Event())


def expected(notifications: list[Notification], wanted: Filter, start: int = 1, end: int = 2**62) -> Tally:
    tally = Tally(MINUTE)
    tally.add([each for each in notifications if start <= each.sequence <= end and wanted.matches(each)])
    return tally


def same(one: Tally, other: Tally) -> bool:
    return (one.times, one.cells) == (other.times, other.cells)


def asked(**identifier: Any) -> Filter:
    return NEW.compile(identifier, "watch", read_point(identifier))


def written(name: str, kind: Any, operator: str, *operands: Any) -> Filter:
    return Filter("storm", "storms", "storms", tests=((name, Constraint(kind, operator, operands)),))


@pytest.mark.parametrize(
    "wanted",
    [
        asked(),
        asked(name="a"),
        asked(name="nobody"),
        asked(size=5),
        asked(size={"gte": 20}),
        asked(name="b", size={"between": [3, 30]}),
        asked(kind={"in": ["north"]}),
        asked(kind="ñandú"),
        written("kind", "text", "eq", "ñandú"),
        written("size", "integer", "eq", 31),
        written("size", "number", "lt", 6.0),
        asked(polygon="(51,9.5,51,11,53,11,53,9.5,51,9.5)"),
        asked(polygon="(0,0,0,1,1,1,0,0)", name="a"),
        asked(point="51.1,10.2"),
    ],
    ids=str,
)
def test_a_count_is_what_the_filter_lets_through(
    archive: tuple[ColdReplay, list[Notification]], wanted: Filter
) -> None:
    cold, stored = archive
    found = counted(cold, wanted)
    assert same(found, expected(stored, wanted))
    assert found.total == len(read(cold, wanted))


def test_ranges_and_what_is_hidden(archive: tuple[ColdReplay, list[Notification]]) -> None:
    cold, stored = archive
    wanted = asked(name="a")
    for start, end in ((1, 1), (30, 100), (61, 65), (66, 150), (149, 152), (250, 250), (251, 300), (9, 3)):
        assert same(counted(cold, wanted, start, end), expected(stored, wanted, start, end))
    hidden = Tombstones(40, (41, 90, 200))
    left = [each for each in stored if not hidden.hides(each.sequence)]
    for each in (asked(), asked(size={"gte": 2}), asked(polygon="(50,9,50,13,55,13,55,9,50,9)")):
        assert same(counted(cold, each, hidden=hidden), expected(left, each))


def test_deletes_and_wipes_count_at_once(spark: SparkSession, tmp_path: Path) -> None:
    every = storms()[80:]
    store(tmp_path, NEW, every)
    cold, folder = ColdReplay(spark, str(tmp_path)), stream_folder(str(tmp_path), "storms")
    for sequence in (81, 100, 250):
        mark_deleted(folder, sequence)
    left = [each for each in every if each.sequence not in (81, 100, 250)]
    assert same(counted(cold, asked()), expected(left, asked()))
    mark_wiped(folder, 120)
    left = [each for each in left if each.sequence > 120]
    assert same(counted(cold, asked()), expected(left, asked()))
    mark_wiped(folder, 250)
    assert counted(cold, asked()).total == 0


@pytest.mark.parametrize("identifier", [{"a": "x", "b": "*"}, {"a": "*", "b": "50%"}, {"a": "*"}])
def test_schema_less_streams(spark: SparkSession, tmp_path: Path, identifier: dict[str, str]) -> None:
    free = GenericType("free")
    stored = numbered([free.check({"a": one, "b": other}) for one in "xy" for other in ("1", "50%", "2.5")])
    store(tmp_path, free, stored)
    cold = ColdReplay(spark, str(tmp_path))
    wanted = free.compile(identifier, "watch")
    assert same(counted(cold, wanted), expected(stored, wanted))


def test_a_stream_that_was_never_archived(spark: SparkSession, tmp_path: Path) -> None:
    assert counted(ColdReplay(spark, str(tmp_path)), asked()).total == 0


def test_a_damaged_file_is_an_error_and_never_a_smaller_count(spark: SparkSession, tmp_path: Path) -> None:
    every = storms()[80:]
    store(tmp_path, NEW, every[:50])
    path = store(tmp_path, NEW, every[50:])
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(PipelineError, match="cannot be read"):
        counted(ColdReplay(spark, str(tmp_path)), asked())


def test_a_count_that_nobody_waits_for_any_more_has_no_result(archive: tuple[ColdReplay, list[Notification]]) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(PipelineError, match="nobody waits"):
        archive[0].count(asked(), 1, 250, MINUTE, NOTHING, cancelled)


def test_a_count_that_nobody_waits_for_stops(spark: SparkSession, tmp_path: Path) -> None:
    """The server hangs up in the middle of a count, and what Spark does for it ends.

    Others have all of Spark's cores meanwhile, so that the count cannot end by itself.
    """
    store(tmp_path, NEW, storms()[80:])
    cold, context = ColdReplay(spark, str(tmp_path)), spark.sparkContext
    bridge = Bridge("a token", ArchiveOperations(Board(str(tmp_path), LOCAL), lambda: cold))
    bridge.start()
    others = threading.Thread(target=keep_busy, args=(context,), daemon=True)
    others.start()
    active = context.statusTracker().getActiveJobsIds

    async def story() -> None:
        await happened(lambda: len(active()) == 1)
        (busy,) = active()
        wanted = b64encode(pickle.dumps(asked())).decode()
        members: dict[str, Any] = {"start": 1, "end": 250, "unit": MINUTE, "wiped_through": 0, "deleted": []}
        counting = asyncio.create_task(call(Address(bridge.port, "a token"), "count", filter=wanted, **members))
        await happened(lambda: len(active()) == 2)
        assert not counting.done()
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
        await happened(lambda: active() == [busy])

    try:
        asyncio.run(story())
    finally:
        context.cancelJobsWithTag("busy")
        others.join(30)
        bridge.close()
    assert not others.is_alive()


def keep_busy(context: SparkContext) -> None:
    """Use all cores until somebody cancels it."""
    context.addJobTag("busy")
    try:
        parts = context.parallelize(range(CORES), CORES)
        with suppress(Exception):  # Spark says that it was cancelled, in one way or another
            parts.foreach(lambda _: time.sleep(120))
    finally:
        context.removeJobTag("busy")


async def happened(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
