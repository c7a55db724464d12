"""Cold replay: archived notifications in order, for several clients at a time.

This process scans the tables itself, before Spark is there and without it. Where Spark has other cores than this
process, on a cluster or a Connect server, its tasks scan what a filter has to look for among very many rows, by the
same code.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.lake import scan
from aviso_server.lake.condition import WIDE
from aviso_server.lake.remove import Removed
from aviso_server.lake.scan import Scan, Share, scan_share, windows
from aviso_server.lake.table import Snapshot, Tables
from aviso_server.model.batch import BOX
from aviso_server.model.explain import Tally
from aviso_server.spark.flight import REPLAY_SCHEMA, Cancelled, Selection
from aviso_server.spark.session import reason
from aviso_server.spark.tasks import run_tasks

__all__ = ["ColdReplay", "Turns"]

_BATCH_ROWS = 8192
_GLANCE = 0.05  # seconds between two looks whether anybody still waits
_MOST_READINGS = 32
_AT_ONCE = (os.cpu_count() or 1) + 1  # scans: while the first of them is sent, the next ones are read
_FIRST_TURNS = 2  # pieces of work, so that the first notification comes soon
_BOX = tuple(column.name for column in BOX)

_FEW_ROWS = 20_000_000
"""Rows that this process scans in about the time that a Spark job takes to get going: more are worth one."""
_LOT = 32  # windows for one job: what they find is held until it is sent

Result = TypeVar("Result")


class ColdReplay:
    """Reads an archive, for several clients at a time. Safe for threads."""

    def __init__(self, tables: Tables, cluster: Callable[[], SparkSession | None] = lambda: None) -> None:
        """Read these tables; `cluster` returns Spark where it has cores of its own, once it is there."""
        self._tables = tables
        self._cluster = cluster
        # Who goes on waits in line, so that all have the same share.
        self._working = ThreadPoolExecutor(_AT_ONCE, "cold-scan")
        self._beginning = ThreadPoolExecutor(_MOST_READINGS, "cold-start")

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        """Yield the archived notifications of a selection, ascending.

        Ends early when `cancelled` says so or when nobody asks for more. It reads one version of the table, which
        nobody removes from disk meanwhile. PipelineError if something cannot be read or is in no file: nothing is left
        out silently.
        """
        with self._begun(selection, WIDE, cancelled) as work:
            for table in work.tables():
                yield from takewhile(lambda _: not cancelled(), table.cast(REPLAY_SCHEMA).to_batches(_BATCH_ROWS))

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally:
        """Count what `read` would bring without what is hidden, by place and by interval of `unit` nanoseconds.

        PipelineError if something cannot be read, or when `cancelled` says so.
        """
        tally = Tally(unit)
        with self._begun(selection, ("sequence", "time_ns", *_BOX), cancelled) as work:
            for rows in map(hidden.without, work.tables()):
                times, counts = np.unique(rows.column("time_ns").to_numpy() // unit, return_counts=True)
                tally.times.update(dict(zip(times.tolist(), counts.tolist(), strict=True)))
                if set(_BOX) <= set(rows.column_names):
                    boxes = np.column_stack([rows.column(name).to_numpy() for name in _BOX]).astype(np.float64)
                    tally.place(boxes[~np.isnan(boxes[:, 0])])
        if cancelled():
            raise PipelineError("nobody waits for the count any more")
        return tally

    @contextmanager
    def _begun(self, selection: Selection, columns: Sequence[str], cancelled: Cancelled) -> Iterator[_Work]:
        """Hold the snapshot of the table that a selection is read from; PipelineError if it does not have all of it."""
        table = self._tables.of(selection.wanted.stream)
        with table.held(selection.version) as snapshot:
            snapshot.check_covered(selection.wanted.stream, max(1, selection.start), selection.end)
            turns = Turns(self._beginning, self._working)
            there = [name for name in columns if name not in _BOX or snapshot.columns.get(name) in ("float", "double")]
            rows = sum(
                each.rows for each in snapshot.files if selection.start <= each.last and each.first <= selection.end
            )
            session = self._cluster() if rows > _FEW_ROWS and not selection.wanted.is_open else None
            work = _Work(self._tables, snapshot, selection, there, turns, session, cancelled)
            try:
                yield work
            finally:
                work.stop()

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the lowest archived sequence stored at or after a time; one beyond the last if there is none."""
        table = self._tables.of(stream)
        with table.held(version) as snapshot:
            return scan.first_since(table, snapshot, time_ns)

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the highest archived sequence stored at or before a time; one before the first if there is none."""
        table = self._tables.of(stream)
        with table.held(version) as snapshot:
            return scan.last_until(table, snapshot, time_ns)

    def close(self) -> None:
        for executor in (self._working, self._beginning):
            executor.shutdown(wait=False, cancel_futures=True)


class Turns:
    """Where one replay has its work done: at once as long as it is new, then in line with the others."""

    def __init__(self, beginning: Executor, working: Executor) -> None:
        self._beginning = beginning
        self._working = working
        self._given = 0
        self.taken: list[Future[Any]] = []
        """What has been begun or waits in line, and may be done by now."""

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        self._given += 1
        executor = self._beginning if self._given <= _FIRST_TURNS else self._working
        future = executor.submit(work, *arguments)
        self.taken = [*(each for each in self.taken if not each.done()), future]
        return future


class _Work:
    """A part of a snapshot that is being read."""

    def __init__(
        self,
        tables: Tables,
        snapshot: Snapshot,
        selection: Selection,
        columns: Sequence[str],
        turns: Turns,
        cluster: SparkSession | None,
        cancelled: Cancelled,
    ) -> None:
        self._root = tables.root
        self._table = tables.of(selection.wanted.stream)
        self._snapshot = snapshot
        self._selection = selection
        self._columns = tuple(columns)
        self._turns = turns
        self._cluster = cluster
        self._cancelled = cancelled
        self._tag = f"cold-{uuid.uuid4().hex}"
        self._stopped = threading.Event()

    def tables(self) -> Iterator[pa.Table]:
        """Yield what is wanted, in order; ends early when cancelled. PipelineError if it cannot be read."""
        ahead: deque[tuple[Scan | _Lot, Future[pa.Table | None]]] = deque()
        scans, most = self._scans(), 1  # the first alone, before anything else takes the cores
        while True:
            while len(ahead) < most and (each := next(scans, None)) is not None:
                ahead.append((each, self._pull(each)))
            if not ahead:
                return
            first, pulled = ahead[0]
            while not pulled.done():
                if self._cancelled():
                    return
                wait([pulled], timeout=_GLANCE)
            table, most = pulled.result(), _AT_ONCE
            if table is None:
                ahead.popleft()
            else:
                ahead[0] = first, self._pull(first)
                yield table

    def stop(self) -> None:
        """Stop it, and return when nothing of it is done any more: neither in line nor by Spark."""
        self._stopped.set()
        while running := [each for each in self._turns.taken if not each.cancel() and not each.done()]:
            if self._cluster is not None:
                with suppress(Exception):  # without Java it ends by itself
                    context = _context(self._cluster)
                    stop = self._cluster.interruptTag if context is None else context.cancelJobsWithTag
                    stop(self._tag)  # more than once: another job may have been on its way
            wait(running, timeout=_GLANCE)

    def _scans(self) -> Iterator[Scan | _Lot]:
        version, wanted = self._snapshot.version, self._selection.wanted
        found = windows(self._snapshot, wanted, max(1, self._selection.start), self._selection.end)
        here = found if self._cluster is None else islice(found, 1)
        query = None
        for each in here:
            query = query or self._table.query(version)
            yield Scan(query, wanted, each, self._columns)
        while self._cluster is not None and (lot := list(islice(found, _LOT))):
            shares = [Share(self._root, wanted.stream, version, wanted, each, self._columns) for each in lot]
            yield _Lot(self._cluster, self._tag, shares)

    def _pull(self, each: Scan | _Lot) -> Future[pa.Table | None]:
        return self._turns.submit(each.pull, self._stopped.is_set)


class _Lot:
    """Windows that tasks of Spark scan, in one job; read like one scan."""

    def __init__(self, session: SparkSession, tag: str, shares: Sequence[Share]) -> None:
        self._session = session
        self._tag = tag
        self._shares = shares
        self._found: Iterator[pa.Table] | None = None

    def pull(self, stopped: Callable[[], bool]) -> pa.Table | None:
        """Return more of it, None after the last; PipelineError if it cannot be read."""
        if self._found is None:
            self._found = self._run(stopped)
        return next(self._found, None)

    def _run(self, stopped: Callable[[], bool]) -> Iterator[pa.Table]:
        context = _context(self._session)
        begin = self._session.addTag if context is None else context.addJobTag
        end = self._session.removeTag if context is None else context.removeJobTag
        begin(self._tag)
        try:
            found = {} if stopped() else dict(run_tasks(self._session, scan_share, self._shares))
        except Exception as error:
            if stopped():
                return
            raise PipelineError(reason(error)) from None
        finally:
            end(self._tag)
        yield from (pa.ipc.open_stream(found[each]).read_all() for each in sorted(found))


def _context(session: SparkSession) -> SparkContext | None:
    """Return what knows the jobs of a session; a client of Spark Connect has none."""
    return session.sparkContext if hasattr(session, "_jsparkSession") else None
