"""Compaction: small files become large ones, by commits that change nothing for readers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from aviso_server.errors import PipelineError
from aviso_server.lake.files import DataFile, NewFile, rewrite
from aviso_server.lake.table import KEEP_HOURS, Conflict, Table, Tables

__all__ = ["TARGET", "Compactor", "Run", "mergeable", "run_here"]

logger = logging.getLogger(__name__)

TARGET = 250_000
"""Sequences that a file covers when it is large enough."""

_STEP = 8  # a file becomes part of a larger one when there is so much beside it
_MOST_BYTES = 256 * 1024 * 1024
_MOST_FILES = 512
_MOST_GROUPS = 16  # in one go: between two of them others get their turn

Merged = Callable[[str, int], None]
"""Called with a stream and the number of files that one has taken the place of."""

Run = Callable[[Callable[[Any], Iterable[Any]], Sequence[Any]], Iterable[Any]]
"""Calls a function with each item, somewhere, and brings all results, in no order."""


class _Group(msgspec.Struct, frozen=True):
    """Neighbours that become one file; travels to whoever merges them."""

    folder: str
    files: tuple[DataFile, ...]


def run_here(work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> Iterable[Any]:
    return [result for item in items for result in work(item)]


class Compactor:
    """Compacts one archive, a commit for each group of files; `run` does the rewriting, here or on Spark's workers."""

    def __init__(self, tables: Tables, target: int = TARGET, run: Run = run_here) -> None:
        self._tables = tables
        self._target = target
        self._run = run

    def run(self, everything: bool = False, merged: Merged = lambda stream, count: None) -> Iterator[str]:
        """Do all there is to do; yields the stream after some commits, so that the caller can look around.

        With `everything`, neighbours are merged as far as they go, not only when it pays. A table that cannot be read
        keeps no other one from being compacted.
        """
        for stream in self._tables.streams():
            table = self._tables.of(stream)
            try:
                while groups := mergeable(table.snapshot().files, self._target, everything)[:_MOST_GROUPS]:
                    if not self._merge(table, groups, merged):
                        break
                    yield stream
            except PipelineError as error:
                _complain(stream, str(error))

    def vacuum(self, hours: int = KEEP_HOURS) -> int:
        """Remove from disk what commits have removed so many hours ago; how many files.

        A table that cannot be read keeps no other one from being vacuumed.
        """
        removed = 0
        for stream in self._tables.streams():
            try:
                removed += self._tables.of(stream).vacuum(hours)
            except PipelineError as error:
                _complain(stream, str(error))
        return removed

    def _merge(self, table: Table, groups: Sequence[Sequence[DataFile]], merged: Merged) -> bool:
        """Make one file of each group; False if none was brought into the table."""
        items = [_Group(table.folder, tuple(group)) for group in groups]
        done, parts = 0, {group[0].path: group for group in groups}
        for name, made in self._run(merge_files, items):
            if isinstance(made, str):
                _complain(table.stream, made)
                continue
            try:
                table.commit([made], parts[name], data_change=False)
            except Conflict:
                continue  # another writer has replaced one of them meanwhile
            else:
                done += 1
                merged(table.stream, len(parts[name]))
        return done > 0


def merge_files(group: _Group) -> Iterator[tuple[str, NewFile | str]]:
    """Write one file of neighbours; yields the path of the first with the new file, or with what went wrong."""
    try:
        yield group.files[0].path, rewrite(group.folder, group.files)
    except (OSError, pa.ArrowException, PipelineError) as error:
        yield group.files[0].path, f"{group.files[0].name} and its neighbours cannot be merged: {error}"


def _complain(stream: str, sentence: str) -> None:
    logger.warning(
        "stream %s is not compacted: %s", stream, sentence,
        extra={"event": "archive.compaction.failed", "stream": stream},
    )  # fmt: skip


def mergeable(files: Sequence[DataFile], target: int = TARGET, everything: bool = False) -> list[list[DataFile]]:
    """Return groups of neighbours that should become one file each; none if all is well.

    Sizes are counted in steps, each several times the one before. Neighbours are merged when together they reach the
    next step: so a row is rewritten once per step, and of each size only a few files are left.
    """
    if everything:
        return [run for run in _runs(files, target) if len(run) > 1]
    step = _STEP
    while step < target * _STEP:
        size = min(step, target)
        if found := [run for run in _runs(files, size) if len(run) > 1 and sum(map(_span, run)) >= size]:
            return found
        step *= _STEP
    return []


def _runs(files: Sequence[DataFile], limit: int) -> Iterator[list[DataFile]]:
    """Yield runs of neighbours that are each smaller than the limit, cut so that no run becomes too large."""
    run: list[DataFile] = []
    span = size = 0
    for each in files:
        fits = _span(each) < limit and (not run or each.first == run[-1].last + 1)
        if run and not (fits and span < limit and size + each.bytes <= _MOST_BYTES and len(run) < _MOST_FILES):
            yield run
            run, span, size = [], 0, 0
        if _span(each) < limit:
            run.append(each)
            span, size = span + _span(each), size + each.bytes
    if run:
        yield run


def _span(file: DataFile) -> int:
    return file.last - file.first + 1
