"""What is in the way of an archive: one clear sentence each, and publishing goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from aviso_server.errors import PipelineError
from aviso_server.lake.problems import problems, refuse_unusable
from aviso_server.lake.table import Table
from aviso_server.spark.archiver import ArchiveStatus
from tests.harness import Server
from tests.harness.objects import environment, store_running
from tests.harness.patience import PATIENCE
from tests.lake.scene import made, write

ALTERED = "somebody else has altered it; "
PROTOCOLS: Mapping[str, tuple[dict[str, Any], str]] = {
    "a newer protocol": (
        {"minReaderVersion": 4, "minWriterVersion": 8},
        "the table of stream 'flood' cannot be used: "
        + ALTERED
        + "it asks for more of Delta Lake than this server knows",
    ),
    "an unknown reader feature": (
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]},
        "the table of stream 'flood' cannot be used: "
        + ALTERED
        + "it asks for more of Delta Lake than this server knows",
    ),
    "deletion vectors": (
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
        "the table of stream 'flood' cannot be read: " + ALTERED + "it has the reader feature 'deletionVectors'",
    ),
    "an unknown writer feature": (
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["new"]},
        "nothing can be archived to the table of stream 'flood': " + ALTERED + "it has the writer feature 'new'",
    ),
    "a newer writer": (
        {"minReaderVersion": 1, "minWriterVersion": 5},
        "nothing can be archived to the table of stream 'flood': "
        + ALTERED
        + "it has version 5 of the writer protocol",
    ),
}


def alter(table: Table, *actions: dict[str, Any]) -> None:
    """Commit as somebody else."""
    version = DeltaTable(table.folder).version() + 1
    path = Path(table.folder) / "_delta_log" / f"{version:020d}.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in actions))


def with_schema(table: Table, name: str, kind: str | None) -> dict[str, Any]:
    """The metadata of a table, with another type for a column or without it."""
    lines = (Path(table.folder) / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    metadata: dict[str, Any] = next(each for each in map(json.loads, lines) if "metaData" in each)
    schema = json.loads(metadata["metaData"]["schemaString"])
    for field in list(schema["fields"]):
        if field["name"] == name:
            field["type"] = kind
            if kind is None:
                schema["fields"].remove(field)
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    return metadata


def test_an_archive_that_is_fine_or_not_there_yet_has_none(tmp_path: Path) -> None:
    assert problems(str(tmp_path / "not" / "yet")) == []
    write(tmp_path, 1, 10)
    before = sorted(tmp_path.iterdir())
    assert problems(str(tmp_path)) == []
    assert sorted(tmp_path.iterdir()) == before
    assert problems("ftp://x/y") == [
        "archive.path: 'ftp://x/y' cannot be reached; accepted: a folder, file://…, s3://…, s3a://…"
    ]
    (found,) = problems("hdfs://namenode/archive")
    assert found.endswith("s3a://…; hdfs:// would need Hadoop's own library, which PySpark does not bring")


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        assert problems(str(path)) == [f"archive.path: '{path}' cannot be written: '{file}' is not a folder"]
    with pytest.raises(PipelineError, match=r"archive\.path: '/proc/self/net' cannot be written: "):
        refuse_unusable("/proc/self/net")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_table_that_asks_for_more_than_we_know(tmp_path: Path, name: str) -> None:
    protocol, sentence = PROTOCOLS[name]
    table = write(tmp_path, 1, 10)
    files = made(table, 11, 20)
    alter(table, {"protocol": protocol})
    (found,) = problems(str(tmp_path))
    assert found.startswith(sentence)
    for each in (table, Table(str(tmp_path), "flood")):
        with pytest.raises(PipelineError) as refused:
            each.commit(files, watermark=20, after=10)
        assert str(refused.value) == found


def test_nothing_is_trimmed_while_a_table_cannot_be_read(tmp_path: Path) -> None:
    table, status = write(tmp_path, 1, 10), ArchiveStatus(str(tmp_path))
    status.read()
    assert status.streams()["flood"].gapless == 10
    alter(table, {"protocol": PROTOCOLS["deletion vectors"][0]})
    status.read()
    found = status.streams()["flood"]
    assert (found.last, found.gapless) == (10, 0)
    assert found.last_error is not None
    assert ALTERED in found.last_error


@pytest.mark.parametrize(("kind", "shown"), [(None, "gone"), ("long", "long")])
def test_a_table_whose_columns_are_not_ours_any_more(tmp_path: Path, kind: str | None, shown: str) -> None:
    table = write(tmp_path, 1, 10)
    alter(table, with_schema(table, "payload", kind))
    expected = f"the table of stream 'flood' cannot be read: {ALTERED}column 'payload' is {shown} and should be string"
    assert problems(str(tmp_path)) == [expected]


def test_a_column_more_does_no_harm(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    metadata = with_schema(table, "none", None)
    schema = json.loads(metadata["metaData"]["schemaString"])
    schema["fields"].append({"name": "theirs", "type": "string", "nullable": True, "metadata": {}})
    alter(table, {"metaData": {**metadata["metaData"], "schemaString": json.dumps(schema)}})
    assert problems(str(tmp_path)) == []
    write(tmp_path, 11, 20)
    assert DeltaTable(table.folder).to_pyarrow_table()["theirs"].null_count == 20


def check(path: str, folder: Path, key: str = "archive.path", spark: str = "local", **variables: str) -> list[str]:
    """The warnings of `aviso-server check` about an archive, in a process of its own."""
    file = folder / "config.yaml"
    file.write_text(
        f"archive: {{enabled: true, path: '{path}', spark: '{spark}'}}\nnotification_backend: {{kind: sqlite}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "aviso_server", "check", str(file), "--json"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each["message"] for each in json.loads(done.stdout)["warnings"] if each["key"] == key]


def test_check_says_what_is_in_the_way(tmp_path: Path) -> None:
    table = write(tmp_path / "lake", 1, 10)
    assert check(str(tmp_path / "lake"), tmp_path) == []
    alter(table, {"protocol": PROTOCOLS["an unknown writer feature"][0]})
    (found,) = check(str(tmp_path / "lake"), tmp_path)
    assert found.startswith("nothing can be archived to the table of stream 'flood': somebody else has altered it")


def test_check_says_that_there_is_no_java(tmp_path: Path) -> None:
    for spark, count in (("local", 1), ("sc://somewhere", 0)):
        found = check(str(tmp_path / "lake"), tmp_path, "archive.spark", spark, PATH=str(tmp_path), JAVA_HOME="")
        assert len(found) == count
        assert all(each.startswith("nothing can be archived: Spark needs Java 17 or newer: install") for each in found)


def test_a_bucket_that_is_not_there_and_wrong_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_running(tmp_path) as store:
        assert check("s3://nowhere/archive", tmp_path, **environment(store.url)) == [
            "'s3://nowhere/archive' cannot be written: there is no bucket 'nowhere'"
        ]
        assert check("s3://lake/archive", tmp_path, **environment(store.url)) == []
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "1")  # the bucket is made, then credentials count
    with store_running(tmp_path) as store:
        (found,) = check("s3://lake/archive", tmp_path, **environment(store.url))
        assert found.startswith("'s3://lake/archive' cannot be written: the store refuses the credentials; set AWS_")


def test_publishing_goes_on_and_ready_says_why_nothing_is_archived(tmp_path: Path) -> None:
    config = {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "archive": {"enabled": True, "path": "file/archive", "work_path": "work", "interval": "1s"},
        "notification_schema": {
            "tide": {
                "topic": {"base": "tides", "key_order": ["port"]},
                "identifier": {"port": {"type": "StringHandler", "required": True}},
                "storage_policy": {"max_messages": 5},
            }
        },
    }
    server = Server(config, tmp_path / "server")
    server.directory.mkdir(parents=True, exist_ok=True)
    (server.directory / "file").touch()
    with server:
        deadline = time.monotonic() + PATIENCE
        while (ready := server.client.get("/ready").json())["archive"]["state"] != "unavailable":
            assert time.monotonic() < deadline, ready
            time.sleep(0.1)
        expected = f"archive.path: '{server.directory.resolve()}/file/archive' cannot be written: "
        assert ready["archive"]["reason"].startswith(expected)
        for number in range(20):
            server.client.publish("tide", {"port": f"p{number}"})
        (stream,) = server.client.get("/api/v1/streams").json()["streams"]
        assert (stream["count"], stream["last"], stream["trimmed"]) == (20, 20, 0), "nothing is trimmed"
        assert any(expected in line for line in server.stdout.splitlines()), "the log says it too"
