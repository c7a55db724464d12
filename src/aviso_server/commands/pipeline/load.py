"""`aviso-server pipeline load`: publish millions of notifications from files, or import them as past."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from aviso_server.commands.bar import bar
from aviso_server.commands.client import credentials
from aviso_server.commands.output import fail, json_option, print_json, printable
from aviso_server.commands.pipeline.place import Place, connection, find, place_options, spark_session
from aviso_server.commands.pipeline.untouched_log import refuse_history, with_untouched_stream
from aviso_server.errors import AvisoError, PipelineError, RequestError
from aviso_server.model.quarantine import FOLDER
from aviso_server.model.schema import Catalogue, EventType, GenericType

if TYPE_CHECKING:
    from aviso_server.pipeline.load.loading import Loading
    from aviso_server.pipeline.load.publish import Published
    from aviso_server.pipeline.options import Options

__all__ = ["load"]

Opened = Callable[[], AbstractContextManager["Loading"]]
"""Starts Spark and finds the files."""

TOO_MANY = 3
"""The exit code that says: more rows were refused than --max-bad allows."""

_MOST_REASONS = 20  # that are shown to people
_RETRIES = "10"


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
    form: Any,
    dry_run: bool,
    max_bad: str | None,
    quarantine: Path | None,
    history: bool,
    path: str | None,
    batch: int,
    again: bool,
    as_json: bool,
) -> None:
    """Load notifications from FILES: paths, globs, folders, or - for standard input.

    NDJSON, JSON arrays, CSV and Parquet, packed with gzip or not. Every row is checked first, by the rules of the
    event type; refused rows go to a quarantine table and stop nothing. Then the others are published in order. A load
    that was interrupted goes on where it ended when the same command is given again; no row is published twice.

    \b
    Examples:
      aviso-server pipeline load june.ndjson.gz --event-type mars --dry-run
      aviso-server pipeline load data/ --event-type mars --max-bad 1% --url http://aviso:8000
      aviso-server pipeline load '2024-*.csv' --event-type mars --history

    \b
    Exit codes: 0 done, 1 it did not work, 2 wrong usage, 3 more rows were refused than --max-bad allows.
    """
    from aviso_server.pipeline.load.summary import read_limit

    credentials(token, user)
    if history and (dry_run or again or url):
        raise click.UsageError("--history goes with neither --dry-run nor --again nor --url")
    try:
        limit = read_limit(max_bad)
    except PipelineError as error:
        raise click.BadParameter(str(error), param_hint="--max-bad") from None
    place = find(file, path, url, spark)
    command = _Command(place, event_type, as_json, again, batch)
    try:
        if history:
            refuse_history(place.settings)
        options = None if history or (dry_run and url is None) else connection(place, token, user, retries=_RETRIES)
        kind = _kind(place, event_type, options)
        folder = quarantine or (None if dry_run else place.settings.archive.work_path / FOLDER)
        opened = partial(_loading, place, files, form, kind, folder, limit)
        if history:
            command.history(opened, kind.base)
        elif dry_run:
            command.check(opened)
        else:
            assert options is not None
            command.publish(opened, options)
    except AvisoError as error:
        _fail(error)


def _fail(error: AvisoError) -> NoReturn:
    from aviso_server.pipeline.load.loading import TooManyRefused

    if isinstance(error, TooManyRefused):
        click.echo(f"aviso-server: {error}", err=True)
        raise SystemExit(TOO_MANY)
    fail(str(error))


def _kind(place: Place, name: str, options: Options | None) -> EventType | GenericType:
    """The event type as the server describes it, or the configuration where no server is asked."""
    settings = place.settings
    try:
        if options is None:
            return Catalogue({each.name: each for each in settings.event_types}, settings.strict).find(name)
        from aviso_server.pipeline.catalogue import event_types, fetch_catalogue

        return event_types([name], fetch_catalogue(options))[name]
    except RequestError as error:
        raise PipelineError(error.message) from None


@contextmanager
def _loading(
    place: Place, files: tuple[str, ...], form: Any, kind: EventType | GenericType, quarantine: Path | None, limit: Any
) -> Iterator[Loading]:
    from aviso_server.pipeline.load.inputs import find_inputs
    from aviso_server.pipeline.load.loading import SETTINGS, Loading

    _sweep(place.settings.archive.work_path)
    try:
        given = find_inputs(files, sys.stdin.buffer, place.work / "stdin", form)
        with spark_session(place, "aviso-load", SETTINGS) as session:
            yield Loading(session, given, kind, place.work / "load", quarantine, limit)
    finally:
        shutil.rmtree(place.work, ignore_errors=True)


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


class _Command:
    """What the options ask for, with words for whoever waits."""

    def __init__(self, place: Place, event_type: str, as_json: bool, again: bool, batch: int) -> None:
        self._place = place
        self._event_type = event_type
        self._as_json = as_json
        self._again = again
        self._batch = batch
        self._latest = time.time_ns()

    def check(self, opened: Opened) -> None:
        """Only report."""
        with opened() as loading, self._told(loading), bar("checking", at_once=False) as told:
            loading.check(self._latest, told)

    def publish(self, opened: Opened, options: Options) -> None:
        """Check, then publish."""
        from aviso_server.pipeline.load.ledger import LoadLedger

        ledger = LoadLedger(self._place.settings.archive.work_path / "loads", options.url, self._event_type)
        if self._again:
            ledger.forget(uuid.uuid4().hex)
        result: list[Published] = []
        with (
            opened() as loading,
            self._told(loading, result),
            bar("checking", at_once=False) as checked,
            bar("publishing", at_once=False) as told,
        ):

            def heard(so_far: Published, total: int) -> None:
                result[:] = [so_far]
                told(so_far.published + so_far.before + so_far.refused, total)

            loading.publish(options, ledger, self._batch, self._latest, checked, heard)

    def history(self, opened: Opened, stream: str) -> None:
        """Check, then import; Spark starts only when nothing is in the way."""
        from aviso_server.pipeline.archive.keeper import Keeper
        from aviso_server.pipeline.load.history import refuse_if_archived

        refuse_if_archived(self._place.path, stream)
        keeper = Keeper(self._place.path, self._place.work, self._place.spark)
        keeper.lock()
        try:
            with_untouched_stream(self._place.settings, stream, lambda: self._import(opened))
        finally:
            keeper.close()

    def _import(self, opened: Opened) -> int:
        imported: list[int] = []
        with (
            opened() as loading,
            self._told(loading, imported=imported),
            bar("checking", at_once=False) as checked,
            bar("importing", at_once=False) as told,
        ):
            imported.append(loading.import_history(self._place.path, self._latest, checked, told))
        return imported[0]

    @contextmanager
    def _told(
        self, loading: Loading, published: list[Published] | None = None, imported: list[int] | None = None
    ) -> Iterator[None]:
        """Say what came of it, whether it went well or not."""
        try:
            yield
        finally:
            if loading.summary.rows or loading.summary.lines or self._as_json:
                self._report(loading, published[0] if published else None, imported)

    def _report(self, loading: Loading, published: Published | None, imported: list[int] | None) -> None:
        summary = loading.summary
        facts: dict[str, Any] = summary.describe()
        facts["quarantine"] = None if loading.quarantined is None else str(loading.quarantined)
        if published is not None:
            facts |= {
                "published": published.published,
                "published_before": published.before,
                "refused_by_server": published.refused,
            }
        if imported:
            facts |= {"imported": imported[0], "next_sequence": imported[0] + 1}
        if self._as_json:
            print_json(facts)
            return
        click.echo(f"{facts['rows']} rows: {facts['taken']} taken, {facts['refused']} refused")
        for reason, count in summary.ranked()[:_MOST_REASONS]:
            click.echo(f"  {count} × {printable(reason.rule)} ({reason.code})")
        if len(summary.reasons) > _MOST_REASONS:
            click.echo(f"  … and {len(summary.reasons) - _MOST_REASONS} more reasons")
        if published is not None:
            click.echo(
                f"Published {published.published}; {published.before} had been published before, "
                f"{published.refused} were refused by the server"
            )
        if imported:
            click.echo(f"Imported {imported[0]}; the first publication gets sequence {imported[0] + 1}")
        if loading.quarantined is not None:
            click.echo(f"Refused rows are in {loading.quarantined}")
