"""Somebody who reads a page and runs its marked blocks one after the other against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.client.listening import ENOUGH, open_streams, wait_until
from tests.docs.shell_blocks import (
    RUN,
    RUN_OPEN,
    RUN_PYTHON,
    RUN_PYTHON_OPEN,
    SHOWS,
    SHOWS_OPEN,
    Block,
    blocks,
    missing_line,
)
from tests.harness import Server

__all__ = ["ADDRESS", "Reader", "run_examples"]

ADDRESS = "127.0.0.1:8000"


class Reader:
    """Somebody who tries out one example after the other, in a directory of their own."""

    def __init__(self, server: Server, directory: Path, beginning: str = "", timeout: float = ENOUGH) -> None:
        self._server = server
        self._directory = directory
        self._beginning = beginning  # what every piece of Python goes on from
        self._timeout = timeout
        self._environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(directory),
            "AVISO_BASE_URL": server.url,
        }

    def run(self, block: Block) -> str:
        """Run an example that ends; what it printed."""
        finished = subprocess.run(
            self._command(block),
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=self._timeout,
            check=False,
        )
        assert finished.returncode == 0, f"{block.place}: {finished.stderr}"
        return finished.stdout

    @contextmanager
    def left_open(self, block: Block) -> Iterator[Path]:
        """Run an example that goes on; the file it prints to."""
        before, output = open_streams(self._server), self._directory / f"{block.place}.txt"
        with (
            output.open("wb") as file,
            subprocess.Popen(self._command(block), cwd=self._directory, env=self._environment, stdout=file) as process,
        ):
            try:
                wait_until(lambda: open_streams(self._server) > before, f"{block.place} has opened its stream")
                yield output
            finally:
                process.kill()

    def _command(self, block: Block) -> list[str]:
        if block.mark in {RUN_PYTHON, RUN_PYTHON_OPEN}:
            return [sys.executable, "-c", self._local(f"{self._beginning}\n{block.text}")]
        text = f"exec {block.text}" if block.mark == RUN_OPEN else block.text
        return ["bash", "-euo", "pipefail", "-c", self._local(text)]

    def _local(self, text: str) -> str:
        return text.replace(ADDRESS, f"{self._server.host}:{self._server.port}")


def run_examples(page: Path, reader: Reader) -> None:
    """Run the marked blocks of a page in order and compare what they print with what the page says."""
    printed, output = "", Path()
    with ExitStack() as stack:
        for block in blocks(page):
            if block.mark in {RUN, RUN_PYTHON}:
                printed = reader.run(block)
            elif block.mark in {RUN_OPEN, RUN_PYTHON_OPEN}:
                output = stack.enter_context(reader.left_open(block))
            elif block.mark == SHOWS:
                missing = missing_line(block.text, printed)
                assert missing is None, f"{block.place}: {missing!r} was not printed, but:\n{printed}"
            elif block.mark == SHOWS_OPEN:
                _await_lines(block, output)


def _await_lines(block: Block, output: Path) -> None:
    """Wait until an example that goes on has printed what the page says."""
    wait_until(lambda: missing_line(block.text, output.read_text()) is None, f"{block.place} is printed")
