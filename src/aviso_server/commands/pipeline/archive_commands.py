"""`aviso-server pipeline archive`, `compact`, `migrate` and `status`: fill an archive, tend it, and see how it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from aviso_server.commands.pipeline.place import (
    Place,
    archive_options,
    ask_streams,
    existing,
    find,
    kept,
    place_options,
)
from aviso_server.commands.server_connection import credentials
from aviso_server.commands.terminal import (
    bar,
    csv_option,
    fail,
    json_option,
    print_csv,
    print_json,
    print_table,
    range_text,
)
from aviso_server.errors import PipelineError
from aviso_server.lake.removal_journal import JOURNAL, Removal, write_removals
from aviso_server.model.json_text import printable

if TYPE_CHECKING:
    from aviso_server.lake.previous import Migrated
    from aviso_server.spark.archiver import Archiver, ArchiveSettings, LogStream, StreamStatus

__all__ = ["archive", "compact", "migrate", "status"]

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

    May be stopped or killed at any time: it goes on after the last commit. One process archives at a time; a server
    with `archive.enabled` does it by itself.

    \b
    Examples:
      aviso-server pipeline archive --once
      aviso-server pipeline archive --url http://aviso:8000 --path /lake/aviso --spark local[4]
      aviso-server pipeline archive --path s3://bucket/aviso --spark spark://head:7077

    \b
    Exit codes: 0 done or stopped as asked, 1 it did not work, 2 wrong usage.
    """
    credentials(token, user)
    place = find(file, path, url, spark)
    with kept(place) as archiver:
        task = _task(place, interval, token, user)
        if once:
            with bar("archiving") as moved:
                archiver.run_once(task, _steps(archiver, place, as_json, moved))
            _summary(archiver, as_json)
        else:
            stop = threading.Event()
            try:
                archiver.run(task, stop, _steps(archiver, place, as_json, None))
            except KeyboardInterrupt:
                stop.set()


def _task(place: Place, interval: float | None, token: str | None, user: str | None) -> ArchiveSettings:
    from aviso_server.spark.archiver import ArchiveSettings

    name, _, password = (user or "").partition(":")
    return ArchiveSettings(
        url=place.url,
        interval=interval or place.settings.archive.interval / _SECOND,
        token=token,
        username=name or None,
        password=password if name else None,
    )


def _steps(
    archiver: Archiver, place: Place, as_json: bool, moved: Callable[[int, int], None] | None
) -> Callable[[str, int], None]:
    """Return what shows each step: as an object with --json, else on the bar, or as a line where there is no bar."""
    done, status = 0, archiver.status

    def told(stream: str, count: int) -> None:
        nonlocal done
        done, last = done + count, status.watermark(stream)
        if moved is not None:
            moved(
                done,
                done + sum(max(0, each.last - status.watermark(name)) for name, each in status.log_streams().items()),
            )
        if as_json:
            print_json({"event_type": place.event_type(stream), "stream": stream, "sequences": count, "last": last})
        elif moved is None:
            click.echo(f"{printable(place.event_type(stream))}: {count} more, up to {last}")

    return told


def _summary(archiver: Archiver, as_json: bool) -> None:
    facts = archiver.status.describe()
    if as_json:
        print_json({"archived": facts["job"]["rows"], "streams": facts["streams"]})
    else:
        click.echo(f"Archived {facts['job']['rows']} notifications of {len(facts['streams'])} streams")


@click.command()
@archive_options
@click.option("--keep", type=click.IntRange(min=0), default=24, show_default=True, metavar="HOURS",
              help="How long replaced files stay on disk: outside readers may still be at work on them.")  # fmt: skip
@json_option
def compact(file: Path | None, path: str | None, spark: str | None, keep: int, as_json: bool) -> None:
    """Merge the files of an archive as far as they go, and remove replaced files from disk.

    A server compacts its own archive while it runs, when that pays; this goes all the way. It may run beside a server,
    and may be stopped or killed at any time. With less than 24 hours to keep it may not: replays of the server may need
    these files.

    \b
    Examples:
      aviso-server pipeline compact
      aviso-server pipeline compact --path /lake/aviso --keep 0 --json

    \b
    Exit codes: 0 done, 1 it did not work, 2 wrong usage.
    """
    from aviso_server.lake.table import KEEP_HOURS

    merged: dict[str, int] = {}
    place = existing(find(file, path, spark=spark))
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("compacting {task.description}"), TextColumn("{task.completed} files"))
    with (
        kept(place, alone=keep < KEEP_HOURS) as archiver,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        row = progress.add_task("", total=None)

        def told(stream: str, count: int) -> None:
            merged[stream] = merged.get(stream, 0) + count
            progress.update(row, advance=count, description=place.event_type(stream))

        compactor = archiver.compactor()
        for _ in compactor.run(everything=True, merged=told):
            pass
        removed = compactor.vacuum(keep)
        archiver.status.read()
        files = {name: each.files for name, each in archiver.status.streams().items()}
    if as_json:
        print_json({"rewritten": merged, "removed": removed, "files": files})
    else:
        click.echo(
            f"Rewrote {sum(merged.values())} files and removed {removed} from disk; now there are "
            f"{sum(files.values())} in {len(files)} streams"
        )


@click.command()
@archive_options
@json_option
def migrate(file: Path | None, path: str | None, spark: str | None, as_json: bool) -> None:
    """Make Delta tables of an archive that an earlier version has written.

    Every file is compared with its copy before it counts, and the old files go when all of a stream is there. May be
    stopped or killed at any time: it goes on where it was. A server that runs meanwhile archives nothing and keeps its
    log; it takes the tables up within five minutes. Run 'aviso-server pipeline audit' afterwards.

    \b
    Examples:
      aviso-server pipeline migrate
      aviso-server pipeline migrate --path /lake/aviso --json

    \b
    Exit codes: 0 done or nothing to do, 1 it did not work, 2 wrong usage.
    """
    from aviso_server.lake.previous import migrate as run
    from aviso_server.lake.table import Tables

    place = existing(find(file, path, spark=spark))
    done: dict[str, Migrated] = {}
    try:
        tables = Tables(place.path)
        with bar("migrating") as moved:
            for stream, result in run(
                tables, lambda name, at, last: moved(at, last, printable(place.event_type(name)))
            ):
                done[stream] = result
                _hand_on(place.settings.archive.work_path / JOURNAL, stream, result)
    except (PipelineError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json({"streams": {stream: msgspec.to_builtins(each) for stream, each in done.items()}})
        return
    for stream, each in done.items():
        name = printable(place.event_type(stream))
        click.echo(f"{name}: {each.rows} notifications up to {each.last}, from {each.files} files")
    if not done:
        click.echo("There is nothing to migrate: the archive has the format of this version")


def _hand_on(journal: Path, stream: str, result: Migrated) -> None:
    """Let the server ask again for what was deleted before it could be archived."""
    early = [Removal("delete", stream, sequence) for sequence in result.early.deleted]
    if result.early.wiped_through:
        early.append(Removal("wipe", stream, result.early.wiped_through))
    write_removals(journal, early)


@click.command()
@place_options
@click.option("--offline", is_flag=True, help="Look at the files only; ask no server.")
@json_option
@csv_option
def status(
    file: Path | None,
    url: str | None,
    path: str | None,
    spark: str | None,
    token: str | None,
    user: str | None,
    offline: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show what log and archive hold of each event type, how far the archive is behind, and what went wrong last.

    Looks at the files themselves, whoever keeps them.

    \b
    Examples:
      aviso-server pipeline status
      aviso-server pipeline status --path /lake/aviso --offline --json

    \b
    Exit codes: 0 shown, 1 the archive or the server cannot be reached, 2 wrong usage.
    """
    headers = credentials(token, user)
    place = find(file, path, url, spark)
    with kept(place, with_spark=False, alone=False) as archiver:
        archived = archiver.status.streams()
    held = {} if offline else ask_streams(place.url, headers)
    rows: dict[str, dict[str, Any]] = {}
    for stream in sorted({*archived, *held}):
        name = held[stream].event_type if stream in held else place.event_type(stream)
        rows[stream] = {"event_type": name, **_row(archived.get(stream), held.get(stream))}
    if as_json:
        print_json({"archive": place.path, "streams": rows})
    elif as_csv:
        print_csv(
            ("event_type", "log_first", "log_last", "archive_first", "archive_last",
             "lag", "files", "bytes", "last_error"),
            [
                (facts["event_type"], *_ends(facts["log"]), *_ends(facts),
                 *(facts[each] for each in ("lag", "files", "bytes", "last_error")))
                for facts in rows.values()
            ],
        )  # fmt: skip
    elif rows:
        print_table(
            ("event type", "log", "archive", "lag", "files", "bytes", "last error"),
            [
                (
                    facts["event_type"],
                    "unknown" if facts["log"] is None else range_text(facts["log"]["first"], facts["log"]["last"]),
                    range_text(facts["first"], facts["last"]),
                    "" if facts["lag"] is None else facts["lag"],
                    facts["files"],
                    facts["bytes"],
                    facts["last_error"] or "",
                )
                for facts in rows.values()
            ],
        )
    else:
        click.echo("Nothing is archived and the log is empty")


def _ends(held: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """Return the first and the last sequence, or twice None if nothing is held or nobody knows."""
    return (held["first"], held["last"]) if held is not None and held["last"] >= held["first"] else (None, None)


def _row(archived: StreamStatus | None, held: LogStream | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"log": None, "lag": None}
    if held is not None:
        facts["log"] = {"first": held.first, "last": held.last}
        facts["lag"] = max(0, held.last - (0 if archived is None else archived.last))
    own = {"first": 1, "last": 0, "files": 0, "bytes": 0, "archived_at": None, "last_error": None}
    return {**facts, **(own if archived is None else msgspec.to_builtins(archived))}
