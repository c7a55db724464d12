"""Rows of every form as chunks of checked rows: lines of JSON and CSV, elements of a JSON array, rows of a table.

What comes in is what `spark.read` gives to a task: the lines of a block of a text file in order, or batches of a table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from aviso_server.errors import InvalidRequest, MalformedRequest, PipelineError, RequestError
from aviso_server.model.batch import BOX, TIME_NS, columns_of
from aviso_server.model.event_type import EventType, GenericType, payload_bytes
from aviso_server.model.fields import ExpverField
from aviso_server.model.json_text import loads
from aviso_server.model.times import event_time
from aviso_server.spark.load.inputs import Input
from aviso_server.spark.load.row_checks import (
    Checker,
    Fault,
    Notice,
    Notices,
    Outcome,
    check_event_type,
    check_identifier,
)

__all__ = [
    "ARRAY_SEPARATOR",
    "LONGEST",
    "Chunk",
    "CsvRows",
    "TableReader",
    "Texts",
    "check_columns",
    "csv_rows",
    "elements",
    "field_value",
    "line_texts",
    "table_chunks",
    "text_chunks",
]

LONGEST = 16 * 1024 * 1024
"""Bytes of a row; a longer one is refused."""

ARRAY_SEPARATOR = b"}"
"""What Spark cuts a JSON array at: no piece is longer than a row then. It says nothing of where elements end."""

_TOGETHER = 600  # lines that are checked together: what is made of them stays in the processor's cache
_BLOCK = 128 * 1024  # the same for arrays
_LONGEST_RAW = 64 * 1024  # characters of a refused row that are kept
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOO_LONG = f"The row is longer than {LONGEST} bytes"


class Texts(msgspec.Struct, frozen=True):
    """Some rows as bytes, with where they stand."""

    rows: list[bytes]
    lines: Sequence[int]  # counted from 1 within the block
    offsets: Callable[[], Sequence[int]]  # bytes of the unpacked block; made when somebody needs them
    lines_end: int  # lines of the block up to the end of these, blank ones too
    bytes_end: int  # and bytes

    def at(self, places: Sequence[int]) -> Texts:
        """Return those at some places."""
        if len(places) == len(self.rows):
            return self

        def offsets() -> list[int]:
            starts = self.offsets()
            return [starts[place] for place in places]

        rows, lines = [self.rows[place] for place in places], [self.lines[place] for place in places]
        return Texts(rows, lines, offsets, self.lines_end, self.bytes_end)


class Chunk(msgspec.Struct, frozen=True):
    """Some rows in order, what became of them, and where they stand."""

    outcome: Outcome
    lines: Sequence[int]  # counted from 1 within the block; of a table: rows of the file
    offsets: Callable[[], Sequence[int]]  # bytes; of a table: rows before
    raw: Callable[[Sequence[int]], Sequence[str]]  # the texts of rows, for people
    count: int
    lines_end: int = 0  # lines of the block up to here
    bytes_end: int = 0


def text_chunks(
    given: Input, is_first: bool, blocks: Iterable[list[bytes]], checker: Checker, event_type: EventType | GenericType
) -> Iterator[Chunk]:
    """Check the rows of a block of a text file, given as what Spark has cut it into."""
    if given.form == "csv":
        yield from _csv_chunks(given, is_first, blocks, checker, event_type)
        return
    texts = elements(_joined_pieces(blocks), given.name) if given.form == "json" else line_texts(blocks)
    for block in texts:
        yield _chunk(_checked(checker, block.rows), block)


def _chunk(outcome: Outcome, texts: Texts) -> Chunk:
    raw, count = _texts_of(texts.rows), len(texts.rows)
    return Chunk(outcome, texts.lines, texts.offsets, raw, count, texts.lines_end, texts.bytes_end)


def line_texts(blocks: Iterable[list[bytes]], blanks: bool = False) -> Iterator[Texts]:
    """Say where lines stand that come in order from the beginning of a block; without the blank ones, if not wanted."""
    offset = line = 0
    for block in blocks:
        for at in range(0, len(block), _TOGETHER):
            rows = block[at : at + _TOGETHER]
            end = offset + sum(map(len, rows)) + len(rows)
            lines = range(line + 1, line + len(rows) + 1)
            texts = Texts(rows, lines, partial(_starts, rows, offset), line + len(rows), end)
            yield texts if blanks else texts.at(_not_blank(rows))
            offset, line = end, line + len(rows)


def _not_blank(rows: Sequence[bytes]) -> Sequence[int]:
    """Find the rows with something in them."""
    if all(rows) and not any(map(bytes.isspace, rows)):
        return range(len(rows))
    return [place for place, row in enumerate(rows) if row and not row.isspace()]


def _starts(rows: list[bytes], offset: int) -> list[int]:
    """Return where each row begins."""
    return list(accumulate([len(row) + 1 for row in rows[:-1]], initial=offset)) if rows else []


def _checked(checker: Checker, rows: list[bytes]) -> Outcome:
    long = [place for place, row in enumerate(rows) if len(row) > LONGEST]
    if not long:
        return checker.lines(rows)
    outcome = checker.lines([b"" if len(row) > LONGEST else row for row in rows])
    for place in long:
        outcome.faults[place] = Fault("ROW_TOO_LARGE", None, _TOO_LONG)
    return outcome


def _texts_of(rows: Sequence[bytes]) -> Callable[[Sequence[int]], Sequence[str]]:
    def shown(places: Sequence[int]) -> Sequence[str]:
        texts = [rows[place][:_LONGEST_RAW].rstrip(b"\r") for place in places]
        # all at once, unless one of them has several lines
        found = b"\n".join(texts).decode(errors="backslashreplace").split("\n")
        return found if len(found) == len(texts) else [text.decode(errors="backslashreplace") for text in texts]

    return shown


def _joined_pieces(blocks: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Put together what was cut at a separator. One right at the end of the file is lost: an array ends with `]`."""
    before = b""
    waiting: list[bytes] = []
    size = 0
    for block in blocks:
        for piece in block:
            waiting += (before, piece)
            size += len(piece) + 1
            before = ARRAY_SEPARATOR
            if size >= _BLOCK:
                yield b"".join(waiting)
                waiting, size = [], 0
    yield b"".join(waiting)


def elements(blocks: Iterable[bytes], name: str) -> Iterator[Texts]:
    """Find the elements of a JSON array, block by block; PipelineError if its brackets do not fit together."""
    left = iter(blocks)
    rest, offset, line = _begin_array(left, name)
    is_over = False
    while True:
        ends, closed = _ends(rest)
        rows, starts, begin = [], [], 0
        for end in ends:
            rows.append(rest[begin:end])
            starts.append(begin)
            begin = end + 1
        numbers, offsets, kept = [], [], []
        for row, start in zip(rows, starts, strict=True):
            blank = len(row) - len(row.lstrip())
            if row.strip() or not closed or len(rows) > 1:
                kept.append(row.strip())
                numbers.append(line + 1 + row.count(b"\n", 0, blank))
                offsets.append(offset + start + blank)
            line += row.count(b"\n")
        offset += begin
        if kept:
            yield Texts(kept, numbers, partial(list, offsets), line, offset)
        rest = rest[begin:]
        if closed:
            if rest.strip() or any(block.strip() for block in left):
                raise PipelineError(f"'{name}': there is more after the end of the JSON array")
            return
        if is_over or len(rest) > LONGEST:
            raise PipelineError(
                f"'{name}' is not a JSON array: from line {line + 1} on its brackets or quotes do not fit together. "
                "One notification per line (NDJSON) can be loaded whatever is wrong with single ones"
            )
        block = next(left, None)
        is_over = block is None
        rest += block or b""


def _begin_array(left: Iterator[bytes], name: str) -> tuple[bytes, int, int]:
    """Return what follows the opening bracket, with its offset and how many lines end before it."""
    start = b""
    for block in left:
        start += block
        if start.strip():
            break
    opening = start.find(b"[")
    if opening < 0 or start[:opening].strip():
        raise PipelineError(f"'{name}' is not a JSON array: it does not begin with '['")
    return start[opening + 1 :], opening + 1, start.count(b"\n", 0, opening)


def _ends(text: bytes) -> tuple[list[int], bool]:
    """Find where elements end, and whether the array does with the last of them."""
    blank = _STRING.sub(lambda found: b" " * len(found[0]), text)
    unfinished = blank.find(b'"')
    marks = np.frombuffer(blank if unfinished < 0 else blank[:unfinished], dtype=np.uint8)
    steps = ((marks == ord("[")) | (marks == ord("{"))).astype(np.int8)
    steps -= (marks == ord("]")) | (marks == ord("}"))
    depth = np.cumsum(steps, dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    last = int(closing[0]) if closing.size else len(marks)
    commas = np.flatnonzero((marks[:last] == ord(",")) & (depth[:last] == 0))
    return [*commas.tolist(), *([last] if closing.size else [])], bool(closing.size)


def _csv_chunks(
    given: Input, is_first: bool, blocks: Iterable[list[bytes]], checker: Checker, event_type: EventType | GenericType
) -> Iterator[Chunk]:
    reader = TableReader(checker, event_type, given.columns)
    texts = line_texts(blocks, blanks=True)
    if is_first:
        texts = _without_first(texts)
    for found in csv_rows(texts, len(given.columns)):
        faults: dict[int, RequestError] = {
            place: MalformedRequest("INVALID_CSV", "Invalid CSV row", fault) for place, fault in found.faults.items()
        }
        for place, row in enumerate(found.texts.rows):
            if len(row) > LONGEST:
                faults[place] = MalformedRequest("ROW_TOO_LARGE", _TOO_LONG)
        blank = [""] * len(given.columns)
        columns = zip(*[cells or blank for cells in found.cells], strict=True)
        outcome = reader.check(dict(zip(given.columns, columns, strict=False)), len(found.cells), faults)
        yield _chunk(outcome, found.texts)


def _without_first(blocks: Iterable[Texts]) -> Iterator[Texts]:
    """Leave out the line that names the columns."""
    left = iter(blocks)
    for first in left:
        yield first.at(range(1, len(first.rows)))
        break
    yield from left


csv.field_size_limit(LONGEST)
_MOST_ROW_LINES = 1000  # of one row: a quote that is never closed must not swallow the file


class CsvRows(msgspec.Struct, frozen=True):
    """Some rows of a CSV file."""

    texts: Texts  # as they stand there
    cells: list[list[str]]  # one list per row; a row that cannot be read has none
    faults: dict[int, str]  # why, by place


def csv_rows(blocks: Iterable[Texts], columns: int) -> Iterator[CsvRows]:
    """Read lines, which begin with a row and end with one, as rows of so many columns each."""
    held: Texts | None = None
    for texts in blocks:
        block = _joined(held, texts) if held is not None and held.rows else texts
        found, used = _read_csv(block, columns, last=False)
        held = block.at(range(used, len(block.rows)))
        yield found
    if held is not None and held.rows:
        found, _ = _read_csv(held, columns, last=True)
        yield found


def _read_csv(texts: Texts, columns: int, last: bool) -> tuple[CsvRows, int]:
    """Read the rows in these lines, and say how many of the lines they use up."""
    if b'"' not in b"".join(texts.rows):
        return _plain_csv(texts, columns), len(texts.rows)
    cells: list[list[str]] = []
    faults: dict[int, str] = {}
    rows: list[bytes] = []
    places: list[int] = []
    place = 0
    while place < len(texts.rows):
        if not texts.rows[place].strip():
            place += 1
            continue
        read, size, fault = _csv_row(texts.rows, place, columns)
        if read is None and fault is None and not last and len(texts.rows) - place < _MOST_ROW_LINES:
            break  # its end is in the next block
        if fault is not None or read is None:
            faults[len(cells)] = fault or "a quote is never closed"
        cells.append(read or [])
        rows.append(b"\n".join(texts.rows[place : place + size]))
        places.append(place)
        place += size
    return CsvRows(msgspec.structs.replace(texts.at(places), rows=rows), cells, faults), place


def _plain_csv(texts: Texts, columns: int) -> CsvRows:
    """Read lines without quotes: a line is a row, and a comma ends a value."""
    kept = texts.at(_not_blank(texts.rows))
    read = [_split(row, columns) for row in kept.rows]
    faults = {place: fault for place, (_, fault) in enumerate(read) if fault is not None}
    return CsvRows(kept, [cells for cells, _ in read], faults)


def _split(row: bytes, columns: int) -> tuple[list[str], str | None]:
    try:
        read = row.removesuffix(b"\r").decode().split(",")
    except UnicodeDecodeError as error:
        return [], f"not UTF-8: {error.reason} at byte {error.start}"
    return (read, None) if len(read) == columns else ([], _wrong_count(len(read), columns))


def _csv_row(rows: Sequence[bytes], place: int, columns: int) -> tuple[list[str] | None, int, str | None]:
    """Read the row that begins on a line; return it, how many lines it has, and why it cannot be read.

    If a row of several lines has the wrong number of columns, a quote has been forgotten: then only its first line is
    refused, and reading goes on with the next.
    """
    if b'"' not in rows[place]:
        read, fault = _split(rows[place], columns)
        return read, 1, fault
    size = 1
    text = rows[place]
    while text.count(b'"') % 2:
        if place + size >= len(rows) or size >= _MOST_ROW_LINES:
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
    return Texts(held.rows + more.rows, [*held.lines, *more.lines], offsets, more.lines_end, more.bytes_end)


def table_chunks(
    rows: Iterable[tuple[int, pa.RecordBatch]], checker: Checker, event_type: EventType | GenericType
) -> Iterator[Chunk]:
    """Check batches of a table; each comes with how many rows of its file are before it."""
    for row, batch in rows:
        names = batch.schema.names
        cells = {name: batch.column(place).to_pylist() for place, name in enumerate(names)}
        count = batch.num_rows
        outcome = TableReader(checker, event_type, names).check(cells, count, {})
        lines, offsets = range(row + 1, row + count + 1), partial(range, row, row + count)
        yield Chunk(outcome, lines, offsets, _cells_of(cells), count)


def _cells_of(cells: dict[str, list[Any]]) -> Callable[[Sequence[int]], Sequence[str]]:
    """Show rows of a table as JSON."""

    def shown(place: int) -> str:
        row = {name: column[place] for name, column in cells.items() if column[place] is not None}
        return msgspec.json.encode(row)[:_LONGEST_RAW].decode(errors="backslashreplace")

    return lambda places: [shown(place) for place in places]


_OWN = frozenset({"event_type", "identifier", "payload", "time", TIME_NS.name})
_UNREAD = frozenset({"sequence", "topic", *(column.name for column in BOX)})
_NANOSECONDS = 10**17  # whole numbers from here on: Spark reads timestamps of Parquet that are exact to them so
_READY = frozenset({str, int, float})  # cells that are values already


def check_columns(columns: Sequence[str], event_type: EventType | GenericType, name: str, history: bool) -> None:
    """Raise PipelineError if a file has columns that mean nothing: a misspelt one must not be lost."""
    if isinstance(event_type, GenericType) or "identifier" in columns:
        return
    named = _columns_of_fields(event_type, columns, history)
    known = {*named.values(), *(column.name for column in columns_of(event_type)), *_OWN, *_UNREAD}
    for column in columns:
        if column not in known:
            accepted = ", ".join(sorted(known - _UNREAD - {TIME_NS.name}))
            raise PipelineError(
                f"'{name}': column '{column}' is no field of event type '{event_type.name}'; accepted: {accepted}"
            )
    if history and "time" in columns and "time" in named and named["time"] not in columns:
        raise PipelineError(
            f"'{name}': column 'time' is the time of the notification, and event type '{event_type.name}' has a field "
            f"of that name: put the field into a column '{named['time']}'"
        )


def _columns_of_fields(event_type: EventType, columns: Sequence[str], history: bool) -> dict[str, str]:
    """Return the column of each field.

    A field with the name of a column that all notifications have is in `identifier_…`. It is in the column of its own
    name if there is no other and a load has no other use for that one: only history needs a `time`.
    """
    found = {}
    free = _UNREAD if history and TIME_NS.name not in columns else _UNREAD | {"time"}
    for column in columns_of(event_type):
        if column.field is not None:
            is_plain = column.name not in columns and column.field in columns and column.field in free
            found[column.field] = column.field if is_plain else column.name
    return found


class TableReader:
    """Turns columns into rows for a checker. An empty payload is none; a field that is not there has its default."""

    def __init__(self, checker: Checker, event_type: EventType | GenericType, columns: Sequence[str]) -> None:
        self._checker = checker
        self._event_type = event_type
        self._columns = tuple(columns)
        self._column_of: dict[str, str] = {}
        self._defaults: dict[str, str] = {}
        if isinstance(event_type, EventType):
            self._column_of = _columns_of_fields(event_type, self._columns, checker.wanted.history)
            for name, field in event_type.fields.items():
                if isinstance(field, ExpverField) and field.default:
                    self._defaults[name] = field.default
        self._plain = (
            bool(checker.names)
            and "identifier" not in self._columns
            and all(self._column_of[name] in self._columns or name in self._defaults for name in checker.names)
        )

    def check(self, cells: Mapping[str, Sequence[Any]], count: int, refused: dict[int, RequestError]) -> Outcome:
        """Return what becomes of these rows; those in `refused` could not even be read."""
        payloads, others = self._payloads(cells.get("payload"), count)
        notices: dict[int, Notice | RequestError] = {**others, **refused}
        times = self._times(cells, count)
        for place, kind in enumerate(cells.get("event_type", ())):
            if kind and kind != self._event_type.name and place not in notices:
                notices[place] = _error(check_event_type, kind, self._event_type.name)
        if not self._plain:
            for place in range(count):
                if place not in notices:
                    notices[place] = self._row(cells, payloads, times, place)
            return self._checker.table([[]] * len(self._checker.names), [], None, notices)
        columns = [self._column(name, cells, count) for name in self._checker.names]
        for column in columns:
            if not set(map(type, column)) <= _READY:
                for place, value in enumerate(column):
                    if type(value) not in _READY and place not in notices:
                        notices[place] = self._row(cells, payloads, times, place)
        if self._checker.needs_payload and b"null" in payloads:
            for place, payload in enumerate(payloads):
                if payload == b"null" and place not in notices:
                    notices[place] = self._row(cells, payloads, times, place)
        return self._checker.table(columns, payloads, times, notices)

    def _column(self, field: str, cells: Mapping[str, Sequence[Any]], count: int) -> Sequence[Any]:
        found = cells.get(self._column_of[field])
        return [self._defaults[field]] * count if found is None else found

    def _payloads(self, texts: Sequence[Any] | None, count: int) -> tuple[list[bytes], Notices]:
        """Return payloads as they are stored, and why some are none."""
        if texts is None:
            return [b"null"] * count, {}
        found: list[bytes] = []
        others: dict[int, RequestError] = {}
        for place, text in enumerate(texts):
            try:
                found.append(_payload(text))
            except RequestError as error:
                others[place] = error
                found.append(b"null")
        return found, others

    def _times(self, cells: Mapping[str, Sequence[Any]], count: int) -> Sequence[Any]:
        """Return the time of each row: to the nanosecond where a column has it so."""
        exact, shown = cells.get(TIME_NS.name), cells.get("time")
        if exact is not None:
            return [_instant(time) for time in exact]
        if shown is None or self._column_of.get("time") == "time":
            return [None] * count
        return [_instant(time) if type(time) is int and time >= _NANOSECONDS else time for time in shown]

    def _row(
        self, cells: Mapping[str, Sequence[Any]], payloads: Sequence[bytes], times: Sequence[Any], place: int
    ) -> Notice | RequestError:
        """Return a row as a whole."""
        try:
            identifier = self._identifier(cells, place)
            check_identifier(identifier)
        except RequestError as error:
            return error.with_traceback(None)
        return Notice(identifier, msgspec.json.decode(payloads[place]), times[place])

    def _identifier(self, cells: Mapping[str, Sequence[Any]], place: int) -> dict[str, Any]:
        if "identifier" in self._columns:
            text = cells["identifier"][place]
            found = _json("identifier", text) if isinstance(text, str) else text
            if not isinstance(found, dict):
                raise InvalidRequest("column 'identifier' must hold a JSON object", field="identifier")
            return found
        if isinstance(self._event_type, GenericType):
            named = {name: name for name in self._columns if name not in _OWN | _UNREAD}
        else:
            named = {field: column for field, column in self._column_of.items() if column in self._columns}
        values = {field: cells[column][place] for field, column in named.items()}
        given = {field: field_value(field, value) for field, value in values.items() if value is not None}
        return {**self._defaults, **given}


def field_value(field: str, cell: Any) -> Any:
    """Return the value of a cell for a field; InvalidRequest if it has none."""
    if type(cell) in _READY:
        return cell
    from pyspark_aviso.write import cell_value  # it needs Spark, and only tables have other cells

    try:
        return cell_value(field, cell)
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None


def _instant(time: Any) -> str | None:
    """Return nanoseconds as text that is read back to the nanosecond."""
    if time is None or time == "":
        return None
    return event_time(int(time)) if str(time).isdigit() else str(time)


def _payload(text: Any) -> bytes:
    if text is None or text == "":
        return b"null"
    return payload_bytes(_json("payload", text) if isinstance(text, str) else text)


def _json(name: str, text: str) -> Any:
    try:
        return loads(text.encode())
    except (MalformedRequest, UnicodeEncodeError) as error:
        details = error.details if isinstance(error, MalformedRequest) else str(error)
        raise InvalidRequest(f"Column '{name}' is not JSON: {details}", field=name) from None


def _error(check: Any, *arguments: Any) -> RequestError:
    try:
        check(*arguments)
    except RequestError as error:
        return error.with_traceback(None)
    raise AssertionError("it was refused before")
