"""The `aviso` data source in a real Spark session, against a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shapely
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from aviso_server.spark.session import open_session
from tests.docs.shell_blocks import RUN_PYTHON, SHOWS, blocks, missing_line
from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.spark.proxy import Proxy
from tests.spark.scene import CONFIGURATION, SQUARE, flood, publish_floods, publish_tides

ROOT = Path(__file__).parents[2]
LAST = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        publish_floods(running, 1, LAST)
        publish_tides(running, 1, 30)
        yield running


def load(spark: SparkSession, url: str, event_type: str = "flood", **options: Any) -> DataFrame:
    return spark.read.format("aviso").options(url=url, event_type=event_type, **options).load()


def test_the_session_is_as_the_pipeline_needs_it(spark: SparkSession) -> None:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    assert {name: spark.conf.get(name) for name in settings} == settings
    folder = Path(spark.conf.get("spark.local.dir") or "").parent
    assert {"tmp", "warehouse", "java.log"} <= {path.name for path in folder.iterdir()}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert open_session(Path("unused")) is spark
    assert not Path("unused").exists()


def test_columns_are_typed_and_hold_what_was_published(spark: SparkSession, server: Server) -> None:
    table = load(spark, server.url, from_id="8", to_id="9")
    assert dict(table.dtypes) == {
        "sequence": "bigint",
        "time": "timestamp",
        "event_type": "string",
        "topic": "string",
        "region": "string",
        "identifier_time": "string",
        "date": "string",
        "severity": "bigint",
        "depth": "double",
        "polygon": "binary",
        "box_min_lat": "double",
        "box_min_lon": "double",
        "box_max_lat": "double",
        "box_max_lon": "double",
        "identifier": "string",
        "payload": "string",
    }
    before, row = table.orderBy("sequence").collect()
    assert (before.sequence, row.sequence, row.event_type) == (8, 9, "flood")
    assert (row.region, row.identifier_time, row.date) == ("north", "1200", "20250706")
    assert (row.severity, row.depth) == (3, 2.25)
    assert (row.box_min_lat, row.box_max_lon) == (0.0, 2.0)
    assert list(shapely.from_wkb(bytes(row.polygon)).exterior.coords)[1] == (2.0, 0.0)
    assert json.loads(row.payload) == {"n": 9}
    assert json.loads(row.identifier)["polygon"] == [[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]]


@pytest.mark.newer_spark  # filters are pushed down since 4.1
def test_filters_reach_the_server(spark: SparkSession, server: Server) -> None:
    with Proxy(server) as proxy:
        table = load(spark, proxy.url)
        wanted = table.where("severity >= 3 and severity < 6 and region = 'north' and depth > 50.5 and sequence <= 350")
        found = [row.sequence for row in wanted.select("sequence").collect()]
        asked = proxy.asked_for("replay")
    expected = [n for n in range(1, 351) if 3 <= n % 7 + 1 < 6 and n % 2 and n / 4 > 50.5]
    assert sorted(found) == expected
    for body in asked:
        assert body["identifier"]["severity"] == {"between": [3, 5]}
        assert body["identifier"]["region"] == {"eq": "north"}
        assert 50.5 < body["identifier"]["depth"]["gte"] < 50.5001
    assert asked[-1]["to_id"] == "350"


@pytest.mark.newer_spark  # filters are pushed down since 4.1
@pytest.mark.parametrize(
    ("text", "asked", "count"), [("1200", {"time": "1200"}, LAST), ("12", {}, 0), ("noon", {}, 0), ("*", {}, 0)]
)
def test_a_text_reaches_the_server_if_it_means_the_same_there(
    spark: SparkSession, server: Server, text: str, asked: dict[str, str], count: int
) -> None:
    with Proxy(server) as proxy:
        rows = load(spark, proxy.url).where(sql.col("identifier_time") == text).select("sequence").collect()
        assert proxy.asked_for("replay")[-1]["identifier"] == asked
    assert len(rows) == count


@pytest.mark.newer_spark  # filters are pushed down since 4.1
def test_a_filter_on_time_moves_the_bounds(spark: SparkSession, server: Server) -> None:
    with Proxy(server) as proxy:
        table = load(spark, proxy.url)
        (moment,) = table.where("sequence = 200").select("time").collect()[0]
        proxy.asked.clear()
        rows = table.where(sql.col("time") >= sql.lit(moment)).select("sequence").collect()
        read = proxy.asked_for("replay")[-1]
    assert min(row.sequence for row in rows) >= 190  # several may share a microsecond, hardly ten
    assert len(rows) == LAST - min(row.sequence for row in rows) + 1
    assert int(read["from_id"]) == min(row.sequence for row in rows)


def test_partitions_are_ranges_of_sequences(spark: SparkSession, server: Server) -> None:
    with Proxy(server) as proxy:
        table = load(spark, proxy.url, partitions="4").select("sequence", sql.spark_partition_id().alias("part"))
        rows = table.collect()
        asked = {(int(body["from_id"]), int(body["to_id"])) for body in proxy.asked_for("replay") if "to_id" in body}
    assert asked == {(1, 100), (101, 200), (201, 300), (301, 400)}
    assert {(row.part, (row.sequence - 1) // 100) for row in rows} == {(0, 0), (1, 1), (2, 2), (3, 3)}
    assert sorted(row.sequence for row in rows) == list(range(1, LAST + 1))


def test_several_event_types_make_one_table(spark: SparkSession, server: Server) -> None:
    table = load(spark, server.url, "flood, tide", to_id="20")
    assert dict(table.dtypes)["severity"] == "string", "one has numbers there, the other words"
    assert dict(table.dtypes)["port"] == "string"
    rows = {(row.event_type, row.sequence): row for row in table.collect()}
    assert len(rows) == 40
    assert (rows["flood", 9].severity, rows["flood", 9].port) == ("3", None)
    assert (rows["tide", 9].severity, rows["tide", 9].depth, rows["tide", 9].version) == ("level.9", None, "0007")


@pytest.mark.newer_spark  # filters are pushed down since 4.1
def test_a_server_that_knows_neither_arrow_nor_ends(spark: SparkSession, server: Server) -> None:
    columns = ("sequence", "time", "severity", "polygon", "box_min_lat", "identifier", "payload")
    wanted = "identifier_time = '1200' and severity in (2, 4) and sequence > 100"
    ours = load(spark, server.url, partitions="3").where(wanted).select(*columns)
    with Proxy(server, old=True) as proxy:
        theirs = load(spark, proxy.url, partitions="3").where(wanted).select(*columns)
        found = sorted(theirs.collect())
        assert all("to_id" not in body for body in proxy.asked_for("replay")[-3:])
    assert found == sorted(ours.collect())
    assert len(found) == len([n for n in range(101, LAST + 1) if n % 7 + 1 in (2, 4)])


def test_a_schema_of_ones_own_chooses_the_columns(spark: SparkSession, server: Server) -> None:
    reader = spark.read.format("aviso").options(url=server.url, event_type="flood", to_id="1")
    (row,) = reader.schema("payload string, severity int, time_ns long, time timestamp").load().collect()
    assert (row.payload, row.severity) == ('{"n":1}', 2)
    assert row.time_ns // 1000 % 1_000_000 == row.time.microsecond


def test_columns_are_the_same_alone_and_among_others(spark: SparkSession, server: Server) -> None:
    names = ["sequence", "time", "event_type", "topic", "box_max_lon", "identifier", "payload"]
    expected = load(spark, server.url, to_id="20").select(*names).collect()
    chosen = load(spark, server.url, endingOffsets="20", columns=", ".join(names))
    assert chosen.columns == names
    assert sorted(chosen.collect()) == sorted(expected)
    (row,) = load(spark, server.url, endingOffsets="1", columns="severity,TIME_NS").collect()
    assert row.severity == 2
    assert row.time_ns > 1_700_000_000 * 10**9


def test_offsets_by_event_type(spark: SparkSession, server: Server) -> None:
    places = {"startingOffsets": '{"flood": 398, "tide": 29}', "endingOffsets": '{"flood": 399}', "numPartitions": "2"}
    rows = load(spark, server.url, "flood,tide", **places).select("event_type", "sequence").collect()
    assert sorted(map(tuple, rows)) == [("flood", 398), ("flood", 399), ("tide", 29), ("tide", 30)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "sequence,colour"}, "option 'columns' asks for a column 'colour' that is not there; columns: seq"),
        ({"startingOffsets": "newest"}, "option 'startingOffsets': 'newest' is not a place in a stream; accepted: "),
        ({"url": "http://127.0.0.1:9"}, "no server answers at http://127.0.0.1:9"),
        ({"identifer": "{}"}, "did you mean 'identifier'"),
        ({"event_type": ""}, "option 'event_type' is missing"),
    ],
)
def test_mistakes_are_told_by_load(spark: SparkSession, server: Server, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        spark.read.format("aviso").options(**{"url": server.url, "event_type": "flood", **options}).load()


QUERY = """
import sys, time
from pathlib import Path
from aviso_server.spark.session import open_session

folder, url = Path(sys.argv[1]), sys.argv[2]
spark = open_session(folder / "spark", "local[1]", settings={"spark.driver.memory": "512m"})
stream = spark.readStream.format("aviso").options(url=url, event_type="tide,flood", max_rows_per_batch=40)
query = stream.load().select("event_type", "sequence", "payload").writeStream.format("parquet")
query.option("path", str(folder / "table")).option("checkpointLocation", str(folder / "checkpoint")).start()
time.sleep(600)
"""


def committed(folder: Path) -> int:
    return len([path for path in (folder / "checkpoint" / "commits").glob("*") if path.name.isdigit()])


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found: set[int] = set()
    while grown := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= grown
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z"}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.long  # Java starts again after each kill
def test_a_killed_query_goes_on_without_loss_or_double(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server:
        publish_tides(server, 1, 300)
        publish_floods(server, 1, 100)
        script = tmp_path / "query.py"
        script.write_text(QUERY)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with (tmp_path / "printed").open("wb") as printed:
            command = [sys.executable, str(script), str(tmp_path), server.url]
            process = subprocess.Popen(command, env=environment, stdout=printed, stderr=printed)
        family = set()
        try:
            deadline = time.monotonic() + 5 * PATIENCE
            while committed(tmp_path) < 3:
                assert process.poll() is None, "the query ended by itself"
                assert time.monotonic() < deadline, "no micro-batch was committed in time"
                time.sleep(0.05)
            family = children(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        publish_tides(server, 301, 350)
        assert committed(tmp_path) < 10, "the query was to be killed before it was done"
        rows = continued(spark, server, tmp_path)
        assert sorted(rows) == sorted([*(("tide", n) for n in range(1, 351)), *(("flood", n) for n in range(1, 101))])
        deadline = time.monotonic() + PATIENCE
        while left := alive(family):
            assert time.monotonic() < deadline, f"these outlived their owner: {left}"
            time.sleep(0.1)
        assert (tmp_path / "printed").read_text() == "", "Spark was to keep its words to itself"
        publish_tides(server, 351, 360)
        assert len(continued(spark, server, tmp_path)) == 460


def continued(spark: SparkSession, server: Server, folder: Path) -> list[tuple[str, int]]:
    """Run the same query to the end of what there is, and return all that it has ever written."""
    stream = spark.readStream.format("aviso").options(url=server.url, event_type="tide,flood", max_rows_per_batch=200)
    table = stream.load().select("event_type", "sequence", "payload").writeStream.format("parquet")
    table = table.option("path", str(folder / "table")).option("checkpointLocation", str(folder / "checkpoint"))
    query = table.trigger(availableNow=True).start()
    assert query.awaitTermination(int(5 * PATIENCE))
    written = spark.read.parquet(str(folder / "table")).select("event_type", "sequence").collect()
    return [(row.event_type, row.sequence) for row in written]


def test_a_query_may_start_with_what_comes_next(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server:
        publish_tides(server, 1, 5)
        options = {"url": server.url, "event_type": "tide", "startingOffsets": "latest"}

        def read() -> list[int]:
            stream = spark.readStream.format("aviso").options(**options).load().select("sequence")
            query = stream.writeStream.format("parquet").option("path", str(tmp_path / "table"))
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            assert query.start().awaitTermination(int(5 * PATIENCE))
            written = spark.read.schema("sequence long").parquet(str(tmp_path / "table"))
            return sorted(row.sequence for row in written.collect())

        assert read() == []
        publish_tides(server, 6, 8)
        assert read() == [6, 7, 8]


def test_a_query_streams_what_comes_and_survives_a_restart_of_the_server(spark: SparkSession, tmp_path: Path) -> None:
    with Server({**CONFIGURATION, "application": {"host": "127.0.0.1", "port": 0}}, tmp_path / "server") as server:
        publish_tides(server, 1, 5)
        seen: list[int] = []
        with Proxy(server) as proxy:
            options = {"url": proxy.url, "event_type": "tide", "from_id": "4", "poll_interval": "0.1", "retries": "9"}
            stream = spark.readStream.format("aviso").options(**options).load()
            batches = stream.writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.sequence for row in batch.select("sequence").collect())
            )
            query = batches.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                publish_tides(server, 6, 8)
                wait_for(lambda: len(seen) >= 5)
                server.restart()
                publish_tides(server, 9, 12)
                wait_for(lambda: len(seen) >= 9)
                assert query.isActive
            finally:
                query.stop()
    assert sorted(seen) == list(range(4, 13))


def wait_for(condition: Any, seconds: float = 5 * PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_what_was_read_can_be_published_again(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path) as other:
        table = load(spark, server.url, partitions="3").where("sequence <= 60")
        writer = table.drop("identifier").repartition(2).write.format("aviso").options(url=other.url)
        writer.mode("append").save()
        copied = load(spark, other.url).select("identifier", "payload").collect()
    expected = table.select("identifier", "payload").collect()
    assert sorted(copied) == sorted(expected)
    assert len(copied) == 60


def test_refused_rows_are_listed_and_nothing_is_published(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path) as server:
        rows = [("a", "x", "1"), ("", "y", "2"), ("c", "z", None)]
        table = spark.createDataFrame(rows, "port string, severity string, version string").coalesce(1)
        with pytest.raises(PySparkException) as caught:
            table.write.format("aviso").options(url=server.url, event_type="tide").mode("append").save()
        assert "nothing was published, because 2 rows would be refused" in str(caught.value)
        assert "row 1 of partition 0: Field 'port' must not be empty" in str(caught.value)
        assert "row 2 of partition 0: Required field 'version' is missing" in str(caught.value)
        assert load(spark, server.url, "tide").count() == 0
        with pytest.raises(PySparkException, match="cannot be overwritten"):
            table.write.format("aviso").options(url=server.url, event_type="tide").mode("overwrite").save()


@pytest.mark.parametrize("single", [False, True], ids=["by its keys", "by its ledger"])
def test_a_query_publishes_and_a_repeated_micro_batch_is_not_published_twice(
    spark: SparkSession, server: Server, tmp_path: Path, single: bool
) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as other, Proxy(other, single=single) as proxy:
        for _ in range(2):
            stream = spark.readStream.format("aviso").options(url=server.url, event_type="tide").load()
            query = stream.writeStream.format("aviso").options(url=proxy.url)
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            assert query.start().awaitTermination(90)
            # as if Spark had died after publishing, before it noted that the micro-batch was done
            for commit in (tmp_path / "checkpoint" / "commits").iterdir():
                commit.unlink()
            if not single:
                shutil.rmtree(tmp_path / "checkpoint" / "aviso-ledger")
        copied = load(spark, other.url, "tide").select("payload").collect()
    assert sorted(int(row.payload) for row in copied) == list(range(1, 31))
    assert bool(proxy.asked_for("notification")) == single


def test_a_write_with_a_name_is_done_once(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path) as server:
        for run in range(3):
            table = spark.range(40).selectExpr("'p' || id port", "'x' severity", "'1' version", "string(id) payload")
            writer = table.repartition(run + 1).write.format("aviso").options(url=server.url, event_type="tide")
            writer.option("write_id", "load of today").mode("append").save()
        assert load(spark, server.url, "tide").count() == 40


def test_the_guide_does_what_it_says(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "spark.md"
    config = ROOT / "examples" / "config.yaml"
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(config, tmp_path / "server", environment) as server:
        older = {"region": "west", "run_time": "0000", "severity": 7, "anomaly": 1, "polygon": SQUARE}
        server.client.publish_many("extreme_event", [(older, None)] * 3)  # the page needs no empty server
        names: dict[str, Any] = {}
        printed = ""
        for block in blocks(page):
            if block.mark == RUN_PYTHON:
                text = block.text.replace("127.0.0.1:8000", f"{server.host}:{server.port}")
                exec(compile(text.replace("data/", f"{tmp_path}/"), block.place, "exec"), names)
                printed = capsys.readouterr().out
            else:
                assert block.mark == SHOWS
                missing = missing_line(block.text, printed)
                assert missing is None, f"{block.place}: {missing!r} was not printed, but:\n{printed}"


def test_flood_samples_are_what_the_other_tests_say() -> None:
    assert (flood(9)["region"], flood(9)["severity"], flood(9)["depth"]) == ("north", 3, 2.25)
