"""Filters mean the same in the archive as anywhere else: cold replay brings what `Filter.matches` lets through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviso_server.lake.compact import Compactor
from aviso_server.lake.condition import sight_of
from aviso_server.lake.scan import Scan, Window
from aviso_server.lake.table import Table, Tables
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.fields import Constraint
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import Point, Polygon, parse_polygon
from aviso_server.spark.cold_replay import ColdReplay
from tests.model.event_types import event_type
from tests.spark.stored import FIRST_TIME, numbered, read, rows_of, store, wanted_rows

STREAM = "probe"
TEXTS = ["a", "A", "ä", "Ä", "ß", "İ", "ς", "Σ", "\u212a", "k", "K", "a.b", "50%", 'x"y', "back\\slash", "north", "0"]
TEXTS += ['","txt":"a', "é" * 40, "NORTH", "tab\there"]
WHOLES = [0, 5, -5, 10, 31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 1000]
NUMBERS = [0.0, -0.0, 5.0, -5.0, 0.1, 1e308, -1e308, 5e-324, 2.0**53, 2.0**53 + 2, 31.0, 1.5]
WRITTEN = [
    "5",
    "05",
    "+5",
    " 5",
    "5.0",
    "5.5",
    "1_0",
    "10",
    "0x1F",
    "-0",
    "0",
    "٣",
    "abc",
    "nan",
    "inf",
    "-inf",
    "1e400",
]
WRITTEN += ["9223372036854775807", "9223372036854775808", "9007199254740993", "1e308", "Infinity", "0.1", "31"]
KINDS = ["north", "south", "Ñandú", "k"]

# What the stream was at first: numbers were text then.
OLD = event_type(
    "probe",
    {"txt": "StringHandler", "num": "StringHandler", "size": "StringHandler", "kind": "StringHandler"},
    STREAM,
    ["txt"],
)
# Then the numbers became numbers.
MIDDLE = event_type(
    "probe",
    {
        "txt": "StringHandler",
        "num": "IntHandler",
        "size": "IntHandler",
        "kind": {"type": "EnumHandler", "values": KINDS},
    },
    STREAM,
    ["txt"],
)
# And there came more fields, one with a name that a column has already.
NEW = event_type(
    "probe",
    {
        "txt": "StringHandler",
        "num": "IntHandler",
        "size": "FloatHandler",
        "kind": {"type": "EnumHandler", "values": KINDS},
        "day": "DateHandler",
        "time": "TimeHandler",
        "exp": {"type": "ExpverHandler", "default": "0001"},
        "odd name": "IntHandler",
    },
    STREAM,
    ["txt", "time"],
)


def probes(chance: random.Random) -> tuple[list[Notification], list[tuple[EventType, list[Notification]]]]:
    """Notifications of all times, and the files they are archived in: some of them after the next change already."""
    old = [
        OLD.check(
            {
                "txt": chance.choice(TEXTS),
                "num": chance.choice(WRITTEN),
                "size": WRITTEN[number % len(WRITTEN)],
                "kind": kind,
            }
        )
        for number, kind in enumerate(
            chance.choices(["North", "north", "NORTH", "SOUTH", "ñandú", "ÑANDÚ", "K", "\u212a", "*"], k=160)
        )
    ]
    middle = [
        MIDDLE.check(
            {"txt": chance.choice(TEXTS), "num": num, "size": chance.choice(WHOLES), "kind": chance.choice(KINDS)}
        )
        for num in chance.choices(WHOLES, k=120)
    ]
    new = [
        NEW.check(
            {
                "txt": chance.choice([*TEXTS, "*"]),
                "num": chance.choice(WHOLES),
                "size": chance.choice(NUMBERS),
                "kind": chance.choice(KINDS),
                "day": chance.choice(["20250706", "2025-07-07"]),
                "time": chance.choice(["12", "0600"]),
                "exp": chance.choice(["1", "0001", "Test", "*"]),
                "odd name": chance.choice(WHOLES),
            },
            chance.choice([None, {"n": 1}, "text", [1.5, "é"]]),
        )
        for _ in range(160)
    ]
    every = numbered([*old, *middle, *new])
    files = [
        (OLD, every[:80]),
        (MIDDLE, every[80:120]),
        (NEW, every[120:160]),
        (MIDDLE, every[160:220]),
        (NEW, every[220:300]),
        (NEW, every[300:]),
    ]
    return every, files


class Archived:
    """A file of the archive and the notifications in it."""

    def __init__(self, table: Table, notifications: Sequence[Notification]) -> None:
        self._notifications = notifications
        snapshot = table.snapshot()
        self._columns = snapshot.columns
        self._query = table.query(snapshot.version)
        (self._file,) = (each for each in snapshot.files if each.first == notifications[0].sequence)

    def check(self, filters: Sequence[Filter]) -> None:
        """What is found for each filter is what the filter itself lets through."""
        for wanted in filters:
            sight = sight_of(wanted, self._columns, self._file.whole)
            scan = Scan(self._query, wanted, Window(self._file.first, self._file.last, sight, (self._file,)))
            found = [batch for table in iter(scan.pull, None) for batch in table.to_batches()]
            assert rows_of(found) == wanted_rows(self._notifications, wanted), wanted


def constraints(values: list[Any], operators: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    value = st.sampled_from(values)
    forms = {
        "in": st.lists(value, min_size=1, max_size=12),
        "between": st.tuples(value, value).map(sorted),
    }
    return st.sampled_from(operators).flatmap(lambda name: forms.get(name, value).map(lambda operand: {name: operand}))


EVERY = ("eq", "in", "gt", "gte", "lt", "lte", "between")
ASKED: list[tuple[EventType, st.SearchStrategy[dict[str, Any]]]] = [
    (
        OLD,
        st.fixed_dictionaries(
            {},
            optional={
                "txt": st.sampled_from(TEXTS),
                "num": st.sampled_from(WRITTEN),
                "size": st.sampled_from(WRITTEN),
                "kind": st.sampled_from(["North", "south", "ñandú"]),
            },
        ),
    ),
    (
        MIDDLE,
        st.fixed_dictionaries(
            {},
            optional={
                "txt": st.sampled_from(TEXTS),
                "num": st.sampled_from(WHOLES) | constraints(WHOLES, EVERY),
                "size": st.sampled_from(WHOLES) | constraints(WHOLES, EVERY),
                "kind": constraints(KINDS, ("eq", "in")),
            },
        ),
    ),
    (
        NEW,
        st.fixed_dictionaries(
            {},
            optional={
                "txt": st.sampled_from([*TEXTS, "*"]),
                "num": st.sampled_from(WHOLES) | constraints(WHOLES, EVERY),
                "size": st.sampled_from(NUMBERS) | constraints(NUMBERS, EVERY),
                "kind": st.sampled_from(KINDS) | constraints(KINDS, ("eq", "in")),
                "day": st.just("20250706"),
                "time": st.just("1200"),
                "exp": st.sampled_from(["1", "test"]),
                "odd name": constraints(WHOLES, EVERY),
            },
        ),
    ),
]
FEW = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


def many(filters: st.SearchStrategy[Filter]) -> st.SearchStrategy[list[Filter]]:
    return st.lists(filters, min_size=12, max_size=20)


REQUESTS = st.sampled_from(ASKED).flatmap(
    lambda asked: asked[1].map(lambda identifier: asked[0].compile(identifier, "replay"))
)


@pytest.fixture(scope="module")
def ages(tmp_path_factory: pytest.TempPathFactory) -> list[Archived]:
    root = tmp_path_factory.mktemp("ages")
    every, files = probes(random.Random(1))
    for kind, notifications in files:
        store(root, kind, notifications)
    tables = Tables(str(root))
    apart = [Archived(tables.of(STREAM), notifications) for _, notifications in files]
    list(Compactor(tables).run(everything=True))
    merged = Archived(tables.of(STREAM), every)  # rows of all times in one file
    for kind, notifications in files[-3:]:  # and tables whose columns were numbers from the start
        new = tmp_path_factory.mktemp("new")
        store(new, kind, notifications)
        apart.append(Archived(Table(str(new), STREAM), notifications))
    return [*apart, merged]


@given(many(REQUESTS))
@FEW
def test_any_filter_of_any_time_on_files_of_all_times(ages: list[Archived], filters: list[Filter]) -> None:
    for file in ages:
        file.check(filters)


def one(name: str, kind: Any, operator: str, *operands: Any) -> Filter:
    return Filter("probe", STREAM, STREAM, tests=((name, Constraint(kind, operator, operands)),))


def pinned(name: str, text: str) -> Filter:
    return Filter("probe", STREAM, STREAM, equals=((name, text),))


EASILY_MISTAKEN = [
    *(one("size", "number", operator, zero) for operator in EVERY[:-1] for zero in (0.0, -0.0)),
    *(one("size", "number", operator, 1e308) for operator in EVERY[:-1]),
    one("size", "number", "between", -0.0, 0.0),
    one("size", "number", "in", -0.0, 1e308),
    one("size", "number", "gte", 2.0**53),
    one("num", "integer", "eq", 31),
    one("num", "integer", "gt", 2**53),
    one("num", "integer", "lte", -(2**63)),
    one("num", "number", "eq", 2.0**53),
    one("size", "integer", "gte", 5),
    one("kind", "text", "eq", "\u212a".lower()),
    one("kind", "text", "in", "ñandú", "north"),
    one("txt", "text", "eq", "σ"),
    one("odd name", "integer", "gte", 0),
    *(pinned("num", text) for text in ("05", "5", "abc", "31", "0x1F")),
    *(pinned("size", text) for text in ("-0", "0", "1e308", "nan")),
    *(pinned("txt", text) for text in ('","txt":"a', "Ä", 'x"y')),
    pinned("time", "1200"),
    pinned("nowhere", "a"),
]


def test_values_that_are_easily_mistaken(ages: list[Archived]) -> None:
    for file in ages:
        file.check(EASILY_MISTAKEN)


@pytest.fixture(scope="module")
def sorted_numbers(tmp_path_factory: pytest.TempPathFactory) -> tuple[ColdReplay, list[Notification]]:
    """Equal values lie together, so that statistics skip most of the file."""
    root = tmp_path_factory.mktemp("numbers")
    kind = event_type("number", {"size": "FloatHandler", "num": "IntHandler"}, "number", ["num"])
    order = sorted(NUMBERS, key=lambda number: (number, str(number)))
    drafts = [kind.check({"size": size, "num": num}) for size in order for num in sorted(WHOLES)]
    stored = numbered(drafts)
    store(root, kind, stored, group_rows=len(WHOLES))
    return ColdReplay(Tables(str(root))), stored


@pytest.mark.parametrize("operator", EVERY)
def test_statistics_of_files_skip_nothing_that_is_wanted(
    sorted_numbers: tuple[ColdReplay, list[Notification]], operator: str
) -> None:
    cold, stored = sorted_numbers
    for zero in (0.0, -0.0):
        operands = (zero, zero) if operator == "between" else (zero,)
        wanted = Filter("number", "number", "number", tests=(("size", Constraint("number", operator, operands)),))
        assert read(cold, wanted) == wanted_rows(stored, wanted)
    high = (2**53 + 1, 2**63 - 1) if operator == "between" else (2**53 + 1,)
    wanted = Filter("number", "number", "number", tests=(("num", Constraint("integer", operator, high)),))
    assert read(cold, wanted) == wanted_rows(stored, wanted)


# Shapes -------------------------------------------------------------------------------------------------------------

AREAS = event_type(
    "areas", {"name": "StringHandler", "polygon": {"type": "PolygonHandler", "required": True}}, "areas", ["name"]
)
CLOUDS = event_type(
    "clouds",
    {"name": "StringHandler", "point_cloud": {"type": "PointCloudHandler", "required": True}},
    "clouds",
    ["name"],
)
PLACES = [-0.1, 0.0, 0.1, 1.0, 1 / 3, 2.0, 16.000001, 16.0, -7.7]
SPATIAL = [AREAS, CLOUDS]


def ring(chance: random.Random) -> list[tuple[float, float]]:
    low, left = chance.choice(PLACES), chance.choice(PLACES)
    high, right = low + chance.choice([0.1, 1.0, 2.0]), left + chance.choice([0.1, 1.0, 2.0])
    pairs = [(low, left), (low, right), (high, right), (high, left)]
    return chance.sample(pairs, 3) + pairs[:1] if chance.random() < 0.5 else pairs


def ring_text(chance: random.Random) -> str:
    pairs = Polygon.closed(ring(chance))
    return "(" + ",".join(f"{lat},{lon}" for lat, lon in zip(pairs.lats, pairs.lons, strict=True)) + ")"


def payload(chance: random.Random) -> Any:
    pairs = [list(pair) for pair in ring(chance)]
    return chance.choice(
        [
            None,
            {"n": 1},
            {"spatial_geometry": ring_text(chance)},
            {"spatial_geometry": {"type": "Polygon", "coordinates": [pairs]}},
            {"spatial_geometry": "no shape"},
            'a text with "spatial_geometry"',
        ]
    )


def shaped(kind: EventType, chance: random.Random) -> list[Notification]:
    fields = {
        "polygon": lambda: ring_text(chance),
        "point_cloud": lambda: [[chance.choice(PLACES), chance.choice(PLACES)] for _ in range(chance.randint(1, 4))],
        "name": lambda: chance.choice("ab"),
    }
    drafts = []
    for _ in range(120):
        identifier = {name: fields[name]() for name in kind.fields}
        drafts.append(kind.check(identifier, payload(chance)))
    return numbered(drafts)


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> list[Archived]:
    root, chance = tmp_path_factory.mktemp("maps"), random.Random(2)
    found = []
    for kind in SPATIAL:
        stored = shaped(kind, chance)
        store(root, kind, stored)
        found.append(Archived(Table(str(root), kind.base), stored))
    return found


COORDINATES = st.sampled_from(PLACES)
AREA = st.lists(st.tuples(COORDINATES, COORDINATES), min_size=3, max_size=6).map(Polygon.closed) | st.builds(
    Point, COORDINATES, COORDINATES
)
LOOKED_FOR = st.builds(
    Filter,
    st.just("map"),
    st.just("map"),
    st.just("map"),
    st.sampled_from([(), (("name", "a"),)]),
    st.just(()),
    AREA,
)


@given(many(LOOKED_FOR))
@FEW
def test_areas(maps: list[Archived], filters: list[Filter]) -> None:
    for file in maps:
        file.check(filters)


def test_shapes_that_touch_the_box_of_an_area_in_a_rounded_coordinate(tmp_path: Path) -> None:
    edges = event_type("edges", {"polygon": {"type": "PolygonHandler", "required": True}}, "edges", ["polygon"])
    third = 1 / 3  # not a float32
    beyond = 0.33333333333333337  # the next double
    drafts = [
        edges.check({"polygon": f"(0,0,{third},0,{third},{third},0,0)"}),
        edges.check({"polygon": f"({beyond},{beyond},1,1,1,{beyond},{beyond},{beyond})"}),
    ]
    store(tmp_path, edges, numbered(drafts))
    cold = ColdReplay(Tables(str(tmp_path)))
    inner = parse_polygon(f"({third},{third},{third},2,2,2,{third},{third})")
    outer = parse_polygon(f"({beyond},{beyond},{beyond},2,2,2,{beyond},{beyond})")
    assert [row[0] for row in read(cold, Filter("edges", "edges", "edges", area=inner))] == [1, 2]
    assert [row[0] for row in read(cold, Filter("edges", "edges", "edges", area=outer))] == [2]


# Event types that nobody configured ---------------------------------------------------------------------------------

THINGS = GenericType("thing")
TOKENS = ["a", "b", "A", "a.b", "50%", "*", ">", "ä", "%41"]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    root = tmp_path_factory.mktemp("things")
    chance = random.Random(3)
    drafts = [
        THINGS.check({name: chance.choice(TOKENS) for name in "xyz"[: chance.randint(1, 3)]}, payload(chance))
        for _ in range(120)
    ]
    stored = numbered(drafts)
    # A broker may hold topics that were not written by us.
    topics = ["thing.%61.b", "thing.%4", "thing", "thing.a.%2e", "thing.%C3%A4"]
    stored += [
        Notification(121 + place, FIRST_TIME + 10**12, each, b"{}", b"null") for place, each in enumerate(topics)
    ]
    store(root, THINGS, stored)
    return Archived(Table(str(root), THINGS.name), stored)


def of_things(identifier: dict[str, str], point: Point | None) -> Filter:
    return THINGS.compile(identifier, "replay", point, lenient=True)


ASKED_BY_POSITION = st.builds(
    of_things,
    st.dictionaries(st.sampled_from("xyz"), st.sampled_from(TOKENS), max_size=3),
    st.none() | st.just(Point(0.05, 0.05)),
)


@given(many(ASKED_BY_POSITION))
@FEW
def test_filters_by_position(things: Archived, filters: list[Filter]) -> None:
    things.check(filters)
