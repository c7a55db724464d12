"""How files are cut into pieces that workers check at the same time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import msgspec
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.pipeline.load.inputs import Input, opened

__all__ = ["SPLIT_BYTES", "Split", "cut"]

SPLIT_BYTES = 32 * 1024 * 1024
"""How much of a text file a worker gets at a time, at most."""

_SPLIT_ROWS = 200_000  # the same for Parquet
_LONGEST_SEARCH = 1024 * 1024  # bytes in which the end of a CSV row is looked for
_BOM = b"\xef\xbb\xbf"


class Split(msgspec.Struct, frozen=True):
    """A piece of a file: rows whose first byte (of Parquet: whose row group) lies in it. Travels to workers."""

    number: int  # among all pieces, in the order of the rows
    file: int  # the number of the file
    given: Input
    start: int  # byte, unpacked; of Parquet: row group
    end: int  # the first that is not in it
    first_row: int = 0  # of Parquet: rows before it
    columns: tuple[str, ...] = ()  # of CSV and Parquet: their names


def cut(files: Sequence[Input], size: int = SPLIT_BYTES) -> list[Split]:
    """The pieces of all files in order; PipelineError if a file is not what it seems to be."""
    found: list[Split] = []
    for number, given in enumerate(files):
        for start, end, first_row, columns in _pieces(given, size):
            found.append(Split(len(found), number, given, start, end, first_row, columns))
    return found


Piece = tuple[int, int, int, tuple[str, ...]]


def _pieces(given: Input, size: int) -> Iterator[Piece]:
    if given.form == "parquet":
        yield from _row_groups(given)
    elif given.form == "csv":
        yield from _csv_pieces(given, size)
    elif given.packed or given.form == "json":
        yield 0, _END, 0, ()  # can only be read from the beginning
    else:
        length = max(given.bytes, 1)
        even = ceil(length / ceil(length / size))  # so that no worker waits for another one's last piece
        for start in range(0, length, even):
            yield start, min(start + even, length), 0, ()


_END = 2**62


def _row_groups(given: Input) -> Iterator[Piece]:
    if given.packed:
        raise PipelineError(f"'{given.name}' is a packed Parquet file: unpack it first; Parquet packs by itself")
    try:
        facts = pq.read_metadata(given.path)
        columns = tuple(pq.read_schema(given.path).names)
    except Exception as error:  # pyarrow has many words for a file that is none of its own
        raise PipelineError(f"'{given.name}' is not a Parquet file: {error}") from None
    start = rows = before = 0
    for group in range(facts.num_row_groups):
        rows += facts.row_group(group).num_rows
        if rows - before >= _SPLIT_ROWS:
            yield start, group + 1, before, columns
            start, before = group + 1, rows
    if start < facts.num_row_groups or not facts.num_row_groups:
        yield start, facts.num_row_groups, before, columns


def _csv_pieces(given: Input, size: int) -> Iterator[Piece]:
    """Pieces that begin with a row; a line end within quotes does not end a row."""
    with opened(given) as content:
        columns, begin = _header(content.readline(), given.name)
        if given.packed:
            yield begin, _END, 0, columns
            return
        start, quotes = begin, 0
        while block := content.read(size):
            end = content.tell()
            quotes += block.count(b'"')
            rest = content.read(_LONGEST_SEARCH)
            content.seek(end)
            more, inside = _row_end(rest, quotes % 2)
            content.seek(end + more)
            quotes += inside
            yield start, end + more, 0, columns
            start = end + more
        if start == begin:
            yield start, start, 0, columns


def _row_end(rest: bytes, quoted: int) -> tuple[int, int]:
    """How many bytes there are to the end of a row, and how many quotes among them."""
    place = quotes = 0
    while (line := rest.find(b"\n", place)) >= 0:
        quotes += rest.count(b'"', place, line)
        place = line + 1
        if (quoted + quotes) % 2 == 0:
            return place, quotes
    # no such end far and wide: somebody has put a single quote into a value, so all line ends are as good
    first = rest.find(b"\n") + 1 or len(rest)
    return first, rest.count(b'"', 0, first)


def _header(line: bytes, name: str) -> tuple[tuple[str, ...], int]:
    try:
        text = line.removeprefix(_BOM).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise PipelineError(f"'{name}': the first line must name the columns of the CSV file: {error}") from None
    columns = tuple(each.strip() for each in rows[0]) if rows else ()
    if not columns or not all(columns):
        raise PipelineError(f"'{name}': the first line must name the columns of the CSV file, each of them")
    _refuse_twice(columns, name)
    return columns, len(line)


def _refuse_twice(columns: Iterable[str], name: str) -> None:
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise PipelineError(f"'{name}': there are two columns '{column}'")
        seen.add(column)
