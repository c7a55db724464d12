"""Blocks of rows: a block is checked in one go, by a task of Spark or by the process that loads.

What comes back is a summary. The rows that were taken or refused go into files of the block, whose names appear when
they are complete; a block that is checked again writes the same once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.notification import Box
from aviso_server.spark.load.inputs import Input, read_pieces
from aviso_server.spark.load.load_report import FAULTS, FaultPart, Summary, Tally
from aviso_server.spark.load.row_checks import Checker, Wanted
from aviso_server.spark.load.row_texts import ARRAY_SEPARATOR, Chunk, text_chunks

__all__ = [
    "HISTORY",
    "Block",
    "CheckTask",
    "Told",
    "check_here",
    "check_text_block",
    "fault_parts",
    "leave",
    "lines_and_bytes_before",
    "part_path",
]

Told = Callable[[int, int], None]
"""Called with how many parts of the work are done, and how many there are."""

Step = Literal["faults", "items", "history"]

ITEMS = pa.schema([("offset", pa.int64()), ("line", pa.int64()), ("identifier", pa.binary()), ("payload", pa.binary())])
"""Rows to publish; lines and offsets are counted within the block."""

HISTORY = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("file", pa.int32()),
        ("block", pa.int64()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
        *((f"box_{name}", pa.float64()) for name in Box._fields),
    ]
)
"""Rows with all that the archive keeps of them; file, block and offset are their order."""

_SCHEMAS: dict[Step, pa.Schema] = {"faults": FAULTS, "items": ITEMS, "history": HISTORY}
_GROUP = 10_000  # rows, or a few more, that are written together


class CheckTask(msgspec.Struct, frozen=True):
    """What workers are told. Pickles."""

    event_type: EventType | GenericType
    wanted: Wanted
    latest: int  # the moment up to which times are the past: nanoseconds since 1970
    folder: str  # for what they leave
    faults: bool  # whether refused rows are wanted


class Block(msgspec.Struct, frozen=True):
    """A part of a file that one task has read, and what came of its rows."""

    file: int  # the number of the file
    start: int  # where Spark says that it begins: tells blocks of a file apart, and their order
    lines: int  # of the text, blank ones too; none for a table
    bytes: int  # of the text, unpacked
    summary: Summary


def check_here(files: Sequence[Input], task: CheckTask, told: Told) -> list[Block]:
    """Check every row of text files of this machine, a file as one block; PipelineError if one cannot be read."""
    checker = Checker(task.event_type, task.wanted, task.latest)
    found = []
    for number, each in enumerate(files):
        separator = ARRAY_SEPARATOR if each.form == "json" else b"\n"
        found.append(check_text_block(each, number, 0, read_pieces(each, separator), checker, task))
        told(number + 1, len(files))
    return found


def check_text_block(
    given: Input, number: int, start: int, pieces: Iterable[list[bytes]], checker: Checker, task: CheckTask
) -> Block:
    """Check the pieces of a block of a text file, and leave it for the next step."""
    return leave(text_chunks(given, start == 0, pieces, checker, task.event_type), number, start, task)


def leave(chunks: Iterable[Chunk], number: int, start: int, task: CheckTask) -> Block:
    """Leave the rows of a block for the next step."""
    tally = Tally()
    folder = Path(task.folder)
    lines = size = 0
    taken = None
    if task.wanted.history or task.wanted.given:
        taken = _Part(folder, "history" if task.wanted.history else "items", number, start)
    refused = _Part(folder, "faults", number, start) if task.faults else None
    parts = [part for part in (taken, refused) if part is not None]
    try:
        for chunk in chunks:
            tally.add(chunk.count, chunk.outcome.faults.values())
            lines, size = chunk.lines_end, chunk.bytes_end
            if refused is not None and chunk.outcome.faults:
                refused.add(_faults_of(chunk))
            if taken is not None:
                taken.add(_history_of(chunk, number, start) if task.wanted.history else _items_of(chunk))
        for part in parts:
            part.finish()
    except BaseException:
        for part in parts:
            part.abandon()
        raise
    return Block(number, start, lines, size, tally.summary())


def lines_and_bytes_before(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Return how many lines and bytes of its file come before each block; none of a table, whose rows say it."""
    found = []
    file, lines, size = -1, 0, 0
    for block in blocks:
        if block.file != file:
            file, lines, size = block.file, 0, 0
        found.append((lines, size))
        lines, size = lines + block.lines, size + block.bytes
    return found


def fault_parts(folder: Path, files: Sequence[Input], blocks: Sequence[Block]) -> list[FaultPart]:
    """Return where the refused rows of these blocks are."""
    return [
        FaultPart(files[block.file].name, part_path(folder, "faults", block.file, block.start), before)
        for block, (before, _) in zip(blocks, lines_and_bytes_before(blocks), strict=True)
        if block.summary.refused
    ]


def part_path(folder: Path, step: Step, file: int, start: int) -> Path:
    """Return where the rows of a block are."""
    return folder / step / f"part-{file:06d}-{start:015d}.{'arrow' if step == 'faults' else 'parquet'}"


class _Part:
    """A file that is being written; it gets its name only when all went well."""

    def __init__(self, folder: Path, step: Step, file: int, start: int) -> None:
        self._path = part_path(folder, step, file, start)
        self._draft = self._path.with_name(f"_{self._path.name}.{os.getpid()}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: pq.ParquetWriter | pa.RecordBatchFileWriter
        if step == "faults":  # read once and by ourselves: what is quickest to write
            self._writer = pa.ipc.new_file(self._draft, FAULTS, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        else:
            self._writer = pq.ParquetWriter(self._draft, _SCHEMAS[step], compression="lz4", use_dictionary=False)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0  # that wait

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._waiting.append(batch)
            self._rows += batch.num_rows
        if self._rows >= _GROUP:
            self._write()

    def finish(self) -> None:
        self._write()
        self._writer.close()
        self._draft.replace(self._path)

    def abandon(self) -> None:
        self._writer.close()
        self._draft.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
            self._waiting, self._rows = [], 0


def _faults_of(chunk: Chunk) -> pa.RecordBatch:
    faults = sorted(chunk.outcome.faults.items())
    columns: list[Sequence[Any]] = [
        [chunk.lines[place] for place, _ in faults],
        chunk.raw([place for place, _ in faults]),
        [fault.field for _, fault in faults],
        [_encodable(fault.reason) for _, fault in faults],
        [fault.code for _, fault in faults],
    ]
    return _batch(FAULTS, columns)


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _items_of(chunk: Chunk) -> pa.RecordBatch:
    taken, starts = chunk.outcome.taken, chunk.offsets()
    columns: list[Sequence[Any]] = [
        [starts[place] for place in taken.places],
        [chunk.lines[place] for place in taken.places],
        taken.given,
        taken.payloads,
    ]
    return _batch(ITEMS, columns)


def _history_of(chunk: Chunk, number: int, start: int) -> pa.RecordBatch:
    taken, starts = chunk.outcome.taken, chunk.offsets()
    count = len(taken.places)
    boxes = [[None if box is None else box[side] for box in taken.boxes or [None] * count] for side in range(4)]
    columns: list[Sequence[Any]] = [
        list(taken.times),
        [number] * count,
        [start] * count,
        [starts[place] for place in taken.places],
        list(taken.topics),
        list(taken.identifiers),
        list(taken.payloads),
        *boxes,
    ]
    return _batch(HISTORY, columns)


def _batch(schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
