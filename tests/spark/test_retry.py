"""Publishing from Spark when tasks, workers and answers are lost: every row once, and in order."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from aviso_server.spark.session import open_session
from pyspark_aviso.source import AvisoSource
from tests.harness import Server
from tests.spark.proxy import Proxy
from tests.spark.quick import end_java
from tests.spark.scene import CONFIGURATION

pytestmark = pytest.mark.long  # a Spark of its own: the one that other modules share tries no task again

ATTEMPTS = 3
"""So often does Spark run a task before it gives up."""

FAILED = (PySparkException, Py4JJavaError)
"""What Spark raises."""

ROWS = 2400
COLUMNS = "'p' || id port", "'x' severity", "'1' version", "string(id) payload"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark that tries tasks again, which the one that other modules share does not."""
    end_java()
    yield open_session(tmp_path_factory.mktemp("spark"), f"local[2,{ATTEMPTS}]")
    end_java()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    server.client.wipe_all()
    with Proxy(server) as running:
        yield running


def table(spark: SparkSession) -> DataFrame:
    """Two partitions, whose numbers go up."""
    return spark.range(0, ROWS, 1, 2).selectExpr(*COLUMNS)


def payloads(server: Server) -> list[int]:
    """What was published, in order."""
    stream = server.client.replay("tide", {"port": "*"})
    assert stream.kinds[-2:] == ["replay_completed", "connection-closing"]
    return [each["data"]["payload"] for each in stream.notifications]


def perishable(folder: Path, fatal: int) -> type[DataSource]:
    """The source, with writers that die in the first `fatal` attempts of a task: when they have prepared all rows.

    One partition's writer raises, the other's is killed. Each attempt leaves a file that says so.
    """

    def perish() -> None:
        task = TaskContext.get()
        assert task is not None
        (folder / f"partition {task.partitionId()}, attempt {task.attemptNumber()}").touch()
        if task.attemptNumber() < fatal:
            if task.partitionId() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the disk is on fire")

    class Perishable(AvisoSource):
        @classmethod
        def name(cls) -> str:
            return "perishable"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return _dying(super().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
            return _dying(super().streamWriter(schema, overwrite))

    def _dying(writer: Any) -> Any:
        class Dying(type(writer)):  # type: ignore[misc]  # either of the two
            def write(self, iterator: Any) -> Any:
                staged = super().write(iterator)
                perish()
                return staged

        writer.__class__ = Dying
        return writer

    folder.mkdir()
    return Perishable


def attempts(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def all_attempts(count: int, partitions: int = 2) -> set[str]:
    return {f"partition {place}, attempt {number}" for place in range(partitions) for number in range(count)}


def test_a_task_that_spark_runs_again_publishes_its_rows_once(
    spark: SparkSession, server: Server, proxy: Proxy, tmp_path: Path
) -> None:
    fatal = ATTEMPTS - 1
    spark.dataSource.register(perishable(tmp_path / "tried", fatal))
    proxy.lose_answers = fatal
    writer = table(spark).write.format("perishable").options(url=proxy.url, event_type="tide")
    writer.mode("append").save()
    assert attempts(tmp_path / "tried") == all_attempts(fatal + 1)
    assert payloads(server) == list(range(ROWS))
    assert len(proxy.asked_for("notifications")) > ROWS / 1000 + 1, "rows were to be sent again"


def test_a_job_whose_tasks_all_fail_publishes_nothing(
    spark: SparkSession, server: Server, proxy: Proxy, tmp_path: Path
) -> None:
    spark.dataSource.register(perishable(tmp_path / "tried", ATTEMPTS))
    writer = table(spark).coalesce(1).write.format("perishable").options(url=proxy.url, event_type="tide")
    with pytest.raises(FAILED, match="failed 3 times"):
        writer.mode("append").save()
    assert attempts(tmp_path / "tried") == all_attempts(ATTEMPTS, partitions=1)
    assert payloads(server) == []


def test_a_task_of_a_stream_that_spark_runs_again_publishes_its_rows_once(
    spark: SparkSession, server: Server, proxy: Proxy, tmp_path: Path
) -> None:
    spark.dataSource.register(perishable(tmp_path / "tried", 1))
    proxy.lose_answers = 1
    assert streamed(spark, proxy, tmp_path, "perishable")
    assert attempts(tmp_path / "tried") == all_attempts(2, partitions=1)
    assert payloads(server) == list(range(ROWS))


def streamed(spark: SparkSession, proxy: Proxy, folder: Path, form: str) -> bool:
    """Publish a file of rows with a streaming query that may have run before; raises if that fails."""
    rows = folder / "rows"
    if not rows.exists():
        rows.mkdir()
        lines = [json.dumps({"port": f"p{n}", "severity": "x", "version": "1", "payload": str(n)}) for n in range(ROWS)]
        (rows / "rows.json").write_text("\n".join(lines))
    stream = spark.readStream.schema("port string, severity string, version string, payload string").json(str(rows))
    query = stream.writeStream.format(form).options(url=proxy.url, event_type="tide")
    query = query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    return bool(query.start().awaitTermination(90))


def owner(port: int) -> int:
    """The process whose connection begins at a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{line[9]}]" for line in lines if int(line[1].rpartition(":")[2], 16) == port}
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it is closed meanwhile, or not ours
            if str(handle.readlink()) in sockets:
                return int(handle.parts[2])
    raise AssertionError(f"nobody has port {port}")


class Killer:
    """Kills the publisher of the second request that the server has stored, before it hears of it."""

    def __init__(self) -> None:
        self.seen = 0
        self.killed: list[int] = []

    def __call__(self, port: int) -> None:
        self.seen += 1
        if self.seen == 2:
            self.killed.append(owner(port))
            assert self.killed != [os.getpid()]
            os.kill(self.killed[0], signal.SIGKILL)


def test_a_publisher_that_is_killed_and_run_again_publishes_the_rest(
    spark: SparkSession, server: Server, proxy: Proxy
) -> None:
    proxy.stored = killer = Killer()
    writer = table(spark).write.format("aviso").options(url=proxy.url, event_type="tide", write_id="of today")
    with pytest.raises(FAILED, match="Python worker exited unexpectedly"):
        writer.mode("append").save()
    assert len(killer.killed) == 1
    assert payloads(server) == list(range(2000)), "two requests of a thousand rows"
    writer.mode("append").save()
    assert payloads(server) == list(range(ROWS))


def test_a_query_whose_publisher_is_killed_goes_on_where_it_was(
    spark: SparkSession, server: Server, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.stored = killer = Killer()
    with pytest.raises(FAILED, match="Python worker exited unexpectedly"):
        streamed(spark, proxy, tmp_path, "aviso")
    assert len(killer.killed) == 1
    assert payloads(server) == list(range(2000))
    assert streamed(spark, proxy, tmp_path, "aviso")
    assert payloads(server) == list(range(ROWS))
