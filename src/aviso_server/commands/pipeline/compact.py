"""`aviso-server pipeline compact`: make few large files of many small ones."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from aviso_server.commands.output import json_option, print_json
from aviso_server.commands.pipeline.place import archive_options, existing, find, kept

__all__ = ["compact"]


@click.command()
@archive_options
@click.option("--grace", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
              help="How long files stay that others have taken the place of; somebody may read them.")  # fmt: skip
@json_option
def compact(file: Path | None, path: str | None, spark: str | None, grace: float, as_json: bool) -> None:
    """Merge the files of an archive as far as they go, and remove from disk what was deleted.

    A server compacts its own archive while it runs, when that pays; this goes all the way and needs the archive for
    itself. May be stopped or killed at any time.

    \b
    Examples:
      aviso-server pipeline compact
      aviso-server pipeline compact --path /lake/aviso --grace 0 --json

    \b
    Exit codes: 0 done, 1 it did not work, 2 wrong usage.
    """
    from aviso_server.pipeline.archive.compaction import Compactor

    merged: dict[str, int] = {}
    place = existing(find(file, path, spark=spark))
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("compacting {task.description}"), TextColumn("{task.completed} files"))
    with (
        kept(place, with_spark=False) as keeper,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        row = bar.add_task("", total=None)

        def told(stream: str, count: int) -> None:
            merged[stream] = merged.get(stream, 0) + count
            bar.update(row, advance=count, description=stream)

        for _ in Compactor(keeper.board, place.work, grace).run(everything=True, merged=told):
            pass
        keeper.board.read()
        files = {name: each.files for name, each in keeper.board.streams().items()}
    if as_json:
        print_json({"rewritten": merged, "files": files})
    else:
        click.echo(f"Rewrote {sum(merged.values())} files; now there are {sum(files.values())} in {len(files)} streams")
