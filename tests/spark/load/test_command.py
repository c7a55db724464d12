"""`aviso-server pipeline load` from the shell: killed and repeated, from standard input, and as a past."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.harness import Server
from tests.spark.archive.keeping import children, is_running, until
from tests.spark.load.bad_rows import DEFINITION, good_row, is_good, write_rows

SOURCES = Path(__file__).parents[3] / "src"
SECONDS = 300


def configuration(archive: bool) -> dict[str, Any]:
    return {
        "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://localhost:8000"},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "archive": {"enabled": archive, "path": "archive", "work_path": "work", "spark": "local[2]", "interval": "1s"},
        "notification_schema": {"mars": DEFINITION},
    }


def command(server: Server, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "aviso_server", "pipeline", "load", *arguments),
        *("--event-type", "mars", "--config", str(server.config_file), "--json"),
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES)}


def run(server: Server, *arguments: str, stdin: bytes = b"") -> Result:
    """The command in this process, with the Spark that is there and stands in another folder."""
    places = {"PATH": "archive", "WORK_PATH": "work"}
    given = {f"AVISOSERVER_ARCHIVE__{name}": str(server.directory / place) for name, place in places.items()}
    with chdir(server.directory):
        return CliRunner().invoke(main, command(server, *arguments)[3:], input=stdin, env=given)


def sizes(server: Server) -> list[int]:
    stream = server.client.replay("mars", {"class": "*"})
    return [frame.data["data"]["payload"]["size"] for frame in stream.frames if frame.kind == "notification"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="small"),
        pytest.param(("--spark", "local[2]"), id="Spark", marks=pytest.mark.long),  # Java starts again after the kill
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_load_that_is_killed_goes_on_without_doubles(tmp_path: Path, more: tuple[str, ...]) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 9_999)
    expected = [number for number in range(10_000) if is_good(number)]
    with Server(configuration(archive=False), tmp_path / "server") as server:
        arguments = (str(tmp_path / "rows.ndjson"), "--url", server.url, "--batch", "20", *more)
        loading = subprocess.Popen(command(server, *arguments), cwd=server.directory, env=environment())
        until(lambda: len(sizes(server)) >= 500 or loading.poll() is not None, SECONDS)
        java = children(loading.pid)
        assert bool(java) is bool(more)
        os.kill(loading.pid, signal.SIGKILL)
        assert loading.wait() == -signal.SIGKILL, "it was done before it could be killed"
        until(lambda: not [pid for pid in java if is_running(pid)], 30, lambda: "Java is still there")
        there = sizes(server)
        assert there == expected[: len(there)]
        assert len(there) < len(expected)
        again = run(server, *arguments)
        assert again.exit_code == 0, again.stderr
        facts = json.loads(again.stdout)
        assert facts["published"] + facts["published_before"] == len(expected)
        assert facts["published_before"] >= len(there)
        assert (facts["rows"], facts["taken"], facts["refused"]) == (10_000, 7_600, 2_400)
        assert sizes(server) == expected
        quarantine = pq.read_table(server.directory / facts["quarantine"])
        assert quarantine.num_rows == 2_400
        shown = server.client.get("/api/v1/admin/overview").json()["quarantine"]
        assert shown["count"] == 1
        assert (shown["tables"][0]["event_type"], shown["tables"][0]["rows"]) == ("mars", 2_400)
        assert shown["tables"][0]["reasons"] == facts["reasons"][:20]
        assert list((server.directory / "work").glob("command-*/load")) == [], (
            "nothing is left, of the one that was killed neither"
        )


@pytest.mark.usefixtures("spark")
def test_standard_input_is_checked_and_too_many_bad_rows_say_so(tmp_path: Path) -> None:
    server = Server(configuration(archive=False), tmp_path / "server")
    rows = [good_row(50), {"identifier": {}}, good_row(51)]
    found = run(server, "-", "--dry-run", "--max-bad", "10%", stdin=json.dumps(rows).encode())
    assert found.exit_code == 3, found.stderr
    assert "1 of 3 rows refused (33.33 %), over the limit of 10 %: nothing was published" in found.stderr
    facts = json.loads(found.stdout)
    assert facts == {
        "rows": 3,
        "taken": 2,
        "refused": 1,
        "reasons": [
            {
                "code": "INVALID_NOTIFICATION_REQUEST",
                "field": "class",
                "reason": "Required field 'class' is missing for notify operation",
                "rows": 1,
            }
        ],
        "quarantine": None,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nowhere.ndjson", "--dry-run"], 1, "there is no file 'nowhere.ndjson'"),
        (["rows.ndjson", "--max-bad", "few"], 2, "'few' is no limit"),
        (["rows.ndjson", "--history", "--dry-run"], 2, "--history goes with neither"),
        (["rows.ndjson", "--history"], 1, "archive.enabled is off"),
        (["rows.ndjson", "--url", "http://127.0.0.1:1"], 1, "no server answers"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(
    tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    server = Server(configuration(archive=False), tmp_path / "server")
    write_rows(server.directory / "rows.ndjson", 0, 99)
    found = run(server, *arguments)
    assert (found.exit_code, complaint in found.stderr) == (code, True), found.stderr


@pytest.mark.usefixtures("spark")
@pytest.mark.long  # each command starts Java
def test_the_past_comes_before_the_first_publication(tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    write_rows(file, 0, 499)
    server = Server(configuration(archive=True), tmp_path / "server")
    imported = run(server, str(file), "--history")
    assert imported.exit_code == 0, imported.stderr
    facts = json.loads(imported.stdout)
    assert (facts["imported"], facts["next_sequence"]) == (380, 381)
    again = run(server, str(file), "--history")
    assert again.exit_code == 1
    assert "stream 'mars' has notifications already, up to sequence 380 in the archive" in again.stderr
    with server:
        busy = run(server, str(file), "--history")
        assert busy.exit_code == 1
        client = server.client
        row = good_row(1000)
        client.publish_many("mars", [(row["identifier"], row["payload"])])
        until(lambda: client.get("/ready").json()["archive"]["state"] == "running", SECONDS, lambda: server.stdout)
        frames = [each for each in client.replay("mars", {"class": "*"}).frames if each.kind == "notification"]
        assert [frame.data["sequence"] for frame in frames] == list(range(1, 382))
        times = [frame.data["time"] for frame in frames]
        assert times[0] < "2025-06-02" < times[-1]
        assert frames[-1].data["data"]["payload"]["size"] == 1000
        more = tmp_path / "more.ndjson"
        write_rows(more, 1100, 1199)
        loaded = subprocess.run(
            command(server, str(more), "--url", server.url),
            cwd=server.directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert loaded.returncode == 0, loaded.stderr
        assert json.loads(loaded.stdout)["published"] == 76
        assert "Starting Spark" not in loaded.stderr, "the Spark of the server has done it"
        assert sizes(server)[-76:] == [number for number in range(1100, 1200) if is_good(number)]
        places = {"AVISOSERVER_ARCHIVE__PATH": "archive", "AVISOSERVER_ARCHIVE__WORK_PATH": "work"}
        for given, variables in ((["--config", str(server.config_file)], {}), ([], places)):
            audited = subprocess.run(
                [*command(server)[:4], "audit", "--json", *given, "--url", server.url],
                cwd=server.directory,
                env={**environment(), **variables},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert audited.returncode == 0, audited.stderr
            assert json.loads(audited.stdout)["streams"]["mars"]["acknowledged"] == 457
            assert "Starting Spark" not in audited.stderr


def test_history_waits_for_the_server_to_stop(tmp_path: Path) -> None:
    settings = configuration(archive=True)
    with Server(settings, tmp_path / "server", {"AVISOSERVER_ARCHIVE__ENABLED": "false"}) as server:
        write_rows(server.directory / "rows.ndjson", 0, 99)
        found = run(server, "rows.ndjson", "--history")
        assert found.exit_code == 1
        assert "history is imported while no server runs" in found.stderr
        row = good_row(1000)
        server.client.publish_many("mars", [(row["identifier"], row["payload"])])
    found = run(server, "rows.ndjson", "--history")
    assert found.exit_code == 1
    assert "stream 'mars' has notifications already, up to sequence 1 in the log" in found.stderr
