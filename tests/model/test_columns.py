"""Notifications as a table: which columns there are, and that they hold what the model says."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviso_server.model.arrow import END_OF_STREAM, arrow_schema, batch_message, field_texts, last_message, record_batch
from aviso_server.model.columns import TIME_NS, Column, columns_of, merge, wire_columns
from aviso_server.model.geometry import (
    Polygon,
    ShapeError,
    parse_point_cloud,
    parse_polygon,
    polygon_from_wkb,
    wkb,
)
from aviso_server.model.notification import Notification
from aviso_server.model.schema import GenericType
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
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # rings are large, and machines are busy
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
        assert polygon_from_wkb(row["polygon"]) == ring


@given(RINGS)
@settings(deadline=None)  # a busy machine is no reason to fail
def test_other_software_reads_our_binary_shapes(ring: Polygon) -> None:
    shape = shapely.from_wkb(wkb(ring))
    assert list(shape.exterior.coords) == list(zip(ring.lons, ring.lats, strict=True))


def test_point_clouds_are_multi_points() -> None:
    draft = CLOUD.check({"kind": "k", "point_cloud": [[1, 2], [3.5, 4], [1, 2]]})
    batch = record_batch(columns_of(CLOUD), "cloud", [stored(draft)])
    cloud = shapely.from_wkb(batch.column("point_cloud")[0].as_py())
    assert [tuple(point.coords[0]) for point in cloud.geoms] == [(2.0, 1.0), (4.0, 3.5), (2.0, 1.0)]
    assert batch.column("box_max_lat")[0].as_py() == 3.5


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01\x03", wkb(parse_polygon(SQUARE))[:-1], b"\x00" + wkb(parse_polygon(SQUARE))[1:]],
    ids=["nothing", "too short", "cut", "other byte order"],
)
def test_binary_that_is_no_polygon_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ShapeError):
        polygon_from_wkb(data)
    with pytest.raises(ShapeError):
        polygon_from_wkb(wkb(parse_point_cloud([[1, 2]])))


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
    texts = field_texts([row.identifier.decode() for row in rows], "severity")
    assert texts.to_pylist() == ["high", "5", "99999999999999999999", None]


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
