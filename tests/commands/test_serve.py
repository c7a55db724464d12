"""`aviso-server serve`: its options, its ready file, and words for what keeps it from starting."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from tests.harness import Server
from tests.harness.server import StartFailed

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "in_memory"},
}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def refused(config: dict[str, Any], directory: Path, *arguments: str) -> str:
    """What a server says that does not start."""
    with pytest.raises(StartFailed) as failure:
        Server(config, directory, arguments=("serve", *arguments)).start()
    assert failure.value.exit_code == 1
    assert "Traceback" not in failure.value.output
    return failure.value.output


def source_of_an_event(server: Server) -> str:
    server.client.publish("tide", {"port": "oslo"})
    [event] = server.client.replay("tide", {"port": "oslo"}).notifications
    source: str = event["source"]
    return source


def test_host_and_port_win_over_file_and_environment(tmp_path: Path) -> None:
    port = free_port()
    config = {**CONFIG, "application": {"host": "127.0.0.1", "port": 1}}
    # names of variables may have any letter case
    environment = {"avisoserver_application__port": "1", "AVISOSERVER_APPLICATION__HOST": "192.0.2.1"}
    arguments = ("serve", "--host", "127.0.0.1", "--port", str(port))
    with Server(config, tmp_path, environment, arguments=arguments) as server:
        assert (server.host, server.port) == ("127.0.0.1", port)
        assert source_of_an_event(server) == f"http://127.0.0.1:{port}"


def test_a_base_url_that_was_set_stays(tmp_path: Path) -> None:
    config = {**CONFIG, "application": {"base_url": "https://aviso.example.org"}}
    with Server(config, tmp_path, arguments=("serve", "--port", str(free_port()))) as server:
        assert source_of_an_event(server) == "https://aviso.example.org"


@pytest.mark.parametrize("arguments", [("--port", "65536"), ("--port", "x"), ("--port", "-1")])
def test_a_port_is_a_number(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["serve", *arguments]).exit_code == 2


def test_a_port_in_use(taken: int, tmp_path: Path) -> None:
    said = refused(CONFIG, tmp_path, "--port", str(taken))
    assert f"127.0.0.1:{taken} (application.host and application.port): another process listens there" in said
    assert "set application.port to a free port" in said


def test_a_metrics_port_in_use(taken: int, tmp_path: Path) -> None:
    said = refused({**CONFIG, "metrics": {"enabled": True, "port": taken}}, tmp_path)
    assert f"127.0.0.1:{taken} (metrics.host and metrics.port): another process listens there" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_host_that_is_not_ours(host: str, tmp_path: Path) -> None:
    assert f"{host} is not an address of this machine; set application.host" in refused(
        CONFIG, tmp_path, "--host", host
    )


def test_a_log_folder_that_cannot_be_made(tmp_path: Path) -> None:
    config = {**CONFIG, "notification_backend": {"kind": "sqlite", "sqlite": {"path": "/proc/aviso"}}}
    assert "set notification_backend.sqlite.path to another directory" in refused(config, tmp_path)


def test_the_ready_file_is_there_while_the_server_listens(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with Server(CONFIG, tmp_path) as server:
        assert json.loads(ready.read_text())["pid"] == server.pid
    assert not ready.exists()


def test_the_ready_file_of_an_earlier_run_is_gone_at_once(tmp_path: Path) -> None:
    ready = tmp_path / "earlier.json"
    ready.write_text('{"port": 1}')
    result = CliRunner().invoke(main, ["serve", "--config", "nowhere.yaml", "--ready-file", str(ready)])
    assert result.exit_code == 1
    assert not ready.exists()


@pytest.mark.parametrize("place", ["none/ready", "file/ready", ""])
def test_a_ready_file_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["serve", "--ready-file", str(tmp_path / place)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("aviso-server: --ready-file: ")
    assert "cannot be written" in result.stderr


def test_a_broker_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["serve", "--local-broker", str(tmp_path / "file" / "nats")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--local-broker: the broker cannot keep its data in" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_still_looks_for_its_broker_stops_quietly(number: signal.Signals, tmp_path: Path) -> None:
    broker = {"nats_url": "nats://127.0.0.1:1", "retry_attempts": 100, "reconnect_delay_ms": 500}
    config = {**CONFIG, "notification_backend": {"kind": "jetstream", "jetstream": broker}}
    server = Server(config, tmp_path)
    server.launch()
    deadline = time.monotonic() + 60
    while "backend.jetstream.connection.retry" not in server.stdout:
        assert time.monotonic() < deadline, server.stdout + server.stderr
        time.sleep(0.02)
    os.kill(server.pid, number)
    assert server.wait() == 0
    assert server.stderr == "aviso-server: stopped before it was listening\n"


@pytest.mark.parametrize("files", [20_000, 19_999])
def test_the_usual_limit_of_connections_is_no_reason_to_warn(files: int, tmp_path: Path) -> None:
    """Our own files take a little of what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = files if hard == resource.RLIM_INFINITY else min(files, hard)  # no process can have more
    with Server(CONFIG, tmp_path, open_files=files) as server:
        pass
    lines = [json.loads(line) for line in server.stdout.splitlines() if "open files" in line]
    if files == 20_000:
        assert lines == []
        return
    [line] = lines
    assert line["severityText"] == "WARN"
    assert f"allows {files} open files; raise that to 20064 ('ulimit -n'" in line["body"]


def test_warnings_come_last_before_the_address(tmp_path: Path) -> None:
    config = {**CONFIG, "archiv": {"enabled": True}, "limits": {"max_conections": 5}}
    with Server(config, tmp_path) as server:
        pass
    events = [json.loads(line) for line in server.stdout.splitlines()]
    names = [line["attributes"].get("event.name") for line in events]
    listening = names.index("startup.server.started")
    warnings = events[listening - 2 : listening]
    assert names[listening - 2 : listening] == ["startup.configuration.warning"] * 2
    assert names.index("startup.configuration.dumped") < listening - 2
    for line, key in zip(warnings, ("archiv", "limits.max_conections"), strict=True):
        assert f"{key}: unknown key, ignored; did you mean" in line["body"]
        assert f"warning: {line['body']}\n" in server.stderr
