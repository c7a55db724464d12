"""The judgement, with the clock in our hand."""

from __future__ import annotations

import msgspec
import pytest

from aviso_server.model.lateness.judge import PATIENCE, Book, Judge
from aviso_server.model.lateness.learned import Learned, decode, encode, file_name
from aviso_server.model.lateness.notice import EVENT_TYPE, Notice
from aviso_server.model.lateness.rhythm import Rhythm
from aviso_server.model.lateness.watched import DAY, Watched, day_text

HOUR = 3600
MONDAY = 20_003
WATCHED = Watched(event_type="tide", stream="tide", by=("port",), date="date", tolerance=1800)


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
def judge() -> Judge:
    """Oslo is expected every day at six, Bergen on Tuesdays; it is Monday, three in the morning."""
    judge = Judge(WATCHED, Book())
    judge.learn(learned(rhythm("oslo"), rhythm("bergen", weekdays=0b10)), at(0, 3))
    return judge


def said(notices: object) -> list[tuple[str, int, str]]:
    assert isinstance(notices, list)
    return [(each.combination, each.day - MONDAY, each.status) for each in notices]


def test_nothing_is_said_while_there_is_time(judge: Judge) -> None:
    assert judge.due(at(0, 6.49)) == []


def test_what_does_not_come_is_overdue_once(judge: Judge) -> None:
    assert said(judge.due(at(0, 6.5))) == [("port=oslo", 0, "overdue")]
    assert judge.due(at(0, 6.6)) == []
    assert [notice.combination for notice in judge.overdue] == ["port=oslo"]


def test_what_comes_in_time_is_never_overdue(judge: Judge) -> None:
    assert judge.arrive(tide("oslo", 0), 1, at(0, 6.1)) is None
    assert judge.due(at(0, 23)) == []


def test_what_comes_after_all_is_announced(judge: Judge) -> None:
    judge.due(at(0, 7))
    notice = judge.arrive(tide("oslo", 0), 9, at(0, 8))
    assert notice is not None
    assert (notice.status, notice.arrived_at, notice.sequence) == ("arrived", at(0, 8), 9)
    assert judge.overdue == []
    assert judge.arrive(tide("oslo", 0), 10, at(0, 8.1)) is None


def test_the_date_decides_and_not_the_hour(judge: Judge) -> None:
    judge.arrive(tide("oslo", 1), 1, at(0, 6))  # tomorrow's came early
    assert said(judge.due(at(0, 7))) == [("port=oslo", 0, "overdue")]
    assert said(judge.due(at(1, 7))) == [("port=bergen", 1, "overdue")]


def test_weekdays_without_it_are_quiet(judge: Judge) -> None:
    for day in range(7):
        judge.arrive(tide("oslo", day), day + 1, at(day, 6))
    assert said(judge.due(at(6, 23))) == [("port=bergen", 1, "overdue")]


def test_what_nobody_looked_at_is_not_judged() -> None:
    judge = Judge(WATCHED, Book())
    judge.learn(learned(rhythm("oslo")), at(0, 5.5))  # it may have come at 5:20 already
    assert judge.due(at(0, 12)) == []
    assert said(judge.due(at(1, 12))) == [("port=oslo", 1, "overdue")]


def test_a_new_model_goes_on_where_the_old_one_was(judge: Judge) -> None:
    judge.arrive(tide("oslo", 0), 1, at(0, 5))
    judge.learn(learned(rhythm("oslo", hour=7), rhythm("narvik", hour=9)), at(0, 6.9))
    assert said(judge.due(at(0, 23))) == [("port=narvik", 0, "overdue")]
    judge.learn(learned(rhythm("oslo", hour=8)), at(0, 23))
    assert judge.due(at(0, 23)) == []
    assert said(judge.due(at(1, 23))) == [("port=oslo", 1, "overdue")]


def test_what_is_forgotten_may_still_arrive(judge: Judge) -> None:
    judge.due(at(0, 7))
    judge.learn(learned(), at(0, 8))
    notice = judge.arrive(tide("oslo", 0), 3, at(0, 9))
    assert notice is not None
    assert notice.status == "arrived"


def test_after_a_long_time_it_is_given_up(judge: Judge) -> None:
    judge.due(at(0, 7))
    judge.learn(learned(), at(0, 8))
    judge.due(at(0, 6.5) + PATIENCE + DAY)
    assert judge.overdue == []


def test_after_a_very_long_pause_only_the_last_week_counts(judge: Judge) -> None:
    days = {notice.day - MONDAY for notice in judge.due(at(30, 7)) if notice.combination == "port=oslo"}
    assert days == set(range(24, 31))


def test_when_arrivals_were_missed_the_days_they_belong_to_are_not_judged(judge: Judge) -> None:
    judge.begin_anew(at(2, 12))
    assert judge.due(at(2, 23)) == []
    assert said(judge.due(at(3, 23))) == [("port=oslo", 3, "overdue")]


def test_the_book_survives_a_restart(judge: Judge) -> None:
    model = learned(rhythm("oslo"), rhythm("bergen", weekdays=0b10), rhythm("narvik", hour=10))
    judge.learn(model, at(0, 4))
    judge.arrive(tide("narvik", 0), 1, at(0, 9))
    judge.due(at(0, 7))
    book = msgspec.json.decode(msgspec.json.encode(judge.book), type=Book)
    again = Judge(WATCHED, book)
    again.learn(model, at(0, 12))
    assert again.due(at(0, 23)) == []
    notice = again.arrive(tide("oslo", 0), 2, at(0, 23))
    assert notice is not None
    assert notice.status == "arrived"


def test_nonsense_is_not_counted(judge: Judge) -> None:
    judge.arrive({"port": "oslo"}, 1, at(0, 6))
    judge.arrive({"date": day_text(MONDAY)}, 2, at(0, 6))
    judge.arrive({"port": "oslo", "date": "99991231"}, 3, at(0, 6))
    judge.arrive({"port": "nowhere", "date": day_text(MONDAY)}, 4, at(0, 6))
    assert judge.book.arrived == {}
    assert said(judge.due(at(0, 7))) == [("port=oslo", 0, "overdue")]


def test_without_a_date_the_hour_of_arrival_decides() -> None:
    watched = msgspec.structs.replace(WATCHED, date=None)
    judge = Judge(watched, Book())
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
