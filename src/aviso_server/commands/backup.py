"""`aviso-server backup` and `aviso-server restore`: copies of the sqlite log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from aviso_server.commands.log_directory import config_option, log_directory, path_option
from aviso_server.commands.output import fail, print_json
from aviso_server.errors import LogError
from aviso_server.log.sqlite.backup import Copy, back_up
from aviso_server.log.sqlite.backup import restore as restore_copy

__all__ = ["backup", "restore"]


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@config_option
@path_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the copy.")
def backup(dest: Path, file: Path | None, path: Path | None, as_json: bool) -> None:
    """Copy the sqlite log to the file DEST, while the server runs or not.

    The copy is the log as it was at one moment. The server goes on meanwhile. DEST must not exist; it appears only
    when it is complete and was checked.

    \b
    Examples:
      aviso-server backup /backups/aviso-2025-07-06.sqlite
      aviso-server backup copy.sqlite --config examples/config.yaml
      aviso-server backup copy.sqlite --path data/log --json

    \b
    Exit codes: 0 the copy is there, 1 it is not, 2 wrong usage.
    """
    directory = log_directory(file, path)
    try:
        with _bar("copying") as report:
            copy = back_up(directory, dest, report)
    except LogError as error:
        fail(str(error))
    _show(copy, f"Copied {directory} to {dest}", as_json)


@click.command()
@click.argument("src", type=click.Path(path_type=Path))
@config_option
@path_option
@click.option("--advance", type=click.IntRange(min=0, max=10**15), default=0, show_default=True,
              help="Leave out so many sequences of every stream.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the log.")
def restore(src: Path, file: Path | None, path: Path | None, advance: int, as_json: bool) -> None:
    """Make a sqlite log from the copy SRC, where there is none.

    Refuses if the directory holds a log already or if a server uses it. What was published after the copy was taken
    is lost, and its sequences would be given out a second time: with --advance numbering goes on further up, so that
    clients who have seen them miss nothing.

    \b
    Examples:
      aviso-server restore /backups/aviso-2025-07-06.sqlite
      aviso-server restore copy.sqlite --path data/log --advance 1000000

    \b
    Exit codes: 0 the log is there, 1 it is not, 2 wrong usage.
    """
    directory = log_directory(file, path)
    try:
        with _bar("restoring") as report:
            copy = restore_copy(src, directory, advance, report)
    except LogError as error:
        fail(str(error))
    _show(copy, f"Restored {src} to {directory}", as_json)


@contextmanager
def _bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, if a person is looking."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _show(copy: Copy, words: str, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.structs.asdict(copy))
        return
    click.echo(f"{words}: {copy.notifications} notifications in {len(copy.streams)} streams, {copy.bytes} bytes.")
