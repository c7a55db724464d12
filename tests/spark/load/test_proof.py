"""Every kind of bad row among many good ones, on Spark: counts exact, quarantine exact, history exact."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aviso_server.cli import main
from aviso_server.errors import PipelineError
from aviso_server.lake.table import Table
from aviso_server.model.times import parse_instant
from aviso_server.spark.command_jobs import SETTINGS
from aviso_server.spark.load.history_import import import_history
from aviso_server.spark.load.inputs import Input, find_inputs
from aviso_server.spark.load.load_report import read_limit
from aviso_server.spark.load.loading import Loading, TooManyRefused
from tests.spark.archive.keeping import archived
from tests.spark.load.bad_rows import DEFINITION, KINDS, MARS, good_row, is_good, kind_of, rows, write_rows
from tests.spark.load.scene import LATEST

ROWS = 20_000
HALF = ROWS // 2
SPLIT = 256 * 1024


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark as a load has it."""
    before = {name: str(spark.conf.get(name)) for name in SETTINGS["load"] if spark.conf.isModifiable(name)}
    for name in before:
        spark.conf.set(name, SETTINGS["load"][name])
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Input]:
    folder = tmp_path_factory.mktemp("input")
    write_rows(folder / "a.ndjson", 0, HALF - 1)
    (folder / "b.ndjson.gz").write_bytes(gzip.compress(b"".join(line + b"\n" for line in rows(HALF, ROWS - 1)), 1))
    return find_inputs([str(folder)], BytesIO(), folder / "stdin")


def loading(session: SparkSession, files: list[Input], tmp_path: Path, max_bad: str | None = None) -> Loading:
    work, quarantine = tmp_path / "work", tmp_path / "quarantine"
    return Loading(session, files, MARS, work, quarantine, read_limit(max_bad), split_bytes=SPLIT)


def test_counts_and_quarantine_are_exact(session: SparkSession, files: list[Input], tmp_path: Path) -> None:
    load = loading(session, files, tmp_path)
    summary = load.check(LATEST)
    bad = [number for number in range(ROWS) if not is_good(number)]
    assert (summary.rows, summary.refused, summary.taken) == (ROWS, len(bad), ROWS - len(bad))
    expected = Counter((kind.code, kind.field or "") for kind in KINDS for _ in range(ROWS // 100))
    found: Counter[tuple[str, str]] = Counter()
    for reason, count in summary.reasons:
        found[reason.code, reason.field] += count
    assert found == expected
    assert load.quarantined is not None
    table = pq.read_table(load.quarantined).to_pylist()
    lines = {number: line for number, line in zip(range(ROWS), rows(0, ROWS - 1), strict=True) if not is_good(number)}
    assert [(row["file"], row["line"]) for row in table] == [
        (files[number // HALF].name, number % HALF + 1) for number in bad
    ]
    for number, row in zip(bad, table, strict=True):
        kind = kind_of(number)
        assert kind is not None
        assert (row["code"], row["field"]) == (kind.code, kind.field), kind.name
        assert row["raw"] == lines[number].decode(errors="backslashreplace")
        assert row["reason"]


def test_a_session_that_was_open_before_the_command_stays_open(session: SparkSession, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 99)
    settings = {"archive": {"work_path": str(tmp_path / "work")}, "notification_schema": {"mars": DEFINITION}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    arguments = ["--event-type", "mars", "--config", str(tmp_path / "config.yaml"), "--dry-run", "--json"]
    found = CliRunner().invoke(main, ["pipeline", "load", str(tmp_path / "rows.ndjson"), *arguments])
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["rows"] == 100
    assert session.range(3).count() == 3


def test_rules_are_counted_without_their_values(session: SparkSession, files: list[Input], tmp_path: Path) -> None:
    load = loading(session, files[:1], tmp_path)
    rules = {reason.rule for reason, _ in load.check(LATEST).ranked()}
    assert len(rules) <= len(KINDS)
    assert "Field 'date' contains invalid date '…'" in rules
    assert "Field 'step' value … is outside allowed range [0, 100000]" in rules


@pytest.mark.parametrize(("max_bad", "fails"), [("2400", False), ("2399", True), ("24%", False), ("23.9%", True)])
def test_too_many_bad_rows_fail_the_load(
    session: SparkSession, files: list[Input], tmp_path: Path, max_bad: str, fails: bool
) -> None:
    load = loading(session, files[:1], tmp_path, max_bad)
    if not fails:
        assert load.check(LATEST).refused == 2400
        return
    with pytest.raises(
        TooManyRefused,
        match=r"2,400 of 10,000 rows refused \(24\.00 %\), over the limit of \S+ (%|rows): nothing was published",
    ):
        load.check(LATEST)
    assert load.quarantined is not None, "the rows can be looked at"


def test_history_is_sorted_numbered_and_as_the_model_has_it(
    session: SparkSession, files: list[Input], tmp_path: Path
) -> None:
    root, work = str(tmp_path / "archive"), tmp_path / "work"
    load = loading(session, files, tmp_path)
    load.import_history(root, LATEST, lambda *_: None, lambda *_: None)
    good = [number for number in range(ROWS) if is_good(number)]
    times = {number: parse_instant("time", good_row(number)["time"]) for number in good}
    order = sorted(good, key=lambda number: (times[number], number))
    table = archived(root, "mars")
    assert table.column("sequence").to_pylist() == list(range(1, len(good) + 1))
    assert table.column("time_ns").to_pylist() == [times[number] for number in order]
    assert [json.loads(payload)["size"] for payload in table.column("payload").to_pylist()] == order
    drafts = [MARS.check(good_row(number)["identifier"], good_row(number)["payload"]) for number in order]
    assert table.column("topic").to_pylist() == [draft.topic for draft in drafts]
    assert table.column("identifier").to_pylist() == [draft.identifier.decode() for draft in drafts]
    assert [each.name for each in Path(root).iterdir()] == ["mars"], "nothing else is left"
    with pytest.raises(PipelineError, match=r"stream 'mars' has notifications already, up to sequence 15200"):
        import_history(session, root, MARS, work)


def test_a_large_past_has_several_files(session: SparkSession, files: list[Input], tmp_path: Path) -> None:
    root = str(tmp_path / "archive")
    load = loading(session, files[:1], tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aviso_server.spark.load.history_import.TARGET", 1000)
        assert load.import_history(root, LATEST, lambda *_: None, lambda *_: None) == 7600
    found = Table(root, "mars").snapshot().files
    assert len(found) > 4
    table = archived(root, "mars")
    assert table.column("sequence").to_pylist() == list(range(1, 7601))
    assert table.column("time_ns").to_pylist() == sorted(table.column("time_ns").to_pylist())


def test_a_past_without_times_is_refused_row_by_row(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    row = good_row(50)
    del row["time"]
    file.write_text(json.dumps(row) + "\n" + json.dumps({**row, "time": "2525-01-01T00:00:00Z"}) + "\n")
    load = loading(session, find_inputs([str(file)], BytesIO(), tmp_path / "stdin"), tmp_path)
    assert load.import_history(str(tmp_path / "archive"), LATEST, lambda *_: None, lambda *_: None) == 0
    assert [reason.field for reason, _ in load.summary.reasons] == ["time", "time"]
    assert not (tmp_path / "archive").exists()
