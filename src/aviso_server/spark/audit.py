"""The audit: proves that what was acknowledged is stored and archived, or says where it is not, and mends the archive.

Spark's tasks compare slices of a stream; then everything that is missing is held against what explains it. Repair
writes files with defects anew with what the log still has, a task for each group of files that belong together, and
each in one commit that is refused if another writer was faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import Run, run_here
from aviso_server.lake.files import Covered, DataFile, FileWriter, NewFile, covered_by, discard, explained, read_rows
from aviso_server.lake.ranges import Range, clipped, joined_ranges, length, without_ranges
from aviso_server.lake.remove import Removed
from aviso_server.lake.schema import FileShape, conformed, joined_schema
from aviso_server.lake.storage import open_file
from aviso_server.lake.table import Conflict, Snapshot, Table, Tables
from aviso_server.model.batch import columns_of
from aviso_server.model.event_type import EventType
from aviso_server.model.times import event_time
from aviso_server.spark.archiver import LogStream, fetch_streams
from aviso_server.spark.audit_comparison import (
    Audit,
    Defect,
    Explained,
    FormCheck,
    Found,
    Gap,
    Held,
    Hour,
    LogReader,
    Slice,
    StreamAudit,
    Where,
    cut,
    examine,
    hour_text,
    outside,
)
from aviso_server.spark.catalogue import AnyType, event_type_of, fetch_catalogue
from aviso_server.spark.session import reason
from aviso_server.spark.tasks import run_tasks
from pyspark_aviso.client import choose_types, connect, fetch_types
from pyspark_aviso.options import Options
from pyspark_aviso.read import BatchReader, Planner, SequenceRange, read_range

__all__ = [
    "Auditor",
    "Evidence",
    "LogView",
    "Mended",
    "Repairer",
    "ServerLog",
    "gather_evidence",
    "to_mend",
]


class Evidence(msgspec.Struct, frozen=True):
    """Sequences of a stream that may be missing."""

    wiped: tuple[Range, ...] = ()
    deleted: tuple[Range, ...] = ()
    overtaken: tuple[Range, ...] = ()  # in the archive: the log's limits were faster
    trimmed: int = 0  # in the log: its limits may have removed everything up to here

    def unexplained(self, missing: Sequence[Range], in_log: bool) -> list[Range]:
        return without_ranges(missing, [*self.wiped, *self.deleted, *self._retention(in_log)])

    def explained(self, missing: Sequence[Range], in_log: bool) -> Explained:
        """Count what is explained by what; the first reason counts."""
        left = without_ranges(missing, self.wiped)
        kept = without_ranges(left, self.deleted)
        final = without_ranges(kept, self._retention(in_log))
        counts = [length(each) for each in (joined_ranges(missing), left, kept, final)]
        return Explained(deleted=counts[1] - counts[2], wiped=counts[0] - counts[1], retention=counts[2] - counts[3])

    def _retention(self, in_log: bool) -> Sequence[Range]:
        return [(1, self.trimmed)] if in_log else self.overtaken


def gather_evidence(known: Covered | None, pending: Removed, trimmed: int, last: int) -> Evidence:
    """Gather what explains gaps up to a sequence: what footers of the archive say, and what has not come to it yet.

    `pending` must have been read before the footers, so that no removal slips through.
    """
    deleted = [(each, each) for each in pending.deleted]
    wiped = [(1, pending.wiped_through)]
    if known is not None:
        deleted, wiped = [*deleted, *known.deleted], [*wiped, *known.wiped]
    return Evidence(
        tuple(clipped(joined_ranges(wiped), 1, last)),
        tuple(clipped(joined_ranges(deleted), 1, last)),
        () if known is None else known.overtaken,
        trimmed,
    )


class LogView(msgspec.Struct, frozen=True):
    """What a server says of one stream."""

    stream: str
    event_type: str
    first: int  # oldest sequence in the log
    last: int  # newest sequence that was given out
    trimmed: int = 0  # newest sequence that the log's own limits have removed
    start: int = 1  # from here on replays are read from the log
    whole: bool = True  # the server says what it has removed, so that every gap can be told
    problem: str | None = None  # why nothing can be said of it


class _Archive(msgspec.Struct, frozen=True):
    log_waits: bool = False


class _Ready(msgspec.Struct, frozen=True):
    archive: _Archive | None = None


class ServerLog:
    """Asks one server. What only our own servers know is None of others."""

    def __init__(self, options: Options, configured: Sequence[EventType]) -> None:
        self._options = options
        self._catalogue = fetch_catalogue(options)
        self._configured = {each.name: each for each in configured}
        self.lists_streams = True
        self.archives = False  # the server has an archive, and reads from it what its log has let go of
        self.log_waits = False  # and its log lets go only of what is archived
        self._look()

    def streams(self, names: Sequence[str]) -> dict[str, LogView]:
        """Return the streams of these names or event types, all if none are named; PipelineError if one is unknown."""
        found = self._listed() if self.lists_streams else self._searched(names)
        if not names:
            return found
        chosen = {stream: each for stream, each in found.items() if stream in names or each.event_type in names}
        known = {*chosen, *(each.event_type for each in chosen.values())}
        for name in names:
            if name not in known:
                there = ", ".join(sorted(found)) or "none"
                raise PipelineError(f"there is no stream '{name}'; streams: {there}")
        return chosen

    def again(self, view: LogView) -> LogView:
        """Return the same stream as it is now."""
        return self._listed().get(view.stream, view) if self.lists_streams else view

    def kind(self, view: LogView) -> tuple[AnyType, bool]:
        """Return the event type of a stream, and whether it is known how its topics are laid out.

        A server does not describe that; the configuration does, if it is the one of this server.
        """
        described = event_type_of(view.event_type, self._catalogue)
        if not isinstance(described, EventType):
            return described, True
        mine = self._configured.get(view.event_type)
        if mine is not None and mine.fields.keys() == described.fields.keys() and _same_fields(mine, described):
            return mine, mine.base == view.stream or not self.lists_streams
        return described, False

    def reader(self, view: LogView) -> LogReader:
        """Return how tasks read the notifications of a stream."""
        kinds = choose_types([view.event_type], fetch_types(self._options))
        with connect(self._options) as client:
            planner = Planner(client, kinds[view.event_type], {}, self._options.retries)
            planner.stretch({"from_id": str(view.start)})  # it learns what the server has to be asked for
        reader = BatchReader(self._options, kinds, _ROW)
        return LogReader(reader, view.event_type, planner.identifier, planner.bounded)

    def _look(self) -> None:
        with connect(self._options) as client:
            try:
                self.lists_streams = client.get("/api/v1/streams").status_code != 404
                ready = msgspec.json.decode(client.get("/ready").content, type=_Ready)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise PipelineError(f"no server answers at {self._options.url}: {reason}") from None
            except msgspec.DecodeError:
                ready = _Ready()
        if self.lists_streams and ready.archive is not None:
            self.archives, self.log_waits = True, ready.archive.log_waits

    def _listed(self) -> dict[str, LogView]:
        with connect(self._options) as client:
            return {name: self._view(each) for name, each in fetch_streams(client).items()}

    def _view(self, held: LogStream) -> LogView:
        """With an archive behind it, replays up to `trimmed` come from there.

        Without one nobody keeps a record of wipes, and what lies before the oldest may have been wiped.
        """
        if self.archives:
            return LogView(held.stream, held.event_type, held.first, held.last, held.trimmed, held.trimmed + 1)
        trimmed = max(held.trimmed, held.first - 1)
        return LogView(held.stream, held.event_type, held.first, held.last, trimmed, held.first)

    def _searched(self, names: Sequence[str]) -> dict[str, LogView]:
        """Find the streams of a server that has to be asked with replays; they are named like event types there."""
        found: dict[str, LogView] = {}
        wanted = choose_types(names or sorted(self._catalogue), fetch_types(self._options))
        with connect(self._options) as client:
            for name, kind in wanted.items():
                try:
                    held = Planner(client, kind, {}, self._options.retries).stretch({"from_id": "0"})
                except PipelineError as error:
                    found[name] = LogView(name, name, 1, 0, whole=False, problem=str(error))
                    continue
                if held.start > held.end:
                    found[name] = LogView(name, name, 1, 0, whole=False)
                else:
                    found[name] = LogView(name, name, held.start, held.end, held.start - 1, held.start, whole=False)
        return found


def _same_fields(one: EventType, other: EventType) -> bool:
    return bool(one.describe()["identifier"] == other.describe()["identifier"])


_ROW = StructType(
    [StructField(name, LongType()) for name in ("sequence", "time_ns")]
    + [StructField(name, StringType()) for name in ("topic", "identifier", "payload")]
)


def explain(table: Table) -> Covered:
    """Say why sequences have no row, as the footers of the files say now; those of broken files say nothing."""
    snapshot, covers = table.snapshot(), list[Covered]()
    for each in snapshot.files:
        with suppress(OSError, pa.ArrowException):
            covers.append(table.covered(each))
    return explained(1, snapshot.watermark, covers)


SLICE = 100_000
"""Sequences that a task compares."""

_MOST_TASKS = 32  # between two words about how far it is

Pending = Callable[[str], Removed]
"""The deletes and wipes of a stream that the archive has not heard of, as of now."""

Told = Callable[[str, int, int], None]
"""Called with a stream, how many of its sequences are done, and how many there are."""


def _slices(view: LogView, snapshot: Snapshot, longest: int, check: FormCheck, log: LogReader) -> Iterator[Slice]:
    """Cut everything where the log begins and where it ends, and then into parts that are not too long."""
    archived = snapshot.watermark
    edges = [
        (1, min(view.start - 1, archived), False),
        (view.start, view.last, True),
        (max(view.last, view.start - 1) + 1, archived, False),
    ]
    for first, last, warm in edges:
        for low in range(first, last + 1, longest):
            high = min(low + longest - 1, last)
            end = min(high, archived)
            files = tuple(each for each in snapshot.files if each.first <= end and low <= each.last)
            log_to = high if warm else 0
            yield Slice(low, high, max(low, view.trimmed + 1), log_to, end, check, log, files)


class _Weighing:
    """What is missing against what explains it."""

    def __init__(
        self,
        view: LogView,
        evidence: Evidence,
        archived: int,
        lost: Range,
        found: Sequence[Found],
    ) -> None:
        self._view = view
        self._evidence = evidence
        self._archived = archived
        self._found = found
        self._broken = {(file.first, file.last): why for each in found for file, why in each.broken}
        self._log = _joined_gaps(gap for each in found for gap in each.log)
        gaps = [gap for each in found for gap in each.archive]
        if lost[0] <= lost[1]:
            gaps.append(Gap(*lost))
        self._archive = outside(_joined_gaps(gaps), list(self._broken))

    def explained(self) -> Explained:
        """Count what is missing for a known reason, in the log or in the archive; once if in both."""
        log, archive = _ranges(self._log), _ranges(self._archive)
        one = self._evidence.explained(log, in_log=True)
        other = self._evidence.explained(without_ranges(archive, log), in_log=False)
        return Explained(one.deleted + other.deleted, one.wiped + other.wiped, one.retention + other.retention)

    def defects(self) -> list[Defect]:
        rows = {each: None for found in self._found for each in found.defects}
        holes = [*self._holes(), *self._damaged()]
        if self._archived > self._view.last and self._view.whole:
            holes.append(
                Defect(
                    kind="behind",
                    where="log",
                    first=self._view.last + 1,
                    last=self._archived,
                    reason="the archive goes further than the log: these sequences could be given out a second time",
                )
            )
        return sorted(_joined_defects([*rows, *holes]), key=lambda each: (each.first, each.last, each.kind))

    def _holes(self) -> Iterator[Defect]:
        log = self._evidence.unexplained(_ranges(self._log), in_log=True)
        archive = self._evidence.unexplained(_ranges(self._archive), in_log=False)
        both = without_ranges(log, without_ranges(log, archive))
        sides: list[tuple[Where, Sequence[Range], Sequence[Gap], str]] = [
            ("log and archive", both, self._log, "it was given out and is nowhere"),
            ("log", without_ranges(log, both), self._log, self._log_words()),
            ("archive", without_ranges(archive, both), self._archive, "nothing explains it"),
        ]
        for where, missing, gaps, words in sides:
            for gap in cut(gaps, missing):
                # a gap may reach from where only the archive has something into what the log holds
                for low, high, in_log in _at(gap, self._view.start, self._view.last):
                    repairable = where == "archive" and in_log
                    yield Defect(
                        kind="hole", where=where, first=low, last=high, hours=_hours_of(gap), reason=words,
                        repairable=repairable,
                    )  # fmt: skip

    def _log_words(self) -> str:
        return "nothing explains it" if self._view.whole else "this server keeps no record of deletes"

    def _damaged(self) -> Iterator[Defect]:
        for (first, last), why in self._broken.items():
            yield Defect(
                kind="unreadable",
                where="archive",
                first=first,
                last=last,
                reason=f"the file cannot be read: {why}",
                repairable=first >= self._view.start and last <= self._view.last,
            )


def _words(
    server: ServerLog, view: LogView, looked: bool, archived: int, layout: bool, foreign: int
) -> tuple[list[str], list[str]]:
    unchecked, notes = [], []
    if not server.lists_streams:
        unchecked.append(
            "the server does not say which sequences it has given out and removed: only what lies between the oldest "
            "and the newest that it holds was checked, and deletes look like holes"
        )
        unchecked.append("the server does not send topics, and identifiers and payloads only as values")
    elif not server.archives:
        unchecked.append(
            f"a server without an archive keeps no record of deletes and wipes: what lies before sequence {view.first} "
            "was not checked, and deletes look like holes"
        )
    if not looked:
        unchecked.append("no archive was looked at")
    elif not archived and view.last:
        notes.append("nothing is archived yet")
    if not layout and server.lists_streams:
        unchecked.append("topics: the configuration does not describe the event type as the server does")
    if foreign:
        notes.append(f"{foreign} notifications have other fields than the schema has now")
    return unchecked, notes


def _at(gap: Gap, start: int, last: int) -> Iterator[tuple[int, int, bool]]:
    """Cut a gap into what lies before, in and after the part that is read from the log."""
    for low, high, in_log in ((gap.first, start - 1, False), (start, last, True), (last + 1, gap.last, False)):
        first, end = max(low, gap.first), min(high, gap.last)
        if first <= end:
            yield first, end, in_log


def _ranges(gaps: Iterable[Gap]) -> list[Range]:
    return [(each.first, each.last) for each in gaps]


def _joined_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda each: each.first):
        if found and gap.first == found[-1].last + 1:
            found[-1] = Gap(found[-1].first, gap.last, found[-1].before, gap.after)
        else:
            found.append(gap)
    return found


def _hours_of(gap: Gap) -> tuple[str, str] | None:
    times = [each for each in (gap.before, gap.after) if each is not None]
    return (hour_text(times[0]), hour_text(times[-1])) if times else None


def _joined_defects(defects: Iterable[Defect]) -> list[Defect]:
    """Join neighbours of the same sort, which slices have cut apart."""
    found: list[Defect] = []
    for each in sorted(defects, key=lambda each: (each.kind, each.where, each.repairable, each.first)):
        one = found[-1] if found else None
        if one is not None and one.alike(each) and each.first == one.last + 1:
            known = [hours for hours in (one.hours, each.hours) if hours is not None]
            hours = (known[0][0], known[-1][1]) if known else None
            found[-1] = msgspec.structs.replace(one, last=each.last, hours=hours)
        else:
            found.append(each)
    return found


def _joined_hours(parts: Iterable[Sequence[Hour]]) -> list[Hour]:
    found: dict[str, Hour] = {}
    for each in (hour for part in parts for hour in part):
        one = found.get(each.hour, Hour(each.hour, 0, 0, 0))
        found[each.hour] = Hour(each.hour, one.log + each.log, one.archive + each.archive, one.same + each.same)
    return [found[name] for name in sorted(found)]


class Auditor:
    """Audits streams of one server, with the tables of its archive if there is one."""

    def __init__(
        self,
        session: SparkSession,
        server: ServerLog,
        tables: Tables | None,
        pending: Pending,
        slice_length: int = SLICE,
    ) -> None:
        self._session = session
        self._server = server
        self._tables = tables
        self._pending = pending
        self._slice_length = slice_length

    def run(self, names: Sequence[str], told: Told = lambda stream, done, total: None) -> Audit:
        """Audit the streams of these names or event types, all if none are named; PipelineError if one is unknown."""
        began, at = time.monotonic(), event_time(time.time_ns())
        found: dict[str, StreamAudit] = {}
        for name, view in sorted(self._server.streams(names).items()):
            try:
                if view.problem is not None:
                    raise PipelineError(view.problem)
                found[name] = self._stream(view, told)
            except PipelineError as error:
                found[name] = StreamAudit(
                    event_type=view.event_type, verdict="unchecked", acknowledged=view.last, unchecked=(str(error),)
                )
        root = None if self._tables is None else self._tables.root
        return Audit(at=at, seconds=round(time.monotonic() - began, 3), archive=root, streams=found)

    def _stream(self, view: LogView, told: Told) -> StreamAudit:
        """Look at all of a stream; PipelineError if log or archive cannot be read."""
        server, table = self._server, self._table(view)
        snapshot = Snapshot() if table is None else table.snapshot()
        archived = snapshot.watermark
        kind, layout = server.kind(view)
        check, log = FormCheck(kind, layout), server.reader(view)
        parts = list(_slices(view, snapshot, self._slice_length, check, log))
        found: list[Found] = []
        told(view.stream, 0, max(view.last, archived))
        for place in range(0, len(parts), _MOST_TASKS):
            some = parts[place : place + _MOST_TASKS]
            try:
                found += run_tasks(self._session, examine, some)
            except Exception as error:  # Spark wraps what happened in many ways
                raise PipelineError(reason(error)) from None
            told(view.stream, some[-1].last, max(view.last, archived))
        now = server.again(view)
        removals = self._pending(view.stream)
        known = None if table is None else explain(table)
        evidence = gather_evidence(known, removals, now.trimmed, max(view.last, archived))
        # a log that waits for the archive lets go of nothing that is not in it: such files were there and are lost
        lost = (archived + 1, view.trimmed) if server.log_waits and archived else (1, 0)
        weighing = _Weighing(view, evidence, archived, lost, found)
        defects = weighing.defects()
        foreign = sum(each.foreign for each in found)
        unchecked, notes = _words(server, view, table is not None, archived, layout, foreign)
        hours = _joined_hours(each.hours for each in found)
        return StreamAudit(
            event_type=view.event_type,
            verdict="defects" if defects else "clean",
            acknowledged=view.last,
            log=Held(view.first, view.last, sum(each.log for each in hours)) if view.last >= view.first else Held(),
            archive=None if table is None else Held(1, archived, sum(each.archive for each in hours)),
            same=sum(each.same for each in hours),
            lag=max(0, view.last - archived) if table is not None else 0,
            explained=weighing.explained(),
            defects=tuple(defects),
            hours=tuple(hours),
            unchecked=tuple(unchecked),
            notes=tuple(notes),
        )

    def _table(self, view: LogView) -> Table | None:
        """Return the table of a stream; None if there is none to look at."""
        if self._tables is None or not self._server.lists_streams:
            return None  # such a server was never archived, whatever lies there
        table = self._tables.of(view.stream)
        return table if self._server.archives or table.snapshot().files else None


def to_mend(audit: Audit) -> dict[str, list[Range]]:
    """Return the sequences that can be mended, by stream."""
    found = {
        name: [(each.first, each.last) for each in stream.defects if each.repairable]
        for name, stream in audit.streams.items()
    }
    return {name: ranges for name, ranges in found.items() if ranges}


_MOST_ATTEMPTS = 3


class Mended(msgspec.Struct, frozen=True):
    """What came of one range."""

    stream: str
    first: int
    last: int
    reason: str | None = None  # why it was left as it is; None if it was written anew


class Repairer:
    """Writes files of one archive anew, with what its server's log still has; `run` does it, here or on workers."""

    def __init__(self, tables: Tables, options: Options, run: Run = run_here) -> None:
        self._tables = tables
        self._options = options
        self._run = run

    def run(self, wanted: dict[str, list[Range]]) -> Iterator[Mended]:
        """Mend these sequences by stream; tells of a stream when all of it is done."""
        server = ServerLog(self._options, ())
        views = server.streams(())
        for stream, ranges in wanted.items():
            if stream in views:
                yield from self._stream(server, views[stream], joined_ranges(ranges))
            else:
                yield Mended(stream, ranges[0][0], ranges[-1][1], "the log has no such stream")

    def _stream(self, server: ServerLog, view: LogView, ranges: Sequence[Range]) -> Iterator[Mended]:
        table, kind = self._tables.of(view.stream), server.kind(view)[0]
        for _ in range(_MOST_ATTEMPTS):
            columns = dict(table.snapshot().columns)
            groups = [
                _Group(self._options, table.folder, view, kind, columns, first, last, tuple(files))
                for files, (first, last) in _places(table.snapshot(), view, ranges)
            ]
            again = [each for each in groups if each.in_log]
            yield from (each.mended("the log does not hold it any more") for each in groups if not each.in_log)
            groups, again = again, []
            written = dict(self._run(write_anew, groups))
            now = server.again(view)
            for group in groups:
                made = written[group.first]
                if isinstance(made, str):
                    yield group.mended(f"the old file cannot be read: {made}")
                elif now.start > group.start:  # so that it was perhaps not the log that answered
                    discard([made])
                    again.append(group)
                elif self._replace(table, group, made):
                    yield group.mended()
                else:
                    again.append(group)
            if not again:
                return
            view, ranges = now, [(each.first, each.last) for each in again]
        for group in again:
            yield group.mended("other writers were faster, or the log let go of it, again and again")

    def _replace(self, table: Table, group: _Group, made: NewFile) -> bool:
        """Commit a file in the place of others; False if another writer was faster."""
        try:
            table.commit([made], group.files)
        except Conflict:
            return False
        return True


class _Group(msgspec.Struct, frozen=True):
    """Files that overlap, or none where some are missing, and the range that one file has to cover. Pickles."""

    options: Options
    folder: str
    view: LogView
    kind: AnyType
    columns: dict[str, str]  # that the table has, with their types
    first: int
    last: int
    files: tuple[DataFile, ...]

    @property
    def start(self) -> int:
        """Return the first sequence that is read from the log."""
        return max(self.first, self.view.start)

    @property
    def in_log(self) -> bool:
        return self.first <= min(self.last, self.view.last)

    def mended(self, reason: str | None = None) -> Mended:
        return Mended(self.view.stream, self.first, self.last, reason)


def _places(snapshot: Snapshot, view: LogView, wanted: Sequence[Range]) -> Iterator[tuple[list[DataFile], Range]]:
    """Find the files to write: those that are touched, joined where they overlap, and new ones where none is."""
    for group in joined_groups(snapshot.files):
        first, last = group[0].first, max(each.last for each in group)
        if clipped(wanted, first, last):
            yield group, (first, last)
    for first, last in snapshot.missing:
        for low, high in clipped(wanted, first, last):
            yield [], (max(low, view.start), high)


def write_anew(group: _Group) -> Iterator[tuple[int, NewFile | str]]:
    """Write one file with what the log has and what only the old files have. Runs on a worker.

    Yields the first sequence of the group with the new file, or with the reason why an old one cannot be read.
    """
    shape = FileShape(group.view.event_type, columns_of(group.kind), group.columns)
    old, covers = list[pa.Table](), list[Covered]()
    for file in group.files:
        try:
            with open_file(file.path) as content:
                covers.append(covered_by(pq.read_metadata(content)) or Covered(file.first, file.last))
                rows = read_rows(content)
        except (OSError, pa.ArrowException) as error:
            if file.first < group.start:  # the log does not have all of it
                yield group.first, str(error)
                return
            continue  # why something was missing in it, nobody knows any more
        sequences = rows["sequence"]
        own = pc.and_(pc.greater_equal(sequences, file.first), pc.less_equal(sequences, file.last))
        old.append(rows.filter(own))
    schema = joined_schema([shape.schema, *(each.schema for each in old)])
    log = [schema.empty_table()]
    wanted = SequenceRange(group.view.event_type, group.start, min(group.last, group.view.last))
    if wanted.start <= wanted.end:
        found = read_range(group.options, wanted)
        log += [conformed(pa.Table.from_batches([shape.batch(each)]), schema) for each in found]
    new = pa.concat_tables(log)
    known = new["sequence"].combine_chunks()
    kept = [each.filter(pc.invert(pc.is_in(each["sequence"], value_set=known))) for each in old]
    rows = _once(pa.concat_tables([*(conformed(each, schema) for each in kept), new]))

    def explains(low: int, high: int) -> Covered:
        return explained(low, high, covers)

    writer = FileWriter(group.folder, group.first, group.last, schema, explains, whole=True)
    try:
        for batch in rows.to_batches():
            list(writer.add(batch))
        (made,) = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    yield group.first, made


def joined_groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group files that overlap; files and groups are in order."""
    found: list[list[DataFile]] = []
    for each in files:
        if found and each.first <= max(one.last for one in found[-1]):
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _once(table: pa.Table) -> pa.Table:
    """Sort the rows, and keep one of those that are the same."""
    table = table.take(pc.sort_indices(table["sequence"]))
    sequences = table.column("sequence").to_numpy()
    doubles = np.flatnonzero(np.diff(sequences) == 0) + 1
    if not len(doubles):
        return table
    kept = np.ones(table.num_rows, dtype=np.bool_)
    for place in doubles.tolist():
        kept[place] = table.slice(place, 1).to_pylist() != table.slice(place - 1, 1).to_pylist()
    return table.filter(pa.array(kept))
