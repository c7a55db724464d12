"""Tables in other tools: each reads exactly what a replay gives, while files are merged and after deletes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from aviso_server.lake.compact import Compactor
from aviso_server.lake.remove import delete, wipe
from aviso_server.lake.table import Table, Tables
from tests.lake.scene import event_type, rows_in, write

READERS = Path(sys.prefix) / "readers"
"""DuckDB with its extensions, polars, pandas and geopandas, apart from the rest: Arrow would load pandas everywhere."""

SPARK = Path(sys.prefix) / "delta-spark"
"""The newest Spark that Delta has a runtime for."""

TEXT = event_type(severity={"type": "StringHandler", "required": False})
QUICK = {"duckdb", "duckdb-python", "polars", "pandas", "geopandas"}


class Reader:
    """Other tools at work on a table."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, table: Table, **members: Any) -> dict[str, Any]:
        """What each of them sees."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": table.folder, **members}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the reader broke down; its words are above"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def reader(kind: str, packages: Path, **environment: str) -> Iterator[Reader]:
    program = Path(__file__).with_name("outside_reader.py")
    process = subprocess.Popen(
        [sys.executable, str(program), kind],
        env={**os.environ, "PYTHONPATH": str(packages), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reader(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


@pytest.fixture(scope="module")
def quick() -> Iterator[Reader]:
    with reader("quick", READERS) as found:
        yield found


def ours(root: Path) -> list[Any]:
    """What a replay gives, in the form of the readers' answers."""
    rows = rows_in(root, "flood").select(["sequence", "identifier", "payload"]).to_pylist()
    found = sorted([each["sequence"], each["identifier"], each["payload"]] for each in rows)
    return [hashlib.sha256(json.dumps(found).encode()).hexdigest(), len(found)]


def filled(root: Path) -> Table:
    """A table through changes of its schema."""
    write(root, 1, 10, columns=TEXT)
    for first in range(11, 61, 10):
        table = write(root, first, first + 9)
    return table


def snippets(root: Path, *more: str) -> Any:
    configuration = root.parent / "config.yaml"
    configuration.write_text("notification_schema: {}\n")
    given = ["pipeline", "table", "flood", "--config", str(configuration), "--path", str(root), *more]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    return done.stdout


def changes(root: Path, table: Table) -> Iterator[None]:
    """Everything that happens to a table."""
    yield
    delete(table, [7, 8, 31])
    yield
    for _ in Compactor(Tables(str(root)), target=30).run(everything=True):
        yield
    wipe(table, 5)
    yield
    write(root, 61, 70, columns=TEXT)
    yield


def test_every_tool_reads_what_a_replay_gives(tmp_path: Path, quick: Reader) -> None:
    root = tmp_path / "lake"
    table = filled(root)
    for _ in changes(root, table):
        seen, expected = quick.ask(table), ours(root)
        assert {tool: seen[tool] for tool in QUICK} == dict.fromkeys(QUICK, expected)


def test_every_tool_reads_on_while_files_are_merged(tmp_path: Path, quick: Reader) -> None:
    root = tmp_path / "lake"
    table, expected, done = filled(root), ours(tmp_path / "lake"), threading.Event()

    def merge() -> None:
        while not done.is_set():
            for target in (20, 60):
                for _ in Compactor(Tables(str(root)), target).run(everything=True):
                    pass

    worker = threading.Thread(target=merge)
    worker.start()
    try:
        for _ in range(3):
            seen = quick.ask(table)
            assert {tool: seen[tool] for tool in QUICK} == dict.fromkeys(QUICK, expected)
    finally:
        done.set()
        worker.join()


def test_files_are_geoparquet(tmp_path: Path, quick: Reader) -> None:
    root = tmp_path / "lake"
    seen = quick.ask(filled(root))
    # every flood of the scene covers the degree square at the origin
    assert seen["near"] == seen["by_area"] == rows_in(root, "flood")["sequence"].to_pylist()
    assert seen["crs"] == "OGC:CRS84"


def test_printed_snippets_run(tmp_path: Path, quick: Reader) -> None:
    root = tmp_path / "lake"
    table = filled(root)
    shown = json.loads(snippets(root, "--json"))
    assert (shown["stream"], shown["table"]) == ("flood", table.folder)
    assert quick.ask(table, open=shown["open"])["ran"] == dict.fromkeys(QUICK, 60)
    everything = snippets(root)
    for tool, text in shown["open"].items():
        assert f"# {tool}\n{text}" in everything
        assert snippets(root, "--tool", tool) == text


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    write(root, 1, 3)
    configuration = tmp_path / "config.yaml"
    configuration.write_text("notification_schema: {}\n")
    given = ["pipeline", "table", "tide", "--config", str(configuration), "--path", str(root)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 1
    assert f"there is no table of 'tide' in {root}; there is flood" in done.stderr


@pytest.mark.long  # a Spark of another version, and its packages
def test_spark_with_delta_reads_what_a_replay_gives(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    table = filled(root)
    settings = {
        "spark.jars.ivy": SPARK / "ivy",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    environment = {"PYSPARK_SUBMIT_ARGS": f"--master local[1] {options} pyspark-shell", "SPARK_LOCAL_IP": "127.0.0.1"}
    with reader("spark", SPARK, **environment) as spark:
        shown = json.loads(snippets(root, "--json"))["open"]
        for step, _ in enumerate(changes(root, table)):
            seen, expected = spark.ask(table, open={} if step else shown), ours(root)
            assert seen["spark"] == seen["spark-sql"] == expected
            if not step:
                assert seen["ran"] == {"spark": 60, "spark-sql": 60}
            assert seen["box"] == [[0.0, 2.0]]
            assert seen["first_version"] == 10, "as it was known then"
