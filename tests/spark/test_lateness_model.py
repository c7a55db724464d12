"""Learning on Spark from an archive of a simulated forecast schedule, and a month or two of watching afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aviso_server.lake.remove import delete, wipe
from aviso_server.lake.table import Tables, streams
from aviso_server.model.lateness import DAY, Book, Detector, Learned, Notice, Watched, learn_rhythm, weekday
from aviso_server.model.notification import Notification
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.lateness_model import LearnedFiles, keep_learning, learn, learn_if_old, read_tasks
from tests.model.event_types import event_type
from tests.spark.forecasts import (
    FORECAST,
    FRIDAY,
    PRODUCTS,
    WATCHED,
    WEEKLY,
    Arrival,
    Product,
    arrivals,
    nominal,
    stored,
    text,
)
from tests.spark.stored import store

HOUR = 3600
START = 20_000
TODAY = START + 50  # what lies before is in the archive
NOW = TODAY * DAY


@pytest.fixture(scope="module")
def past() -> list[Arrival]:
    """Fifty days, with a few delays, a weekly product that failed once, and a hindcast of days long ago."""
    dice = random.Random(7)
    odd = {(product, START + dice.randrange(50)): dice.choice([2, 5, 9]) * HOUR for product in PRODUCTS[::4]}
    [missed] = [day for day in range(START + 20, START + 27) if weekday(day) == FRIDAY]
    usual = arrivals(START, TODAY, dice, {**odd, (WEEKLY, missed): None})
    hindcast = [Arrival((START + 30) * DAY + number, PRODUCTS[0], START - 4000 - number) for number in range(200)]
    return sorted([each for each in usual if each.second < NOW] + hindcast)


@pytest.fixture(scope="module")
def root(past: list[Arrival], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    notifications = stored(past)
    for first in range(0, len(notifications), 700):
        store(root, FORECAST, notifications[first : first + 700])
    return root


@pytest.fixture(scope="module")
def learned(spark: SparkSession, root: Path) -> Learned:
    return learn(spark, Tables(str(root)), WATCHED, NOW)


def test_every_product_is_learned_with_its_days_and_its_time(learned: Learned) -> None:
    rhythms = {rhythm.values: rhythm for rhythm in learned.rhythms}
    assert set(rhythms) == {tuple(product) for product in PRODUCTS}
    assert (learned.irregular, learned.left_out) == (0, 0)
    for product in PRODUCTS:
        rhythm = rhythms[tuple(product)]
        assert rhythm.weekdays == (1 << FRIDAY if product == WEEKLY else 0b1111111)
        assert 0 <= rhythm.expected - nominal(product) < 900
        assert 1800 <= rhythm.overdue - rhythm.expected < 2 * HOUR


def test_spark_learns_what_plain_python_learns(learned: Learned, past: list[Arrival]) -> None:
    begin = NOW - WATCHED.learn_days * DAY
    known = [each for each in past if each.second >= begin]
    plain = []
    for product in PRODUCTS:
        first: dict[int, int] = {}
        for each in known:
            if each.product == product and each.day > begin // DAY:
                first.setdefault(each.day, each.second - each.day * DAY)
        plain.append(learn_rhythm(tuple(product), list(first.items()), known[-1].second, WATCHED))
    assert sorted(learned.rhythms, key=lambda rhythm: rhythm.values) == sorted(
        [each for each in plain if each is not None], key=lambda rhythm: rhythm.values
    )
    assert learned.until == known[-1].second


def watch(learned: Learned, coming: Sequence[Arrival], end: int) -> list[tuple[Notice, int]]:
    """Everything that is said, and when, if a watch that begins now looks at the clock every minute."""
    judge = Detector(WATCHED, Book())
    judge.learn(learned, NOW)
    said: list[tuple[Notice, int]] = []
    left = list(enumerate(coming, 1))
    for now in range(NOW, end, 60):
        while left and left[0][1].second <= now:
            sequence, arrival = left.pop(0)
            notice = judge.arrive(arrival.identifier(), sequence, arrival.second)
            said += [] if notice is None else [(notice, now)]
        said += [(notice, now) for notice in judge.due(now)]
    return said


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_month_passes_without_a_false_alarm(learned: Learned, seed: int) -> None:
    month = arrivals(TODAY - 1, TODAY + 30, random.Random(seed))
    coming = [each for each in month if each.second >= NOW]
    assert watch(learned, coming, NOW + 30 * DAY) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_planted_delay_is_found_and_its_arrival_announced(learned: Learned, seed: int) -> None:
    dice = random.Random(seed)
    fridays = [day for day in range(TODAY + 2, TODAY + 28) if weekday(day) == FRIDAY]
    delays: dict[tuple[Product, int], int | None] = {}
    while len(delays) < 40:
        product = dice.choice(PRODUCTS[:-1])
        delays[product, dice.randrange(TODAY + 2, TODAY + 28)] = dice.choice([2 * HOUR, 7 * HOUR, 30 * HOUR, None])
    delays[WEEKLY, fridays[0]] = 5 * HOUR
    delays[WEEKLY, fridays[2]] = None
    month = arrivals(TODAY - 1, TODAY + 31, dice, delays)
    said = watch(learned, [each for each in month if each.second >= NOW], NOW + 31 * DAY)
    overdue = [(notice.combination, notice.day) for notice, _ in said if notice.status == "overdue"]
    arrived = [(notice.combination, notice.day) for notice, _ in said if notice.status == "arrived"]
    assert sorted(overdue) == sorted((text(product), day) for product, day in delays)
    assert sorted(arrived) == sorted(
        (text(product), day) for (product, day), delay in delays.items() if delay is not None
    )
    for notice, now in said:
        if notice.status == "overdue":
            assert 0 <= now - notice.overdue_at < 60
        else:
            assert notice.arrived_at is not None
            assert 0 <= now - notice.arrived_at < 60


def test_what_is_deleted_is_not_learned_from(spark: SparkSession, past: list[Arrival], tmp_path: Path) -> None:
    usual = [each for each in past if each.product == WEEKLY]
    notifications = stored(usual)
    store(tmp_path, FORECAST, notifications)
    assert len(learn(spark, Tables(str(tmp_path)), WATCHED, NOW).rhythms) == 1
    table = Tables(str(tmp_path)).of("forecasts")
    delete(table, [notifications[-2].sequence, notifications[-3].sequence])
    assert learn(spark, Tables(str(tmp_path)), WATCHED, NOW).rhythms == ()
    wipe(table, notifications[-1].sequence)
    assert learn(spark, Tables(str(tmp_path)), WATCHED, NOW).until == 0


def test_at_the_bound_those_that_came_on_the_most_days_are_kept(spark: SparkSession, root: Path) -> None:
    bounded = msgspec.structs.replace(WATCHED, max_combinations=40)
    found = learn(spark, Tables(str(root)), bounded, NOW)
    assert (len(found.rhythms), found.left_out) == (40, 1)
    assert tuple(WEEKLY) not in {rhythm.values for rhythm in found.rhythms}


def test_without_a_date_the_day_of_arrival_counts(spark: SparkSession, tmp_path: Path) -> None:
    tide = event_type("tide", {"port": "StringHandler", "Port": "StringHandler"}, base="tides", order=["port", "Port"])
    watched = Watched(event_type="tide", stream="tides", by=("port", "Port"), date=None)
    dice = random.Random(3)
    seconds = [
        (day * DAY + hour * HOUR + dice.randrange(300), port)
        for day in range(TODAY - 30, TODAY)
        for port, hour in (("oslo", 6), ("bergen", 23))
    ]
    chatty = [(NOW - 20 * DAY + number * 900, "around") for number in range(1900)]
    notifications = []
    for sequence, (second, port) in enumerate(sorted(seconds + chatty), 1):
        draft = tide.check({"port": port, "Port": port.upper()}, None)
        stored_at = second * 10**9
        notifications.append(Notification(sequence, stored_at, draft.topic, draft.identifier, draft.payload))
    store(tmp_path, tide, notifications)
    found = learn(spark, Tables(str(tmp_path)), watched, NOW)
    assert [(each.values, each.expected // HOUR, each.weekdays) for each in found.rhythms] == [
        (("bergen", "BERGEN"), 23, 0b1111111),
        (("oslo", "OSLO"), 6, 0b1111111),
    ]
    assert found.irregular == 1


def test_learning_goes_on_in_the_background(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    board = ArchiveStatus(str(root))
    files = LearnedFiles(str(root), tmp_path)
    [task] = read_tasks(msgspec.json.encode([WATCHED]).decode())
    assert task == WATCHED
    assert files.get("forecast") is None
    assert learn_if_old(spark, board, files, task, 3600, NOW) == 3600
    first = files.get("forecast")
    assert first is not None
    assert len(first.rhythms) == len(PRODUCTS)
    assert learn_if_old(spark, board, files, task, 3600, NOW + 600) == 3000
    assert files.get("forecast") == first
    assert list(streams(str(root))) == ["forecasts"]  # what was learned is not taken for notifications
    stop = threading.Event()
    thread = keep_learning(spark, board, files, [task], 0.2, stop)
    deadline = time.monotonic() + 60
    while files.get("forecast") == first:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_an_empty_archive_teaches_nothing(spark: SparkSession, tmp_path: Path) -> None:
    found = learn(spark, Tables(str(tmp_path)), WATCHED, NOW)
    assert (found.rhythms, found.until) == ((), 0)
