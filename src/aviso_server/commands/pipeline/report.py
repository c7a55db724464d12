"""`aviso-server pipeline report`: what was published, as a page with plots and a map."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aviso_server.commands.output import fail, json_option, print_json
from aviso_server.commands.pipeline.place import Place, archive_options, existing, find
from aviso_server.errors import PipelineError

if TYPE_CHECKING:
    from aviso_server.insight.reading import Reader
    from aviso_server.pipeline.archive.keeper import Keeper

__all__ = ["report"]


@click.command()
@archive_options
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"),
              show_default=True, help="The page to write.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True,
              help="How many days before the newest notification of a stream.")  # fmt: skip
@click.option("--tables", type=click.Path(path_type=Path, file_okay=False),
              help="Also write the tables as Parquet files into this folder.")  # fmt: skip
@json_option
def report(
    file: Path | None,
    path: str | None,
    spark: str | None,
    output: Path,
    days: int,
    tables: Path | None,
    as_json: bool,
) -> None:
    """Write a page that says what was published, when, where and how late, from the archive.

    One file of HTML that needs nothing else. The tables behind it are brought up to date first, unless a server keeps
    the archive: then it does that itself, every `insight.interval`.

    \b
    Examples:
      aviso-server pipeline report
      aviso-server pipeline report --days 7 --output week.html --tables week/
      aviso-server pipeline report --path /lake/aviso --json

    \b
    Exit codes: 0 written, 1 the archive cannot be read or there is nothing in it, 2 wrong usage.
    """
    from aviso_server.insight.export import export
    from aviso_server.insight.report import report as page

    place = existing(find(file, path, spark=spark))
    with _opened(place) as (reader, fresh):
        states = [state for state in reader.states() if state.days]
        if not states:
            fail(f"there is nothing to report: the archive in {place.path} has no tables of insight")
        draft = output.with_name(f".{output.name}.{os.getpid()}")
        draft.write_text(page(reader, states, days, time.time_ns(), "Notifications"), encoding="utf-8")
        draft.replace(output)
        written = export(reader, states, days, tables) if tables is not None else []
    if as_json:
        counts = {state.event_type: state.count for state in states}
        print_json(
            {"output": str(output), "tables": [str(each) for each in written], "fresh": fresh, "counted": counts}
        )
        return
    click.echo(f"Wrote {output}" + (f" and {len(written)} tables to {tables}" if tables is not None else ""))
    if not fresh:
        click.echo("The archive is kept by a server: the tables are as it made them last")


@contextmanager
def _opened(place: Place) -> Iterator[tuple[Reader, bool]]:
    """The tables, brought up to date if nobody else does that."""
    from aviso_server.insight.reading import Reader
    from aviso_server.pipeline.archive.keeper import Keeper
    from aviso_server.pipeline.archive.storage import is_local
    from aviso_server.pipeline.insight.stored import StoredFiles

    keeper = Keeper(place.path, place.work, place.spark)
    try:
        try:
            keeper.lock()
            fresh = True
        except PipelineError:
            fresh = False
        if fresh:
            _bring_up_to_date(keeper, place)
        elif not is_local(place.path):
            keeper.open()
        yield Reader(place.path, StoredFiles(keeper.board.storage)), fresh
    except PipelineError as error:
        fail(str(error))
    finally:
        keeper.close()
        shutil.rmtree(place.work, ignore_errors=True)


def _bring_up_to_date(keeper: Keeper, place: Place) -> None:
    from aviso_server.pipeline.insight.background import roll_up, subjects
    from aviso_server.pipeline.insight.rollup import Rollup

    session = keeper.open()
    event_types = {each.name: each for each in place.settings.event_types}
    names = {each.base: each.name for each in place.settings.event_types}
    board = keeper.board
    roll_up(
        Rollup(session, board.root, board.storage, place.work), board, subjects(board.watermarks(), names, event_types)
    )
