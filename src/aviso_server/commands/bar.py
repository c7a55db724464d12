"""A bar on a terminal that says how far a command is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Bar", "bar"]


class Bar(Protocol):
    """Moves the bar."""

    def __call__(self, done: int, total: int, about: str = "") -> None:
        """So much of so much is done; `about` is what is being worked on."""


@contextmanager
def bar(words: str, at_once: bool = True) -> Iterator[Bar]:
    """A bar on stderr if a person is looking: at once, or when there is something to show."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        row = progress.add_task(words, total=None, visible=at_once)

        def told(done: int, total: int, about: str = "") -> None:
            described = f"{words} {about}" if about else words
            progress.update(row, description=described, completed=done, total=total, visible=True)

        yield told
