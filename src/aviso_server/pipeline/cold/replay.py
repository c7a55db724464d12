"""Replay out of the archive: notifications in order, read ahead a little, in bounded memory."""

from __future__ import annotations

import heapq
import queue
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.model.filter import Filter
from aviso_server.model.tally import Tally
from aviso_server.pipeline.archive.hadoop import storage_of
from aviso_server.pipeline.archive.layout import DataFile, listing, stream_folder
from aviso_server.pipeline.archive.storage import LOCAL, Storage
from aviso_server.pipeline.archive.tombstones import Tombstones, read_tombstones
from aviso_server.pipeline.cold import seek
from aviso_server.pipeline.cold.count import Counting
from aviso_server.pipeline.cold.footers import Footers
from aviso_server.pipeline.cold.reading import Reading, Turns, without_deleted
from aviso_server.pipeline.cold.remote import opener
from aviso_server.pipeline.cold.scan import Scanner

__all__ = ["SCHEMA", "ColdReplay"]

SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("time_ns", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
    ]
)
"""What a replay consists of."""

_BATCH_ROWS = 8192
_GLANCE = 0.05  # seconds between two looks whether anybody still waits
_MOST_READINGS = 32
_MOST_JOBS = 16  # where nobody can say how many tasks run at the same time


class ColdReplay:
    """Reads an archive, for several clients at a time. Safe for threads."""

    def __init__(self, session: SparkSession, root: str, storage: Storage | None = None) -> None:
        self._root = str(root)
        self._storage = storage_of(self._root, session) if storage is None else storage
        local = self._storage is LOCAL
        self._footers = Footers((lambda file: LOCAL.open(file.path)) if local else opener(session))
        self._scanner = Scanner(session)
        self._pools = _Pools()
        self._reading = ThreadPoolExecutor(_MOST_READINGS, "cold-replay")
        # Who goes on waits in line. Spark would give cores to whoever has none, and among several always to the same.
        self._working = ThreadPoolExecutor((self._scanner.cores or _MOST_JOBS) + 1, "cold-job")
        self._beginning = ThreadPoolExecutor(_MOST_READINGS, "cold-start")

    def read(self, wanted: Filter, start: int, end: int, cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
        """The archived notifications that the filter lets through, ascending, from one sequence to another.

        Ends early when `cancelled` is set or when nobody asks for more; what Spark does for it is stopped then.
        PipelineError if something cannot be read: nothing is left out silently.
        """
        tag, stopped = f"cold-{uuid.uuid4().hex}", threading.Event()
        ready: queue.Queue[pa.Table | None] = queue.Queue(1)
        with self._pools.taken() as pool:
            folder = stream_folder(self._root, wanted.stream)
            reading = Reading(
                wanted,
                start,
                end,
                folder,
                self._storage,
                self._footers,
                self._scanner,
                Turns(self._beginning, self._working),
                partial(self._scanner.tagged, tag, pool),
                stopped,
            )
            done = self._reading.submit(_fill, reading, ready, stopped)
            try:
                while not cancelled.is_set():
                    with suppress(queue.Empty):
                        table = ready.get(timeout=_GLANCE)
                        if table is None:
                            done.result()
                            return
                        # It may have waited: what was deleted meanwhile must not come back.
                        left = without_deleted(table, read_tombstones(folder, self._storage))
                        yield from _batches(left, cancelled)
            finally:
                stopped.set()
                if not done.done():
                    self._scanner.stop(tag)

    def count(
        self, wanted: Filter, start: int, end: int, unit: int, hidden: Tombstones, cancelled: threading.Event
    ) -> Tally:
        """How many `read` would bring without what is hidden, by place and by interval of `unit` nanoseconds.

        Counted by Spark, which is stopped when `cancelled` is set. PipelineError if something cannot be read.
        """
        tag, stopped = f"count-{uuid.uuid4().hex}", threading.Event()
        with self._pools.taken() as pool:
            counting = Counting(
                wanted,
                start,
                end,
                unit,
                hidden,
                stream_folder(self._root, wanted.stream),
                self._storage,
                self._footers,
                self._scanner,
                partial(self._scanner.tagged, tag, pool),
                stopped,
            )
            done = self._reading.submit(counting.tally)
            while not done.done():
                if cancelled.is_set():
                    stopped.set()
                    self._scanner.stop(tag)  # more than once: another job may have been on its way
                wait([done], timeout=_GLANCE)
        if stopped.is_set():
            raise PipelineError("nobody waits for the count any more")
        return done.result()

    def first_since(self, stream: str, time_ns: int) -> int:
        """The lowest archived sequence stored at or after a time; one beyond the last if there is none."""
        return seek.first_since(self._files(stream), self._footers, time_ns)

    def last_until(self, stream: str, time_ns: int) -> int:
        """The highest archived sequence stored at or before a time; one before the first if there is none."""
        return seek.last_until(self._files(stream), self._footers, time_ns)

    def close(self) -> None:
        """Let go of the threads."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._working.shutdown(wait=False, cancel_futures=True)
        self._beginning.shutdown(wait=False, cancel_futures=True)

    def _files(self, stream: str) -> list[DataFile]:
        return listing(stream_folder(self._root, stream), self._storage)


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


def _fill(reading: Reading, ready: queue.Queue[pa.Table | None], stopped: threading.Event) -> None:
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


def _batches(table: pa.Table, cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
    for batch in table.cast(SCHEMA).to_batches(_BATCH_ROWS):
        if cancelled.is_set():
            return
        yield batch
