"""`aviso-server pipeline audit`: prove that nothing is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aviso_server.archive.journal import read_removals
from aviso_server.commands.client import configured_url_option, credentials, token_option, user_option
from aviso_server.commands.output import FAILED, print_json, printable
from aviso_server.commands.pipeline.audit_report import print_audit
from aviso_server.commands.pipeline.place import Place, archive_path_option, config_option, find, spark_option
from aviso_server.errors import AvisoError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aviso_server.pipeline.archive.ranges import Range
    from aviso_server.pipeline.archive.storage import Storage
    from aviso_server.pipeline.audit.evidence import Removals
    from aviso_server.pipeline.audit.findings import Audit, Verdict
    from aviso_server.pipeline.audit.orders import Outcome
    from aviso_server.pipeline.options import Options

__all__ = ["audit"]

UNCHECKED = 2
"""The exit code that says: nobody can tell."""

_CODES: dict[Verdict, int] = {"clean": 0, "defects": FAILED, "unchecked": UNCHECKED}
_PATIENCE = 600.0  # seconds that the keeper of the archive may take to mend it
_GLANCE = 0.5


@click.command()
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@click.option("--repair", is_flag=True, help="Archive anew what is wrong and what the log still has; then audit again.")
@config_option
@configured_url_option
@archive_path_option
@spark_option
@token_option
@user_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(
    streams: tuple[str, ...],
    repair: bool,
    file: Path | None,
    url: str | None,
    path: str | None,
    spark: str | None,
    token: str | None,
    user: str | None,
    as_json: bool,
) -> None:
    """Prove that what was acknowledged is stored and archived, or show where it is not.

    STREAM is a stream or an event type; all if none are named. Every sequence of the log and of the archive is looked
    at: holes that neither deletes nor retention explain, duplicates, content that differs, and anything that is not
    in canonical form. The server may go on meanwhile. Of a server that is not ours only its log is checked.

    \b
    Examples:
      aviso-server pipeline audit
      aviso-server pipeline audit mars --repair
      aviso-server pipeline audit --url http://reference:8000 --json

    \b
    Exit codes: 0 nothing is wrong, 1 defects were found, 2 it could not be checked or wrong usage.
    """
    credentials(token, user)
    try:
        place = find(file, path, url, spark)
    except SystemExit:  # it has been said what is wrong with the configuration
        raise SystemExit(UNCHECKED) from None
    try:
        with _Auditing(place, streams, token, user) as auditing:
            found = auditing.run()
            mended = None
            if repair:
                mended = auditing.repair(found)
                if mended is not None:
                    found = auditing.run()
            if not streams:
                auditing.keep(found)
    except AvisoError as error:
        _fail(error)
    if as_json:
        print_json({**found.describe(), "repaired": [] if mended is None else mended.mended})
    else:
        print_audit(found, None if mended is None else mended.mended)
    if mended is not None and mended.error is not None:
        click.echo(f"aviso-server: not everything was mended: {printable(mended.error)}", err=True)
    raise SystemExit(_CODES[found.verdict])


def _fail(error: AvisoError) -> NoReturn:
    click.echo(f"aviso-server: {error}", err=True)
    raise SystemExit(UNCHECKED)


class _Auditing:
    """Spark, the server and the archive for one command."""

    def __init__(self, place: Place, streams: tuple[str, ...], token: str | None, user: str | None) -> None:
        self._place = place
        self._streams = streams
        self._options = _options(place, token, user)
        self._session: SparkSession | None = None

    def __enter__(self) -> _Auditing:
        from aviso_server.pipeline.archive.hadoop import storage_of
        from aviso_server.pipeline.audit.log_side import ServerLog
        from aviso_server.pipeline.session import has_session

        self._server = ServerLog(self._options, self._place.settings.event_types)
        self._server.streams(self._streams)  # before Spark starts: a name may be wrong
        self._borrowed = has_session()
        self._session = _started(self._place)
        self._storage: Storage = storage_of(self._place.path, self._session)
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None and not self._borrowed:
            self._session.stop()
        shutil.rmtree(self._place.work, ignore_errors=True)

    def run(self) -> Audit:
        """Look at everything."""
        from aviso_server.pipeline.audit.audit import Auditor

        assert self._session is not None
        auditor = Auditor(self._session, self._server, self._place.path, self._storage, self._pending)
        with _bar() as told:
            return auditor.run(self._streams, told)

    def keep(self, found: Audit) -> None:
        """Leave the verdict where the server looks for it."""
        from aviso_server.pipeline.archive.storage import LOCAL, is_local
        from aviso_server.pipeline.audit.findings import keep_verdict

        if self._server.lists_streams and any(each.archive is not None for each in found.streams.values()):
            keep_verdict(self._place.path, found, self._storage)
            if not is_local(self._place.path):
                keep_verdict(str(self._place.settings.archive.work_path), found, LOCAL)

    def repair(self, found: Audit) -> Outcome | None:
        """Mend what can be mended; None if there is nothing."""
        from aviso_server.pipeline.archive.keeper import Keeper
        from aviso_server.pipeline.audit.audit import to_mend
        from aviso_server.pipeline.audit.orders import order, outcome, withdraw

        wanted = to_mend(found)
        if not wanted:
            return None
        root = self._place.path
        keeper = Keeper(root, self._place.work, self._place.spark)
        name: str | None = None
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                keeper.lock()
            except PipelineError:  # somebody keeps it and is asked to do it
                name = name or order(root, wanted, self._storage)
                if (answer := outcome(root, name, self._storage)) is not None:
                    return answer
                time.sleep(_GLANCE)
                continue
            try:
                keeper.board.storage = self._storage
                if name is not None:
                    withdraw(root, name, self._storage)
                return self._mend(keeper.board, wanted)
            finally:
                keeper.close()
        assert name is not None
        withdraw(root, name, self._storage)
        raise PipelineError(f"whoever keeps the archive in {root} did not mend it within {_PATIENCE:g} s")

    def _mend(self, board: object, wanted: dict[str, list[Range]]) -> Outcome:
        from aviso_server.pipeline.archive.status import Board
        from aviso_server.pipeline.audit.orders import Outcome
        from aviso_server.pipeline.audit.repair import Repairer

        assert isinstance(board, Board)
        return Outcome(tuple(Repairer(board, self._place.work, self._options).run(wanted)))

    def _pending(self, stream: str) -> Removals:
        """What the server has noted and the archive has not heard of yet; nothing if the server is elsewhere."""
        from aviso_server.pipeline.audit.evidence import Removals

        noted = read_removals(self._place.settings.archive.work_path / "removals.jsonl")
        own = [each for each in noted if each.stream == stream]
        return Removals(
            max((each.sequence for each in own if each.kind == "wipe"), default=0),
            tuple(each.sequence for each in own if each.kind == "delete"),
        )


def _options(place: Place, token: str | None, user: str | None) -> Options:
    from aviso_server.pipeline.options import read_options

    given = {"url": place.url}
    if token:
        given["token"] = token
    if user:
        given["username"], _, given["password"] = user.partition(":")
    return read_options(given)


def _started(place: Place) -> SparkSession:
    from aviso_server.pipeline.archive.job import reason
    from aviso_server.pipeline.audit.audit import SETTINGS
    from aviso_server.pipeline.session import open_session

    try:
        return open_session(place.work / "spark", place.spark, "aviso-audit", SETTINGS)
    except PipelineError:
        raise
    except Exception as error:  # Spark has many ways to say that Java is gone
        raise PipelineError(f"Spark does not start: {reason(error)}") from None


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """How far it is, on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("auditing {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("", total=None)

        def told(stream: str, done: int, total: int) -> None:
            bar.update(row, description=printable(stream), completed=done, total=total)

        yield told
