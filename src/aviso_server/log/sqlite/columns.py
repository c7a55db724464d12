"""Taking apart what SQLite has joined: one value per column in, a run of notifications out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from aviso_server.log.sqlite.stream import PACKED_BOX, SEPARATOR
from aviso_server.model.arrow_run import ArrowRun
from aviso_server.model.notification import Box
from aviso_server.model.run import Run

__all__ = ["apart"]


def apart(
    count: int,
    sequence: bytes | int,
    time: bytes,
    identifier: bytes,
    payload: bytes,
    topic: str | None,
    boxes: str | None = None,
) -> Run | None:
    """The notifications of a joined batch; None if a value holds the separator.

    `sequence` is the first one if no number is left out; without a `topic` all topics are empty.
    """
    identifiers, payloads = _column(identifier), _column(payload)
    if not len(identifiers) == len(payloads) == count:
        return None
    if topic is None:
        topic = SEPARATOR * (count - 1)
    elif topic.count(SEPARATOR) + 1 != count:
        return None
    places = None if boxes is None else [_unpack_hex(box) for box in boxes.split(SEPARATOR)]
    sequences = _numbers(sequence, count) if isinstance(sequence, int) else _column(sequence)
    return ArrowRun(sequences, _column(time), partial(topic.split, SEPARATOR), identifiers, payloads, places)


def _column(joined: bytes) -> pa.BinaryArray:
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord(SEPARATOR))
    offsets = np.empty(len(ends) + 2, np.int32)
    offsets[0], offsets[-1] = 0, len(joined) - len(ends)
    np.subtract(ends, np.arange(len(ends)), out=offsets[1:-1], casting="same_kind")
    values = joined.replace(SEPARATOR.encode(), b"")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends) + 1, buffers)


def _numbers(first: int, count: int) -> pa.BinaryArray:
    return pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())


def _unpack_hex(text: str) -> Box | None:
    return Box(*PACKED_BOX.unpack(bytes.fromhex(text))) if text else None
