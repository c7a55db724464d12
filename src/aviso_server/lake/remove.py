"""Removing notifications for good: a file is written anew without them, and takes the old one's place in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.lake.files import Covered, DataFile, FileWriter, NewFile, discard, rewrite
from aviso_server.lake.ranges import Range, clipped, joined_ranges, without_ranges
from aviso_server.lake.schema import file_schema
from aviso_server.lake.storage import open_file
from aviso_server.lake.table import Conflict, Table
from aviso_server.model.batch import STORED

__all__ = ["Removals", "Removed", "applied", "delete", "wipe"]

_MOST_ATTEMPTS = 10

T = TypeVar("T")


class Removed(msgspec.Struct, frozen=True):
    """Sequences that must not be shown."""

    wiped_through: int = 0  # everything up to here
    deleted: tuple[int, ...] = ()  # and these, ascending

    def hides(self, sequence: int) -> bool:
        return sequence <= self.wiped_through or sequence in self.deleted

    def within(self, first: int, last: int) -> tuple[int, ...]:
        """Return the single sequences in a range."""
        return tuple(each for each in self.deleted if first <= each <= last)

    def touches(self, first: int, last: int) -> bool:
        """Return True if something in the range is among them."""
        return first <= self.wiped_through or bool(self.within(first, last))

    def without(self, table: pa.Table) -> pa.Table:
        """Return the rows that may be shown."""
        sequences = table.column("sequence")
        if not table.num_rows or not self.touches(sequences[0].as_py(), sequences[-1].as_py()):
            return table
        gone = pc.or_(
            pc.less_equal(sequences, self.wiped_through),
            pc.is_in(sequences, value_set=pa.array(self.deleted, pa.int64())),
        )
        return table.filter(pc.invert(gone))

    def reasons(self, first: int, last: int) -> dict[str, list[Range]]:
        """Return the same for the footer of a file that covers this range."""
        return {
            "deleted": joined_ranges((each, each) for each in self.within(first, last)),
            "wiped": clipped([(1, self.wiped_through)], first, last),
        }


class Removals:
    """Removals of what is not archived yet, by stream: rows of it may be on their way. Safe for threads.

    Only in memory: whoever asked for them keeps asking until they are in the table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Removed] = {}

    def add(
        self, stream: str, watermark: Callable[[], int], deleted: Iterable[int] = (), wiped_through: int = 0
    ) -> int:
        """Remember those beyond the watermark; return the watermark, which no commit moves meanwhile."""
        with self._lock:
            reached = watermark()
            deleted = [each for each in deleted if each > reached]
            wiped_through = wiped_through if wiped_through > reached else 0
            known = self._known.get(stream, Removed())
            through = max(known.wiped_through, wiped_through)
            left = sorted({each for each in (*known.deleted, *deleted) if each > through})
            self._known[stream] = Removed(through, tuple(left))
            return reached

    @contextmanager
    def settling(self, stream: str, through: int) -> Iterator[Removed]:
        """Hold those of a stream, while a commit brings everything up to a sequence into its table.

        No more of them come meanwhile. If the commit is made, those up to the sequence are forgotten.
        """
        with self._lock:
            known = self._known.get(stream, Removed())
            yield known
            wiped = known.wiped_through if known.wiped_through > through else 0
            self._known[stream] = Removed(wiped, tuple(each for each in known.deleted if each > through))


def applied(folder: str, files: Sequence[NewFile], removed: Removed) -> list[NewFile]:
    """Take out of new files what was removed since they were begun, with a word about it in their footers."""
    found = []
    for file in files:
        if not removed.touches(file.first, file.last):
            found.append(file)
            continue
        found.append(rewrite(folder, [file], removed.without, **removed.reasons(file.first, file.last)))
        discard([file])
    return found


def delete(table: Table, sequences: Collection[int]) -> set[int]:
    """Delete archived notifications, one commit for all; those that were there. Others are noted as deleted too."""

    def attempt() -> set[int]:
        gone, made, found = list[DataFile](), list[NewFile](), set[int]()
        for file in table.snapshot().files:
            own = tuple(sorted(each for each in sequences if file.first <= each <= file.last))
            if not own:
                continue
            there = _there(file, own)
            noted = table.covered(file)
            if not there and not without_ranges([(each, each) for each in own], [*noted.deleted, *noted.wiped]):
                continue
            gone.append(file)
            made.append(_rewritten(table, file, Removed(0, own)))
            found |= there
        if gone:
            table.commit(made, gone)
        return found

    return _retried(attempt)


def wipe(table: Table, through: int) -> None:
    """Remove everything up to a sequence, in one commit: one empty file is left of it, also if some are broken."""

    def attempt() -> None:
        snapshot = table.snapshot()
        files = [each for each in snapshot.files if each.first <= through]
        if all(not each.rows and each.last <= through for each in files):
            return
        partly = [each for each in files if each.last > through]
        end = min([through, snapshot.watermark, *(each.first - 1 for each in partly)])
        made: list[NewFile] = []
        if end > 0:
            schema = file_schema([each for each in STORED if each.name in snapshot.columns], snapshot.columns)
            made += FileWriter(table.folder, 1, end, schema, _wiped).finish()
        table.commit([*made, *(_rewritten(table, file, Removed(through)) for file in partly)], files)

    _retried(attempt)


def _retried(attempt: Callable[[], T]) -> T:
    """Try again while other writers are faster."""
    for _ in range(_MOST_ATTEMPTS - 1):
        with suppress(Conflict):
            return attempt()
    return attempt()


def _rewritten(table: Table, file: DataFile, removed: Removed) -> NewFile:
    reasons = removed.reasons(file.first, file.last)
    return rewrite(table.folder, [file], removed.without, **reasons)


def _wiped(first: int, last: int) -> Covered:
    return Covered(first, last, wiped=((first, last),))


def _there(file: DataFile, sequences: Sequence[int]) -> set[int]:
    """Find those among the sequences that have a row in a file."""
    wanted, found = pa.array(sequences, pa.int64()), set[int]()
    with open_file(file.path) as content:
        parquet = pq.ParquetFile(content)
        place = parquet.schema_arrow.get_field_index("sequence")
        for number in range(parquet.num_row_groups):
            limits = parquet.metadata.row_group(number).column(place).statistics
            if limits is not None and not any(limits.min <= each <= limits.max for each in sequences):
                continue
            column = parquet.read_row_group(number, columns=["sequence"]).column("sequence")
            found.update(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
    return found
