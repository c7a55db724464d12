"""One load from beginning to end: check every row, keep what was refused, and then publish or import the others."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aviso_server.errors import AvisoError, PipelineError
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.spark.command_jobs import Heard
from aviso_server.spark.load.blocks import (
    Block,
    CheckTask,
    Told,
    check_here,
    fault_parts,
    lines_and_bytes_before,
    part_path,
)
from aviso_server.spark.load.inputs import Input, LoadRequest, listed
from aviso_server.spark.load.load_report import (
    Limit,
    LoadReport,
    Published,
    Summary,
    quarantine_file,
    summed,
    write_quarantine,
)
from aviso_server.spark.load.row_checks import Wanted
from aviso_server.spark.load.row_texts import check_columns
from aviso_server.spark.load.sending import ItemPart, LoadLedger, publish_all
from pyspark_aviso.options import Options

if TYPE_CHECKING:  # Spark is large: a small load does without it
    from pyspark.sql import SparkSession

__all__ = ["Loading", "TooManyRefused", "load"]


class TooManyRefused(PipelineError):
    """More rows were refused than may be."""


def load(session: SparkSession | None, kind: EventType | GenericType, request: LoadRequest, heard: Heard) -> LoadReport:
    """Do what is requested; what stops it is part of the report, beside what was done before."""
    loading: Loading | None = None
    published: Published | None = None

    def checked(done: int, total: int) -> None:
        heard("checking", done, total)

    def sent(so_far: Published, total: int) -> None:
        nonlocal published
        published = so_far
        heard("publishing", so_far.published + so_far.before + so_far.refused, total)

    error: AvisoError | None = None
    try:
        quarantine = None if request.quarantine is None else Path(request.quarantine)
        files = request.files if session is None else listed(session, request.files, request.form)
        loading = Loading(session, files, kind, Path(request.work), quarantine, request.limit)
        if request.dry_run or request.server is None:
            loading.check(time.time_ns(), checked)
        else:
            ledger = LoadLedger(Path(request.ledgers), request.server.url, kind.name)
            if request.again:
                ledger.forget(uuid.uuid4().hex)
            published = loading.publish(request.server, ledger, request.batch, time.time_ns(), checked, sent)
    except AvisoError as failure:
        error = failure
    finally:
        shutil.rmtree(request.work, ignore_errors=True)
    return msgspec.structs.replace(
        LoadReport() if loading is None else loading.report(),
        published=published,
        error="" if error is None else str(error),
        too_many=isinstance(error, TooManyRefused),
    )


class Loading:
    """A load of some files; nothing is published or imported before every row has been checked.

    Without a session this process checks the rows. It can do so with text files of this machine.
    """

    def __init__(
        self,
        session: SparkSession | None,
        files: Sequence[Input],
        event_type: EventType | GenericType,
        work: Path,
        quarantine: Path | None = None,
        limit: Limit = Limit(),  # noqa: B008  # frozen
        split_bytes: int | None = None,
    ) -> None:
        self.summary = Summary()
        self.quarantined: Path | None = None  # where the refused rows are
        self._session = session
        self._files = files
        self._event_type = event_type
        self._work = work
        self._quarantine = quarantine
        self._limit = limit
        self._split_bytes = split_bytes
        self._blocks: list[Block] = []

    def check(self, latest: int, told: Told = lambda done, total: None) -> Summary:
        """Check every row, and do no more; TooManyRefused if too many are bad."""
        return self._check(Wanted(), latest, told)

    def publish(
        self,
        options: Options,
        ledger: LoadLedger,
        batch: int,
        latest: int,
        checked: Told = lambda done, total: None,
        told: Callable[[Published, int], None] = lambda so_far, total: None,
    ) -> Published:
        """Check every row and then publish what was taken, in order."""
        self._check(Wanted(given=True), latest, checked)

        def heard(so_far: Published) -> None:
            told(so_far, self.summary.taken)
            self._refuse_too_many(so_far.refused)

        try:
            return publish_all(options, self._event_type.name, self._items(), ledger, batch, heard)
        finally:
            if ledger.refused({each.name for each in self._files}):
                self._keep_refused(ledger)

    def import_history(self, root: str, latest: int, checked: Told, told: Told) -> int:
        """Check every row and then make what was taken the past of the stream; return how many there are."""
        from aviso_server.spark.load.history_import import import_history

        assert self._session is not None, "history is numbered by Spark"
        self._check(Wanted(history=True), latest, checked)
        return import_history(self._session, root, self._event_type, self._work, told=told)

    def report(self) -> LoadReport:
        return LoadReport(summary=self.summary, quarantine=None if self.quarantined is None else str(self.quarantined))

    def close(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)

    def _items(self) -> list[ItemPart]:
        return [
            ItemPart(self._files[block.file].name, part_path(self._work, "items", block.file, block.start), lines, size)
            for block, (lines, size) in zip(self._blocks, lines_and_bytes_before(self._blocks), strict=True)
        ]

    def _check(self, wanted: Wanted, latest: int, told: Told) -> Summary:
        for each in self._files:
            if each.form == "csv":
                check_columns(each.columns, self._event_type, each.name, wanted.history)
        shutil.rmtree(self._work, ignore_errors=True)
        task = CheckTask(self._event_type, wanted, latest, str(self._work.resolve()), self._quarantine is not None)
        if self._session is None:
            self._blocks = check_here(self._files, task, told)
        else:
            from aviso_server.spark.load.check_job import check_all

            self._blocks = check_all(self._session, self._files, task, told, self._split_bytes)
        self.summary = summed([block.summary for block in self._blocks])
        self._keep_refused(None)
        self._refuse_too_many(0)
        return self.summary

    def _keep_refused(self, ledger: LoadLedger | None) -> None:
        if self._quarantine is None:
            return
        target = quarantine_file(self._quarantine, self._event_type.name, [each.name for each in self._files])
        more = [] if ledger is None else ledger.refused({each.name for each in self._files})
        parts = fault_parts(self._work, self._files, self._blocks)
        rows = write_quarantine(target, self._event_type.name, time.time_ns(), parts, self.summary, more)
        self.quarantined = target if rows else None

    def _refuse_too_many(self, more: int) -> None:
        """Count rows that only the server refused, too."""
        summary = self.summary
        if more:
            summary = msgspec.structs.replace(summary, refused=summary.refused + more)
        words = self._limit.broken(summary)
        if words is not None:
            raise TooManyRefused(f"{words}: nothing was published" if not more else words)
