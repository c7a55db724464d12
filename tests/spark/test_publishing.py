"""Publishing rows without Spark: what becomes of them, of refused ones, and of those whose fate is unknown."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapely
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from aviso_server.model.shapes import parse_polygon, wkb
from pyspark_aviso.client import fetch_types
from pyspark_aviso.errors import PipelineError
from pyspark_aviso.write import BatchLedger, Staged, Stager, cell_value, publish
from tests.harness import Server
from tests.spark.proxy import Proxy
from tests.spark.scene import CONFIGURATION, SQUARE, bare

TEXT = StringType()
WRITE = "a write"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Before a server that takes notifications one by one."""
    server.client.wipe_all()
    with Proxy(server, single=True) as running:
        yield running


@pytest.fixture
def checking(server: Server) -> Iterator[Proxy]:
    """Before a server that takes batches, and checks them beforehand."""
    server.client.wipe_all()
    with Proxy(server) as running:
        yield running


def schema(*names: str, **others: Any) -> StructType:
    return StructType([StructField(name, others.get(name, TEXT)) for name in (*names, *others)])


def staged(proxy: Proxy, rows: list[dict[str, Any]], default: str | None = "tide", partition: int = 0) -> Staged:
    names = list(rows[0])
    options = bare(proxy.url, **({} if default is None else {"event_type": default}))
    stager = Stager(options, schema(*names), fetch_types(options))
    batches = [pa.RecordBatch.from_pylist(rows[place : place + 2]) for place in range(0, len(rows), 2)]
    found: Staged = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(stager)).stage(partition, batches)))
    return found


def tides(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"port": f"p{number}", "severity": "s", "version": "1", "payload": str(number)}
        for number in range(start, start + count)
    ]


def payloads(server: Server, event_type: str = "tide", **identifier: Any) -> list[Any]:
    stream = server.client.replay(event_type, identifier or {"port": "*"})
    return [frame.data["data"]["payload"] for frame in stream.frames if frame.kind == "notification"]


def test_rows_are_published_in_order_of_partitions_and_rows(server: Server, proxy: Proxy) -> None:
    parts = [staged(proxy, tides(3, 10), partition=1), None, staged(proxy, tides(5), partition=0)]
    assert publish(bare(proxy.url), parts, WRITE) == 8
    assert payloads(server) == [0, 1, 2, 3, 4, 10, 11, 12]


def test_several_connections_publish_everything_once(server: Server, proxy: Proxy) -> None:
    assert publish(bare(proxy.url, connections="4"), [staged(proxy, tides(40))], WRITE) == 40
    assert sorted(payloads(server)) == list(range(40))


def test_columns_become_fields(server: Server, proxy: Proxy) -> None:
    row = {
        "region": "North",
        "identifier_time": "6",
        "date": datetime.date(2025, 7, 6),
        "severity": 3,
        "depth": decimal.Decimal("2.50"),
        "polygon": wkb(parse_polygon(SQUARE)),
        "payload": '{"b": [1, null], "a": "ü"}',
        "sequence": 99,
    }
    publish(bare(proxy.url), [staged(proxy, [row], default="flood")], WRITE)
    stream = server.client.replay("flood", {"region": "north", "time": "0600", "severity": 3})
    (event,) = [frame.data["data"] for frame in stream.frames if frame.kind == "notification"]
    assert event["payload"] == {"a": "ü", "b": [1, None]}
    assert event["identifier"] == {
        "region": "north",
        "time": "0600",
        "date": "20250706",
        "severity": "3",
        "depth": "2.5",
        "polygon": [[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]],
    }


RING = shapely.Polygon([(0, 0), (2, 0), (2, 1.5), (0, 0)])


@pytest.mark.parametrize("order", [0, 1], ids=["big-endian", "little-endian"])
def test_a_polygon_in_binary_is_its_pairs(order: int) -> None:
    pairs = [[0, 0], [0, 2], [1.5, 2], [0, 0]]
    assert cell_value("polygon", shapely.to_wkb(RING, byte_order=order)) == pairs
    known = shapely.set_srid(RING, 4326)
    assert cell_value("polygon", shapely.to_wkb(known, byte_order=order, include_srid=True)) == pairs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x03",
        shapely.to_wkb(RING)[:-1],
        shapely.to_wkb(RING) + b"x",
        shapely.to_wkb(shapely.Point(1, 2)),
        shapely.to_wkb(shapely.Polygon()),
        shapely.to_wkb(shapely.force_3d(RING)),
        shapely.to_wkb(shapely.MultiPolygon([RING])),
        shapely.to_wkb(shapely.box(0, 0, 9, 9) - shapely.box(1, 1, 2, 2)),
        shapely.to_wkb(shapely.set_srid(RING, 3857), include_srid=True),
    ],
    ids=["nothing", "a beginning", "cut off", "too long", "a point", "empty", "3d", "several", "a hole", "not degrees"],
)
def test_binary_that_is_no_polygon_of_one_ring_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="Field 'polygon': expected"):
        cell_value("polygon", data)


def test_identifiers_as_json_and_an_event_type_per_row(server: Server, proxy: Proxy) -> None:
    rows: list[dict[str, Any]] = [
        {"event_type": "tide", "identifier": '{"port": "a", "severity": 1, "version": "x"}', "payload": None},
        {"event_type": "anything", "identifier": '{"k": 1}', "payload": "[2]"},
    ]
    assert publish(bare(proxy.url), [staged(proxy, rows, default=None)], WRITE) == 2
    assert payloads(server) == [None]
    assert payloads(server, "anything", k="*") == [[2]]


def test_rows_that_would_be_refused_are_listed_and_nothing_is_published(server: Server, checking: Proxy) -> None:
    proxy = checking
    rows = tides(6)
    rows[1]["port"] = ""
    rows[4]["payload"] = "{not json"
    rows[5]["version"] = None
    parts = [staged(proxy, rows), staged(proxy, [{**tides(1)[0], "port": None}], partition=3)]
    with pytest.raises(PipelineError) as caught:
        publish(bare(proxy.url), parts, WRITE)
    complaint = str(caught.value)
    assert "nothing was published, because 4 rows would be refused" in complaint
    assert "row 1 of partition 0: Field 'port' must not be empty" in complaint
    assert "row 4 of partition 0: column 'payload' is not JSON" in complaint
    assert "row 5 of partition 0: Required field 'version' is missing for notify operation" in complaint
    assert "row 0 of partition 3: Required field 'port' is missing" in complaint
    assert payloads(server) == []


def test_a_server_that_does_not_check_beforehand_gets_what_it_accepts(server: Server, proxy: Proxy) -> None:
    rows = [*tides(3), {**tides(1)[0], "port": ""}]
    with pytest.raises(PipelineError, match=r"published 3 of 4 rows; refused: \n  row 3 of partition 0: Field 'port'"):
        publish(bare(proxy.url), [staged(proxy, rows)], WRITE)
    assert payloads(server) == [0, 1, 2]


def test_a_check_that_gets_no_answer_is_made_again(server: Server, checking: Proxy) -> None:
    checking.fail_checks_with = [503, 500]
    assert publish(bare(checking.url), [staged(checking, tides(2))], WRITE) == 2
    checking.fail_checks_with = [403]
    with pytest.raises(PipelineError, match="rows cannot be checked: a check of rows: status 403"):
        staged(checking, tides(2))


def test_many_refused_rows_are_counted_and_the_first_are_listed(checking: Proxy) -> None:
    proxy = checking
    rows = [{**row, "port": ""} for row in tides(50)]
    with pytest.raises(PipelineError, match=r"because 50 rows would be refused(.|\n)*… and 30 more"):
        publish(bare(proxy.url), [staged(proxy, rows)], WRITE)


def test_what_only_the_server_refuses_does_not_stop_the_others(server: Server, proxy: Proxy) -> None:
    proxy.fail_with = [400]
    with pytest.raises(PipelineError, match=r"published 3 of 4 rows; refused: \n  row 0 of partition 0: not now"):
        publish(bare(proxy.url), [staged(proxy, tides(4))], WRITE)
    assert payloads(server) == [1, 2, 3]


def test_a_server_that_is_busy_is_asked_again(server: Server, proxy: Proxy) -> None:
    proxy.fail_with = [503, 503]
    assert publish(bare(proxy.url), [staged(proxy, tides(2))], WRITE) == 2
    assert payloads(server) == [0, 1]


@pytest.mark.parametrize("status", [401, 403, 500])
def test_other_answers_end_it(server: Server, proxy: Proxy, status: int) -> None:
    proxy.fail_with = [status]
    with pytest.raises(PipelineError, match=rf"at least 0 of 2 rows, then stopped: row 0 .*status {status}"):
        publish(bare(proxy.url), [staged(proxy, tides(2))], WRITE)
    assert payloads(server) == []


def test_a_row_whose_answer_is_lost_is_not_sent_again(server: Server, proxy: Proxy) -> None:
    proxy.lose_answers = 1
    with pytest.raises(PipelineError, match="row 0 of partition 0: the connection broke and it is unknown whether"):
        publish(bare(proxy.url), [staged(proxy, tides(3))], WRITE)
    assert payloads(server) == [0]


def test_a_ledger_keeps_a_second_run_from_publishing_again(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    rows = [*tides(4), tides(1)[0]]  # the same content twice is two notifications
    proxy.fail_with = [400, 400]
    ledger = BatchLedger(tmp_path, 7)
    with pytest.raises(PipelineError, match="published 3 of 5 rows"):
        publish(bare(proxy.url), [staged(proxy, rows)], WRITE, ledger)
    ledger.close()
    with (tmp_path / "7").open("ab") as file:
        file.write(b"half a li")  # a crash in the middle of a line
    again = BatchLedger(tmp_path, 7)
    assert publish(bare(proxy.url), [staged(proxy, rows)], WRITE, again) == 2
    again.close()
    assert sorted(payloads(server)) == [0, 0, 1, 2, 3]
    following = BatchLedger(tmp_path, 8)
    assert publish(bare(proxy.url), [staged(proxy, rows)], WRITE, following) == 5
    following.close()
    assert [path.name for path in tmp_path.iterdir()] == ["8"]


@pytest.mark.parametrize(
    ("columns", "default", "words"),
    [
        (schema("port"), None, "which event type"),
        (schema("port", "colour"), "tide", "column 'colour' is no field of an event type; columns that count: "),
        (schema("port", payload=LongType()), "tide", "column 'payload' must hold text"),
        (schema(event_type=IntegerType()), None, "column 'event_type' must hold text"),
    ],
)
def test_a_table_that_cannot_be_published_is_refused_before_it_is_read(
    proxy: Proxy, columns: StructType, default: str | None, words: str
) -> None:
    options = bare(proxy.url, **({} if default is None else {"event_type": default}))
    known = fetch_types(options)
    with pytest.raises(PipelineError, match=words):
        Stager(options, columns, known)


def test_staged_rows_are_packed(proxy: Proxy) -> None:
    part = staged(proxy, tides(1000))
    assert len(pickle.dumps(part)) < len(b"".join(part.requests)) / 4
    assert [json.loads(request)["payload"] for request in part.requests] == list(range(1000))
    assert staged(proxy, [{**tides(1)[0], "payload": "{"}]).requests == []
