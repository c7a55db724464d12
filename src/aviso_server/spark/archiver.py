"""The archiver: brings what the log has beyond the archive into the tables, and keeps their files few.

A round asks the server what its log holds, lets Spark's tasks write the ranges beyond the watermarks as files, straight
to where the archive lies, and commits the files of a stream together with its new watermark. Exactly once: a commit is
refused unless it begins where the watermark is. Whatever is killed, the next round begins after the last commit; there
is nothing else to remember.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import msgspec
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError, Refused
from aviso_server.lake.compact import Compactor
from aviso_server.lake.files import Covered, FileWriter, NewFile, discard
from aviso_server.lake.previous import refuse_previous
from aviso_server.lake.remove import Removals, applied
from aviso_server.lake.schema import FileShape
from aviso_server.lake.storage import is_local, local_path
from aviso_server.lake.table import Snapshot, Tables
from aviso_server.lockfile import Lockfile, LockHeld
from aviso_server.model.batch import columns_of
from aviso_server.model.times import event_time, seconds_text
from aviso_server.spark.catalogue import AnyType, event_type_of, fetch_catalogue
from aviso_server.spark.session import SparkFailed, close_session, open_session, reason
from aviso_server.spark.tasks import run_tasks
from pyspark_aviso.client import ask, connect, pause
from pyspark_aviso.options import Options, read_options
from pyspark_aviso.read import SequenceRange, Stretch, read_range, split

if TYPE_CHECKING:
    from aviso_server.spark.cold_replay import ColdReplay

__all__ = [
    "ArchiveSettings",
    "ArchiveStatus",
    "Archiver",
    "Committed",
    "LogStream",
    "State",
    "StreamStatus",
    "fetch_streams",
]

logger = logging.getLogger(__name__)

State = Literal["starting", "running", "waiting", "standby", "stopped"]
"""Spark is starting, the log is being read, the server cannot be reached, another server archives, or nobody does."""

Committed = Callable[[str, int], None]
"""Called with a stream and the number of sequences that the archive has got more."""

_BETWEEN_COMPACTIONS = 30.0  # seconds
_BETWEEN_VACUUMS = 3600.0  # seconds
_PATIENCE = 120.0  # seconds for Spark to start
_STANDBY = 1.0  # seconds between two looks of one who waits for its turn
_BETWEEN_BEATS = 5.0  # seconds between two questions to Java whether it is there
_BETWEEN_STARTS = 300.0  # seconds until Java is looked for again where there is none
_SETTINGS = {
    "spark.scheduler.mode": "FAIR",  # replays and the archiver all get their turn
    "spark.sql.shuffle.partitions": "2",
}


class LogStream(msgspec.Struct, frozen=True):
    """A stream of a server and what its log holds of it."""

    stream: str
    event_type: str
    first: int
    last: int
    trimmed: int = 0  # the newest sequence that the log's limits have removed
    count: int = 0
    bytes: int = 0


class _Streams(msgspec.Struct, frozen=True):
    streams: list[LogStream]


def fetch_streams(client: httpx.Client) -> dict[str, LogStream]:
    """Return the streams that the caller may read, by name; PipelineError if the server does not list them."""
    try:
        answer = msgspec.convert(ask(client, "/api/v1/streams"), _Streams)
    except Refused as error:
        if error.status != 404:
            raise
        message = f"what answers at {client.base_url} does not list its streams, so it cannot be archived"
        raise PipelineError(message) from None
    return {each.stream: each for each in answer.streams}


class StreamStatus(msgspec.Struct, frozen=True):
    """One stream of the archive."""

    first: int = 1  # the oldest sequence that it covers; one more than `last` if it is empty
    last: int = 0  # the newest one
    gapless: int = 0  # the end of the part without a gap: the log may trim up to here; 0 if the table cannot be read
    files: int = 0
    bytes: int = 0
    archived_at: str | None = None  # when it last grew
    last_error: str | None = None  # what is wrong with it now


class ArchiveStatus:
    """The facts of an archive, as last looked at, for whoever asks; every thread may ask and tell."""

    def __init__(self, root: str) -> None:
        self.tables = Tables(root)
        self.removals = Removals()  # of what is not archived yet
        self.state: State = "stopped"
        self.last_error: str | None = None  # of the archiver as a whole
        self.rows = 0  # archived since the start
        self.heard: float | None = None  # when Java answered last, by the monotonic clock; None before Spark is there
        self._looking = threading.Lock()  # one looks at a time, so that what was read later is what is kept
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}
        self._unreadable: set[str] = set()  # streams whose table could not be read when it was last looked at
        self._errors: dict[str, str] = {}  # of streams, while they last
        self._log: dict[str, LogStream] = {}

    def read(self) -> None:
        """Look at the whole archive; a table that cannot be read is an error of its stream, and of no other."""
        for stream in self.tables.streams():
            self.readable(stream)

    def readable(self, stream: str) -> bool:
        """Look at a stream again; False if its table cannot be read, which is then its error."""
        try:
            self.refresh(stream)
        except PipelineError as error:
            self.fail(stream, str(error))
            return False
        self.fail(stream, None)
        return True

    def sound(self, stream: str) -> bool:
        """Return True if a stream was looked at, and nothing was wrong with it."""
        with self._lock:
            return stream in self._snapshots and stream not in self._errors

    def refresh(self, stream: str) -> Snapshot:
        """Look at a stream again; PipelineError if its table cannot be read.

        Others are told what was known before meanwhile: a store may take long to answer.
        """
        with self._looking:
            try:
                found = self.tables.of(stream).snapshot()
            except BaseException:
                with self._lock:
                    self._unreadable.add(stream)
                raise
            with self._lock:
                self._snapshots[stream] = found
                self._unreadable.discard(stream)
            return found

    def snapshot(self, stream: str) -> Snapshot:
        """Return the table of a stream as last looked at."""
        with self._lock:
            return self._snapshots.get(stream, Snapshot())

    def watermark(self, stream: str) -> int:
        """Return the last sequence that the archive holds of a stream."""
        return self.snapshot(stream).watermark

    def watermarks(self) -> dict[str, int]:
        with self._lock:
            return {stream: each.watermark for stream, each in self._snapshots.items() if each.watermark}

    def compare(self, log: Mapping[str, LogStream]) -> None:
        """Remember what the log holds."""
        with self._lock:
            self._log = dict(log)

    def fail(self, stream: str, sentence: str | None) -> None:
        """Say what is wrong with a stream; None if nothing is any more."""
        with self._lock:
            if sentence is None:
                self._errors.pop(stream, None)
            else:
                self._errors[stream] = sentence

    def streams(self) -> dict[str, StreamStatus]:
        """Return every stream that the archive or the log knows."""
        with self._lock:
            names = sorted({*self._snapshots, *self._log, *self._errors})
            return {name: self._status(name, self._snapshots.get(name, Snapshot())) for name in names}

    def log_streams(self) -> dict[str, LogStream]:
        """Return what the log held when it was last looked at."""
        with self._lock:
            return dict(self._log)

    def describe(self) -> dict[str, Any]:
        shown = {name: msgspec.to_builtins(each) for name, each in self.streams().items()}
        silent = 0.0 if self.heard is None else time.monotonic() - self.heard
        job = {"state": self.state, "last_error": self.last_error, "rows": self.rows, "silent": silent}
        return {"streams": shown, "job": job, "time": event_time(time.time_ns())}

    def _status(self, name: str, snapshot: Snapshot) -> StreamStatus:
        error = self._errors.get(name) or snapshot.refused
        if snapshot.missing:
            first, last = snapshot.missing[0]
            error = f"files are missing: sequences {first} to {last} are in none"
        elif name in self._log and self._log[name].last < snapshot.watermark:
            error = (
                f"the log ends at sequence {self._log[name].last}, the archive at {snapshot.watermark}: is it the "
                "archive of another log? Nothing is archived until the log has passed it"
            )
        if not snapshot.files and not snapshot.watermark:
            return StreamStatus(last_error=error)
        return StreamStatus(
            first=1,
            last=snapshot.watermark,
            gapless=0 if name in self._unreadable else snapshot.gapless,
            files=len(snapshot.files),
            bytes=sum(each.bytes for each in snapshot.files),
            archived_at=seconds_text(int(max((each.modified for each in snapshot.files), default=0))),
            last_error=error,
        )


class ArchiveSettings(msgspec.Struct, frozen=True):
    """Which server is archived, as whom, and at what pace."""

    url: str
    interval: float = 10.0  # seconds between two looks at the log when there is no backlog
    rows_per_file: int = 250_000
    rows_per_round: int = 1_000_000
    token: str | None = None
    username: str | None = None
    password: str | None = None

    def connection(self) -> Options:
        given = {"url": self.url, "token": self.token, "username": self.username, "password": self.password}
        return read_options({name: value for name, value in given.items() if value is not None})


class Archiver:
    """Whoever archives a server: its Spark session, its rounds, and the reader of the archive."""

    def __init__(self, root: str, work: Path, master: str, settings: Mapping[str, str] | None = None) -> None:
        # Workers of a cluster start elsewhere, so a path of this machine is told in full.
        self.status = ArchiveStatus(str(local_path(root).absolute()) if is_local(root) else root)
        self._root = root  # as people know it
        self._work = work
        self._master = master
        self._settings = {**_SETTINGS, **(settings or {})}
        self._session: SparkSession | None = None
        self._reader: ColdReplay | None = None
        self._ready = threading.Event()
        self._making = threading.Lock()
        self._lockfile: Lockfile | None = None

    def lock(self) -> None:
        """Become the only one on this machine who archives here; PipelineError if somebody else does."""
        if self._lockfile is not None:
            return
        root = self.status.tables.root
        folder = local_path(root) if is_local(root) else self._work
        folder.mkdir(parents=True, exist_ok=True)
        lockfile = Lockfile(folder / "_lock")
        try:
            lockfile.take()
        except LockHeld as held:
            raise PipelineError(f"the archive in {self._root} is in use by process {held.owner}") from None
        self._lockfile = lockfile

    def unlock(self) -> None:
        if self._lockfile is not None:
            self._lockfile.release()
            self._lockfile = None

    def look(self) -> None:
        """Look at the archive, so that it can be read; PipelineError if it is of the format before."""
        refuse_previous(self.status.tables.root)
        self.status.read()

    def open(self) -> SparkSession:
        """Look at the archive and start Spark; PipelineError if there is no Java for it, SparkFailed if it broke."""
        self.look()
        self.status.state = "starting"
        folder = self._work / "spark"
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        self._session = open_session(folder, self._master, "aviso-archive", self._settings)
        self._ready.set()
        return self._session

    def open_in_time(self) -> SparkSession:
        """Start Spark, as soon as there is a Java for it; until then the archive can be read. SparkFailed if it broke.

        From then on Java is asked again and again whether it is there: one that hangs does not end by itself.
        """
        while True:
            try:
                session = self.open()
            except SparkFailed:
                raise
            except PipelineError as error:
                self._fail(f"nothing can be archived: {error}")
                time.sleep(_BETWEEN_STARTS)
            else:
                threading.Thread(target=self._listen_to_java, args=(session,), name="heartbeat", daemon=True).start()
                return session

    def wait_for_session(self) -> SparkSession:
        """Return Spark once it is open; PipelineError if that takes too long, or if it cannot be opened."""
        deadline = time.monotonic() + _PATIENCE
        while not self._ready.wait(_STANDBY):
            if self.status.last_error is not None or time.monotonic() > deadline:
                raise PipelineError(self.status.last_error or "Spark has not started yet")
        return self.session

    def _listen_to_java(self, session: SparkSession) -> None:
        while True:
            with contextlib.suppress(Exception):  # whoever needs it says that it is gone
                _beat(session)
                self.status.heard = time.monotonic()
            time.sleep(_BETWEEN_BEATS)

    @property
    def session(self) -> SparkSession:
        assert self._session is not None
        return self._session

    def alive(self) -> bool:
        """Return False if Spark's Java process is gone, or a Spark Connect server does not know us any more."""
        session = self._session
        if session is not None and not hasattr(session, "_jsparkSession"):  # one of Spark Connect
            try:
                # A client whose session is gone counts as stopped; the server answers it all the same.
                return not getattr(session, "is_stopped", False) and _beat(session)
            except Exception:  # gRPC and Spark have many ways to say so
                return False
        process = getattr(SparkContext._gateway, "proc", None)
        return process is None or process.poll() is None

    def cold(self) -> ColdReplay:
        with self._making:
            if self._reader is None:
                from aviso_server.spark.cold_replay import ColdReplay

                self._reader = ColdReplay(self.status.tables, self._cluster)
            return self._reader

    def _cluster(self) -> SparkSession | None:
        """Return Spark if it has other cores than this process, once it is open."""
        return None if self._master.startswith("local") else self._session

    def run(
        self,
        settings: ArchiveSettings,
        stop: threading.Event,
        committed: Committed = lambda stream, count: None,
        elected: Callable[[], bool] = lambda: True,
    ) -> None:
        """Archive and compact until told to stop; only the end of Spark makes it raise, as SparkFailed.

        While it is not `elected`, or another process of this machine archives here, it only looks at what others do.
        """
        failures, compacted, vacuumed, looked = 0, time.monotonic(), 0.0, 0.0
        with connect(settings.connection()) as client:
            while not stop.is_set():
                before = self.status.rows
                try:
                    if not self._may(elected):
                        if time.monotonic() - looked > settings.interval:
                            self.status.read()
                            looked = time.monotonic()
                        stop.wait(_STANDBY)
                        continue
                    backlog = self._round(client, settings, committed)
                    if not backlog and time.monotonic() - compacted > _BETWEEN_COMPACTIONS:
                        backlog = self._compact_step()
                        compacted = compacted if backlog else time.monotonic()
                    if not backlog and time.monotonic() - vacuumed > _BETWEEN_VACUUMS:
                        self.compactor().vacuum()
                        vacuumed = time.monotonic()
                    failures = 0
                    if not backlog:
                        stop.wait(settings.interval)
                except Exception as error:  # whatever it is, it may work next time
                    if not self.alive():
                        raise SparkFailed("Spark has ended") from None
                    failures = 1 if self.status.rows > before else failures + 1
                    self._fail(reason(error))
                    stop.wait(pause(failures))
        self.status.state = "stopped"

    def run_once(self, settings: ArchiveSettings, committed: Committed = lambda stream, count: None) -> None:
        """Archive what the log holds now; PipelineError if that was not possible."""
        try:
            with connect(settings.connection()) as client:
                self.status.read()
                goal = {name: each.last for name, each in fetch_streams(client).items()}
                while self._round(client, settings, committed, goal):
                    pass
        except Exception as error:  # Spark wraps what happened in many ways
            raise PipelineError(reason(error)) from None
        self.status.state = "stopped"

    def compactor(self) -> Compactor:
        """Return what compacts this archive, with Spark's tasks if Spark is there."""
        if self._session is None:
            return Compactor(self.status.tables)
        return Compactor(self.status.tables, run=partial(run_tasks, self._session))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._session is not None:
            close_session(self._session)
        self.unlock()

    def _may(self, elected: Callable[[], bool]) -> bool:
        """Return True if it is ours to archive."""
        if not elected():
            self.unlock()
            self.status.state, self.status.last_error = "standby", None
            return False
        try:
            self.lock()
        except PipelineError as error:
            self._fail(str(error), "standby")
            return False
        if self.status.state == "standby":
            logger.info("this server archives from now on", extra={"event": "archive.elected"})
        return True

    def _round(
        self,
        client: httpx.Client,
        settings: ArchiveSettings,
        committed: Committed,
        goal: Mapping[str, int] | None = None,
    ) -> bool:
        """Archive the next part of what the log has, at most up to a goal; True if something is left for the next."""
        status, log = self.status, fetch_streams(client)
        status.compare(log)
        status.state, status.last_error = "running", None
        ends = {name: each.last if goal is None else min(each.last, goal.get(name, 0)) for name, each in log.items()}
        ends = {name: last for name, last in ends.items() if status.sound(name) or status.readable(name)}
        parts, left = _share(ends, status.watermarks(), settings.rows_per_round)
        if not parts:
            return False
        catalogue = fetch_catalogue(settings.connection())
        ranges = [
            each
            for stream, (first, last) in parts.items()
            for each in self._ranges(settings, catalogue, log[stream], first, last)
        ]
        told: dict[str, list[_Written]] = {}
        for written in run_tasks(self.session, write_files, ranges):
            told.setdefault(written.stream, []).append(written)
        failed = [stream for stream in sorted(parts) if not self._take(stream, told.get(stream, []), committed)]
        if goal is not None and failed:
            raise PipelineError(status.streams()[failed[0]].last_error or "it did not work")
        return left and not failed

    def _ranges(
        self, settings: ArchiveSettings, catalogue: Mapping[str, Any], stream: LogStream, first: int, last: int
    ) -> Iterator[FileRange]:
        table = self.status.tables.of(stream.stream)
        kind = event_type_of(stream.event_type, catalogue)
        columns = dict(self.status.snapshot(stream.stream).columns)
        for low, high in split(Stretch(first, last), None, settings.rows_per_file):
            yield FileRange(
                settings.connection(),
                table.folder,
                stream.stream,
                stream.event_type,
                kind,
                columns,
                low,
                high,
            )

    def _take(self, stream: str, told: Sequence[_Written], committed: Committed) -> bool:
        """Commit what workers have written of a stream, up to the first range that failed; False if one did."""
        status, files = self.status, list[NewFile]()
        ordered = sorted(told, key=lambda each: each.first)
        failures = [each for each in ordered if each.error is not None]
        end = failures[0].first if failures else ordered[-1].first + 1
        for each in ordered:
            if each.file is not None and each.first < end:
                files.append(each.file)
            elif each.file is not None:
                discard([each.file])
        try:
            if files:
                self._commit(stream, files, committed)
            if failures:
                raise PipelineError(str(failures[0].error))
        except PipelineError as error:
            if str(error) != status.streams().get(stream, StreamStatus()).last_error:
                logger.warning(
                    "stream %s has to wait: %s", stream, error, extra={"event": "archive.job.waiting", "stream": stream}
                )
            status.fail(stream, str(error))
            return False
        status.fail(stream, None)
        return True

    def _commit(self, stream: str, files: list[NewFile], committed: Committed) -> None:
        status, table = self.status, self.status.tables.of(stream)
        before, last = files[0].first - 1, files[-1].last  # the status may know by now that others were faster
        try:
            # what is removed from now on is removed from the table, because the watermark includes it
            with status.removals.settling(stream, last) as removed:
                files = applied(table.folder, files, removed)
                table.commit(files, watermark=last, after=before)
        except PipelineError:
            with contextlib.suppress(PipelineError):
                status.refresh(stream)  # whoever was faster has moved the watermark
            raise
        status.refresh(stream)
        status.rows += sum(file.rows for file in files)
        committed(stream, last - before)

    def _compact_step(self) -> bool:
        """Compact for a moment; True if there may be more to do."""
        for stream in self.compactor().run():
            self.status.refresh(stream)
            return True
        return False

    def _fail(self, sentence: str, state: State = "waiting") -> None:
        if sentence != self.status.last_error:
            logger.warning("the archive has to wait: %s", sentence, extra={"event": "archive.job.waiting"})
        self.status.state, self.status.last_error = state, sentence


class FileRange(msgspec.Struct, frozen=True):
    """A range of a stream that a task writes: one file, as a rule."""

    options: Options
    folder: str
    stream: str
    event_type: str
    kind: AnyType
    columns: dict[str, str]  # that the table has, with their types
    first: int
    last: int


class _Written(msgspec.Struct, frozen=True):
    """What became of a range, or of a part of it: a file, or the reason why there is none."""

    stream: str
    first: int
    file: NewFile | None = None
    error: str | None = None


def write_files(wanted: FileRange) -> Iterator[_Written]:
    """Read a range from the server and write it. Runs on a worker, once per attempt of a task.

    One that fails leaves nothing behind; one that is killed leaves a file that no commit names, and that vacuum removes
    later. What fails is said and not raised, so that it stops no other stream.
    """
    shape = FileShape(wanted.event_type, columns_of(wanted.kind), wanted.columns)

    def explain(first: int, last: int) -> Covered:
        """Say which of these the log's limits may have removed, as the log says after the read."""
        with connect(wanted.options) as client:
            held = fetch_streams(client).get(wanted.stream)
        if held is None or held.trimmed < first:
            return Covered(first, last)
        return Covered(first, last, overtaken=((first, min(last, held.trimmed)),))

    writer = FileWriter(wanted.folder, wanted.first, wanted.last, shape.schema, explain)
    rows = SequenceRange(wanted.event_type, wanted.first, wanted.last)
    reached = wanted.first
    try:
        for batch in read_range(wanted.options, rows):
            for file in writer.add(shape.batch(batch)):
                yield _Written(wanted.stream, file.first, file)
                reached = file.last + 1
        for file in writer.finish():
            yield _Written(wanted.stream, file.first, file)
    except Exception as error:
        writer.abandon()
        yield _Written(wanted.stream, reached, error=reason(error))
    except BaseException:
        writer.abandon()
        raise


def _share(
    ends: Mapping[str, int], watermarks: Mapping[str, int], most: int
) -> tuple[dict[str, tuple[int, int]], bool]:
    """Choose the part of each stream for a round, and say whether something is left for the next one.

    Streams with little news come first, so that a large backlog in one does not hold up the others. One whose log is
    behind the archive is not touched.
    """
    found: dict[str, tuple[int, int]] = {}
    room, left = most, False
    for name, end in sorted(ends.items(), key=lambda item: item[1] - watermarks.get(item[0], 0)):
        begin = watermarks.get(name, 0)
        news = max(0, end - begin)
        taken = min(news, room)
        left = left or taken < news
        room -= taken
        if taken:
            found[name] = begin + 1, begin + taken
    return found, left


def _beat(session: SparkSession) -> bool:
    """Ask Java or a Spark Connect server for a sign of life; one that was started anew does not know the session."""
    java = getattr(session, "_jvm", None)
    return bool(session.version if java is None else java.java.lang.System.nanoTime())
