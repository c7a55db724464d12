"""Cold replay: archived notifications in order, searched by Spark, fetched as Arrow, counted by Spark.

Spark searches groups of files: it reads the columns of the filter only, and sequences come back. What was found is
fetched by this process, a row group at a time, because all of it goes through here anyhow; only where few notifications
are wanted out of many row groups, Spark picks them out of single pages. So a session of any kind does the same work.
"""

from __future__ import annotations

import heapq
import queue
import re
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import reduce
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aviso_server.errors import AvisoError, PipelineError
from aviso_server.lake.files import DataFile
from aviso_server.lake.remove import Removed
from aviso_server.lake.table import Tables
from aviso_server.model.batch import BOX
from aviso_server.model.filter import Filter
from aviso_server.model.histogram import Tally
from aviso_server.model.shapes import LAST_LAT, LAST_LON
from aviso_server.spark import row_groups
from aviso_server.spark.filter_columns import DOUBT, Condition, compile_filter, exact, settle
from aviso_server.spark.flight import REPLAY_SCHEMA, Cancelled, Selection
from aviso_server.spark.lake_files import read_files
from aviso_server.spark.row_groups import WIDE, Budget, Footers, Found, Group, Part, Sight, next_group, parts
from aviso_server.spark.session import arrow_function

__all__ = ["ColdReplay", "Scanner", "Turns"]

_BATCH_ROWS = 8192
_GLANCE = 0.05  # seconds between two looks whether anybody still waits
_MOST_READINGS = 32
_MOST_JOBS = 16  # where nobody can say how many tasks run at the same time
_SHAPE_BYTES = 64 * 1024 * 1024
_FIRST_SEARCH = Budget(rows=50_000, shape_bytes=_SHAPE_BYTES, files=8)
_SEARCH = Budget(rows=5_000_000, shape_bytes=_SHAPE_BYTES, files=512)
"""What is searched at once: little at first, so that the first notification comes soon; then much, because each search
costs something by itself. Shapes come back with their sequences, so that they are bounded too."""
_READ = Budget(rows=1_000_000, shape_bytes=sys.maxsize, files=8)
"""What is planned at once where nothing has to be searched."""
_AT_ONCE = 3  # fetches: while one is sent, the next ones are read
_FIRST_TURNS = 2  # pieces of work: to search and to fetch, so that the first notification comes soon
_WARM_UPS = 3  # searches after which Java has loaded, and Spark generated, what searches need

_TYPES = {name: "long" if name in ("sequence", "time_ns") else "string" for name in WIDE}
_BOX = tuple(column.name for column in BOX)

Result = TypeVar("Result")


class ColdReplay:
    """Reads an archive, for several clients at a time. Safe for threads."""

    def __init__(self, session: SparkSession, tables: Tables) -> None:
        self._tables = tables
        self._footers = Footers(lambda file: tables.storage.open(file.path))
        self._scanner = Scanner(session)
        self._pools = _Pools()
        self._reading = ThreadPoolExecutor(_MOST_READINGS, "cold-replay")
        # Who goes on waits in line. Spark would give cores to whoever has none, and among several always to the same.
        self._working = ThreadPoolExecutor((self._scanner.cores or _MOST_JOBS) + 1, "cold-job")
        self._beginning = ThreadPoolExecutor(_MOST_READINGS, "cold-start")

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        """Yield the archived notifications of a selection, ascending.

        Ends early when `cancelled` says so or when nobody asks for more. It reads one version of the table, which
        nobody removes from disk meanwhile. PipelineError if something cannot be read or is in no file: nothing is left
        out silently.
        """
        ready: queue.Queue[pa.Table | None] = queue.Queue(1)
        with self._begun(selection) as work:
            done = self._reading.submit(_fill, _Reading(work), ready, work.stopped)
            try:
                while not cancelled():
                    with suppress(queue.Empty):
                        table = ready.get(timeout=_GLANCE)
                        if table is None:
                            done.result()
                            return
                        yield from _batches(table, cancelled)
            finally:
                work.stop(done)

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally:
        """Count what `read` would bring without what is hidden, by place and by interval of `unit` nanoseconds.

        Counted by Spark, which is stopped when `cancelled` says so. PipelineError if something cannot be read.
        """
        with self._begun(selection) as work:
            done = self._reading.submit(_Counting(work, unit, hidden).tally)
            while not done.done() and not cancelled():
                wait([done], timeout=_GLANCE)
            if done.done():
                return done.result()
            work.stop(done)
        raise PipelineError("nobody waits for the count any more")

    @contextmanager
    def _begun(self, selection: Selection) -> Iterator[_Work]:
        """Hold the snapshot of the table that a selection is read from; PipelineError if it does not have all of it."""
        with self._pools.taken() as pool, self._tables.of(selection.wanted.stream).held(selection.version) as snapshot:
            start = max(1, selection.start)
            snapshot.check_covered(selection.wanted.stream, start, selection.end)
            turns = Turns(self._beginning, self._working)
            yield _Work(
                selection.wanted, start, selection.end, snapshot.files, self._footers, self._scanner, turns, pool
            )

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the lowest archived sequence stored at or after a time; one beyond the last if there is none."""
        with self._tables.of(stream).held(version) as snapshot:
            return row_groups.first_since(snapshot.files, self._footers, time_ns)

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the highest archived sequence stored at or before a time; one before the first if there is none."""
        with self._tables.of(stream).held(version) as snapshot:
            return row_groups.last_until(snapshot.files, self._footers, time_ns)

    def last(self, stream: str) -> int:
        """Return the newest archived sequence of a stream, 0 if there is none."""
        return self._tables.of(stream).snapshot().watermark

    def warm_up(self) -> None:
        """Search a file of the archive a few times, so that the first replay does not wait for Java to get ready."""
        for stream in self._tables.streams():
            with self._tables.of(stream).held() as snapshot:
                if snapshot.files:
                    nothing = (f.col("topic") == "") & (f.col("sequence") < 0)
                    for _ in range(_WARM_UPS):
                        self._scanner.rows(snapshot.files[:1], _TYPES, nothing, ["sequence"], pages=False)
                    return

    def close(self) -> None:
        """Release the threads."""
        for executor in (self._reading, self._working, self._beginning):
            executor.shutdown(wait=False, cancel_futures=True)


class _Pools:
    """Names of Spark's pools. They are used again, because Spark forgets none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._made = 0

    @contextmanager
    def taken(self) -> Iterator[str]:
        """A pool that nobody else has."""
        with self._lock:
            if not self._free:
                self._made += 1
                heapq.heappush(self._free, self._made)
            number = heapq.heappop(self._free)
        try:
            yield f"replay-{number}"
        finally:
            with self._lock:
                heapq.heappush(self._free, number)


class Turns:
    """Where one replay has its work done: at once as long as it is new, then in line with the others."""

    def __init__(self, beginning: Executor, working: Executor) -> None:
        self._beginning = beginning
        self._working = working
        self._given = 0
        self.taken: list[Future[Any]] = []
        """What has been begun or waits in line, and may be done by now."""

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have something done."""
        self._given += 1
        executor = self._beginning if self._given <= _FIRST_TURNS else self._working
        future = executor.submit(work, *arguments)
        self.taken = [*(each for each in self.taken if not each.done()), future]
        return future


class _Work:
    """What reading and counting have in common: a part of a snapshot, and that it can be stopped."""

    def __init__(
        self,
        wanted: Filter,
        start: int,
        end: int,
        files: Sequence[DataFile],
        footers: Footers,
        scanner: Scanner,
        turns: Turns,
        pool: str,
    ) -> None:
        self.wanted = wanted
        self.start = start
        self.end = end
        self.footers = footers
        self.scanner = scanner
        self.turns = turns
        self.stopped = threading.Event()
        self._files = files
        self._tag = f"cold-{uuid.uuid4().hex}"
        self._pool = pool

    def next_group(self, position: int, budget: Budget) -> Group | None:
        """Return what to read next from a sequence on."""
        return next_group(self._files, self.footers, self.wanted, position, self.end, budget)

    def tagged(self) -> AbstractContextManager[None]:
        """Whatever this thread has Spark do within is stopped with the rest."""
        return self.scanner.tagged(self._tag, self._pool)

    def stop(self, done: Future[Any]) -> None:
        """Stop it, and return when nothing of it is done any more: neither by `done`, nor in line, nor by Spark."""
        self.stopped.set()
        while running := [*_running([done]), *_running(self.turns.taken)]:  # `done` first: it may take more turns
            with suppress(Exception):  # without Java it ends by itself
                self.scanner.stop(self._tag)  # more than once: another job may have been on its way
            wait(running, timeout=_GLANCE)


def _running(futures: Sequence[Future[Any]]) -> list[Future[Any]]:
    """Cancel what has not begun, and return what goes on."""
    return [each for each in futures if not each.cancel() and not each.done()]


def _fill(reading: _Reading, ready: queue.Queue[pa.Table | None], stopped: threading.Event) -> None:
    try:
        for table in reading.tables():
            if not _put(ready, table, stopped):
                return
    finally:
        _put(ready, None, stopped)


def _put(ready: queue.Queue[pa.Table | None], table: pa.Table | None, stopped: threading.Event) -> bool:
    """Wait until there is room; False if nobody waits for it any more."""
    while not stopped.is_set():
        with suppress(queue.Full):
            ready.put(table, timeout=_GLANCE)
            return True
    return False


def _batches(table: pa.Table, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
    for batch in table.cast(REPLAY_SCHEMA).to_batches(_BATCH_ROWS):
        if cancelled():
            return
        yield batch


class _Conditions(dict[Sight, Condition]):
    """A filter as columns, for each way that it sees files."""

    def __init__(self, wanted: Filter) -> None:
        super().__init__()
        self._wanted = wanted

    def __missing__(self, sight: Sight) -> Condition:
        self[sight] = condition = compile_filter(self._wanted, sight)
        return condition


class _Reading:
    """Reads what a filter wants of a stream, from one sequence to another."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._wanted = work.wanted
        self._stopped = work.stopped
        self._conditions = _Conditions(work.wanted)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the notifications in order; ends early when stopped. PipelineError if they cannot be read."""
        try:
            yield from (table for table in self._fetched() if table.num_rows)
        except AvisoError:
            if not self._stopped.is_set():
                raise
        except Exception as error:
            if not self._stopped.is_set():
                raise _reason(error) from error

    def _fetched(self) -> Iterator[pa.Table]:
        fetches: deque[Future[pa.Table]] = deque()
        for group, found in self._searched():
            for part in parts(group, found):
                if self._stopped.is_set():
                    return
                fetches.append(self._work.turns.submit(self._fetch, part, group.sight))
                while len(fetches) == _AT_ONCE:
                    yield fetches.popleft().result()
            while fetches:  # before the next search is waited for
                yield fetches.popleft().result()

    def _searched(self) -> Iterator[tuple[Group, Found | None]]:
        """Yield groups of files in order, with what was found in them; the next one is searched meanwhile."""
        if self._wanted.is_open:
            group = self._work.next_group(self._work.start, _READ)
            while group is not None:
                yield group, None
                group = self._work.next_group(group.last + 1, _READ)
            return
        group = self._work.next_group(self._work.start, _FIRST_SEARCH)
        if group is None:
            return
        yield group, self._work.turns.submit(self._search, group).result()  # before anything else takes the cores
        ahead = self._begin(group.last + 1)
        while ahead is not None:
            group, search = ahead
            found = search.result()
            ahead = self._begin(group.last + 1)
            yield group, found

    def _begin(self, position: int) -> tuple[Group, Future[Found]] | None:
        group = self._work.next_group(position, _SEARCH)
        return None if group is None else (group, self._work.turns.submit(self._search, group))

    def _search(self, group: Group) -> Found:
        """Return the sequences of what is wanted, or may be."""
        if not group.files:
            return Found(np.array([], np.int64), np.array([], np.bool_))
        condition = self._conditions[group.sight]
        select: list[str | Column] = ["sequence", *condition.judging]
        if condition.doubt is not None:
            select.append(condition.doubt.alias(DOUBT))
        columns = {**condition.reads, **condition.judging, "sequence": "long"}
        with self._work.tagged():
            rows = self._work.scanner.rows(group.files, columns, condition.column, select, pages=False)
        return settle(self._wanted, group.sight, _between(rows, group.first, group.last))

    def _fetch(self, part: Part, sight: Sight) -> pa.Table:
        """Return the notifications of a part of a group."""
        if part.found is None:
            return _between(self._work.footers.read(part.row_groups[0]), *part.limits)
        rows = self._pick(part) if part.picked else self._work.footers.read(part.row_groups[0])
        wanted, there = part.found.sequences, rows.column("sequence").to_numpy()
        places = np.searchsorted(there, wanted)
        if not len(there) or not np.array_equal(there[np.minimum(places, len(there) - 1)], wanted):
            raise PipelineError(f"sequences {wanted[0]} to {wanted[-1]} were found, and not all of them could be read")
        rows = rows if len(there) == len(wanted) else rows.take(places)
        return exact(self._wanted, self._conditions[sight], part.found, rows)

    def _pick(self, part: Part) -> pa.Table:
        """Return few notifications of many row groups."""
        assert part.found is not None
        picked = part.found.sequences.tolist()
        files = tuple(dict.fromkeys(each.file for each in part.row_groups))
        chosen = f.expr(f"sequence in ({','.join(map(str, picked))})")
        with self._work.tagged():
            return self._work.scanner.rows(files, _TYPES, chosen, WIDE, True, picked, (picked[0], picked[-1]))


def _between(table: pa.Table, first: int, last: int) -> pa.Table:
    """Return the rows of an ordered table with these sequences."""
    sequences = table.column("sequence").to_numpy()
    start, end = np.searchsorted(sequences, first), np.searchsorted(sequences, last, "right")
    return table.slice(start, end - start)


# Counting

_WHOLE = Budget(rows=sys.maxsize, shape_bytes=sys.maxsize)
"""Files that look the same are counted in one job, however many: nothing but sums is held."""

_BY_TIME, _BY_CELL, _IN_DOUBT = 0, 1, 2
"""Kinds of sums: of an interval of time, of a cell of the map (latitude and longitude), or of rows in doubt."""


class _Counting:
    """Counts what a filter wants of a stream, from one sequence to another."""

    def __init__(self, work: _Work, unit: int, hidden: Removed) -> None:
        self._work = work
        self._wanted = work.wanted
        self._unit = unit
        self._hidden = hidden  # that the table still has
        self._stopped = work.stopped

    def tally(self) -> Tally:
        """Return the counts; of a part only when it is stopped. PipelineError if something cannot be read."""
        tally, position = Tally(self._unit), max(self._work.start, self._hidden.wiped_through + 1)
        while position <= self._work.end and not self._stopped.is_set():
            try:
                group = self._work.next_group(position, _WHOLE)
                if group is None:
                    break
                if group.files:
                    with self._work.tagged():
                        tally.merge(self._count(group))
            except AvisoError:
                raise
            except Exception as error:
                if self._stopped.is_set():
                    break
                raise _reason(error) from error
            position = group.last + 1
        return tally

    def _count(self, group: Group) -> Tally:
        condition = compile_filter(self._wanted, group.sight)
        odd = [f.col("identifier").rlike(each) for each in condition.odd]
        doubts = [*odd, *([] if condition.doubt is None else [condition.doubt])]
        doubt = reduce(lambda one, other: one | other, doubts) if doubts else None
        tests = [f.expr(f"sequence between {group.first} and {group.last}")]
        if gone := self._hidden.within(group.first, group.last):
            tests.append(~f.expr(f"sequence in ({','.join(map(str, sorted(gone)))})"))
        tests += [] if condition.column is None else [condition.column]
        tests += [f.contains(f.col("identifier"), f.lit(member)) for member in condition.members]
        if self._wanted.area is not None:
            return self._summed(group, self._judged(group, condition, tests))[0]
        tally, doubtful = self._summed(group, self._plain(group, condition, tests, doubt), doubt)
        if doubtful:
            in_doubt = [*tests, _or_null(doubt)]
            tally.merge(self._summed(group, self._judged(group, condition, in_doubt))[0])
        return tally

    def _plain(self, group: Group, condition: Condition, tests: list[Column], doubt: Column | None) -> DataFrame:
        """Return the rows that Spark lets through."""
        columns = {"sequence": "long", "time_ns": "long", **condition.reads, **self._boxes(group)}
        if condition.members or doubt is not None:
            columns["identifier"] = "string"
        return self._work.scanner.frame(group.files, columns, _all(tests))

    def _judged(self, group: Group, condition: Condition, tests: list[Column]) -> DataFrame:
        """Return the rows among them that the filter itself lets through; it decides where Spark's workers are."""
        columns = {**_TYPES, **condition.judging, **condition.reads, **self._boxes(group)}
        looked_at: list[str | Column] = [*dict.fromkeys([*WIDE, *condition.judging])]
        if condition.doubt is not None:
            looked_at.append(condition.doubt.alias(DOUBT))
        bare = msgspec.structs.replace(condition, column=None, doubt=None)  # columns cannot travel
        judging = _verdict(self._wanted, group.sight, bare)
        verdict = arrow_function(judging, "boolean")
        return self._work.scanner.frame(group.files, columns, _all(tests)).where(verdict(f.struct(*looked_at)))

    def _summed(self, group: Group, rows: DataFrame, doubt: Column | None = None) -> tuple[Tally, int]:
        """Return the sums of rows that leave no doubt, and how many do."""
        sums = [_sum(_BY_TIME, f.expr(f"time_ns div {self._unit}"), f.lit(0))]
        if self._boxes(group):
            south, west, north, east = (f.col(name).cast("double") for name in _BOX)
            sums.append(_sum(_BY_CELL, _middle(south, north, LAST_LAT), _middle(west, east, LAST_LON)))
        entries = f.array(*sums)
        if doubt is not None:
            entries = f.when(_or_null(doubt), f.array(_sum(_IN_DOUBT, f.lit(0), f.lit(0)))).otherwise(entries)
        summed = rows.select(f.inline(entries)).groupBy("kind", "one", "other").agg(f.count(f.lit(1)).alias("many"))
        tally, doubtful = Tally(self._unit), 0
        for row in summed.toArrow().to_pylist():
            if row["kind"] == _BY_TIME:
                tally.times[row["one"]] += row["many"]
            elif row["kind"] == _IN_DOUBT:
                doubtful = row["many"]
            elif row["one"] is not None:
                tally.cells[row["one"], row["other"]] += row["many"]
        return tally, doubtful

    def _boxes(self, group: Group) -> dict[str, str]:
        """Return the columns with the boxes, and their type; none if no file of the group has them."""
        kinds = {self._work.footers.facts(file).types.get(_BOX[0]) for file in group.files} - {None}
        if not kinds or not kinds <= {"float", "double"}:
            return {}
        return dict.fromkeys(_BOX, "float" if kinds == {"float"} else "double")


def _verdict(wanted: Filter, sight: Sight, condition: Condition) -> Callable[[pa.Array], pa.Array]:
    """Make what runs in a worker of Spark: it says which rows the filter wants."""

    def verdict(rows: pa.Array) -> pa.Array:
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
        sequences = table.column("sequence").to_numpy()
        found = settle(wanted, sight, table)
        passed = exact(wanted, condition, found, table.filter(pa.array(np.isin(sequences, found.sequences))))
        return pa.array(np.isin(sequences, passed.column("sequence").to_numpy()))

    return verdict


def _sum(kind: int, one: Column, other: Column) -> Column:
    return f.struct(f.lit(kind).alias("kind"), one.cast("long").alias("one"), other.cast("long").alias("other"))


def _middle(low: Column, high: Column, last: int) -> Column:
    """Return the whole degree below the middle; null if there is no box, which `least` alone would pass over."""
    return f.when(low.isNotNull(), f.least(f.floor((low + high) / 2), f.lit(last).cast("long")))


def _or_null(doubt: Column | None) -> Column:
    """What is not known is in doubt too."""
    return f.lit(True) if doubt is None else f.coalesce(doubt, f.lit(True))


def _all(tests: list[Column]) -> Column:
    return reduce(lambda one, other: one & other, tests)


# Jobs

_SETTINGS = {
    # Plans are small and known: nothing is learned on the way.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.caseSensitive": "true",
    # As many parts as there are cores, however many files.
    "spark.sql.files.maxPartitionBytes": "1g",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Sequences to pick out: a set for Spark, so that its generated code is always the same, and single values for the
    # statistics of pages.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    "spark.sql.parquet.pushdown.inFilterThreshold": "100000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # What is counted is little by the time that it is put together.
    "spark.sql.shuffle.partitions": "4",
}
_NEVER = {"parquet.filter.dictionary.enabled": "false"}  # to read dictionaries in advance costs more than it saves
_PAGES = "parquet.filter.columnindex.enabled"
_SPARK_TYPES = {"long": "bigint"}
_FILE = re.compile(r"(?:reading file|Could not read footer for file:?) ['\"]?(\S+\.parquet)")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_MESSAGE = re.compile(r"\A(?:An error occurred while calling \S+\n: )?(.+)$", re.MULTILINE)
_LONGEST = 300


class Scanner:
    """Reads files with a session of its own where that is possible."""

    def __init__(self, session: SparkSession) -> None:
        # Of a Spark Connect server a client has one session, and no context.
        self._context = session.sparkContext if hasattr(session, "_jsparkSession") else None
        self._session = session if self._context is None else session.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        self.cores = None if self._context is None else self._context.defaultParallelism
        """How many tasks run at the same time, if that is known."""

    def rows(
        self,
        files: Sequence[DataFile],
        columns: Mapping[str, str],
        condition: Column | None,
        select: Sequence[str | Column],
        pages: bool,
        picked: Sequence[int] | None = None,
        limits: tuple[int, int] | None = None,
    ) -> pa.Table:
        """Return the rows that pass, in order of their sequences; with `pages`, statistics of pages are looked at too.

        `picked` and `limits` repeat what the condition says of sequences, for files that Spark does not read itself.
        """
        return _ascending(self.frame(files, columns, condition, pages, picked, limits).select(*select).toArrow())

    def frame(
        self,
        files: Sequence[DataFile],
        columns: Mapping[str, str],
        condition: Column | None,
        pages: bool = False,
        picked: Sequence[int] | None = None,
        limits: tuple[int, int] | None = None,
    ) -> DataFrame:
        """Return the rows that pass, to go on with."""
        schema = ", ".join(
            f"`{name.replace('`', '``')}` {_SPARK_TYPES.get(kind, kind)}" for name, kind in columns.items()
        )
        options = {**_NEVER, _PAGES: str(pages).lower()}
        frame = read_files(self._session, files, schema, options, picked, limits)
        return frame if condition is None else frame.where(condition)

    @contextmanager
    def tagged(self, tag: str, pool: str) -> Iterator[None]:
        """Whatever this thread starts within can be stopped by the tag, and shares cores fairly with other pools."""
        context = self._context
        if context is None:
            self._session.addTag(tag)
        else:
            context.setLocalProperty("spark.scheduler.pool", pool)
            context.addJobTag(tag)
        try:
            yield
        finally:
            if context is None:
                self._session.removeTag(tag)
            else:
                context.removeJobTag(tag)

    def stop(self, tag: str) -> None:
        """End what runs under the tag."""
        if self._context is None:
            self._session.interruptTag(tag)
        else:
            self._context.cancelJobsWithTag(tag)


def _reason(error: Exception) -> PipelineError:
    """What Spark said, without its stack: the innermost cause if there are several."""
    text = str(error)
    causes = _CAUSE.findall(text) or _MESSAGE.findall(text)
    words = causes[-1][:_LONGEST] if causes else type(error).__name__
    file = _FILE.search(text)
    if file is not None and file[1] not in words:
        words = f"{file[1]}: {words}"
    return PipelineError(f"the archive cannot be read: {words}")


def _ascending(table: pa.Table) -> pa.Table:
    """Spark deals out the largest parts of files first, so that they come back in another order."""
    table = table.combine_chunks()
    if table.num_rows < 2:
        return table
    sequences = table.column("sequence").to_numpy()
    if bool(np.all(sequences[1:] > sequences[:-1])):
        return table
    return table.take(pc.sort_indices(table.column("sequence")))
