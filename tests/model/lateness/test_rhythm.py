"""What is learned from arrivals: robust times, the right weekdays, and nothing where there is no rhythm."""

from __future__ import annotations

import random

import pytest

from aviso_server.model.lateness.rhythm import folded, learn_rhythm, weekday
from aviso_server.model.lateness.watched import DAY, Watched, combination_text, day_of, day_text

HOUR = 3600
MONDAY = 20_003  # 2024-10-07
WATCHED = Watched(event_type="tide", stream="tide", by=("port",), date="date", tolerance=1800, min_seen=4)
PORT = ("oslo",)


def on(days: list[int], offset: int = 6 * HOUR) -> list[tuple[int, int]]:
    return [(day, offset) for day in days]


def until(day: int) -> int:
    """The end of a day."""
    return (day + 1) * DAY


def test_days_have_their_weekdays_and_texts() -> None:
    assert weekday(MONDAY) == 0
    assert day_text(MONDAY) == "20241007"
    assert (day_of("20241007"), day_of("2024-10-07")) == (MONDAY, MONDAY)
    assert (day_of("20241301"), day_of("today"), day_of("")) == (None, None, None)


def test_a_combination_is_told_apart_from_every_other() -> None:
    assert combination_text(("a", "b"), ("1", "2")) == "a=1,b=2"
    assert combination_text(("a", "b"), ("1,b=2", "%")) == "a=1%2Cb%3D2,b=%25"


def test_what_comes_every_day_is_expected_every_day() -> None:
    rhythm = learn_rhythm(PORT, on(list(range(MONDAY, MONDAY + 10))), until(MONDAY + 9), WATCHED)
    assert rhythm is not None
    assert rhythm.weekdays == 0b1111111
    assert (rhythm.expected, rhythm.overdue, rhythm.spread, rhythm.seen) == (6 * HOUR, 6 * HOUR + 1800, 0, 10)


@pytest.mark.parametrize(
    ("days", "weekdays"),
    [
        (range(MONDAY, MONDAY + 42, 7), 0b0000001),
        ([day for day in range(MONDAY, MONDAY + 42) if weekday(day) < 5], 0b0011111),
        ([day for day in range(MONDAY, MONDAY + 42) if weekday(day) != 6], 0b0111111),
        ([day for day in range(MONDAY, MONDAY + 42, 7) if day != MONDAY + 14], 0b0000001),
    ],
    ids=["weekly", "working days", "not on Sundays", "weekly, missed once"],
)
def test_weekdays_matter_where_they_do(days: range | list[int], weekdays: int) -> None:
    rhythm = learn_rhythm(PORT, on(list(days)), until(MONDAY + 41), WATCHED)
    assert rhythm is not None
    assert rhythm.weekdays == weekdays


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7])
def test_what_comes_as_it_likes_is_not_expected(chance: float) -> None:
    learned = 0
    for seed in range(300):
        dice = random.Random(seed)
        days = [day for day in range(MONDAY, MONDAY + 42) if dice.random() < chance]
        learned += learn_rhythm(PORT, on(days), until(MONDAY + 41), WATCHED) is not None
    assert learned <= 3  # of 300: chance may draw a pattern


def test_a_few_days_are_not_enough() -> None:
    # Monday to Thursday: whether it comes on Saturdays nobody knows yet
    assert learn_rhythm(PORT, on(list(range(MONDAY, MONDAY + 4))), until(MONDAY + 3), WATCHED) is None
    assert learn_rhythm(PORT, on(list(range(MONDAY, MONDAY + 3))), until(MONDAY + 10), WATCHED) is None


def test_days_that_are_not_over_do_not_count_as_missed() -> None:
    seen = on(list(range(MONDAY, MONDAY + 8)))
    rhythm = learn_rhythm(PORT, seen, (MONDAY + 8) * DAY + 5 * HOUR, WATCHED)
    assert rhythm is not None


def test_what_has_ended_is_expected_no_longer() -> None:
    seen = on(list(range(MONDAY, MONDAY + 30)))
    assert learn_rhythm(PORT, seen, until(MONDAY + 31), WATCHED) is not None
    assert learn_rhythm(PORT, seen, until(MONDAY + 35), WATCHED) is None


def test_a_few_late_days_do_not_move_the_usual_time() -> None:
    seen = [(MONDAY + day, 6 * HOUR + (5 * HOUR if day in (3, 9, 20) else day % 5 * 60)) for day in range(42)]
    rhythm = learn_rhythm(PORT, seen, until(MONDAY + 41), WATCHED)
    assert rhythm is not None
    assert 6 * HOUR <= rhythm.expected <= 6 * HOUR + 240
    assert rhythm.overdue <= 6 * HOUR + 240 + 1800


def test_a_schedule_that_has_changed_is_learned_after_a_few_days() -> None:
    seen = [(MONDAY + day, (6 if day < 38 else 9) * HOUR) for day in range(42)]
    rhythm = learn_rhythm(PORT, seen, until(MONDAY + 41), WATCHED)
    assert rhythm is not None
    assert rhythm.expected == 9 * HOUR


def test_times_all_over_the_day_are_no_rhythm() -> None:
    dice = random.Random(1)
    seen = [(MONDAY + day, dice.randrange(2 * DAY)) for day in range(42)]
    assert learn_rhythm(PORT, seen, until(MONDAY + 41), WATCHED) is None


def test_without_a_date_the_day_is_cut_where_nothing_comes() -> None:
    around_midnight = [(MONDAY + day) * DAY + (-300 if day % 2 else 300) for day in range(14)]
    split = folded(around_midnight)
    assert split is not None
    cut, seen = split
    assert abs(abs(cut) - 12 * HOUR) <= 300
    assert sorted(day for day, _ in seen) == [MONDAY + day for day in range(14)] or sorted(day for day, _ in seen) == [
        MONDAY - 1 + day for day in range(14)
    ]
    assert len({offset for _, offset in seen}) == 2
    rhythm = learn_rhythm(PORT, seen, until(MONDAY + 13), WATCHED, cut)
    assert rhythm is not None
    assert {rhythm.day_of_arrival(second) for second in around_midnight} == {day for day, _ in seen}


def test_without_a_date_the_first_arrival_of_a_day_counts() -> None:
    split = folded([(MONDAY + day) * DAY + hour * HOUR for day in range(3) for hour in (6, 7, 8)])
    assert split is not None
    assert sorted(split[1]) == [(MONDAY + day, 6 * HOUR) for day in range(3)]


def test_around_the_clock_is_no_rhythm() -> None:
    assert folded([MONDAY * DAY + minute * 600 for minute in range(1000)]) is None
