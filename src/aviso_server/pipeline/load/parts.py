"""The files that workers leave for the next step: rows that were taken, and rows that were refused.

Each piece of the input has its own, with a fixed name that appears when the file is complete. A task that Spark runs
again writes the same once more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box
from aviso_server.pipeline.load.rows import Chunk
from aviso_server.pipeline.load.splits import Split

__all__ = ["FAULTS", "HISTORY", "ITEMS", "Part", "Step", "faults_of", "history_of", "items_of", "part_path"]

Step = Literal["faults", "items", "history"]

FAULTS = pa.schema(
    [
        ("line", pa.int64()),
        ("raw", pa.string()),
        ("field", pa.string()),
        ("reason", pa.string()),
        ("code", pa.string()),
    ]
)
"""Refused rows; lines are counted within the piece."""

ITEMS = pa.schema([("offset", pa.int64()), ("line", pa.int64()), ("item", pa.binary())])
"""Rows as items of a batch request, ready to be sent."""

HISTORY = pa.schema(
    [
        ("time_ns", pa.int64()),
        ("file", pa.int32()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
        *((f"box_{name}", pa.float64()) for name in Box._fields),
    ]
)
"""Rows in the order of a file, with all that the archive keeps of them."""

_SCHEMAS: dict[Step, pa.Schema] = {"faults": FAULTS, "items": ITEMS, "history": HISTORY}
_KEY_BYTES = 16
_GROUP = 10_000  # rows, or a few more, that are written together


def part_path(folder: Path, step: Step, number: int) -> Path:
    """Where the rows of a piece are."""
    return folder / step / f"part-{number:06d}.{'arrow' if step == 'faults' else 'parquet'}"


class Part:
    """A file that is being written; it gets its name only when all went well."""

    def __init__(self, folder: Path, step: Step, number: int) -> None:
        self._path = part_path(folder, step, number)
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
        """Some more rows."""
        if batch.num_rows:
            self._waiting.append(batch)
            self._rows += batch.num_rows
        if self._rows >= _GROUP:
            self._write()

    def finish(self) -> None:
        """All rows have been given."""
        self._write()
        self._writer.close()
        self._draft.replace(self._path)

    def abandon(self) -> None:
        """Something went wrong: leave nothing behind."""
        self._writer.close()
        self._draft.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
            self._waiting, self._rows = [], 0


def faults_of(chunk: Chunk) -> pa.RecordBatch:
    """The rows of a chunk that were refused."""
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


def items_of(chunk: Chunk, split: Split, event_type: str, salt: str) -> pa.RecordBatch:
    """The rows of a chunk that were taken, each with a key that follows from its file, place and content."""
    taken = chunk.outcome.taken
    start = blake2b(f"{salt}\n{event_type}\n{split.given.name}\n".encode(), digest_size=_KEY_BYTES)
    opening, name = b'{"idempotency_key":"', b'","event_type":' + compact(event_type) + b',"identifier":'
    starts = chunk.offsets()
    offsets = [starts[place] for place in taken.places]
    items = []
    for offset, given, payload in zip(offsets, taken.given, taken.payloads, strict=True):
        content = given + b',"payload":' + payload + b"}"
        key = start.copy()
        key.update(b"%d\n%b" % (offset, content))
        items.append(opening + key.hexdigest().encode() + name + content)
    return _batch(ITEMS, [offsets, [chunk.lines[place] for place in taken.places], items])


def history_of(chunk: Chunk, split: Split) -> pa.RecordBatch:
    """The rows of a chunk that were taken, with their times."""
    taken = chunk.outcome.taken
    count, starts = len(taken.places), chunk.offsets()
    boxes = [[None if box is None else box[side] for box in taken.boxes or [None] * count] for side in range(4)]
    columns: list[Sequence[Any]] = [
        list(taken.times),
        [split.file] * count,
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
