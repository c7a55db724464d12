"""A sign of life for commands that take long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

__all__ = ["Progress"]

PATIENCE = 2.0
"""Seconds after which a person wonders."""


class Progress:
    """Counts notifications on stderr, after two seconds and only if a person is looking.

    The bar runs to and fro until `expect` has told where the end is.
    """

    def __init__(self, console: Console | None = None, patience: float = PATIENCE) -> None:
        self.count = 0
        self._console = console or Console(stderr=True)
        columns = (TextColumn("reading history"), BarColumn(), TextColumn("{task.fields[count]} notifications"))
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=None, count=0)
        self._first: int | None = None
        self._last: int | None = None
        self._timer = threading.Timer(patience, self._start)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._started = False
        self._done = False

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def expect(self, last: int) -> None:
        """The sequence that the history ends with."""
        self._last = last

    def advance(self, sequence: int) -> None:
        """One more; where lines appear on the same screen they are sign enough and the bar leaves."""
        self.count += 1
        if self._first is None:
            self._first = sequence
        if sys.stdout.isatty():
            self._stop()
        elif self.count % 100 == 0:
            total = None if self._last is None else self._last - self._first + 1
            self._bar.update(self._task, count=self.count, completed=sequence - self._first + 1, total=total)

    def _start(self) -> None:
        with self._lock:
            if not self._done:
                self._started = True
                self._bar.start()

    def _stop(self) -> None:
        with self._lock:
            if not self._done:
                self._done = True
                self._timer.cancel()
                if self._started:
                    self._bar.stop()
