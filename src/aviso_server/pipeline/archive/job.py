"""The archive job: a streaming query that takes what the log has beyond the archive and gives the files their names.

Exactly once: a file covers exactly the sequences in its name, gets its name in one step when it is complete and on
disk, and the next one begins where it ends. Whatever is killed, the job goes on after the last file. Spark's checkpoint
only serves the run that made it: what the archive holds is what the files say.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.absences import note_overtaken
from aviso_server.pipeline.archive.layout import DataFile, data_path, stream_folder, streams
from aviso_server.pipeline.archive.source import FORMAT, ArchiveSource, ArchiveTask
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import is_local
from aviso_server.pipeline.archive.streams import fetch_streams
from aviso_server.pipeline.archive.writer import is_draft
from aviso_server.pipeline.connection import connect, pause

__all__ = ["ArchiveJob", "Committed", "SparkFailed", "reason"]

logger = logging.getLogger(__name__)

_OURS = re.compile(r"(?:PipelineError|Refused): (.+)")
_PYTHONS = re.compile(r"^\s*((?:OSError|MemoryError|[a-z][\w.]*\.Arrow\w+): .+)$", re.MULTILINE)
_POLL = 0.5  # seconds

Committed = Callable[[str, int], None]
"""Called with a stream and the number of sequences that the archive has got more."""


class SparkFailed(PipelineError):
    """Spark broke down; starting again may help."""


class ArchiveJob:
    """Archives one server; `run` does it until it is told to stop, `run_once` what there is now."""

    def __init__(
        self,
        session: SparkSession,
        task: ArchiveTask,
        board: Board,
        work: Path,
        alive: Callable[[], bool] = lambda: True,
        committed: Committed = lambda stream, count: None,
    ) -> None:
        self.busy = threading.Event()  # set while files are being written
        self._session = session
        self._task = task
        self._board = board
        self._work = work
        self._alive = alive  # whether Spark is
        self._committed = committed
        self._client = connect(task.connection())
        self._connect = not isinstance(session, SparkSession)  # Spark Connect's sessions are another class
        session.dataSource.register(ArchiveSource)

    def run(self, stop: threading.Event) -> None:
        """Archive until `stop` is set; only the end of Spark makes it raise."""
        failures = 0
        while not stop.is_set():
            before = self._board.rows
            try:
                self._follow(stop)
            except Exception as error:  # whatever it is, it may work next time
                if not self._alive():
                    raise SparkFailed("Spark has ended") from None
                failures = 1 if self._board.rows > before else failures + 1
                self._fail(reason(error))
                stop.wait(pause(failures))
        self._board.state = "stopped"

    def run_once(self) -> None:
        """Archive what the log holds now; PipelineError if that was not possible."""
        try:
            self._prepare()
            if self._connect:
                self._rounds(threading.Event(), once=True)
            else:
                with self._started(once=True) as query:
                    query.awaitTermination()
            self._look()
        except Exception as error:  # Spark wraps what happened in many ways
            raise PipelineError(reason(error)) from None
        self._board.state = "stopped"

    def _follow(self, stop: threading.Event) -> None:
        self._prepare()
        if self._connect:
            self._rounds(stop, once=False)
            return
        with self._started(once=False) as query:
            waited = 0.0
            while query.isActive and not stop.is_set():
                stop.wait(_POLL)
                waited += _POLL
                if not self._alive():
                    raise SparkFailed("Spark has ended")
                if waited >= self._task.interval:
                    waited = 0.0
                    self._look()
            error = query.exception()
            if error is not None:
                raise error

    def _rounds(self, stop: threading.Event, once: bool) -> None:
        """The same without a streaming query: those of Spark Connect call back on another machine."""
        goal = {name: each.last for name, each in self._board.log_streams().items()}
        while not stop.is_set():
            before = self._board.watermarks()
            self._store(self._session.read.format(FORMAT).option("task", self._asked_for()).load(), 0)
            after = self._board.watermarks()
            if once and all(after.get(name, 0) >= last for name, last in goal.items()):
                return
            if after == before:
                stop.wait(self._task.interval)
                self._look()

    def _prepare(self) -> None:
        """Forget drafts of those who were killed, and see where the archive ends."""
        self.busy.clear()
        for folder in streams(self._board.root, self._board.storage).values():
            for each in self._board.storage.list(folder):
                if is_draft(each.name, "job"):
                    self._board.storage.remove(each.path)
        self._board.read()
        self._look()

    def _look(self) -> None:
        self._board.compare(fetch_streams(self._client))
        self._board.state = "running"
        self._board.last_error = None

    @contextlib.contextmanager
    def _started(self, once: bool) -> Any:
        checkpoint = self._work.resolve() / f"checkpoint-{uuid.uuid4().hex}"
        rows = self._session.readStream.format(FORMAT).option("task", self._asked_for()).load()
        writer = rows.writeStream.foreachBatch(self._store).option("checkpointLocation", checkpoint.as_uri())
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
        query = writer.start()
        try:
            yield query
        finally:
            with contextlib.suppress(Exception):  # it has ended already, or Java has
                query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _asked_for(self) -> str:
        task = msgspec.structs.replace(self._task, root=self._board.root, offsets=self._board.watermarks())
        return msgspec.json.encode(task).decode()

    def _store(self, batch: DataFrame, number: int) -> None:
        """Run a micro-batch and give its files their names, in order."""
        self.busy.set()
        try:
            if is_local(self._board.root):
                self._name_files(sorted(batch.collect(), key=lambda row: (row.stream, row.first)))
            else:
                self._send_files(batch)
        finally:
            self.busy.clear()

    def _name_files(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._add(row, Path(row.path))

    def _send_files(self, batch: DataFrame) -> None:
        """Workers cannot write there: their files come here piece by piece, one after the other."""
        for _, pieces in groupby(batch.toLocalIterator(), key=lambda row: row.path):
            draft = self._work / f"draft-{uuid.uuid4().hex}.parquet"
            with draft.open("wb") as file:
                for row in pieces:
                    file.write(row.content)
            self._add(row, draft)

    def _add(self, row: Row, draft: Path) -> None:
        board, storage = self._board, self._board.storage
        stream, first, last = str(row.stream), int(row["first"]), int(row["last"])
        expected = board.watermark(stream) + 1
        if first != expected:
            raise PipelineError(f"stream '{stream}': a file from sequence {first} on came, not from {expected} on")
        path = data_path(board.root, stream, first, last)
        size = draft.stat().st_size
        if row.rows < last - first + 1:
            self._note_overtaken(stream, first, last)
        storage.put(draft, path)
        board.add(stream, DataFile(first, last, path, size, time.time()))
        board.rows += row.rows
        if row.gone:
            board.note(
                stream,
                f"sequences {first} to {first + row.gone - 1} were not in the log any more when they were to be "
                "archived; they had been deleted or retention had removed them",
            )
        self._committed(stream, last - first + 1)

    def _note_overtaken(self, stream: str, first: int, last: int) -> None:
        """Remember that the log's limits may be why some of these are missing, if the log says so after the read."""
        held = fetch_streams(self._client).get(stream)
        if held is not None and held.trimmed >= first:
            note_overtaken(stream_folder(self._board.root, stream), first, min(last, held.trimmed), self._board.storage)

    def _fail(self, sentence: str) -> None:
        if sentence != self._board.last_error:
            logger.warning("the archive has to wait: %s", sentence, extra={"event": "archive.job.waiting"})
        self._board.state = "waiting"
        self._board.last_error = sentence


def reason(error: BaseException) -> str:
    """What happened: in our own words if it was us who complained, in Python's, or else the first line of Spark's."""
    text = str(error)
    for pattern in (_OURS, _PYTHONS):
        if found := pattern.findall(text):
            return str(found[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
