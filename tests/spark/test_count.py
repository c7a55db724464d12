"""Counting in the archive: what is added up is what `Filter.matches` lets through, by time and by place."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviso_server.errors import PipelineError
from aviso_server.lake.remove import Removed, delete, wipe
from aviso_server.lake.scan import Scan
from aviso_server.lake.table import Tables
from aviso_server.model.event_type import GenericType, read_point
from aviso_server.model.explain import Tally
from aviso_server.model.fields import Constraint
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.cold_replay import ColdReplay
from aviso_server.spark.flight import FlightServer, Selection
from tests.harness.patience import PATIENCE
from tests.model.event_types import event_type
from tests.spark.archive.keeping import caller, until
from tests.spark.stored import SECOND, never, numbered, read, store

MINUTE = 60 * SECOND
NOTHING = Removed()
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
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[ColdReplay, list[Notification]]:
    root, every = tmp_path_factory.mktemp("storms"), storms()
    store(root, OLD, every[:60], last=65)
    store(root, NEW, every[65:150], first=66)  # some were archived after the change
    store(root, NEW, every[150:])
    return ColdReplay(Tables(str(root))), [each for each in every if not 60 < each.sequence <= 65]


def counted(
    cold: ColdReplay, wanted: Filter, start: int = 1, end: int | None = None, hidden: Removed = NOTHING
) -> Tally:
    end = cold._tables.of(wanted.stream).snapshot().watermark if end is None else end
    return cold.count(Selection(wanted, start, end), MINUTE, hidden, never)


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
    for start, end in ((1, 1), (30, 100), (61, 65), (66, 150), (149, 152), (250, 250), (9, 3)):
        assert same(counted(cold, wanted, start, end), expected(stored, wanted, start, end))
    hidden = Removed(40, (41, 90, 200))
    left = [each for each in stored if not hidden.hides(each.sequence)]
    for each in (asked(), asked(size={"gte": 2}), asked(polygon="(50,9,50,13,55,13,55,9,50,9)")):
        assert same(counted(cold, each, hidden=hidden), expected(left, each))


def test_deletes_and_wipes_count_at_once(tmp_path: Path) -> None:
    every = storms()[80:]
    store(tmp_path, NEW, every, first=1)
    tables = Tables(str(tmp_path))
    cold, table = ColdReplay(tables), tables.of("storms")
    delete(table, [81, 100, 250])
    left = [each for each in every if each.sequence not in (81, 100, 250)]
    assert same(counted(cold, asked()), expected(left, asked()))
    wipe(table, 120)
    left = [each for each in left if each.sequence > 120]
    assert same(counted(cold, asked()), expected(left, asked()))
    wipe(table, 250)
    assert counted(cold, asked()).total == 0


@pytest.mark.parametrize("identifier", [{"a": "x", "b": "*"}, {"a": "*", "b": "50%"}, {"a": "*"}])
def test_schema_less_streams(tmp_path: Path, identifier: dict[str, str]) -> None:
    free = GenericType("free")
    stored = numbered([free.check({"a": one, "b": other}) for one in "xy" for other in ("1", "50%", "2.5")])
    store(tmp_path, free, stored)
    cold = ColdReplay(Tables(str(tmp_path)))
    wanted = free.compile(identifier, "watch")
    assert same(counted(cold, wanted), expected(stored, wanted))


def test_a_stream_that_was_never_archived(tmp_path: Path) -> None:
    assert counted(ColdReplay(Tables(str(tmp_path))), asked()).total == 0


def test_a_damaged_file_is_an_error_and_never_a_smaller_count(tmp_path: Path) -> None:
    every = storms()[80:]
    store(tmp_path, NEW, every[:50], first=1)
    path = store(tmp_path, NEW, every[50:])
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(PipelineError, match="cannot be read"):
        counted(ColdReplay(Tables(str(tmp_path))), asked())


def test_a_count_that_nobody_waits_for_any_more_has_no_result(archive: tuple[ColdReplay, list[Notification]]) -> None:
    with pytest.raises(PipelineError, match="nobody waits"):
        archive[0].count(Selection(asked(), 1, 250), MINUTE, NOTHING, lambda: True)


def test_a_count_that_nobody_waits_for_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hangs up in the middle of a count, and what is done for it ends."""
    store(tmp_path, NEW, storms()[80:], first=1)
    begun, ended = threading.Event(), threading.Event()

    def endless(self: Scan, stopped: Callable[[], bool]) -> None:
        begun.set()
        until(stopped, PATIENCE)
        ended.set()

    monkeypatch.setattr(Scan, "pull", endless)
    cold = ColdReplay(Tables(str(tmp_path)))
    server = FlightServer("a token", ArchiveStatus(str(tmp_path)), lambda: cold)
    try:
        with caller(server.port, "a token") as call:
            limits: dict[str, Any] = {"start": 1, "end": 250, "unit": MINUTE, "wiped_through": 0, "deleted": []}
            counting = call.open("count", filter=asked().to_json().decode(), **limits)
            assert begun.wait(PATIENCE)
            counting.cancel()
            assert ended.wait(PATIENCE)
    finally:
        server.shutdown()
