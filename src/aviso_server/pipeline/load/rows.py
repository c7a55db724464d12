"""A piece of a file as chunks of checked rows, whatever its form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow.parquet as pq

from aviso_server.errors import MalformedRequest, RequestError
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.load.checking import Checker
from aviso_server.pipeline.load.csv_rows import csv_rows
from aviso_server.pipeline.load.faults import Fault
from aviso_server.pipeline.load.inputs import opened
from aviso_server.pipeline.load.splits import Split
from aviso_server.pipeline.load.tables import TableReader
from aviso_server.pipeline.load.taken import NOTHING, Outcome
from aviso_server.pipeline.load.texts import LONGEST, Texts, elements, lines

__all__ = ["Chunk", "chunks"]

_PARQUET_ROWS = 8192
_LONGEST_RAW = 64 * 1024  # characters of a refused row that are kept


class Chunk(msgspec.Struct, frozen=True):
    """Some rows in order, what became of them, and where they stand."""

    outcome: Outcome
    lines: Sequence[int]  # counted from 1 within the piece; of Parquet: rows of the file
    offsets: Callable[[], Sequence[int]]  # bytes; of Parquet: rows before
    raw: Callable[[Sequence[int]], Sequence[str]]  # the texts of rows, for people
    count: int
    passed: int  # lines


def chunks(split: Split, checker: Checker, event_type: EventType | GenericType) -> Iterator[Chunk]:
    """The rows of a piece, checked."""
    if split.given.form == "parquet":
        yield from _parquet(split, checker, event_type)
        return
    with opened(split.given) as content:
        if split.given.form == "csv":
            reader = TableReader(checker, event_type, split.columns)
            for found in csv_rows(content, split.start, split.end, len(split.columns)):
                faults: dict[int, RequestError] = {
                    place: MalformedRequest("INVALID_CSV", "Invalid CSV row", fault)
                    for place, fault in found.faults.items()
                }
                blank = [""] * len(split.columns)
                columns = zip(*[cells or blank for cells in found.cells], strict=True)
                outcome = reader.check(dict(zip(split.columns, columns, strict=False)), len(found.rows), faults)
                yield Chunk(outcome, found.lines, found.offsets, _texts_of(found.rows), len(found.rows), found.passed)
            return
        given = split.given
        texts = elements(content, given.name) if given.form == "json" else lines(content, split.start, split.end)
        for block in texts:
            yield Chunk(
                _check(checker, block), block.lines, block.offsets, _texts_of(block.rows), len(block.rows), block.passed
            )


def _check(checker: Checker, block: Texts) -> Outcome:
    if len(block.rows) == 1 and len(block.rows[0]) > LONGEST:
        return Outcome(NOTHING, {0: Fault("ROW_TOO_LARGE", None, f"The row is longer than {LONGEST} bytes")})
    return checker.lines(block.rows)


def _texts_of(rows: Sequence[bytes]) -> Callable[[Sequence[int]], Sequence[str]]:
    def shown(places: Sequence[int]) -> Sequence[str]:
        texts = [rows[place][:_LONGEST_RAW].rstrip(b"\r") for place in places]
        # all at once, unless one of them has several lines
        found = b"\n".join(texts).decode(errors="backslashreplace").split("\n")
        return found if len(found) == len(texts) else [text.decode(errors="backslashreplace") for text in texts]

    return shown


def _parquet(split: Split, checker: Checker, event_type: EventType | GenericType) -> Iterator[Chunk]:
    with pq.ParquetFile(split.given.path) as file:
        names = file.schema_arrow.names
        reader = TableReader(checker, event_type, names)
        row = split.first_row
        groups = list(range(split.start, split.end))
        for batch in file.iter_batches(_PARQUET_ROWS, row_groups=groups):
            cells = {name: batch.column(place).to_pylist() for place, name in enumerate(names)}
            count = batch.num_rows
            outcome = reader.check(cells, count, {})
            yield Chunk(
                outcome,
                range(row + 1, row + count + 1),
                partial(range, row, row + count),
                _cells_of(cells),
                count,
                count,
            )
            row += count


def _cells_of(cells: dict[str, list[Any]]) -> Callable[[Sequence[int]], Sequence[str]]:
    """Rows of a table as JSON."""

    def shown(place: int) -> str:
        row = {name: column[place] for name, column in cells.items() if column[place] is not None}
        return msgspec.json.encode(row)[:_LONGEST_RAW].decode(errors="backslashreplace")

    return lambda places: [shown(place) for place in places]
