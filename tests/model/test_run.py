"""Notifications as columns mean exactly what the notifications mean one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.arrow_run import ArrowRun, event_times
from aviso_server.model.cloudevent import REPLAY, Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box, Notification
from aviso_server.model.timestamp import event_time

values = st.sampled_from(["od", "rd", 'o"d', "é", ""])
notifications = st.lists(
    st.builds(
        Notification,
        sequence=st.integers(1, 2**63 - 1),
        time=st.sampled_from([0, 1, 1_500_000_000, 1_700_000_000_123_456_789]),
        topic=st.text("ab.%2E", max_size=8),
        identifier=st.builds(
            lambda one, other: compact({"class": one, "stream": other}), values, st.sampled_from(["oper", "od"])
        ),
        payload=st.sampled_from([b"null", b'{"a":1}', b'"%b %d"']),
        box=st.none() | st.just(Box(1.0, 2.0, 3.0, 4.0)),
    ),
    max_size=12,
)
filters = st.builds(
    lambda equals: Filter("mars", "mars", "mars.*", tuple(equals)),
    st.lists(st.tuples(st.sampled_from(["class", "stream"]), values), max_size=2),
)


def as_run(wanted: Sequence[Notification]) -> ArrowRun:
    return ArrowRun(
        pa.array([b"%d" % each.sequence for each in wanted], pa.binary()),
        pa.array([b"%d" % each.time for each in wanted], pa.binary()),
        lambda: [each.topic for each in wanted],
        pa.array([each.identifier for each in wanted], pa.binary()),
        pa.array([each.payload for each in wanted], pa.binary()),
        [each.box for each in wanted],
    )


@given(st.lists(st.integers(-(2**62), 2**63 - 1) | st.integers(0, 10**6).map(lambda ms: ms * 10**6), max_size=60))
def test_many_times_look_as_each_of_them(times: list[int]) -> None:
    shown = event_times(pa.array(times, pa.int64())).to_pylist()
    assert shown == [event_time(time).encode() for time in times]


def test_times_of_many_seconds_look_as_each_of_them() -> None:
    times = [1_700_000_000_000_000_001 + number * 333_333_333_331 for number in range(999)]
    assert event_times(pa.array(times, pa.int64())).to_pylist() == [event_time(time).encode() for time in times]


@given(notifications)
def test_values_come_back(given: list[Notification]) -> None:
    run = as_run(given)
    assert list(run) == given
    assert len(run) == len(given)
    assert [run[place] for place in range(len(given))] == given


@given(notifications, st.integers(0, 12))
def test_a_slice_is_a_run_of_the_slice(given: list[Notification], end: int) -> None:
    assert list(as_run(given)[:end]) == given[:end]


@given(notifications, filters)
def test_chosen_are_those_that_match(given: list[Notification], wanted: Filter) -> None:
    assert list(wanted.choose(as_run(given))) == [each for each in given if wanted.matches(each)]


@given(notifications)
def test_rendering_is_that_of_each_notification(given: list[Notification]) -> None:
    renderer = Renderer("mars%d", "http://localhost/%b")
    run = as_run(given)
    assert renderer.frames(REPLAY, run) == b"".join([renderer.frame(REPLAY, each) for each in given])
    assert renderer.lines(run) == b"".join([renderer.event(each) + b"\n" for each in given])
    assert renderer.lines(given) == renderer.lines(run)
