"""Reading pieces of CSV files, with the line that each row begins on."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import msgspec

from aviso_server.pipeline.load.texts import LONGEST, Texts, lines

__all__ = ["CsvRows", "csv_rows"]

csv.field_size_limit(LONGEST)
_MOST_LINES = 1000  # of one row: a quote that is never closed must not swallow the file


class CsvRows(msgspec.Struct, frozen=True):
    """Some rows of a CSV file."""

    cells: list[list[str]]  # one list per row; a row that cannot be read has none
    faults: dict[int, str]  # why, by place
    rows: list[bytes]  # as they stand there
    lines: Sequence[int]  # counted from 1 within the piece
    offsets: Callable[[], Sequence[int]]
    passed: int


def csv_rows(content: BinaryIO, start: int, end: int, columns: int) -> Iterator[CsvRows]:
    """The rows of a piece, which begins with a row and ends with one; each with so many columns."""
    held: Texts | None = None
    for texts in lines(content, start, end, blanks=True):
        block = texts if held is None else _joined(held, texts)
        found, used = _read(block, columns, last=False)
        held = _from(block, used)
        yield found
    if held is not None and held.rows:
        found, _ = _read(held, columns, last=True)
        yield found


def _read(texts: Texts, columns: int, last: bool) -> tuple[CsvRows, int]:
    """The rows in these lines, and how many of the lines they use up."""
    if b'"' not in b"".join(texts.rows):
        return _plain(texts, columns), len(texts.rows)
    cells: list[list[str]] = []
    faults: dict[int, str] = {}
    rows: list[bytes] = []
    places: list[int] = []
    place = 0
    while place < len(texts.rows):
        if _is_blank(texts.rows[place]):
            place += 1
            continue
        read, size, fault = _row(texts.rows, place, columns)
        if read is None and fault is None and not last and len(texts.rows) - place < _MOST_LINES:
            break  # its end is in the next block
        if fault is not None or read is None:
            faults[len(cells)] = fault or "a quote is never closed"
        cells.append(read or [])
        rows.append(b"\n".join(texts.rows[place : place + size]))
        places.append(place)
        place += size
    starts = texts.offsets()
    return CsvRows(
        cells,
        faults,
        rows,
        [texts.lines[at] for at in places],
        partial(list, [starts[at] for at in places]),
        texts.passed,
    ), place


def _plain(texts: Texts, columns: int) -> CsvRows:
    """No quotes anywhere: a line is a row, and a comma ends a value."""
    cells, faults = [], {}
    kept = [place for place, row in enumerate(texts.rows) if not _is_blank(row)]
    for number, place in enumerate(kept):
        read, fault = _split(texts.rows[place], columns)
        if fault is not None:
            faults[number] = fault
        cells.append(read)
    if len(kept) == len(texts.rows):
        return CsvRows(cells, faults, texts.rows, texts.lines, texts.offsets, texts.passed)
    starts = texts.offsets()
    return CsvRows(
        cells,
        faults,
        [texts.rows[place] for place in kept],
        [texts.lines[place] for place in kept],
        partial(list, [starts[place] for place in kept]),
        texts.passed,
    )


def _is_blank(row: bytes) -> bool:
    return not row or row.isspace()


def _split(row: bytes, columns: int) -> tuple[list[str], str | None]:
    try:
        read = row.removesuffix(b"\r").decode().split(",")
    except UnicodeDecodeError as error:
        return [], f"not UTF-8: {error.reason} at byte {error.start}"
    return (read, None) if len(read) == columns else ([], _wrong_count(len(read), columns))


def _row(rows: Sequence[bytes], place: int, columns: int) -> tuple[list[str] | None, int, str | None]:
    """The row that begins on a line, how many lines it has, and why it cannot be read.

    If a row of several lines has the wrong number of columns, a quote has been forgotten: then only its first line is
    refused, and reading goes on with the next.
    """
    if b'"' not in rows[place]:
        read, fault = _split(rows[place], columns)
        return read, 1, fault
    size = 1
    text = rows[place]
    while text.count(b'"') % 2:
        if place + size >= len(rows) or size >= _MOST_LINES:
            return None, 1, None if place + size >= len(rows) else "a quote is never closed"
        text += b"\n" + rows[place + size]
        size += 1
    try:
        (read,) = csv.reader([text.removesuffix(b"\r").decode()], strict=True)
    except UnicodeDecodeError as error:
        return [], 1, f"not UTF-8: {error.reason} at byte {error.start}"
    except (csv.Error, ValueError) as error:
        return [], 1, str(error)
    if len(read) != columns:
        return [], 1, _wrong_count(len(read), columns)
    return read, size, None


def _wrong_count(count: int, columns: int) -> str:
    return f"{count} values for {columns} columns"


def _joined(held: Texts, more: Texts) -> Texts:
    offsets: Callable[[], Sequence[int]] = partial(list, [*held.offsets(), *more.offsets()])
    return Texts(held.rows + more.rows, [*held.lines, *more.lines], offsets, more.passed)


def _from(texts: Texts, used: int) -> Texts | None:
    if used == len(texts.rows):
        return None
    return Texts(texts.rows[used:], texts.lines[used:], partial(list, texts.offsets()[used:]), 0)
