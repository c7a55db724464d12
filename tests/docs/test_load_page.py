"""The commands on the page about loading, run as they stand against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.shell_blocks import RUN, RUN_PYTHON, SHOWS, blocks, missing_line
from tests.harness import Server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "load.md"
ADDRESS = "127.0.0.1:8000"
SECONDS = 240


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """What `make serve` starts, on a free port and with its data in a directory of its own."""
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as running:
        yield running


def test_commands_of_the_page_do_what_it_says(server: Server, tmp_path: Path) -> None:
    commands = {RUN: ["bash", "-euo", "pipefail", "-c"], RUN_PYTHON: [sys.executable, "-c"]}
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    printed = ""
    for block in blocks(PAGE):
        if block.mark == SHOWS:
            missing = missing_line(block.text, printed)
            assert missing is None, f"{block.place}: {missing!r} was not printed, but:\n{printed}"
            continue
        text = block.text.replace(ADDRESS, f"{server.host}:{server.port}")
        finished = subprocess.run(
            [*commands[block.mark], text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert finished.returncode == 0, f"{block.place}: {finished.stderr}"
        printed = finished.stdout
    streams = server.client.get("/api/v1/streams").json()["streams"]
    assert [(each["event_type"], each["count"]) for each in streams] == [("extreme_event", 2)]
