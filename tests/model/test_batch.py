"""Notifications as columns mean exactly what the notifications mean one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.batch import (
    END_OF_STREAM,
    STORED,
    TIME_NS,
    ArrowRun,
    Column,
    arrow_schema,
    batch_message,
    columns_of,
    event_times,
    field_arrays,
    last_message,
    merge,
    record_batch,
    shapes_as_wkb,
    wire_columns,
)
from aviso_server.model.cloudevent import REPLAY, Renderer
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Notification
from aviso_server.model.shapes import (
    Polygon,
    ShapeError,
    parse_point_cloud,
    parse_polygon,
    polygon_from_pairs,
    wkb,
)
from aviso_server.model.times import event_time
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, event_type, stored

LATITUDES = st.floats(-90, 90)
LONGITUDES = st.floats(-180, 180)
RINGS = (
    st.lists(st.tuples(LATITUDES, LONGITUDES), min_size=3, max_size=6)
    .map(Polygon.closed)
    .filter(lambda ring: ring.vertices >= 4)
)


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def test_columns_of_an_event_type() -> None:
    assert [(column.name, column.kind) for column in columns_of(EXTREME)] == [
        ("sequence", "integer"),
        ("time", "instant"),
        ("event_type", "text"),
        ("topic", "text"),
        ("region", "text"),
        ("run_time", "text"),
        ("severity", "integer"),
        ("anomaly", "number"),
        ("polygon", "shape"),
        ("box_min_lat", "number"),
        ("box_min_lon", "number"),
        ("box_max_lat", "number"),
        ("box_max_lon", "number"),
        ("identifier", "text"),
        ("payload", "text"),
    ]


def test_event_types_without_shapes_have_no_box() -> None:
    assert names(columns_of(PROBE)) == [
        *("sequence", "time", "event_type", "topic"),
        *("txt", "num", "exp", "kind", "off", "offnum"),
        *("identifier", "payload"),
    ]
    assert names(columns_of(GenericType("x"))) == ["sequence", "time", "event_type", "topic", "identifier", "payload"]


def test_a_field_whose_name_is_taken_gets_another_one() -> None:
    awkward = event_type(
        "awkward",
        dict.fromkeys(("time", "Payload", "level", "LEVEL", "identifier_time", "time_ns", "box_min_lat"), "IntHandler"),
    )
    fields = {column.field: column.name for column in columns_of(awkward) if column.field is not None}
    assert fields == {
        "time": "identifier_time_2",
        "Payload": "identifier_Payload",
        "level": "level",
        "LEVEL": "identifier_LEVEL",
        "identifier_time": "identifier_time",
        "time_ns": "identifier_time_ns",
        "box_min_lat": "identifier_box_min_lat",
    }
    assert len({name.lower() for name in names(columns_of(awkward))}) == len(columns_of(awkward))


def test_one_table_for_several_event_types() -> None:
    left = event_type("left", {"a": "IntHandler", "both": "StringHandler", "differs": "IntHandler"})
    right = event_type("right", {"b": "FloatHandler", "both": "DateHandler", "Differs": "StringHandler"})
    merged = merge([columns_of(left), columns_of(right)])
    assert [(column.name, column.kind) for column in merged[4:-2]] == [
        ("a", "integer"),
        ("both", "text"),
        ("differs", "text"),
        ("b", "number"),
    ]
    assert names(merged)[-2:] == ["identifier", "payload"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["north", "South"]),
            st.integers(1, 7),
            st.floats(0, 100),
            RINGS,
            st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4),
            st.integers(0, 2**62),
        ),
        max_size=3,
    )
)
def test_columns_equal_the_values_of_the_model(rows: list[Any]) -> None:
    notifications = []
    for place, (region, severity, anomaly, ring, payload, time) in enumerate(rows, 1):
        pairs = [[lat, lon] for lat, lon in zip(ring.lats, ring.lons, strict=True)]
        fields = {"region": region, "run_time": "12", "severity": severity, "anomaly": anomaly, "polygon": pairs}
        if isinstance(payload, int) and not -(2**63) <= payload < 2**64:
            payload = None
        draft = EXTREME.check(fields, payload)
        notifications.append(Notification(place, time, draft.topic, draft.identifier, draft.payload, draft.box))
    table = record_batch(wire_columns(EXTREME), "extreme_event", notifications).to_pylist()
    assert len(table) == len(rows)
    for row, each, (region, severity, anomaly, ring, _, time) in zip(table, notifications, rows, strict=True):
        assert (row["sequence"], row["topic"], row["event_type"]) == (each.sequence, each.topic, "extreme_event")
        assert (row["identifier"], row["payload"]) == (each.identifier.decode(), each.payload.decode())
        assert (row["region"], row["run_time"], row["severity"]) == (region.lower(), "1200", severity)
        assert row["anomaly"] == anomaly
        assert row["time_ns"] == time
        assert each.box is not None
        assert tuple(row[f"box_{edge}"] for edge in each.box._fields) == tuple(each.box)
        assert shapely.get_coordinates(shapely.from_wkb(row["polygon"])).tolist() == [
            [lon, lat] for lat, lon in zip(ring.lats, ring.lons, strict=True)
        ]


def test_point_clouds_are_multi_points() -> None:
    draft = CLOUD.check({"kind": "k", "point_cloud": [[1, 2], [3.5, 4], [1, 2]]})
    batch = record_batch(columns_of(CLOUD), "cloud", [stored(draft)])
    cloud = shapely.from_wkb(batch.column("point_cloud")[0].as_py())
    assert [tuple(point.coords[0]) for point in cloud.geoms] == [(2.0, 1.0), (4.0, 3.5), (2.0, 1.0)]
    assert batch.column("box_max_lat")[0].as_py() == 3.5


def test_values_of_an_earlier_schema_do_not_stop_the_table() -> None:
    identifiers = [
        {"severity": "high", "anomaly": "x", "polygon": "(1,2", "region": "north"},
        {"severity": "5", "extra": "1"},
        {"severity": "99999999999999999999", "anomaly": "0.5"},
        {"point_cloud": [[1, 2]], "region": "*"},
    ]
    rows = [
        Notification(place, 1, "t", json.dumps(each, separators=(",", ":")).encode(), b"null")
        for place, each in enumerate(identifiers)
    ]
    table = record_batch(columns_of(EXTREME), "extreme_event", rows)
    assert table.column("severity").to_pylist() == [None, 5, None, None]
    assert table.column("anomaly").to_pylist() == [None, None, 0.5, None]
    assert table.column("polygon").to_pylist() == [None] * 4
    assert table.column("region").to_pylist() == ["north", None, None, "*"]
    assert table.column("box_min_lat").to_pylist() == [None] * 4


def test_messages_make_a_whole_arrow_stream() -> None:
    columns = wire_columns(POLYGON)
    assert columns[-1] == TIME_NS
    draft = POLYGON.check({"date": "2025-01-02", "time": "6", "polygon": SQUARE}, "p")
    batch = record_batch(columns, "test_polygon", [stored(draft, 5)])
    stream = (
        arrow_schema(columns, {"what": "a test"}).serialize().to_pybytes()
        + batch_message(batch)
        + last_message(columns, {"aviso.ending": "replay_completed"})
        + END_OF_STREAM
    )
    reader = pa.ipc.open_stream(stream)
    assert reader.schema.metadata == {b"what": b"a test"}
    assert reader.read_all().to_pylist() == batch.to_pylist()


Ring = list[list[float] | None]

LAT, LON = st.floats(-91, 91), st.floats(-181, 181)
PLAIN = st.floats(-90, 90)
PAIRS = pa.list_(pa.list_(pa.float64()))


@st.composite
def rings(draw: st.DrawFn, odd: bool) -> Ring | None:
    """The pairs of a polygon; if odd, perhaps only nearly one."""
    if draw(st.integers(0, 9)) == 0:
        return None
    parts = (LAT, LON) if odd else (PLAIN, PLAIN)
    ring: Ring = [[draw(part) for part in parts] for _ in range(draw(st.integers(2 if odd else 3, 6)))]
    if not odd or draw(st.booleans()):
        ring.append(ring[0])
    if odd and draw(st.integers(0, 3)) == 0:
        ring.insert(1, draw(st.sampled_from([None, [], [1.0], [1.0, 2.0, 3.0]])))
    return ring


def one_by_one(field: str, given: Sequence[Ring | None]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for ring in given:
        try:
            read = parse_point_cloud if field == "point_cloud" else polygon_from_pairs
            found.append(None if ring is None else wkb(read(ring)))
        except ShapeError:
            found.append(None)
    return found


@pytest.mark.parametrize("field", ["polygon", "point_cloud"])
@given(given=st.booleans().flatmap(lambda odd: st.lists(rings(odd), max_size=6)))
def test_shapes_are_the_same_at_once_or_left_to_others(field: str, given: list[Ring | None]) -> None:
    together = shapes_as_wkb(field, pa.array(given, PAIRS))
    if together is not None:
        together.validate(full=True)
        assert together.to_pylist() == one_by_one(field, given)


def test_large_clouds_are_left_to_others() -> None:
    """Which of them is too large can only be said of their JSON."""
    assert shapes_as_wkb("point_cloud", pa.array([[[0.5, 0.5]] * 1000], PAIRS)) is not None
    assert shapes_as_wkb("point_cloud", pa.array([[[0.5, 0.5]] * 1001], PAIRS)) is None


def test_polygons_of_several_sizes_are_made_at_once() -> None:
    given: list[Ring | None] = [
        [[0, 0], [0, 2], [2, 2], [0, 0]],
        None,
        [[-1.5, 0.25], [-0.0, 2], [2, 90], [-1.5, 0.25]],
        [[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]],
        [[0, 0], [0, 2], [2, 2], [0, 0]],
    ]
    together = shapes_as_wkb("polygon", pa.array(given, PAIRS))
    assert together is not None
    assert together.to_pylist() == one_by_one("polygon", given)
    part = shapes_as_wkb("polygon", pa.array(given, PAIRS)[1:])
    assert part is not None
    assert part.to_pylist() == one_by_one("polygon", given[1:]), "a part of a column"
    for ring, words in (
        ([[0, 0], [0, 2], [2, 2], [1, 1]], "not closed"),
        ([[0, 0], [91, 2], [2, 2], [0, 0]], "not on the map"),
        ([[0, 0], [2, 2], [0, 0]], "too short"),
        ([[0, 0], [2], [2, 2], [0, 0]], "not a pair"),
    ):
        assert shapes_as_wkb("polygon", pa.array([*given, ring], PAIRS)) is None, words
    assert shapes_as_wkb("polygon", pa.array([None], PAIRS)) is None


def test_columns_of_polygons_hold_the_same_whatever_form_is_stored() -> None:
    """Older logs have text; either alone or both in one batch give polygons, and never points."""
    column = Column("polygon", "shape", "polygon")
    array, text = b'{"polygon":[[0.0,0.0],[0.0,2.0],[2.0,2.0],[0.0,0.0]]}', b'{"polygon":"(0,0,0,2,2,2,0,0)"}'
    expected = wkb(parse_polygon("(0,0,0,2,2,2,0,0)"))
    for rows in ([array, array], [text, text], [array, text], [text, array]):
        assert field_arrays([column], rows)["polygon"].to_pylist() == [expected, expected]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b", 'c"d', "é"]),
            st.text() | st.sampled_from(["12", "-3.5", "2025-01-01", "null"]),
            max_size=4,
        ),
        max_size=5,
    )
)
def test_texts_are_the_same_at_once(rows: list[dict[str, str]]) -> None:
    columns = [Column(name, "text", name) for name in ("a", "b", 'c"d', "é", "absent")]
    made = field_arrays(columns, [compact(row) for row in rows])
    assert {name: array.to_pylist() for name, array in made.items()} == {
        column.name: [row.get(column.name) for row in rows] for column in columns
    }


def test_values_that_are_no_texts_are_read_one_by_one() -> None:
    rows = [{"a": "x", "point_cloud": [[1, 2]]}, {"a": [1]}]
    made = field_arrays(
        [Column("a", "text", "a"), Column("point_cloud", "shape", "point_cloud")],
        [json.dumps(row).encode() for row in rows],
    )
    assert made["a"].to_pylist() == ["x", "[1]"]
    assert made["point_cloud"].to_pylist() == [wkb(parse_point_cloud([[1, 2]])), None]


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
        lambda: [each.box for each in wanted],
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


@given(notifications, st.integers(0, 20))
def test_the_table_of_a_run_is_that_of_its_notifications(given: list[Notification], start: int) -> None:
    columns = (*STORED, Column("class", "text", "class"), Column("time", "instant"))
    run = as_run(given)[start:]
    assert record_batch(columns, "mars", run).equals(record_batch(columns, "mars", given[start:]))


@given(notifications, st.integers(1, 2**63 - 1), st.sets(st.integers(0, 11)))
def test_hidden_ones_are_left_out(given: list[Notification], through: int, places: set[int]) -> None:
    deleted = {each.sequence for place, each in enumerate(given) if place in places}
    expected = [each for each in given if each.sequence > through and each.sequence not in deleted]
    assert list(as_run(given).without(through, deleted)) == expected
    assert list(as_run(given).without(0, ())) == given


@given(notifications, st.integers(0, 12))
def test_a_mark_is_found_where_it_is_and_nowhere_else(given: list[Notification], start: int) -> None:
    for mark in (b'"class":"rd"', b'"oper"', "é".encode(), b"nowhere"):
        found = any(mark in each.identifier for each in given[start:])
        assert as_run(given)[start:].mentions(mark) == found
