"""`aviso-server log repair` with the archive that a server has written: what the log lost comes back from there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aviso_server.log.sqlite.database import DATABASE
from tests.archive.test_end_to_end import SPARK, event_type, until
from tests.harness import Server

COUNT = 40
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"},
    "notification_schema": {
        "tide": event_type("tides", 1000),
        "area": {
            "topic": {"base": "areas", "key_order": ["port"]},
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "polygon": {"type": "PolygonHandler", "required": True},
            },
        },
    },
}


def repair(server: Server) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "aviso_server", "log", "repair", "--config", "config.yaml", "--json"]
    done = subprocess.run(command, cwd=server.directory, capture_output=True, text=True, check=False, timeout=SPARK)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def everything(server: Server) -> list[list[dict[str, Any]]]:
    found = []
    for name, identifier in (("tide", {"port": "*", "level": {"gte": 0}}), ("area", {"port": "*"})):
        headers = (("Content-Type", "application/json"), ("Prefer", "handling=lenient"))
        request = {"event_type": name, "identifier": identifier, "from_id": "1"}
        with server.client.open("replay", request, headers) as stream:
            stream.rest(SPARK)
            assert stream.kinds[-2:] == ["replay_completed", "connection-closing"], stream.frames[-2:]
            found.append(stream.notifications)
    return found


@pytest.mark.long  # a server with a Spark of its own
def test_the_archive_gives_back_what_the_log_has_lost(tmp_path: Path) -> None:
    polygon = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
    with Server(CONFIG, tmp_path) as server:
        pairs = [({"port": "oslo", "level": number}, {"å": number}) for number in range(1, COUNT + 1)]
        server.client.publish_many("tide", pairs)
        server.client.publish_many("area", [({"port": "oslo", "polygon": polygon}, None)] * 3)

        def archived() -> bool:
            streams = server.client.get("/api/v1/admin/overview").json()["archive"]["streams"]
            return all(streams.get(name, {}).get("lag") == 0 for name in ("tides", "areas"))

        until(archived, lambda: server.stdout[-4000:] + server.stderr)
        before = everything(server)
        assert [len(each) for each in before] == [COUNT, 3]
        server.stop()

        connection = sqlite3.connect(tmp_path / "log" / DATABASE, isolation_level=None)
        names = dict(connection.execute("SELECT name, id FROM catalogue").fetchall())
        tides, areas = f"stream_{names['tides']}", f"stream_{names['areas']}"
        connection.execute(f"UPDATE {tides} SET payload = '{{' WHERE sequence IN (7, 30)")
        connection.execute(f"DELETE FROM {tides} WHERE sequence BETWEEN 11 AND 13 OR sequence = {COUNT}")
        connection.execute(f"UPDATE catalogue SET last_sequence = {COUNT - 1} WHERE name = 'tides'")
        connection.execute(f"UPDATE {areas} SET box = NULL WHERE sequence = 2")
        connection.close()

        code, said = repair(server)
        assert (code, said["usable"]) == (0, True)
        assert said["streams"]["tides"]["missing"] == [[11, 13], [COUNT, COUNT]]
        assert said["streams"]["tides"]["altered"] == [[7, 7], [30, 30]]
        assert said["streams"]["areas"]["altered"] == [[2, 2]]
        assert [stream["lost"] for stream in said["streams"].values()] == [[], []]
        (tmp_path / "archive").rename(tmp_path / "elsewhere")  # it comes from the log now
        server.config_file.write_text(server.config_file.read_text().replace("enabled: true", "enabled: false"))
        server.start()
        assert everything(server) == before
        server.client.publish("tide", {"port": "oslo", "level": 0})
        assert everything(server)[0][-1]["sequence"] == COUNT + 1
