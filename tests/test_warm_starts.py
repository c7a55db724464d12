"""Servers under test come out of the nest and are like those that people start."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Server, StartFailed

CONFIG: dict[str, Any] = {"application": {"host": "127.0.0.1", "port": 0}}
COLD = {"PYTHONWARNINGS": "default"}  # a variable that Python reads: such a process is started from nothing
FILES = 300
SIGNALS = ("SigBlk", "SigIgn", "SigCgt")


def facts(directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What another program sees of a server."""
    given = {"AVISOSERVER_NOTIFICATION_BACKEND__KIND": "sqlite", **environment}
    with Server(CONFIG, directory, given, open_files=FILES) as server:
        place = Path(f"/proc/{server.pid}")
        limits = (place / "limits").read_text().splitlines()
        return {
            "directory": (place / "cwd").readlink() == directory.resolve(),
            "files": next(line.split()[3:5] for line in limits if line.startswith("Max open files")),
            "open": len(list((place / "fd").iterdir())),
            "input": (place / "fd" / "0").readlink(),
            "log": (directory / "data").exists(),
            "signals": [line for line in (place / "status").read_text().splitlines() if line.startswith(SIGNALS)],
            "out": server.stdout.count("\n") > 0,
            "exit code": server.stop(),
        }


def test_a_warm_start_leads_to_what_a_cold_one_does(tmp_path: Path) -> None:
    warm, cold = facts(tmp_path / "warm", {}), facts(tmp_path / "cold", COLD)
    assert warm == cold
    assert (warm["directory"], warm["files"], warm["exit code"]) == (True, [str(FILES)] * 2, 0)


@pytest.mark.parametrize("environment", [{}, COLD], ids=["warm", "cold"])
def test_ends_are_told(tmp_path: Path, environment: dict[str, str]) -> None:
    server = Server(CONFIG, tmp_path / "server", environment).start()
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    assert server.start().client.get("/health").status == 200
    assert server.stop() == 0
    broken = {"notification_backend": {"kind": "carrier_pigeon"}}
    with pytest.raises(StartFailed) as failed:
        Server({**CONFIG, **broken}, tmp_path / "broken", environment).start()
    assert failed.value.exit_code == 1
    assert "notification_backend.kind" in failed.value.output
