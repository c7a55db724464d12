"""The `aviso` command of the published client, run as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.client.listening import ENOUGH, wait_until

__all__ = ["AvisoCommand", "Finished", "Running"]

COMMAND = Path(sys.executable).with_name("aviso")


class Finished(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """The JSON value of each line of its output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Running:
    """A command that goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._out: list[str] = []
        self._err: list[str] = []
        self._readers = [
            threading.Thread(target=into.extend, args=(pipe,), daemon=True)
            for pipe, into in ((process.stdout, self._out), (process.stderr, self._err))
        ]
        for reader in self._readers:
            reader.start()

    def await_lines(self, count: int) -> list[Any]:
        """The JSON values of what it prints, once it has printed so many lines."""
        wait_until(lambda: len(self._out) >= count, f"{count} lines are printed; so far {self._out}")
        return [json.loads(line) for line in self._out]

    def interrupt(self) -> Finished:
        """Press Ctrl+C and wait for the end."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(ENOUGH)
        for reader in self._readers:
            reader.join(ENOUGH)
        return Finished(code, "".join(self._out), "".join(self._err))


class AvisoCommand:
    """Runs `aviso` with its own home directory."""

    def __init__(self, url: str, home: Path) -> None:
        self.home = home
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "AVISO_BASE_URL": url}

    def __call__(self, *arguments: str) -> Finished:
        """Run it to its end."""
        finished = subprocess.run(
            [COMMAND, *arguments],
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ENOUGH,
            check=False,
        )
        return Finished(finished.returncode, finished.stdout, finished.stderr)

    @contextmanager
    def running(self, arguments: Sequence[str]) -> Iterator[Running]:
        """Run it in the background; it is ended at the latest when the block is left."""
        with subprocess.Popen(
            [COMMAND, *arguments],
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Running(process)
            finally:
                process.kill()
