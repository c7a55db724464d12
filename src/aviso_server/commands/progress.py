"""A sign of life for commands that take long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from rich.console import Console
from rich.status import Status

__all__ = ["Progress"]

PATIENCE = 2.0
"""Seconds after which a person wonders."""


class Progress:
    """Counts notifications on stderr, after two seconds and only if a person is looking."""

    def __init__(self, console: Console | None = None, patience: float = PATIENCE) -> None:
        self.count = 0
        self._console = console or Console(stderr=True)
        self._status = Status("reading history…", console=self._console)
        self._timer = threading.Timer(patience, self._start)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._done = False

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def advance(self) -> None:
        """One more; where lines appear on the same screen they are sign enough and the counter leaves."""
        self.count += 1
        if sys.stdout.isatty():
            self._stop()
        elif self.count % 100 == 0:
            self._status.update(f"{self.count} notifications…")

    def _start(self) -> None:
        with self._lock:
            if not self._done:
                self._status.start()

    def _stop(self) -> None:
        with self._lock:
            if not self._done:
                self._done = True
                self._timer.cancel()
                self._status.stop()
