"""Taking apart what SQLite has joined: one value per column in, a run of notifications out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from aviso_server.log.sqlite.stream import PACKED_BOX, SEPARATOR
from aviso_server.model.arrow_run import ArrowRun
from aviso_server.model.notification import Box
from aviso_server.model.run import Run

__all__ = ["apart"]

_SEPARATOR = SEPARATOR.encode()


def apart(
    first: int,
    count: int,
    identifier: bytes,
    payload: bytes,
    time: bytes | int,
    sequence: bytes | None,
    topic: str | None,
    boxes: str | None = None,
) -> Run | None:
    """The notifications of a joined batch; None if a value holds the separator.

    Without a `sequence` they are numbered from the `first` one on; without a `topic` all topics are empty. A number is
    the `time` of all of them.
    """
    columns = [column for column in (identifier, payload, time, sequence) if isinstance(column, bytes)]
    joined = _SEPARATOR.join([*columns, b""])  # one search for all of them
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord(_SEPARATOR))
    if len(ends) != len(columns) * count:
        return None
    if topic is None:
        topic = SEPARATOR * (count - 1)
    elif topic.count(SEPARATOR) + 1 != count:
        return None
    values = _without_separators(joined, ends)
    taken = iter([values.slice(place * count, count) for place in range(len(columns))])
    identifiers, payloads = next(taken), next(taken)
    times = pa.repeat(pa.scalar(b"%d" % time, pa.binary()), count) if isinstance(time, int) else next(taken)
    sequences = _numbers(first, count) if sequence is None else next(taken)
    places = None if boxes is None else [_unpack_hex(box) for box in boxes.split(SEPARATOR)]
    return ArrowRun(sequences, times, partial(topic.split, SEPARATOR), identifiers, payloads, places)


def _without_separators(joined: bytes, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
    offsets = np.empty(len(ends) + 1, np.int32)
    offsets[0] = 0
    np.subtract(ends, np.arange(len(ends)), out=offsets[1:], casting="same_kind")
    values = joined.replace(_SEPARATOR, b"")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)


def _numbers(first: int, count: int) -> pa.BinaryArray:
    return pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())


def _unpack_hex(text: str) -> Box | None:
    return Box(*PACKED_BOX.unpack(bytes.fromhex(text))) if text else None
