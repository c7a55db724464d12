"""One replay out of the archive, as it reads group after group."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as f

from aviso_server.errors import AvisoError
from aviso_server.model.filter import Filter
from aviso_server.pipeline.archive.layout import DataFile
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import Tombstones, look
from aviso_server.pipeline.cold.filter_columns import Condition, Sight, compile_filter
from aviso_server.pipeline.cold.footers import WIDE, Footers
from aviso_server.pipeline.cold.judge import DOUBT, Judge
from aviso_server.pipeline.cold.scan import Scanner, reason
from aviso_server.pipeline.cold.walk import Budget, Chunk, Group, Hits, chunks, next_group

__all__ = ["Reading", "Turns", "without_deleted"]

_MEGABYTE = 1024 * 1024
_FIRST = Budget(rows=25_000, bytes=8 * _MEGABYTE)
"""What is fetched first: little, so that the first notification comes soon."""
_MOST = Budget(rows=250_000, bytes=24 * _MEGABYTE)
"""What is fetched at once later on: bounds the memory, and how long others wait for a turn."""
_FIRST_SEARCH = Budget(rows=50_000, bytes=sys.maxsize, files=True)
_MOST_SEARCH = Budget(rows=5_000_000, bytes=sys.maxsize, files=True)
"""What is searched at once: only sequences come back. Little until something is found, so that the first notification
comes soon; then much, because each search costs something by itself. Whole files need no bounds, so that all searches
are alike and Spark compiles one piece of code for them."""
_SMALL = 4 * _MEGABYTE
"""What is read at once without being searched: a second job would take longer."""
_GROWTH, _SEARCH_GROWTH = 4, 10
_AT_ONCE = 2  # fetches: while one reads, the next one is prepared
_FIRST_TURNS = 2  # pieces of work: to search and to fetch, so that the first notification comes soon
_MANY = 0.25  # if so many rows pass, they are not worth to be searched for first
_MOST_ATTEMPTS = 3

_WIDE_TYPES = {name: "long" if name in ("sequence", "time_ns") else "string" for name in WIDE}

_NOTHING = pa.table(
    {name: pa.array([], pa.string() if kind == "string" else pa.int64()) for name, kind in _WIDE_TYPES.items()}
)


Result = TypeVar("Result")


class _Step(msgspec.Struct):
    """A group on its way."""

    group: Group
    marks: Tombstones
    search: Future[Hits] | None  # None: everything is read


class Turns:
    """Where one replay has its work done: at once as long as it is new, then in line with the others."""

    def __init__(self, beginning: Executor, working: Executor) -> None:
        self._beginning = beginning
        self._working = working
        self._given = 0

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have something done."""
        self._given += 1
        executor = self._beginning if self._given <= _FIRST_TURNS else self._working
        return executor.submit(work, *arguments)


class Reading:
    """Reads what a filter wants of a stream, from one sequence to another."""

    def __init__(
        self,
        wanted: Filter,
        start: int,
        end: int,
        folder: str,
        storage: Storage,
        footers: Footers,
        scanner: Scanner,
        turns: Turns,
        tagged: Callable[[], AbstractContextManager[None]],
        stopped: threading.Event,
        first: Budget = _FIRST,
    ) -> None:
        self._wanted = wanted
        self._start = max(1, start)
        self._end = end
        self._folder = folder
        self._storage = storage
        self._footers = footers
        self._scanner = scanner
        self._turns = turns
        self._tagged = tagged
        self._stopped = stopped
        self._conditions: dict[Sight, Condition] = {}
        self._used: set[DataFile] = set()  # since it began, or began again
        self._share = 1.0 if wanted.is_open else 0.0  # of rows that passed lately
        self._fetching = first
        self._search = _FIRST_SEARCH  # as long as nothing was found
        self._found = False

    def tables(self) -> Iterator[pa.Table]:
        """The notifications in order; ends early when stopped. PipelineError if they cannot be read."""
        position, attempts = self._start, 1
        while position <= self._end:
            try:
                for covered, table in self._from(position):
                    if table.num_rows:
                        yield table
                    position, attempts = covered + 1, 1
                return
            except AvisoError:
                raise
            except Exception as error:
                if self._stopped.is_set():
                    return
                # Merging takes the place of files; whoever was reading them begins again where it was.
                merged = self._used.difference(look(self._folder, self._storage)[1])
                if attempts == _MOST_ATTEMPTS or not merged:
                    raise reason(error) from error
                attempts += 1

    def _from(self, position: int) -> Iterator[tuple[int, pa.Table]]:
        """Pairs of a sequence and all notifications up to it since the one before."""
        fetches: deque[tuple[int, Future[pa.Table]]] = deque()
        self._used.clear()
        try:
            for part in self._parts(position):
                if self._stopped.is_set():
                    return
                if part is not None:
                    chunk, step = part
                    fetches.append((chunk.last, self._turns.submit(self._fetch, chunk, step)))
                while fetches and (part is None or len(fetches) == _AT_ONCE):
                    covered, fetch = fetches.popleft()
                    yield covered, fetch.result()
            for covered, fetch in fetches:
                yield covered, fetch.result()
        finally:
            for _, fetch in fetches:
                fetch.cancel()

    def _parts(self, position: int) -> Iterator[tuple[Chunk, _Step] | None]:
        """What to fetch, in order; None before something has to be waited for."""
        step = self._plan(position)
        while step is not None:
            group = step.group
            if step.search is None:
                yield Chunk(group.first, group.last, group.files), step
                step = self._plan(group.last + 1)
                continue
            if not step.search.done():
                yield None
            # Spark never waits for work: before a group has been searched, the next one is on its way. As long as
            # nothing was found, it may be that little is searched to find the first soon.
            first = not self._found
            following = None if first else self._plan(group.last + 1)
            hits = step.search.result()
            self._share = len(hits) / max(1, group.rows)
            for chunk in chunks(group, hits, self._fetching, soon=first):
                yield chunk, step
                if first:
                    first, self._found = False, True
                    if chunk.picked is None:
                        yield None  # it takes a while, and what is begun beside it could take all cores before
                    following = self._plan(group.last + 1)
            step = self._plan(group.last + 1) if first else following

    def _plan(self, position: int) -> _Step | None:
        marks, files = look(self._folder, self._storage)
        position = max(position, marks.wiped_through + 1)
        if position > self._end:
            return None
        direct = self._share >= _MANY
        searching = _MOST_SEARCH if self._found else self._search
        budget = self._fetching if direct else searching
        group = next_group(files, self._footers, self._wanted, position, self._end, budget)
        if group is None:
            return None
        self._used.update(group.files)
        if direct or group.bytes <= _SMALL:
            return _Step(group, marks, None)
        rows = min(_MOST_SEARCH.rows, self._search.rows * _SEARCH_GROWTH)
        self._search = msgspec.structs.replace(_MOST_SEARCH, rows=rows)
        return _Step(group, marks, self._turns.submit(self._hits, group))

    def _hits(self, group: Group) -> Hits:
        """The sequences of what seems to be wanted."""
        condition = self._condition(group.sight)
        with self._tagged():
            found = self._scanner.rows(
                group.files,
                {**condition.reads, "sequence": "long"},
                condition.column,
                ["sequence"],
                pages=False,
            )
        hits: Hits = _between(found, group.first, group.last).column("sequence").to_numpy()
        return hits

    def _fetch(self, chunk: Chunk, step: _Step) -> pa.Table:
        """The notifications of a part of a group."""
        if not chunk.files:
            return _NOTHING
        condition = self._condition(step.group.sight)
        columns = {**_WIDE_TYPES, **condition.judging}
        if chunk.picked is None:
            columns |= condition.reads
            bounds = _bounds(chunk.files, chunk.first, chunk.last) if chunk.bounded else None
            test = _both(condition.column, bounds)
        else:
            test = f.expr(f"sequence in ({','.join(map(str, chunk.picked.tolist()))})")
        select: list[str | Column] = [*WIDE, *condition.judging]
        if condition.doubt is not None:
            columns |= condition.reads
            select.append(condition.doubt.alias(DOUBT))
        pages = chunk.picked is not None or (chunk.bounded and len(chunk.files) == 1)
        with self._tagged():
            found = _between(self._scanner.rows(chunk.files, columns, test, select, pages), chunk.first, chunk.last)
        if chunk.picked is None and step.search is None:
            self._share = found.num_rows / max(1, step.group.rows)
        self._fetching = Budget(
            min(_MOST.rows, self._fetching.rows * _GROWTH), min(_MOST.bytes, self._fetching.bytes * _GROWTH)
        )
        passed = Judge(self._wanted, step.group.sight, condition).passed(found)
        return without_deleted(passed, step.marks)

    def _condition(self, sight: Sight) -> Condition:
        if sight not in self._conditions:
            self._conditions[sight] = compile_filter(self._wanted, sight)
        return self._conditions[sight]


def without_deleted(table: pa.Table, marks: Tombstones) -> pa.Table:
    """The notifications that are not marked as deleted."""
    if not table.num_rows:
        return table
    sequences = table.column("sequence")
    first, last = sequences[0].as_py(), sequences[-1].as_py()
    if not marks.touches(first, last):
        return table
    gone = pa.array(marks.within(first, last), pa.int64())
    hidden = pc.or_(pc.less_equal(sequences, marks.wiped_through), pc.is_in(sequences, value_set=gone))
    return table.filter(pc.invert(hidden))


def _bounds(files: tuple[DataFile, ...], first: int, last: int) -> Column | None:
    """A condition for the sequences, as far as the files have others."""
    parts = []
    if first > files[0].first:
        parts.append(f"sequence >= {first}")
    if last < files[-1].last:
        parts.append(f"sequence <= {last}")
    return f.expr(" and ".join(parts)) if parts else None


def _between(table: pa.Table, first: int, last: int) -> pa.Table:
    """The rows of an ordered table with these sequences."""
    sequences = table.column("sequence").to_numpy()
    start, end = np.searchsorted(sequences, first), np.searchsorted(sequences, last, "right")
    return table.slice(start, end - start)


def _both(one: Column | None, other: Column | None) -> Column | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other
