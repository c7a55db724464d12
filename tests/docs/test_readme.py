"""The commands on the pages for newcomers, run as they stand against a real server.

Only the address is rewritten, so that the server can listen on a free port.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.shell_blocks import RUN, RUN_OPEN, SHOWS, SHOWS_OPEN, Block, blocks, missing_line
from tests.harness import Server

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/getting-started.md"]
ADDRESS = "127.0.0.1:8000"
SECONDS = 120.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """What `make serve` starts, on a free port and with its data in a directory of its own."""
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as running:
        yield running


@pytest.fixture
def with_archive(tmp_path: Path) -> Iterator[Server]:
    """The same with its archive, which nobody waits for."""
    environment = {"AVISOSERVER_APPLICATION__PORT": "0"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as running:
        yield running


def shell(command: str, server: Server) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", command.replace(ADDRESS, f"{server.host}:{server.port}")]


class OpenCommand:
    """A command that goes on in the background; what it prints goes to a file."""

    def __init__(self, output: Path) -> None:
        self._output = output

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(encoding="utf-8")

    def await_lines(self, expected: str, place: str) -> None:
        """Wait until the expected lines have been printed."""
        deadline = time.monotonic() + SECONDS
        while (missing := missing_line(expected, self.printed)) is not None:
            assert time.monotonic() < deadline, f"{place}: {missing!r} was not printed, but:\n{self.printed}"
            time.sleep(0.02)


@contextmanager
def left_open(block: Block, server: Server, output: Path) -> Iterator[OpenCommand]:
    """Run a command in the background and end it afterwards."""
    with output.open("wb") as file, subprocess.Popen(shell(f"exec {block.text}", server), stdout=file) as process:
        try:
            command = OpenCommand(output)
            command.await_lines("event: …", block.place)  # the stream is open: what comes next will be seen
            yield command
        finally:
            process.kill()


def run_page(page: Path, server: Server, directory: Path) -> list[str]:
    """Run the marked commands of a page in order, compare what they print with what the page says, and return it."""
    printed: list[str] = []
    opened: OpenCommand | None = None
    with ExitStack() as stack:
        for block in blocks(page):
            if block.mark == RUN:
                finished = subprocess.run(
                    shell(block.text, server), capture_output=True, text=True, timeout=SECONDS, check=False
                )
                assert finished.returncode == 0, f"{block.place}: {finished.stderr}"
                printed.append(finished.stdout)
            elif block.mark == RUN_OPEN:
                opened = stack.enter_context(left_open(block, server, directory / "open.txt"))
            elif block.mark == SHOWS:
                missing = missing_line(block.text, printed[-1])
                assert missing is None, f"{block.place}: {missing!r} was not printed, but:\n{printed[-1]}"
            elif block.mark == SHOWS_OPEN:
                assert opened is not None, f"{block.place}: nothing was left open before"
                opened.await_lines(block.text, block.place)
                printed.append(opened.printed)
    return printed


def test_commands_of_the_readme_do_what_it_says(server: Server, tmp_path: Path) -> None:
    _published, watched, _replayed = run_page(ROOT / "README.md", server, tmp_path)
    assert '"severity":"2"' not in watched, "the slight event was to be left out"


def test_commands_of_getting_started_do_what_it_says(with_archive: Server, tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "getting-started.md", with_archive, tmp_path)


def test_commands_of_publishing_do_what_it_says(server: Server, tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "publishing.md", server, tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_page_publishes_watches_and_replays(name: str) -> None:
    commands = " ".join(block.text for block in blocks(ROOT / name) if block.mark in {RUN, RUN_OPEN})
    for path in ("notification", "watch", "replay"):
        assert f"http://{ADDRESS}/api/v1/{path}" in commands


def test_a_page_that_promises_something_else_is_noticed(server: Server, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f'<!-- run -->\n```bash\ncurl -sS "http://{ADDRESS}/health"\n```\n<!-- shows -->\n```text\nnothing\n```\n'
    )
    with pytest.raises(AssertionError, match=r"page\.md:5: 'nothing' was not printed"):
        run_page(page, server, tmp_path)


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nmake serve " in text
    assert "\nmake test " in text
