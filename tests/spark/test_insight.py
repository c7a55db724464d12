"""The tables of insight are what a plain recomputation gives, whatever came, went and was merged in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aviso_server.insight.counts import HOUR, State, table_names
from aviso_server.lake.compact import Compactor
from aviso_server.lake.remove import delete, wipe
from aviso_server.lake.storage import remove
from aviso_server.lake.table import Tables, streams
from aviso_server.model.notification import Notification
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.insight import Rollup, Subject, roll_up, subject_of, subjects
from tests.spark.insight_scene import BASE, EVENT_TYPES, archive, forecast_with, made_up, plain, stored_rows


class Scene:
    """An archive of one stream, what must be in it, and its tables."""

    def __init__(self, spark: SparkSession, root: Path, name: str) -> None:
        self.root = root / "archive"
        self.name = name
        self.tables = Tables(str(self.root))
        self.table = self.tables.of(name)
        self.live: dict[int, Notification] = {}
        self.last = 0
        self.subject: Subject = subject_of(name, EVENT_TYPES[name])
        self.rollup = Rollup(spark, self.tables, lambda: BASE)

    def add(self, notifications: Sequence[Notification], count: int) -> None:
        archive(self.root, self.name, notifications, self.last + 1, self.last + count)
        self.live |= {each.sequence: each for each in notifications}
        self.last += count

    def grow(self, chance: random.Random, count: int) -> None:
        """One more file; a few of its sequences were deleted before it was made."""
        numbers = [number for number in range(self.last + 1, self.last + count + 1) if chance.random() < 0.95]
        self.add([made_up(chance, self.name, number) for number in numbers], count)

    def delete(self, sequence: int) -> None:
        delete(self.table, [sequence])
        self.live.pop(sequence, None)

    def wipe(self, through: int) -> None:
        wipe(self.table, through)
        self.live = {sequence: each for sequence, each in self.live.items() if sequence > through}

    def compact(self, everything: bool = False) -> None:
        compactor = Compactor(self.tables)
        for _ in compactor.run(everything):
            pass
        compactor.vacuum(0)

    def step(self) -> int:
        made = self.rollup.step(self.subject)
        self.check()
        return made

    def check(self) -> State:
        state = self.rollup.state(self.name)
        assert state is not None
        assert stored_rows(self.root, state) == plain(self.name, self.live.values())
        assert state.through == self.last
        assert state.count == len(self.live)
        return state


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Callable[[str], Scene]:
    return lambda name: Scene(spark, tmp_path, name)


@pytest.mark.parametrize(("name", "seed", "rounds"), [("forecast", 2, 3), ("buoys", 3, 2), ("anything", 4, 2)])
def test_tables_equal_a_plain_recomputation_after_every_step(
    scene: Callable[[str], Scene], name: str, seed: int, rounds: int
) -> None:
    chance, place = random.Random(seed), scene(name)
    place.grow(chance, 150)
    place.step()
    for _ in range(rounds):
        for _ in range(chance.randrange(1, 4)):
            what = chance.choice(["grow", "grow", "delete", "delete", "compact", "merge", "wipe"])
            if what == "grow":
                place.grow(chance, chance.randrange(1, 90))
            elif what == "delete" and place.live:
                place.delete(chance.choice(sorted(place.live)))
            elif what == "wipe":
                place.wipe(chance.randrange(1, place.last // 3 + 2))
            else:
                place.compact(everything=what == "merge")
        place.step()


def test_many_values_of_a_field_are_bounded(scene: Callable[[str], Scene]) -> None:
    place = scene("forecast")
    check = forecast_with(["class"]).check
    drafts = [check({"class": f"c{number % 70:02d}"}, None) for number in range(200)]
    place.add([Notification(n, BASE + n, d.topic, d.identifier, d.payload) for n, d in enumerate(drafts, 1)], 200)
    place.step()
    state = place.check()
    rows = [row for row in stored_rows(place.root, state)["fields"] if row[1] == "class"]
    assert len(rows) == 51
    # 200 over 70 values: the first 60 come three times, the last ten twice
    assert [row[3:5] for row in rows if row[2] is None] == [(10 * 3 + 10 * 2, 20)]


def test_only_touched_hours_are_made_anew(scene: Callable[[str], Scene]) -> None:
    chance, place = random.Random(5), scene("forecast")
    place.grow(chance, 400)
    every = place.step()
    assert every > 30
    assert place.step() == 0
    before = place.check()
    victim = sorted(place.live)[200]
    place.delete(victim)
    assert 0 < place.step() <= every
    between = place.check()
    place.add([made_up(chance, "forecast", 401)], 1)
    assert place.step() == 1
    assert len(set(between.days) & set(place.check().days)) >= len(between.days) - 1  # other days keep their files
    assert before.through < place.last


def test_a_delete_before_a_merge_is_noticed(scene: Callable[[str], Scene]) -> None:
    chance, place = random.Random(6), scene("forecast")
    for _ in range(3):
        place.grow(chance, 30)
    place.step()
    place.delete(sorted(place.live)[40])
    place.grow(chance, 10)
    place.compact(everything=True)  # one file, partly rolled up
    assert place.step() > 0


def test_rows_that_were_replaced_are_counted_anew(scene: Callable[[str], Scene]) -> None:
    """As many as before, others, at other times, and then merged: nothing that counting rows could tell."""
    chance, place = random.Random(12), scene("forecast")
    place.grow(chance, 30)
    place.grow(chance, 20)
    place.step()
    other = [made_up(chance, "forecast", number) for number in place.live if number > 30]
    later = [msgspec.structs.replace(each, time=each.time + 40 * HOUR) for each in other]
    archive(place.root, "forecast", later, 31, 50)
    place.live |= {each.sequence: each for each in later}
    place.compact(everything=True)
    assert place.step() > 0
    assert place.step() == 0


def test_everything_wiped_leaves_empty_tables(scene: Callable[[str], Scene]) -> None:
    chance, place = random.Random(7), scene("buoys")
    place.grow(chance, 40)
    place.step()
    place.wipe(place.last)
    place.step()
    assert place.check().days == ()
    place.compact()
    place.step()


def test_other_rules_make_everything_anew(scene: Callable[[str], Scene]) -> None:
    place = scene("forecast")
    place.grow(random.Random(8), 60)
    place.step()
    old = place.check()
    place.subject = subject_of("forecast", EVENT_TYPES["anything"])
    place.rollup.step(place.subject)
    state = place.rollup.state("forecast")
    assert state is not None
    assert state.event_type == "anything"
    assert stored_rows(place.root, state)["delays"] == []
    place.subject = subject_of("forecast", EVENT_TYPES["forecast"])
    assert place.step() > 0
    assert place.check().generation > old.generation


def test_an_archive_that_began_anew_is_rolled_up_anew(scene: Callable[[str], Scene]) -> None:
    place = scene("forecast")
    place.grow(random.Random(9), 50)
    place.step()
    remove(place.table.folder)
    place.last, place.live = 0, {}
    place.grow(random.Random(10), 20)
    place.step()


def test_files_that_nobody_needs_go_and_streams_that_are_gone_are_forgotten(scene: Callable[[str], Scene]) -> None:
    chance, place = random.Random(11), scene("forecast")
    for _ in range(4):
        place.grow(chance, 3)
        before = place.rollup.state("forecast")
        place.step()
    now = place.check()
    folder = place.root / "_insight" / "stream=forecast"
    assert before is not None
    kept = {"state.json", *table_names(now.days), *table_names(before.days)}
    assert {each.name for each in folder.iterdir()} == kept
    board = ArchiveStatus(str(place.root))
    board.read()
    assert list(streams(str(place.root))) == list(board.watermarks()) == ["forecast"]
    (place.root / "_insight" / "stream=gone").mkdir()
    found = subjects(board.watermarks(), {}, {"forecast": EVENT_TYPES["forecast"]})  # type: ignore[dict-item]  # it is one
    assert found == [place.subject]
    assert roll_up(place.rollup, board, found) == {"forecast": 0}
    assert [each.name for each in (place.root / "_insight").iterdir()] == ["stream=forecast"]
