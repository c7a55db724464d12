"""Planning and reading ranges without Spark: from our server, and from one that only knows events."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapely

from aviso_server.errors import PipelineError
from aviso_server.model.times import event_time
from pyspark_aviso.client import choose_types, connect, fetch_types
from pyspark_aviso.options import Options
from pyspark_aviso.read import Planner, SequenceRange, Stretch, read_range, split
from tests.harness import Server
from tests.spark.proxy import Proxy
from tests.spark.scene import CONFIGURATION, bare, publish_floods, publish_tides

LAST = 300
SERVERS = ["ours", "plain", "old"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        publish_floods(running, 1, LAST)
        publish_tides(running, 1, 20)
        yield running


@pytest.fixture(params=SERVERS)
def proxy(request: pytest.FixtureRequest, server: Server) -> Iterator[Proxy]:
    """Our server as it is, as one that knows only events, and as one of release 0.7.1."""
    with Proxy(server, plain=request.param == "plain", old=request.param == "old") as running:
        yield running


def planned(
    options: Options, span: dict[str, str] | None = None, identifier: dict[str, Any] | None = None, name: str = "flood"
) -> tuple[Planner, Stretch]:
    event_type = choose_types([name], fetch_types(options))[name]
    with connect(options) as client:
        planner = Planner(client, event_type, identifier or {}, options.retries)
        return planner, planner.stretch(span or {"from_id": "0"})


def rows(options: Options, wanted: SequenceRange) -> list[dict[str, Any]]:
    columns = choose_types([wanted.event_type], fetch_types(options))[wanted.event_type].wire_columns
    return pa.Table.from_batches(read_range(options, wanted, columns)).to_pylist()


def sequences(options: Options, wanted: SequenceRange) -> list[int]:
    columns = choose_types([wanted.event_type], fetch_types(options))[wanted.event_type].wire_columns
    return [each for batch in read_range(options, wanted, columns) for each in batch.column("sequence").to_pylist()]


def part(planner: Planner, start: int, end: int) -> SequenceRange:
    (found,) = planner.ranges(Stretch(start, end), 1, 1)
    return found


TIME = {"time": "1200"}
EVERYWHERE = "(-90,-180,-90,180,90,180,90,-180,-90,-180)"


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ({"from_id": "0"}, (1, LAST)),
        ({"from_id": "17", "to_id": "40"}, (17, 40)),
        ({"from_id": "17", "to_id": "4000"}, (17, LAST)),
        ({"from_id": str(LAST), "to_id": str(LAST)}, (LAST, LAST)),
    ],
)
def test_bounds_by_sequence(proxy: Proxy, span: dict[str, str], expected: tuple[int, int]) -> None:
    _, stretch = planned(bare(proxy.url), span, TIME)
    assert (stretch.start, stretch.end) == expected


@pytest.mark.parametrize(
    "span",
    [{"from_id": str(LAST + 1)}, {"from_date": "2100-01-01T00:00:00Z"}, {"from_id": "1", "to_date": "1"}],
    ids=["beyond the end", "in the future", "before the beginning"],
)
def test_nothing_to_read(proxy: Proxy, span: dict[str, str]) -> None:
    _, stretch = planned(bare(proxy.url), span, TIME)
    assert stretch.end < stretch.start
    assert split(stretch, None, 10) == []


def test_bounds_by_time(proxy: Proxy) -> None:
    planner, _ = planned(bare(proxy.url), None, TIME)
    stored = rows(bare(proxy.url), part(planner, 1, LAST))
    when = [row["time_ns"] for row in stored]
    start, end = when[99], when[199]
    _, stretch = planned(bare(proxy.url), {"from_date": event_time(start), "to_date": event_time(end)}, TIME)
    assert stretch.start == next(row["sequence"] for row in stored if row["time_ns"] >= start)
    assert stretch.end == max(row["sequence"] for row in stored if row["time_ns"] <= end)


def test_a_filter_narrows_what_is_read(proxy: Proxy) -> None:
    identifier = {**TIME, "severity": {"gte": 6}, "region": "north"}
    planner, stretch = planned(bare(proxy.url), None, identifier)
    found = sequences(bare(proxy.url), part(planner, stretch.start, stretch.end))
    assert found == [number for number in range(1, LAST + 1) if number % 7 + 1 >= 6 and number % 2]


def test_all_servers_give_the_same_rows(server: Server) -> None:
    tables = []
    for kind in SERVERS:
        with Proxy(server, plain=kind == "plain", old=kind == "old") as proxy:
            planner, _ = planned(bare(proxy.url), None, TIME)
            tables.append(rows(bare(proxy.url), part(planner, 5, 150)))
    topics = [row.pop("topic") for row in tables[0]]
    assert topics[0] == "floods.north.1200.6"
    for table in tables[1:]:
        assert {row.pop("topic") for row in table} == {None}, "events do not carry a topic"
        assert table == tables[0]


def test_point_clouds_come_out_the_same_from_events(tmp_path: Path) -> None:
    cloud = {
        "topic": {"base": "clouds", "key_order": ["kind"]},
        "identifier": {
            "kind": {"type": "StringHandler", "required": True},
            "point_cloud": {"type": "PointCloudHandler", "required": True},
        },
    }
    with Server({**CONFIGURATION, "notification_schema": {"cloud": cloud}}, tmp_path) as server:
        points = [[52.5, 13.4], [-48.25, 11.6]]
        server.client.publish_many("cloud", [({"kind": "a", "point_cloud": points}, {"text": "ü\u2028\n"})])
        tables = []
        for plain in (False, True):
            with Proxy(server, plain=plain) as proxy:
                planner, _ = planned(bare(proxy.url), None, {"kind": "a", "polygon": EVERYWHERE}, "cloud")
                tables.append(rows(bare(proxy.url), part(planner, 1, 1)))
    (row,) = tables[0]
    assert shapely.from_wkb(row["point_cloud"]) == shapely.MultiPoint([(13.4, 52.5), (11.6, -48.25)])
    assert (row["box_min_lat"], row["box_max_lon"]) == (-48.25, 13.4)
    assert [{**row, "topic": None}] == tables[1]


def test_required_fields_are_filled_in_where_any_value_can_be_asked_for(proxy: Proxy) -> None:
    planner, stretch = planned(bare(proxy.url), name="tide")
    assert planner.identifier == ({"port": "*"} if proxy.plain else {})
    assert sequences(bare(proxy.url), part(planner, stretch.start, stretch.end)) == list(range(1, 21))


def test_a_required_field_that_cannot_be_left_open_is_named(server: Server) -> None:
    with Proxy(server, plain=True) as proxy, pytest.raises(PipelineError, match="wants a value for the field 'time'"):
        planned(bare(proxy.url))
    planner, stretch = planned(bare(server.url))  # ours lets it be left out
    assert (planner.identifier, stretch.end) == ({}, LAST)


@pytest.mark.parametrize(
    ("texts", "ours", "others"),
    [
        ({"time": "1200", "date": "20250706"}, {"time": "1200", "date": "20250706"}, {"time": "1200"}),
        ({"time": "1200", "date": "2025-07-06"}, {"time": "1200"}, {"time": "1200"}),
        ({"time": "12"}, {}, {"time": "12"}),
        ({"time": "noon"}, {}, {}),
    ],
)
def test_texts_are_asked_for_where_the_server_says_or_insists(
    proxy: Proxy, texts: dict[str, str], ours: dict[str, str], others: dict[str, str]
) -> None:
    options = bare(proxy.url)
    with connect(options) as client:
        planner = Planner(client, fetch_types(options)["flood"], {}, 0)
        planner.narrow(texts)
    asked = {name: value for name, value in planner.identifier.items() if name in texts}
    assert asked == (others if proxy.plain else ours)


def test_news_after_a_sequence(proxy: Proxy) -> None:
    options = bare(proxy.url)
    with connect(options) as client:
        planner = Planner(client, fetch_types(options)["flood"], TIME, 0)
        assert planner.latest(0).end == LAST
        assert planner.latest(LAST - 1).end == LAST
        assert planner.latest(LAST).end <= LAST


@pytest.mark.parametrize("count", [1, 2, 7, 300, 1000])
def test_ranges_cover_everything_once(count: int) -> None:
    ranges = split(Stretch(11, 310), count, 1)
    assert len(ranges) == min(count, 300)
    assert [number for low, high in ranges for number in range(low, high + 1)] == list(range(11, 311))
    sizes = {high - low + 1 for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1
    assert len(split(Stretch(1, 100), None, 30)) == 4


def test_a_broken_connection_is_made_again_and_no_row_is_lost_or_doubled(proxy: Proxy) -> None:
    planner, _ = planned(bare(proxy.url), None, TIME)
    proxy.cut_after = [20_000, 30_000, 60_000]
    assert sequences(bare(proxy.url), part(planner, 1, LAST)) == list(range(1, LAST + 1))
    assert proxy.cut_after == []


def test_a_connection_that_stays_broken_is_an_error_and_not_an_end(proxy: Proxy) -> None:
    planner, _ = planned(bare(proxy.url), None, TIME)
    proxy.cut_after = [200] * 3
    with pytest.raises(PipelineError, match="sequences 1 to 300: broken off at sequence 1: "):
        sequences(bare(proxy.url), part(planner, 1, LAST))


@pytest.mark.parametrize("plain", [False, True], ids=["arrow", "events"])
def test_a_cap_of_the_server_is_no_end(tmp_path: Path, plain: bool) -> None:
    capped = {**CONFIGURATION, "watch_endpoint": {"max_historical_notifications": 7}}
    with Server(capped, tmp_path) as server, Proxy(server, plain=plain) as proxy:
        publish_tides(server, 1, 30)
        planner, stretch = planned(bare(proxy.url), name="tide")
        assert (stretch.start, stretch.end) == (1, 30)
        assert sequences(bare(proxy.url), part(planner, 1, 30)) == list(range(1, 31))


def test_rows_that_retention_removed_are_missed_by_who_must_have_them(tmp_path: Path) -> None:
    schema = CONFIGURATION["notification_schema"]
    limited = {"tide": {**schema["tide"], "storage_policy": {"max_messages": 10}}}
    with Server({**CONFIGURATION, "notification_schema": limited}, tmp_path) as server:
        publish_tides(server, 1, 30)
        options = bare(server.url)
        planner, stretch = planned(options, name="tide")
        assert (stretch.start, stretch.end) == (21, 30)
        forgiving = part(planner, 5, 30)
        assert sequences(options, forgiving) == list(range(21, 31))
        strict = pickle.loads(pickle.dumps(forgiving))
        strict.strict = True
        with pytest.raises(PipelineError, match=r"from sequence 5 on were removed by retention .* held is 21"):
            sequences(options, strict)


def test_a_server_that_is_not_there_or_not_ours_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no server answers at http://127\.0\.0\.1:9"):
        fetch_types(bare("http://127.0.0.1:9"))
    with pytest.raises(PipelineError, match="status 404"):
        fetch_types(bare(server.url + "/elsewhere"))
    with pytest.raises(PipelineError, match=r"Unknown field 'bogus' .* known fields: date, depth"):
        planned(bare(server.url), None, {"bogus": 1})
