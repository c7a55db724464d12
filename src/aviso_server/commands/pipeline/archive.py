"""`aviso-server pipeline archive`: bring what a server's log holds into the archive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aviso_server.commands.bar import bar
from aviso_server.commands.client import credentials
from aviso_server.commands.output import print_json
from aviso_server.commands.pipeline.place import Place, find, kept, place_options

if TYPE_CHECKING:
    from aviso_server.pipeline.archive.keeper import Keeper
    from aviso_server.pipeline.archive.source import ArchiveTask

__all__ = ["archive"]

_SECOND = 1_000_000_000


@click.command()
@place_options
@click.option("--once", is_flag=True, help="Archive what there is now and end.")
@click.option("--interval", type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="Between two looks at the log.  [default: archive.interval]")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for every step, and one at the end of --once."
)
def archive(
    file: Path | None,
    url: str | None,
    path: str | None,
    spark: str | None,
    once: bool,
    interval: float | None,
    token: str | None,
    user: str | None,
    as_json: bool,
) -> None:
    """Bring notifications from a server's log into an archive, once or until stopped.

    May be stopped or killed at any time: it goes on where the files of the archive end. An archive has one keeper at a
    time; a server with `archive.enabled` is the keeper of its own.

    \b
    Examples:
      aviso-server pipeline archive --once
      aviso-server pipeline archive --url http://aviso:8000 --path /lake/aviso --spark local[4]
      aviso-server pipeline archive --path s3a://bucket/aviso --spark spark://head:7077

    \b
    Exit codes: 0 done or stopped as asked, 1 it did not work, 2 wrong usage.
    """
    credentials(token, user)
    place = find(file, path, url, spark)
    with kept(place) as keeper:
        task = _task(place, interval, token, user)
        if once:
            with _steps(keeper, place, as_json) as told:
                keeper.archive_once(task, told)
            _summary(keeper, as_json)
        else:
            _until_stopped(keeper, task, as_json)


def _task(place: Place, interval: float | None, token: str | None, user: str | None) -> ArchiveTask:
    from aviso_server.pipeline.archive.source import ArchiveTask

    name, _, password = (user or "").partition(":")
    return ArchiveTask(
        url=place.url,
        root=place.path,
        offsets={},
        interval=interval or place.settings.archive.interval / _SECOND,
        token=token,
        username=name or None,
        password=password if name else None,
    )


def _until_stopped(keeper: Keeper, task: ArchiveTask, as_json: bool) -> None:
    stop = threading.Event()

    def told(stream: str, count: int) -> None:
        last = keeper.board.watermark(stream)
        if as_json:
            print_json({"stream": stream, "sequences": count, "last": last})
        else:
            click.echo(f"{stream}: {count} more, up to {last}")

    try:
        keeper.archive(task, stop, told)
    except KeyboardInterrupt:
        stop.set()


@contextmanager
def _steps(keeper: Keeper, place: Place, as_json: bool) -> Iterator[Callable[[str, int], None]]:
    """Shows how far it is: on a terminal as a bar, with --json as objects."""
    done = 0
    with bar("archiving") as moved:

        def told(stream: str, count: int) -> None:
            nonlocal done
            ahead = sum(
                max(0, each.last - keeper.board.watermark(name)) for name, each in keeper.board.log_streams().items()
            )
            done += count
            moved(done, done + ahead)
            if as_json:
                print_json({"stream": stream, "sequences": count, "last": keeper.board.watermark(stream)})

        yield told


def _summary(keeper: Keeper, as_json: bool) -> None:
    facts = keeper.board.describe()
    if as_json:
        print_json({"archived": facts["job"]["rows"], "streams": facts["streams"]})
    else:
        click.echo(f"Archived {facts['job']['rows']} notifications of {len(facts['streams'])} streams")
