"""Reading pieces of text files: lines, and the elements of a JSON array."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import BinaryIO

import msgspec
import numpy as np

from aviso_server.errors import PipelineError

__all__ = ["LONGEST", "Texts", "elements", "lines"]

LONGEST = 16 * 1024 * 1024
"""Bytes of a row; a longer one is refused, so that none can fill the memory."""

_BLOCK = 128 * 1024  # what is made of it stays in the processor's cache
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BOM = b"\xef\xbb\xbf"


class Texts(msgspec.Struct, frozen=True):
    """Some rows as bytes, with where they stand."""

    rows: list[bytes]
    lines: Sequence[int]  # counted from 1 within the piece
    offsets: Callable[[], Sequence[int]]  # bytes in the unpacked file; made when somebody needs them
    passed: int  # lines that end in this block, blank ones too


def lines(content: BinaryIO, start: int, end: int, blanks: bool = False) -> Iterator[Texts]:
    """The lines whose first byte lies in [start, end), block by block; with `blanks`, blank ones too."""
    offset, line, rest = _begin(content, start), 0, b""
    while offset < end:
        block = content.read(_BLOCK)
        text = rest + block
        if not text:
            return
        rows = text.split(b"\n")
        after = rows.pop() if block or not rows[-1] else b""
        if not rows:
            rest = text
            if len(text) > LONGEST:
                _to_line_end(content)
                yield Texts([text[: LONGEST + 1]], [line + 1], partial(list, [offset]), 1)
                offset, line, rest = content.tell(), line + 1, b""
            continue
        found = _texts(rows, offset, line, end, blanks)
        yield found
        offset, line, rest = offset + len(text) - len(after), line + found.passed, after


def _begin(content: BinaryIO, start: int) -> int:
    """Go to the first line of a piece; the line that the piece before it begins with is not ours."""
    if not start:
        if content.read(3) == _BOM:
            return 3
        content.seek(0)
        return 0
    content.seek(start - 1)
    _to_line_end(content)
    return content.tell()


def _to_line_end(content: BinaryIO) -> None:
    """Read on until a line ends."""
    while (passed := content.readline(_BLOCK)) and not passed.endswith(b"\n"):
        pass


def _texts(rows: list[bytes], offset: int, line: int, end: int, blanks: bool) -> Texts:
    """Leave out those that begin at the end or after it, and the blank ones."""
    if offset + sum(map(len, rows)) + len(rows) > end:
        rows = rows[: bisect_left(_starts(rows, offset), end)]
    count = len(rows)
    if blanks or (all(rows) and not any(map(bytes.isspace, rows))):
        return Texts(rows, range(line + 1, line + count + 1), partial(_starts, rows, offset), count)
    kept = [place for place, row in enumerate(rows) if row and not row.isspace()]

    def offsets() -> list[int]:
        starts = _starts(rows, offset)
        return [starts[place] for place in kept]

    return Texts([rows[place] for place in kept], [line + 1 + place for place in kept], offsets, count)


def _starts(rows: list[bytes], offset: int) -> list[int]:
    """Where each row begins."""
    return list(accumulate([len(row) + 1 for row in rows[:-1]], initial=offset)) if rows else []


def elements(content: BinaryIO, name: str) -> Iterator[Texts]:
    """The elements of a JSON array, block by block; PipelineError if its brackets do not fit together."""
    offset, line = _begin_array(content, name)
    rest = b""
    while True:
        block = content.read(_BLOCK)
        text = rest + block
        ends, closed = _ends(text)
        rows, places, begin = [], [], 0
        for end in ends:
            rows.append(text[begin:end])
            places.append(begin)
            begin = end + 1
        numbers, offsets, kept = [], [], []
        passed = 0
        for row, place in zip(rows, places, strict=True):
            passed_here = row.count(b"\n")
            blank = len(row) - len(row.lstrip())
            if row.strip() or not closed or len(rows) > 1:
                kept.append(row.strip())
                numbers.append(line + 1 + row.count(b"\n", 0, blank))
                offsets.append(offset + place + blank)
            line += passed_here
            passed += passed_here
        if kept:
            yield Texts(kept, numbers, partial(list, offsets), passed)
        offset += begin
        rest = text[begin:]
        if closed:
            if (rest + content.read(_BLOCK)).strip():
                raise PipelineError(f"'{name}': there is more after the end of the JSON array")
            return
        if not block or len(rest) > LONGEST:
            raise PipelineError(
                f"'{name}' is not a JSON array: from line {line + 1} on its brackets or quotes do not fit together. "
                "One notification per line (NDJSON) can be loaded whatever is wrong with single ones"
            )


def _begin_array(content: BinaryIO, name: str) -> tuple[int, int]:
    start = b""
    while (block := content.read(64)) and not (start + block).removeprefix(_BOM).strip():
        start += block
    start += block
    opening = start.find(b"[")
    if start[:opening].removeprefix(_BOM).strip() or opening < 0:
        raise PipelineError(f"'{name}' is not a JSON array: it does not begin with '['")
    content.seek(opening + 1)
    return opening + 1, start.count(b"\n", 0, opening)


def _ends(text: bytes) -> tuple[list[int], bool]:
    """Where elements end, and whether the array does with the last of them."""
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
