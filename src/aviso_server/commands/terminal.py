"""Output of commands: results on stdout, errors and progress on stderr, JSON where asked."""

from __future__ import annotations

import csv
import io
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aviso_server.config import load
from aviso_server.config.settings import Settings
from aviso_server.errors import ConfigError, Problem
from aviso_server.model.json_text import printable

__all__ = [
    "FAILED",
    "PATIENCE",
    "ReplayProgress",
    "bar",
    "csv_option",
    "fail",
    "json_option",
    "load_settings",
    "print_csv",
    "print_json",
    "print_result",
    "print_table",
    "problem_record",
    "range_text",
]


FAILED = 1
"""The exit code of a command that found a problem or could not do its work."""

_NARROWEST = 20  # characters a column may be folded to

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with a heading.")


def print_csv(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as comma-separated values; what is not known is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    click.echo(text.getvalue(), nl=False)


def range_text(first: int, last: int) -> str:
    """Return a range of sequences as all commands show it."""
    return f"{first} to {last}" if last >= first else "empty"


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(msgspec.json.encode(value))


def print_result(value: Any, text: str, as_json: bool) -> None:
    """Print a value as JSON if that was asked for, else the text for people."""
    if as_json:
        print_json(value)
    else:
        click.echo(printable(text))


def problem_record(problem: Problem) -> dict[str, str]:
    """Return a problem as a JSON object."""
    return {"source": problem.source, "key": problem.key, "message": problem.message, "accepted": problem.accepted}


def load_settings(file: Path | None, given: Mapping[str, str] | None = None) -> Settings:
    """Load the configuration; prints its problems and exits with code 1 if it cannot be used."""
    try:
        return load(os.environ, file, given)
    except ConfigError as error:
        count = f"{len(error.problems)} problem{'s' if len(error.problems) != 1 else ''}"
        click.echo(f"The configuration cannot be used ({count}):", err=True)
        for problem in error.problems:
            click.echo(f"  {problem}", err=True)
        raise SystemExit(FAILED) from None


def fail(message: str) -> NoReturn:
    """Print the message on stderr and exit with code 1."""
    click.echo(f"aviso-server: {message}", err=True)
    raise SystemExit(FAILED)


def _are_numbers(cells: Sequence[Any]) -> bool:
    kinds = {isinstance(cell, int | float) for cell in cells if cell != ""}
    return kinds == {True}


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table: with borders on a terminal, as plain columns when piped, one value per line where it is narrow.

    Only the widest column of text is ever folded, so numbers, dates and ids stay whole.
    """
    console = Console(markup=False, highlight=False)
    filled = [list(row) for row in rows]
    shown = [[cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row] for row in filled]
    lines = [list(headings), *([str(cell) for cell in row] for row in shown)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(*filled, strict=True))
    numbers = {place for place, cells in enumerate(columns) if _are_numbers(cells)}
    texts = [place for place in range(len(headings)) if place not in numbers]
    folded = max(texts, key=lambda place: widths[place], default=-1)
    if not console.is_terminal:
        if title:
            click.echo(title)
        for line in lines:
            cells = [_padded(cell, widths[place], place in numbers) for place, cell in enumerate(line)]
            click.echo("  ".join(cells).rstrip())
        return
    least = sum(min(width, _NARROWEST) if place == folded else width for place, width in enumerate(widths))
    if least + 3 * len(widths) + 1 > console.width:
        console.print(Text(title, style="bold"), soft_wrap=True)
        for row in shown:
            for heading, cell in zip(headings, row, strict=True):
                console.print(Text(f"  {heading}: " if heading else "  ").append_text(cell), soft_wrap=True)
            console.print()
        return
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for place, heading in enumerate(headings):
        justify: JustifyMethod = "right" if place in numbers else "left"
        table.add_column(heading, no_wrap=place != folded, overflow="fold", justify=justify)
    for row in shown:
        table.add_row(*row)
    console.print(table)


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


class ProgressBar(Protocol):
    """Moves a bar."""

    def __call__(self, done: int, total: int, about: str = "") -> None:
        """Show how much is done, and `about` what is being worked on."""


@contextmanager
def bar(words: str, at_once: bool = True) -> Iterator[ProgressBar]:
    """Show a bar on stderr if that is a terminal: at once, or when there is progress to show."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        row = progress.add_task(words, total=None, visible=at_once)

        def move(done: int, total: int, about: str = "") -> None:
            described = f"{words} {about}" if about else words
            progress.update(row, description=described, completed=done, total=total, visible=True)

        yield move


PATIENCE = 2.0
"""Seconds before a replay that prints nothing shows its progress."""


class ReplayProgress:
    """Counts notifications on stderr, after two seconds and only on a terminal.

    The bar has no end until `expect` sets one.
    """

    def __init__(self, console: Console | None = None, patience: float = PATIENCE) -> None:
        self.count = 0
        self._console = console or Console(stderr=True)
        columns = (TextColumn("reading history"), BarColumn(), TextColumn("{task.fields[count]} notifications"))
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=None, count=0)
        self._first: int | None = None
        self._last: int | None = None
        self._timer = threading.Timer(patience, self._bar.start)
        self._timer.daemon = True

    def __enter__(self) -> ReplayProgress:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def expect(self, last: int) -> None:
        """Set the last sequence of the history."""
        self._last = last

    def advance(self, sequence: int) -> None:
        """Count a notification; the bar gives way if notifications are printed on the same terminal."""
        self.count += 1
        if self._first is None:
            self._first = sequence
        if sys.stdout.isatty():
            self._stop()
        elif self.count % 100 == 0:
            total = None if self._last is None else self._last - self._first + 1
            self._bar.update(self._task, count=self.count, completed=sequence - self._first + 1, total=total)

    def _stop(self) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()  # it may just be starting the bar
        if self._bar.live.is_started:
            self._bar.stop()
