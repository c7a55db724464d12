"""Whoever keeps an archive: holds its lock, its Spark session, its job, its compaction and its reader."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.hold import Held, Hold
from aviso_server.pipeline.archive.compaction import Compactor
from aviso_server.pipeline.archive.hadoop import storage_of
from aviso_server.pipeline.archive.job import ArchiveJob, Committed, SparkFailed, reason
from aviso_server.pipeline.archive.source import ArchiveTask
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL, is_local, local_path
from aviso_server.pipeline.bridge.operations import Cold
from aviso_server.pipeline.session import has_session, open_session

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)

_BETWEEN_COMPACTIONS = 30.0  # seconds
_BETWEEN_ORDERS = 2.0  # seconds between two looks whether somebody wants the archive mended
_SETTINGS = {
    "spark.scheduler.mode": "FAIR",  # replays, the job and compaction all get their turn
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.sql.streaming.stopTimeout": "10s",
}


class Keeper:
    """The owner of one archive in this process; there is at most one per archive."""

    def __init__(self, root: str, work: Path, master: str, settings: Mapping[str, str] | None = None) -> None:
        # Workers of a cluster start elsewhere, so a path of this machine is told in full. If the archive is not on
        # this machine, the right storage comes with Spark.
        self.board = Board(str(local_path(root).absolute()) if is_local(root) else root, LOCAL)
        self.deleted = threading.Event()  # set when compaction has something to remove
        self._root = root  # as people know it
        self._work = work
        self._master = master
        self._settings = {**_SETTINGS, **(settings or {})}
        self._session: SparkSession | None = None
        self._borrowed = False  # somebody else in this process has opened it, and closes it
        self._reader: Cold | None = None
        self._ready = threading.Event()
        self._making = threading.Lock()
        self._hold: Hold | None = None

    def lock(self) -> None:
        """Become the only one who writes to the archive; PipelineError if somebody else does."""
        root = self.board.root
        folder = local_path(root) if is_local(root) else self._work
        folder.mkdir(parents=True, exist_ok=True)
        hold = Hold(folder / "_lock")
        try:
            hold.take()
        except Held as held:
            raise PipelineError(f"the archive in {self._root} is in use by process {held.owner}") from None
        self._hold = hold

    def open(self) -> SparkSession:
        """Start Spark and look at the archive; PipelineError if there is no Java for it, SparkFailed if it broke."""
        self.board.state = "starting"
        for left in self._work.glob("checkpoint-*"):
            shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(self._work / "spark" / "tmp", ignore_errors=True)
        folder = self._work / "spark"
        self._borrowed = has_session()
        try:
            session = open_session(folder, self._master, "aviso-archive", self._settings)
        except PipelineError:
            raise
        except Exception as error:  # Spark has many ways to say that Java is gone
            raise SparkFailed(f"Spark does not start: {reason(error)} (see {folder / 'java.log'})") from None
        self.board.storage = storage_of(self.board.root, session)
        self.board.read()
        self._session = session
        self._ready.set()
        return session

    @property
    def session(self) -> SparkSession:
        """Spark, once it is open."""
        assert self._session is not None
        return self._session

    def alive(self) -> bool:
        """False if Spark's Java process is gone, or a Spark Connect server does not know us any more."""
        session = self._session
        if session is not None and not hasattr(session, "_jsparkSession"):  # one of Spark Connect
            return _answers(session)
        process = getattr(SparkContext._gateway, "proc", None)
        return process is None or process.poll() is None

    def cold(self) -> Cold:
        """The reader of the archive, once Spark is there."""
        self._ready.wait()
        with self._making:
            if self._reader is None:
                from aviso_server.pipeline.cold.replay import ColdReplay

                assert self._session is not None
                self._reader = ColdReplay(self._session, self.board.root, self.board.storage)
            return self._reader

    def archive(
        self, task: ArchiveTask, stop: threading.Event, committed: Committed = lambda stream, count: None
    ) -> None:
        """Archive and compact until told to stop; PipelineError if Spark is gone."""
        job = self._job(task, committed)
        compacting = threading.Thread(target=self._compact, args=(job, task, stop), name="compaction", daemon=True)
        compacting.start()
        try:
            job.run(stop)
        finally:
            stop.set()

    def archive_once(self, task: ArchiveTask, committed: Committed = lambda stream, count: None) -> None:
        """Archive what the log holds now; PipelineError if that was not possible."""
        self._job(task, committed).run_once()

    def compactor(self) -> Compactor:
        """What compacts this archive."""
        return Compactor(self.board, self._work)

    def close(self) -> None:
        """Let go of Spark and of the archive."""
        if self._reader is not None:
            self._reader.close()
        if self._session is not None and not self._borrowed:
            with contextlib.suppress(Exception):  # Java may be gone
                self._session.stop()
        if self._hold is not None:
            self._hold.release()

    def _job(self, task: ArchiveTask, committed: Committed) -> ArchiveJob:
        assert self._session is not None
        return ArchiveJob(self._session, task, self.board, self._work, self.alive, committed)

    def _compact(self, job: ArchiveJob, task: ArchiveTask, stop: threading.Event) -> None:
        compactor = self.compactor()
        pause = _BETWEEN_ORDERS if is_local(self.board.root) else _BETWEEN_COMPACTIONS
        compacted = time.monotonic()
        while not stop.is_set():
            due = self.deleted.wait(pause)
            self._mend(job, task, stop)
            if not due and time.monotonic() - compacted < _BETWEEN_COMPACTIONS:
                continue
            self.deleted.clear()
            try:
                for _ in compactor.run():
                    _until(lambda: not job.busy.is_set(), stop)
                    if stop.is_set():
                        return
            except Exception as error:  # the next round may work; the archive is right as it is
                logger.warning("compaction failed: %s", error, extra={"event": "archive.compaction.failed"})
            compacted = time.monotonic()

    def _mend(self, job: ArchiveJob, task: ArchiveTask, stop: threading.Event) -> None:
        """Carry out what audits have ordered, as compaction works: beside the job, never in its way."""
        from aviso_server.pipeline.audit.orders import carry_out
        from aviso_server.pipeline.audit.repair import Repairer

        def pause() -> bool:
            _until(lambda: not job.busy.is_set(), stop)
            return not stop.is_set()

        try:
            repairer = Repairer(self.board, self._work, task.connection())
            carry_out(self.board.root, self.board.storage, repairer, pause)
        except Exception as error:  # the order stays, and the next round may work
            logger.warning("the archive could not be mended: %s", error, extra={"event": "archive.repair.failed"})


def _answers(session: SparkSession) -> bool:
    """True if a Spark Connect server still has the session; one that was started anew has not."""
    try:
        # A client that has heard that its session is gone counts as stopped; the server answers it all the same.
        return not getattr(session, "is_stopped", False) and bool(session.version)
    except Exception:  # gRPC and Spark have many ways to say so
        return False


def _until(condition: Callable[[], bool], stop: threading.Event) -> None:
    while not condition() and not stop.wait(0.2):
        pass
