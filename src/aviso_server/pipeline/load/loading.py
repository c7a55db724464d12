"""One load from beginning to end: check every row, keep what was refused, and then publish or import the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.load.history import import_history
from aviso_server.pipeline.load.inputs import Input
from aviso_server.pipeline.load.job import Told, check_all
from aviso_server.pipeline.load.ledger import LoadLedger
from aviso_server.pipeline.load.piece import CheckTask
from aviso_server.pipeline.load.publish import Published, publish_all
from aviso_server.pipeline.load.quarantine import first_lines, quarantine_file, write_quarantine
from aviso_server.pipeline.load.splits import SPLIT_BYTES, Split, cut
from aviso_server.pipeline.load.summary import Limit, Summary, summed
from aviso_server.pipeline.load.tables import check_columns
from aviso_server.pipeline.load.taken import Wanted
from aviso_server.pipeline.options import Options

__all__ = ["SETTINGS", "Loading", "TooManyRefused"]

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
"""What Spark is told for a load."""


class TooManyRefused(PipelineError):
    """More rows were refused than may be."""


class Loading:
    """A load of some files; nothing is published or imported before every row has been checked."""

    def __init__(
        self,
        session: SparkSession,
        files: Sequence[Input],
        event_type: EventType | GenericType,
        work: Path,
        quarantine: Path | None = None,
        limit: Limit = Limit(),  # noqa: B008  # frozen
        split_bytes: int = SPLIT_BYTES,
    ) -> None:
        self.summary = Summary()
        self.quarantined: Path | None = None  # where the refused rows are
        self._session = session
        self._files = files
        self._event_type = event_type
        self._work = work
        self._quarantine = quarantine
        self._limit = limit
        self._splits: list[Split] = cut(files, split_bytes)
        self._summaries: list[Summary] = []
        for split in self._splits:
            check_columns(split.columns, event_type, split.given.name)

    def check(self, latest: int, told: Told = lambda done, total: None) -> Summary:
        """Check every row, and do no more; TooManyRefused if too many are bad."""
        return self._check(Wanted(), latest, "", told)

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
        self._check(Wanted(given=True), latest, ledger.salt, checked)

        def heard(so_far: Published) -> None:
            told(so_far, self.summary.taken)
            self._refuse_too_many(so_far.refused)

        before = first_lines(self._splits, self._summaries)
        names = {each.name for each in self._files}
        try:
            return publish_all(options, self._splits, self._work, before, ledger, batch, heard)
        finally:
            if ledger.refused(names):
                self._keep_refused(ledger)

    def import_history(self, root: str, latest: int, checked: Told, told: Told) -> int:
        """Check every row and then make what was taken the past of the stream; how many."""
        self._check(Wanted(history=True), latest, "", checked)
        return import_history(self._session, root, self._event_type, self._work, told=told)

    def close(self) -> None:
        """Remove what was left for the next step."""
        shutil.rmtree(self._work, ignore_errors=True)

    def _check(self, wanted: Wanted, latest: int, salt: str, told: Told) -> Summary:
        for step in ("faults", "items", "history"):
            shutil.rmtree(self._work / step, ignore_errors=True)
        task = CheckTask(
            self._event_type, wanted, latest, str(self._work.resolve()), self._quarantine is not None, salt
        )
        self._summaries = check_all(self._session, self._splits, task, told)
        self.summary = summed(self._summaries)
        self._keep_refused(None)
        self._refuse_too_many(0)
        return self.summary

    def _keep_refused(self, ledger: LoadLedger | None) -> None:
        if self._quarantine is None:
            return
        target = quarantine_file(self._quarantine, self._event_type.name, self._files)
        more = [] if ledger is None else ledger.refused({each.name for each in self._files})
        rows = write_quarantine(
            target, self._event_type.name, time.time_ns(), self._work, self._splits, self._summaries, more
        )
        self.quarantined = target if rows else None

    def _refuse_too_many(self, more: int) -> None:
        """Rows that only the server refused count too."""
        summary = self.summary
        if more:
            summary = msgspec.structs.replace(summary, refused=summary.refused + more)
        words = self._limit.broken(summary)
        if words is not None:
            raise TooManyRefused(words)
