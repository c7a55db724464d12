"""`aviso-server pipeline load`: publish millions of notifications from files, or import them as past."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aviso_server.commands.pipeline.place import (
    Place,
    connection,
    find,
    on_spark,
    place_options,
    say_that_spark_starts,
    spark_session,
)
from aviso_server.commands.server_connection import credentials
from aviso_server.commands.terminal import bar, fail, json_option, print_json
from aviso_server.config.settings import Settings
from aviso_server.errors import AvisoError, LogInUse, PipelineError, RequestError
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.event_type import Catalogue, EventType, GenericType
from aviso_server.model.json_text import printable
from aviso_server.model.quarantine import QUARANTINE_FOLDER
from aviso_server.spark.command_jobs import SETTINGS, definition_of

if TYPE_CHECKING:
    from aviso_server.spark.load.inputs import Form, Input, LoadRequest
    from aviso_server.spark.load.load_report import Limit, LoadReport
    from pyspark_aviso.options import Options

__all__ = ["load"]

TOO_MANY = 3
"""The exit code that says: more rows were refused than --max-bad allows."""

_MOST_REASONS = 20  # that are shown to people
_RETRIES = "10"
_SMALL = 32 * 1024 * 1024  # bytes of files that are checked sooner than a Spark of their own would start


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--event-type", required=True, metavar="NAME", help="What the notifications are.")
@place_options
@click.option("--form", type=click.Choice(["ndjson", "json", "csv", "parquet"]),
              help="What the files are.  [default: by name and content]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check every row and report; publish nothing.")
@click.option("--max-bad", metavar="N|P%", help="Publish nothing if more rows than this are refused.")
@click.option("--quarantine", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Where refused rows go.  [default: in archive.work_path; none for --dry-run]")  # fmt: skip
@click.option("--history", is_flag=True, help="Import as the past of a stream that was never published to.")
@click.option("--batch", type=click.IntRange(1, 100_000), default=1000, show_default=True, metavar="ROWS",
              help="Notifications per request.")  # fmt: skip
@click.option("--again", is_flag=True, help="Publish rows that were published before once more.")
@json_option
def load(
    files: tuple[str, ...],
    event_type: str,
    file: Path | None,
    url: str | None,
    token: str | None,
    user: str | None,
    spark: str | None,
    form: Form | None,
    dry_run: bool,
    max_bad: str | None,
    quarantine: Path | None,
    history: bool,
    path: str | None,
    batch: int,
    again: bool,
    as_json: bool,
) -> None:
    """Load notifications from FILES: paths, globs, folders, addresses of stores, or - for standard input.

    NDJSON, JSON arrays, CSV and Parquet; texts may be compressed. Every row is checked first, by the rules of the event
    type; refused rows go to a quarantine table and stop nothing. Then the others are published in order. A load that
    was interrupted goes on where it ended when the same command is given again; no row is published twice.

    \b
    Examples:
      aviso-server pipeline load june.ndjson.gz --event-type mars --dry-run
      aviso-server pipeline load data/ --event-type mars --max-bad 1% --url http://aviso:8000
      aviso-server pipeline load '2024-*.csv' --event-type mars --history

    \b
    Exit codes: 0 done, 1 it did not work, 2 wrong usage, 3 more rows were refused than --max-bad allows.
    """
    from aviso_server.spark.load.inputs import LoadRequest, find_inputs
    from aviso_server.spark.load.load_report import read_limit

    credentials(token, user)
    if history and (dry_run or again or url):
        raise click.UsageError("--history goes with neither --dry-run nor --again nor --url")
    try:
        limit = read_limit(max_bad)
    except PipelineError as error:
        raise click.BadParameter(str(error), param_hint="--max-bad") from None
    place = find(file, path, url, spark)
    try:
        if history:
            _refuse_history(place.settings)
        options = None if history or (dry_run and url is None) else connection(place, token, user, retries=_RETRIES)
        kind = _kind(place, event_type, options)
        if isinstance(kind, GenericType):
            words = f"event type '{printable(event_type)}' has no schema: only the form of the rows is checked"
            click.echo(f"aviso-server: {words}", err=True)
        _sweep(place.settings.archive.work_path)
        given = find_inputs(files, sys.stdin.buffer, place.work / "stdin", form)
        folder = quarantine or (None if dry_run else place.settings.archive.work_path / QUARANTINE_FOLDER)
        if history:
            report = _import(place, kind, given, form, folder, limit)
        else:
            request = LoadRequest(
                files=given,
                form=form,
                event_type=kind.name,
                server=options,
                dry_run=dry_run,
                work=str((place.work / "load").resolve()),
                quarantine=None if folder is None else str(folder.absolute()),
                ledgers=str((place.settings.archive.work_path / "loads").resolve()),
                limit=limit,
                batch=batch,
                again=again,
            )
            report = _load(place, kind, request, with_spark=spark is not None)
        if report.quarantine is not None and folder is not None:  # as it was named, not as Spark was told
            report = msgspec.structs.replace(report, quarantine=str(folder / Path(report.quarantine).name))
    except AvisoError as error:
        fail(str(error))
    finally:
        shutil.rmtree(place.work, ignore_errors=True)
    if report.summary.rows or not report.error or as_json:
        _print(report, as_json)
    if report.error:
        click.echo(f"aviso-server: {report.error}", err=True)
        raise SystemExit(TOO_MANY if report.too_many else 1)


def _kind(place: Place, name: str, options: Options | None) -> EventType | GenericType:
    """Return the event type as the server describes it, or the configuration where no server is asked."""
    settings = place.settings
    try:
        if options is not None:
            from aviso_server.spark.catalogue import event_type_of, fetch_catalogue

            return event_type_of(name, fetch_catalogue(options))
        if not settings.event_types:
            raise PipelineError(
                f"nothing is known of event type '{name}', so there is nothing to check rows by: name the "
                "configuration of the server with --config, or the server with --url"
            )
        return Catalogue({each.name: each for each in settings.event_types}, settings.strict).find(name)
    except RequestError as error:
        raise PipelineError(error.message) from None


def _load(place: Place, kind: EventType | GenericType, request: LoadRequest, with_spark: bool) -> LoadReport:
    """Load here what is checked before Spark would have started; with Spark what is large, or none of ours to read."""
    from aviso_server.spark.load.load_report import LoadReport
    from aviso_server.spark.load.loading import load as load_here

    members = {"event_type": definition_of(kind), "load": msgspec.to_builtins(request)}
    sizes = [each.bytes for each in request.files]
    is_small = sum(size or 0 for size in sizes) <= _SMALL and None not in sizes
    with _steps("checking", "publishing") as heard:
        if is_small and not with_spark and all(each.is_text for each in request.files):
            return load_here(None, kind, request, heard)
        return msgspec.convert(on_spark(place, "load", members, heard, is_small), LoadReport)


@contextmanager
def _steps(*steps: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each step, when there is progress to show."""
    with bar(steps[0], at_once=False) as first, bar(steps[1], at_once=False) as second:
        moved = dict(zip(steps, (first, second), strict=True))
        yield lambda step, done, total: moved[step](done, total)


def _import(
    place: Place,
    kind: EventType | GenericType,
    files: list[Input],
    form: Form | None,
    quarantine: Path | None,
    limit: Limit,
) -> LoadReport:
    """Check, then import; Spark starts only when nothing is in the way."""
    from aviso_server.spark.archiver import Archiver
    from aviso_server.spark.load.history_import import refuse_if_archived
    from aviso_server.spark.load.inputs import listed
    from aviso_server.spark.load.load_report import LoadReport
    from aviso_server.spark.load.loading import Loading, TooManyRefused

    report = LoadReport()

    def work() -> int:
        nonlocal report
        say_that_spark_starts()
        with _steps("checking", "importing") as heard, spark_session(place, "aviso-load", SETTINGS["load"]) as session:
            loading = Loading(session, listed(session, files, form), kind, place.work / "load", quarantine, limit)
            try:
                imported = loading.import_history(
                    place.path,
                    time.time_ns(),
                    lambda done, total: heard("checking", done, total),
                    lambda done, total: heard("importing", done, total),
                )
            except TooManyRefused as error:
                report = msgspec.structs.replace(loading.report(), error=str(error), too_many=True)
                return 0
        report = msgspec.structs.replace(loading.report(), imported=imported)
        return imported

    refuse_if_archived(place.path, kind.base)
    archiver = Archiver(place.path, place.work, place.spark)
    archiver.lock()
    try:
        _with_untouched_stream(place.settings, kind.base, work)
    finally:
        archiver.close()
    return report


def _print(report: LoadReport, as_json: bool) -> None:
    summary, published = report.summary, report.published
    facts: dict[str, Any] = {**summary.describe(), "quarantine": report.quarantine}
    if published is not None:
        facts |= {
            "published": published.published,
            "published_before": published.before,
            "refused_by_server": published.refused,
        }
    if report.imported is not None:
        facts |= {"imported": report.imported, "next_sequence": report.imported + 1}
    if as_json:
        print_json(facts)
        return
    rows = "1 row" if summary.rows == 1 else f"{summary.rows} rows"
    click.echo(f"{rows}: {summary.taken} taken, {summary.refused} refused")
    for reason, count in summary.ranked()[:_MOST_REASONS]:
        click.echo(f"  {count} × {printable(reason.rule)} ({reason.code})")
    if len(summary.reasons) > _MOST_REASONS:
        click.echo(f"  … and {len(summary.reasons) - _MOST_REASONS} more reasons")
    if published is not None:
        click.echo(
            f"Published {published.published}; {published.before} had been published before, "
            f"{published.refused} were refused by the server"
        )
    if report.imported is not None:
        click.echo(f"Imported {report.imported}; the first publication gets sequence {report.imported + 1}")
    if report.quarantine is not None:
        click.echo(f"Refused rows are in {report.quarantine}")


def _sweep(folder: Path) -> None:
    """Remove what loads have left that were killed."""
    for left in folder.glob("command-*/load"):
        owner = left.parent.name.removeprefix("command-")
        if owner.isdigit() and not _is_running(int(owner)):
            shutil.rmtree(left.parent, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _refuse_history(settings: Settings) -> None:
    """Raise PipelineError if a server with these settings could not go on after an imported past."""
    backend = settings.notification_backend
    if backend.kind != "sqlite":
        raise PipelineError(
            f"--history needs a log in SQLite, which can go on numbering after the past; notification_backend.kind is "
            f"{backend.kind}"
        )
    if not settings.archive.enabled:
        raise PipelineError("--history puts rows into the archive, and archive.enabled is off: nobody would read them")


def _with_untouched_stream(settings: Settings, stream: str, work: Callable[[], int]) -> int:
    """Do the work while no server can publish to the stream; then its first publication gets the next sequence.

    PipelineError if the stream has ever had a notification, or if a server is running on the log.
    """
    path = settings.notification_backend.sqlite.path
    path.mkdir(parents=True, exist_ok=True)
    log = SqliteLog(path)
    with asyncio.Runner() as loop:
        try:
            loop.run(log.open())
        except LogInUse as error:
            raise PipelineError(f"history is imported while no server runs: {error}") from None
        try:
            state = loop.run(log.state(stream))
            if state.last:
                raise PipelineError(
                    f"stream '{stream}' has notifications already, up to sequence {state.last} in the log: history can "
                    "be imported only before the first notification. Publish these rows instead"
                )
            count = work()
            if count:
                loop.run(log.advance(stream, count))
            return count
        finally:
            loop.run(log.close())
