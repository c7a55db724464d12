"""A server on an archive of an earlier version: it says so, keeps its log, and goes on when the archive is migrated."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from aviso_server.cli import main
from aviso_server.lake.removal_journal import Removal, read_removals
from tests.archive.test_end_to_end import Archived, event_type, until
from tests.harness import Server
from tests.lake.scene import ranges
from tests.lake.test_previous import LEFT, previous

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"},
    "notification_schema": {"flood": event_type("flood", 5)},
}


def test_nothing_leaves_the_log_until_the_archive_is_migrated(tmp_path: Path) -> None:
    server = Server(CONFIG, tmp_path / "server")
    root = previous(server.directory / "archive")
    with server:
        archived = Archived(server, 0)
        until(lambda: archived.ready()["state"] == "unavailable", archived.complaint)
        assert "has the format of an earlier version: run 'aviso-server pipeline migrate'" in archived.ready()["reason"]
        archived.publish("flood", 30)
        assert archived.state("flood")["last"] == 70, "no sequence is given out twice"
        assert archived.state("flood")["count"] == 30, "and none has left the log, whatever its limits"
        body = json.dumps({"event_type": "flood", "identifier": {"port": "*", "level": {"gte": 0}}, "from_id": "1"})
        with server.client.open("replay", body.encode(), (("Content-Type", "application/json"),)) as stream:
            stream.rest(60)
            assert "replay_completed" not in stream.kinds, "what cannot be read is no silent gap"
        with chdir(server.directory):
            done = CliRunner().invoke(main, ["pipeline", "migrate", "--config", str(server.config_file), "--json"])
        assert done.exit_code == 0, done.stderr
        (answer,) = json.loads(done.stdout)["streams"].values()
        assert (answer["last"], answer["rows"], answer["files"]) == (40, len(LEFT), 3)
        assert ranges(root) == [(1, 20), (21, 30), (31, 40)]
        assert read_removals(server.directory / "work" / "removals.jsonl") == [Removal("delete", "flood", 45)]
        with chdir(server.directory):
            again = CliRunner().invoke(main, ["pipeline", "migrate", "--config", str(server.config_file)])
        assert again.stdout == "There is nothing to migrate: the archive has the format of this version\n"
