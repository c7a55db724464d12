"""What is learned from arrivals, and what is overdue."""

from __future__ import annotations

import random

import msgspec
import pytest

from aviso_server.model.lateness import (
    DAY,
    EVENT_TYPE,
    PATIENCE,
    Book,
    Detector,
    Learned,
    Notice,
    Rhythm,
    Watched,
    combination_text,
    day_of,
    day_text,
    decode,
    encode,
    file_name,
    folded,
    learn_rhythm,
    weekday,
)

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


def rhythm(port: str, weekdays: int = 0b1111111, hour: int = 6) -> Rhythm:
    return Rhythm(
        values=(port,),
        weekdays=weekdays,
        earliest=hour * HOUR - 600,
        expected=hour * HOUR,
        overdue=hour * HOUR + 1800,
        spread=60,
        seen=40,
    )


def learned(*rhythms: Rhythm) -> Learned:
    return Learned(event_type="tide", learned_at=0, until=0, by=("port",), date="date", rhythms=rhythms)


def at(day: int, hour: float) -> int:
    return int((MONDAY + day) * DAY + hour * HOUR)


def tide(port: str, day: int) -> dict[str, str]:
    return {"port": port, "date": day_text(MONDAY + day)}


@pytest.fixture
def judge() -> Detector:
    """Oslo is expected every day at six, Bergen on Tuesdays; it is Monday, three in the morning."""
    judge = Detector(WATCHED, Book())
    judge.learn(learned(rhythm("oslo"), rhythm("bergen", weekdays=0b10)), at(0, 3))
    return judge


def said(notices: object) -> list[tuple[str, int, str]]:
    assert isinstance(notices, list)
    return [(each.combination, each.day - MONDAY, each.status) for each in notices]


def test_nothing_is_said_while_there_is_time(judge: Detector) -> None:
    assert judge.due(at(0, 6.49)) == []


def test_what_does_not_come_is_overdue_once(judge: Detector) -> None:
    assert said(judge.due(at(0, 6.5))) == [("port=oslo", 0, "overdue")]
    assert judge.due(at(0, 6.6)) == []
    assert [notice.combination for notice in judge.overdue] == ["port=oslo"]


def test_what_comes_in_time_is_never_overdue(judge: Detector) -> None:
    assert judge.arrive(tide("oslo", 0), 1, at(0, 6.1)) is None
    assert judge.due(at(0, 23)) == []


def test_what_comes_after_all_is_announced(judge: Detector) -> None:
    judge.due(at(0, 7))
    notice = judge.arrive(tide("oslo", 0), 9, at(0, 8))
    assert notice is not None
    assert (notice.status, notice.arrived_at, notice.sequence) == ("arrived", at(0, 8), 9)
    assert judge.overdue == []
    assert judge.arrive(tide("oslo", 0), 10, at(0, 8.1)) is None


def test_the_date_decides_and_not_the_hour(judge: Detector) -> None:
    judge.arrive(tide("oslo", 1), 1, at(0, 6))  # tomorrow's came early
    assert said(judge.due(at(0, 7))) == [("port=oslo", 0, "overdue")]
    assert said(judge.due(at(1, 7))) == [("port=bergen", 1, "overdue")]


def test_weekdays_without_it_are_quiet(judge: Detector) -> None:
    for day in range(7):
        judge.arrive(tide("oslo", day), day + 1, at(day, 6))
    assert said(judge.due(at(6, 23))) == [("port=bergen", 1, "overdue")]


def test_what_nobody_looked_at_is_not_judged() -> None:
    judge = Detector(WATCHED, Book())
    judge.learn(learned(rhythm("oslo")), at(0, 5.5))  # it may have come at 5:20 already
    assert judge.due(at(0, 12)) == []
    assert said(judge.due(at(1, 12))) == [("port=oslo", 1, "overdue")]


def test_a_new_model_goes_on_where_the_old_one_was(judge: Detector) -> None:
    judge.arrive(tide("oslo", 0), 1, at(0, 5))
    judge.learn(learned(rhythm("oslo", hour=7), rhythm("narvik", hour=9)), at(0, 6.9))
    assert said(judge.due(at(0, 23))) == [("port=narvik", 0, "overdue")]
    judge.learn(learned(rhythm("oslo", hour=8)), at(0, 23))
    assert judge.due(at(0, 23)) == []
    assert said(judge.due(at(1, 23))) == [("port=oslo", 1, "overdue")]


def test_what_is_forgotten_may_still_arrive(judge: Detector) -> None:
    judge.due(at(0, 7))
    judge.learn(learned(), at(0, 8))
    notice = judge.arrive(tide("oslo", 0), 3, at(0, 9))
    assert notice is not None
    assert notice.status == "arrived"


def test_after_a_long_time_it_is_given_up(judge: Detector) -> None:
    judge.due(at(0, 7))
    judge.learn(learned(), at(0, 8))
    judge.due(at(0, 6.5) + PATIENCE + DAY)
    assert judge.overdue == []


def test_after_a_very_long_pause_only_the_last_week_counts(judge: Detector) -> None:
    days = {notice.day - MONDAY for notice in judge.due(at(30, 7)) if notice.combination == "port=oslo"}
    assert days == set(range(24, 31))


def test_when_arrivals_were_missed_the_days_they_belong_to_are_not_judged(judge: Detector) -> None:
    judge.begin_anew(at(2, 12))
    assert judge.due(at(2, 23)) == []
    assert said(judge.due(at(3, 23))) == [("port=oslo", 3, "overdue")]


def test_the_book_survives_a_restart(judge: Detector) -> None:
    model = learned(rhythm("oslo"), rhythm("bergen", weekdays=0b10), rhythm("narvik", hour=10))
    judge.learn(model, at(0, 4))
    judge.arrive(tide("narvik", 0), 1, at(0, 9))
    judge.due(at(0, 7))
    book = msgspec.json.decode(msgspec.json.encode(judge.book), type=Book)
    again = Detector(WATCHED, book)
    again.learn(model, at(0, 12))
    assert again.due(at(0, 23)) == []
    notice = again.arrive(tide("oslo", 0), 2, at(0, 23))
    assert notice is not None
    assert notice.status == "arrived"


def test_nonsense_is_not_counted(judge: Detector) -> None:
    judge.arrive({"port": "oslo"}, 1, at(0, 6))
    judge.arrive({"date": day_text(MONDAY)}, 2, at(0, 6))
    judge.arrive({"port": "oslo", "date": "99991231"}, 3, at(0, 6))
    judge.arrive({"port": "nowhere", "date": day_text(MONDAY)}, 4, at(0, 6))
    assert judge.book.arrived == {}
    assert said(judge.due(at(0, 7))) == [("port=oslo", 0, "overdue")]


def test_without_a_date_the_hour_of_arrival_decides() -> None:
    watched = msgspec.structs.replace(WATCHED, date=None)
    judge = Detector(watched, Book())
    model = msgspec.structs.replace(rhythm("oslo", hour=0), cut=-12 * HOUR)
    judge.learn(learned(model), at(0, 2))
    assert judge.arrive({"port": "oslo"}, 1, at(0, 23.9)) is None  # for Tuesday, a little early
    assert judge.due(at(1, 10)) == []
    assert said(judge.due(at(2, 10))) == [("port=oslo", 2, "overdue")]
    notice = judge.arrive({"port": "oslo"}, 2, at(2, 11))
    assert notice is not None
    assert notice.status == "arrived"


def test_a_notice_is_an_ordinary_notification() -> None:
    notice = Notice(
        event_type="tide",
        combination="port=oslo",
        values={"port": "oslo"},
        day=MONDAY,
        status="arrived",
        expected_at=at(0, 6),
        overdue_at=at(0, 6.5),
        spread=60,
        seen=40,
        arrived_at=at(0, 8),
        sequence=9,
    )
    draft = notice.draft()
    assert draft.stream == EVENT_TYPE.name == "aviso_lateness"
    assert draft.topic == "aviso_lateness.tide.arrived.20241007.port=oslo"
    assert msgspec.json.decode(draft.identifier) == {
        "expected_event": "tide",
        "combination": "port=oslo",
        "date": "20241007",
        "status": "arrived",
        "expected_at": "2024-10-07T06:00:00Z",
    }
    assert msgspec.json.decode(draft.payload) == {
        "identifier": {"port": "oslo"},
        "expected_at": "2024-10-07T06:00:00Z",
        "overdue_at": "2024-10-07T06:30:00Z",
        "spread_seconds": 60,
        "seen_days": 40,
        "arrived_at": "2024-10-07T08:00:00Z",
        "late_by_seconds": 7200,
        "id": "tide@9",
    }


def test_a_model_survives_its_file() -> None:
    model = learned(rhythm("oslo"), rhythm("bergen", weekdays=0b10))
    assert decode(encode(model)) == model
    assert model.fits(WATCHED)
    assert not model.fits(msgspec.structs.replace(WATCHED, by=("port", "level")))
    assert file_name("a/b.c") == "a%2Fb%2Ec.json"
    with pytest.raises(ValueError):
        decode(b"{}")
