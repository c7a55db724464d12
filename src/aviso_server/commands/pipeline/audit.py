"""`aviso-server pipeline audit`: prove that nothing is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from aviso_server.archive.journal import read_removals
from aviso_server.commands.bar import bar
from aviso_server.commands.client import credentials
from aviso_server.commands.output import FAILED, json_option, print_json, printable
from aviso_server.commands.pipeline.audit_report import print_audit
from aviso_server.commands.pipeline.place import Place, connection, find, place_options, spark_session
from aviso_server.errors import AvisoError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aviso_server.pipeline.archive.ranges import Range
    from aviso_server.pipeline.audit.evidence import Removals
    from aviso_server.pipeline.audit.findings import Audit, Verdict
    from aviso_server.pipeline.audit.log_side import ServerLog
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
@place_options
@json_option
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
        with _auditing(place, streams, token, user) as auditing:
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


@contextmanager
def _auditing(place: Place, streams: tuple[str, ...], token: str | None, user: str | None) -> Iterator[_Auditing]:
    from aviso_server.pipeline.audit.audit import SETTINGS
    from aviso_server.pipeline.audit.log_side import ServerLog

    options = connection(place, token, user)
    server = ServerLog(options, place.settings.event_types)
    server.streams(streams)  # before Spark starts: a name may be wrong
    try:
        with spark_session(place, "aviso-audit", SETTINGS) as session:
            yield _Auditing(place, streams, options, server, session)
    finally:
        shutil.rmtree(place.work, ignore_errors=True)


class _Auditing:
    """Spark, the server and the archive for one command."""

    def __init__(
        self, place: Place, streams: tuple[str, ...], options: Options, server: ServerLog, session: SparkSession
    ) -> None:
        from aviso_server.pipeline.archive.hadoop import storage_of

        self._place = place
        self._streams = streams
        self._options = options
        self._server = server
        self._session = session
        self._storage = storage_of(place.path, session)

    def run(self) -> Audit:
        """Look at everything."""
        from aviso_server.pipeline.audit.audit import Auditor

        auditor = Auditor(self._session, self._server, self._place.path, self._storage, self._pending)
        with bar("auditing") as moved:
            return auditor.run(self._streams, lambda stream, done, total: moved(done, total, printable(stream)))

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
