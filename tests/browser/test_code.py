"""Copy as code: what the dialog offers does what the page does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.events import configuration, ring, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.broker import wait_until

BIN = Path(sys.executable).parent
SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with some storms, numbers 1 to 8; every fourth is in the north."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        running.client.publish_many("storm", storms(8))
        yield running


def code(visit: Visit, view: Locator, language: str) -> str:
    """What the dialog shows in a language, copied."""
    view.get_by_role("button", name="Copy as code").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_role("tab", name=language, exact=True).click()
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    copied = str(visit.page.evaluate("navigator.clipboard.readText()"))
    assert copied == dialog.get_by_label("Code").inner_text()
    visit.screenshot(f"code-{language}")
    dialog.get_by_role("button", name="Close").click()
    return copied


def run(text: str, folder: Path, python: bool = False) -> str:
    """What the code prints."""
    command = [sys.executable, "-c", text] if python else ["bash", "-euo", "pipefail", "-c", text]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AVISO")},
        "HOME": str(folder),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def northern(visit: Visit) -> Locator:
    view = visit.open("history")
    view.locator(".chip", has_text="north").click()
    view.locator(".chip", has_text="Sequence").click()
    view.get_by_label("Start with sequence").fill("2")
    return view


def test_a_replay_as_curl(visit: Visit, tmp_path: Path) -> None:
    printed = run(code(visit, northern(visit), "curl"), tmp_path)
    assert '"id":"storm@5"' in printed
    assert '"id":"storm@1"' not in printed
    assert "replay_completed" in printed


def test_a_replay_as_a_command(visit: Visit, tmp_path: Path) -> None:
    printed = run(code(visit, northern(visit), "aviso"), tmp_path)
    assert [json.loads(line)["sequence"] for line in printed.splitlines()] == [5]


def test_a_replay_as_python(visit: Visit, tmp_path: Path) -> None:
    printed = run(code(visit, northern(visit), "pyaviso"), tmp_path, python=True)
    assert [line.split()[0] for line in printed.splitlines()] == ["5"]
    assert "storm 5" in printed


@pytest.mark.long  # a Spark of its own
def test_a_replay_in_spark(visit: Visit, tmp_path: Path) -> None:
    printed = run(code(visit, northern(visit), "Spark"), tmp_path, python=True)
    rows = [line for line in printed.splitlines() if "storm.north" in line]
    assert len(rows) == 1


@pytest.mark.parametrize("language", ["curl", "aviso", "pyaviso"])
def test_a_notification(visit: Visit, server: Server, tmp_path: Path, language: str) -> None:
    view = visit.open("publish")
    view.locator(".chip", has_text="east").click()
    view.get_by_label("run_time").fill("1800")
    view.get_by_label("Payload").fill(json.dumps({"it's": ["quoted", None, True], "from": language}))
    run(code(visit, view, language), tmp_path, python=language == "pyaviso")
    wanted = {"region": "east", "run_time": "1800", "severity": {"gte": 1}}
    newest: dict[str, Any] = server.client.replay("storm", wanted).notifications[-1]
    assert newest["data"]["payload"] == {"it's": ["quoted", None, True], "from": language}
    assert newest["data"]["identifier"]["polygon"] == [[50, 5], [50, 15], [56, 15], [56, 5], [50, 5]]


@pytest.mark.parametrize("language", ["curl", "aviso", "pyaviso"])
def test_a_watch_goes_on(visit: Visit, server: Server, tmp_path: Path, language: str) -> None:
    view = visit.open("live")
    view.locator(".chip", has_text="west").click()
    view.locator(".chip", has_text="In an area").click()
    view.get_by_label("Corners as latitude,longitude").fill(ring(49, 7, 6))
    text = code(visit, view, language)
    folder = {"HOME": str(tmp_path), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    command = (
        [sys.executable, "-c", text]
        if language == "pyaviso"
        else ["bash", "-c", f"exec {text}" if language == "curl" else text]
    )
    with subprocess.Popen(command, cwd=tmp_path, env=folder, stdout=subprocess.PIPE, start_new_session=True) as running:
        try:
            output = running.stdout
            assert output is not None
            os.set_blocking(output.fileno(), False)

            def seen() -> bool:  # each is published before it has connected, or seen
                server.client.publish("storm", storm(region="west"), {"for": language})
                return b'"for"' in (output.read() or b"").replace(b"'", b'"')

            wait_until(seen)
        finally:
            os.killpg(running.pid, 15)
