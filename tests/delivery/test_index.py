"""The index of filters finds exactly what testing every filter would find."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.delivery.index import FilterIndex
from aviso_server.model.event_type import GenericType
from aviso_server.model.fields import COMPARISONS, Constraint
from aviso_server.model.filter import Filter, View
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import Point, Polygon, polygon_text
from tests.model.event_types import stored

WORDS = ["red", "blue", "green", "*"]
NUMBERS = [-(2**63), -2, -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1]
FLOATS = [-1.5, -0.0, 0.0, 0.1, 1.0, 1.5, 2.0, 1e300]


class Interest:
    """Somebody with a filter."""

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted


def polygon(random: Random) -> Polygon:
    """A small shape on a coarse grid, so that touching, containing and missing each other all happen."""
    lat, lon, size = random.randint(-6, 6), random.randint(-6, 6), random.randint(0, 3)
    corners = [(0, 0), (0, size), (size, size), (size, 0)] if random.random() < 0.6 else [(0, 0), (size, 1), (1, size)]
    return Polygon.closed([(float(lat + dy), float(lon + dx)) for dy, dx in corners])


def constraint(random: Random, kind: Any, values: list[Any], operators: tuple[str, ...]) -> Constraint:
    operator = random.choice(operators)
    if operator == "in":
        # sometimes more values than are spread over the dictionary
        spread = range(100, 100 + random.choice([0, 0, 0, 80]))
        operands = [random.choice(values) for _ in range(random.randint(1, 4))] + [
            type(values[0])(each) for each in spread
        ]
    elif operator == "between":
        operands = sorted(random.choice(values) for _ in range(2))
    else:
        operands = [random.choice(values)]
    return Constraint(kind, operator, tuple(operands))


def wanted(random: Random) -> Filter:
    """A random filter: each field pinned, constrained or free, with or without an area."""
    equals: dict[str, str] = {}
    tests: dict[str, Constraint] = {}
    for name, kind, values, operators in (
        ("word", "text", WORDS[:3], ("eq", "in")),
        ("number", "integer", NUMBERS, COMPARISONS),
        ("float", "number", FLOATS, COMPARISONS),
    ):
        choice = random.random()
        if choice < 0.25:
            equals[name] = str(random.choice(values)).removesuffix(".0")
        elif choice < 0.6:
            tests[name] = constraint(random, kind, list(values), operators)
    area: Polygon | Point | None = None
    if random.random() < 0.4:
        shape = polygon(random)
        area = shape if random.random() < 0.6 else Point(shape.lats[0] + random.choice([0, 0.5]), shape.lons[0] + 0.5)
    return Filter(
        "e", "e", "e", tuple(sorted(equals.items())), tuple(sorted(tests.items(), key=lambda item: item[0])), area
    )


def notification(random: Random) -> Notification:
    """A random notification: fields may be absent, and it lies somewhere, nowhere, or where its payload says."""
    values: dict[str, Any] = {}
    for name, choices in (("word", WORDS[:3]), ("number", NUMBERS), ("float", FLOATS)):
        if random.random() < 0.9:
            values[name] = str(random.choice(choices)).removesuffix(".0")
    payload, box = None, None
    place = random.random()
    if place < 0.6:
        shape = polygon(random)
        values["polygon"], box = polygon_text(shape), shape.box
    elif place < 0.75:
        shape = polygon(random)
        values["point_cloud"] = [list(pair) for pair in zip(shape.lats, shape.lons, strict=True)]
        box = shape.box
    elif place < 0.9:
        payload = {"spatial_geometry": polygon_text(polygon(random))}
    return Notification(1, 0, "e", compact(values), compact(payload), box)


def found(index: FilterIndex[Interest], event: Notification, positional: bool = False) -> list[int]:
    matches = index.match(View(event, positional))
    assert len(set(matches)) == len(matches), "nobody is told twice"
    return sorted(map(id, matches))


def expected(interests: list[Interest], event: Notification) -> list[int]:
    return sorted(id(interest) for interest in interests if interest.wanted.matches(event))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 40, 150]))
def test_index_equals_testing_everyone(seed: int, size: int) -> None:
    random = Random(seed)
    index: FilterIndex[Interest] = FilterIndex()
    interests: list[Interest] = []
    for _ in range(4):
        newcomers = [Interest(wanted(random)) for _ in range(random.randint(0, size))]
        for interest in newcomers:
            index.add(interest)
        interests += newcomers
        for event in [notification(random) for _ in range(5)]:
            assert found(index, event) == expected(interests, event)
        random.shuffle(interests)
        leaving = random.randint(0, len(interests))
        for interest in interests[:leaving]:
            index.discard(interest)
            if random.random() < 0.2:
                index.add(interest)
                index.discard(interest)
        del interests[:leaving]
        for event in [notification(random) for _ in range(5)]:
            assert found(index, event) == expected(interests, event)
        assert len(index) == len(interests)


@pytest.mark.parametrize("kind", ["areas", "ranges"])
def test_large_indexes_after_many_changes(kind: str) -> None:
    """Far past the sizes at which arrays are built and built anew."""
    random = Random(7)
    index: FilterIndex[Interest] = FilterIndex()
    interests: list[Interest] = []
    for _ in range(6):
        for _ in range(200):
            if kind == "areas":
                one = Interest(Filter("e", "e", "e", area=polygon(random)))
            else:
                low = random.randint(-50, 50)
                test = Constraint("integer", "between", (low, low + random.randint(0, 20)))
                one = Interest(Filter("e", "e", "e", tests=(("number", test),)))
            interests.append(one)
            index.add(one)
        for _ in range(100):
            index.discard(interests.pop(random.randrange(len(interests))))
        for _ in range(10):
            # few enough that nothing is built anew in between
            leaver = interests.pop(random.randrange(len(interests)))
            index.discard(leaver)
            events = [notification(random) for _ in range(10)]
            assert [found(index, event) for event in events] == [expected(interests, event) for event in events]
            if random.random() < 0.5:
                interests.append(leaver)
                index.add(leaver)
                assert [found(index, event) for event in events] == [expected(interests, event) for event in events]


GENERIC = GenericType("news")
TOKENS = st.sampled_from(["a", "b.c", "*", "5"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(TOKENS, max_size=3), max_size=8), st.lists(TOKENS, max_size=3))
def test_generic_filters_are_matched_by_position(requests: list[list[str]], tokens: list[str]) -> None:
    index: FilterIndex[Interest] = FilterIndex()
    interests = [Interest(GENERIC.compile(dict(zip("klm", request, strict=False)), "watch")) for request in requests]
    for interest in interests:
        index.add(interest)
    event = stored(GENERIC.check(dict(zip("xyz", tokens, strict=False))))
    assert found(index, event, positional=True) == expected(interests, event)
    by_hand = [
        id(interest)
        for interest, request in zip(interests, requests, strict=True)
        if len(request) == len(tokens)
        and all(asked in ("*", token) for asked, token in zip(request, tokens, strict=True))
    ]
    assert sorted(by_hand) == found(index, event, positional=True)


def test_adding_and_discarding_twice_changes_nothing() -> None:
    index: FilterIndex[Interest] = FilterIndex()
    one, other = Interest(Filter("e", "e", "e")), Interest(Filter("e", "e", "e"))
    index.add(one)
    index.add(one)
    index.discard(other)
    assert len(index) == 1
    assert one in index
    assert other not in index
    event = Notification(1, 0, "e", b"{}", b"null")
    assert index.match(View(event)) == [one]
    index.discard(one)
    index.discard(one)
    assert len(index) == 0
    assert index.match(View(event)) == []
