"""Taking apart what SQLite has joined: one value in, a run of notifications out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.log.sqlite.stream import PACKED_BOX, SEPARATOR
from aviso_server.model.arrow_run import ArrowRun
from aviso_server.model.notification import Box
from aviso_server.model.run import Run

__all__ = ["apart"]

_SEPARATOR = SEPARATOR.encode()


def apart(
    first: int,
    count: int,
    joined: bytes,
    time: int | None,
    numbered: int,
    topic: str | None,
    boxes: str | None = None,
) -> Run | None:
    """The notifications of a joined batch; None if a value holds the separator.

    Identifiers come first, then payloads, then times unless all have one, then sequences if they are `numbered`; else
    they are numbered from the `first` one on. Without a `topic` all topics are empty.
    """
    columns = 2 + (time is None) + numbered
    ends = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord(_SEPARATOR))
    if len(ends) != columns * count:
        return None
    if topic is None:
        topic = SEPARATOR * (count - 1)
    elif topic.count(SEPARATOR) + 1 != count:
        return None
    values = _without_separators(joined, ends)
    taken = iter([values.slice(place * count, count) for place in range(columns)])
    identifiers, payloads = next(taken), next(taken)
    times = next(taken) if time is None else pa.repeat(pa.scalar(b"%d" % time, pa.binary()), count)
    sequences = next(taken) if numbered else _numbers(first, count)
    places = None if boxes is None else [_unpack_hex(box) for box in boxes.split(SEPARATOR)]
    return ArrowRun(sequences, times, partial(topic.split, SEPARATOR), identifiers, payloads, places)


def _without_separators(joined: bytes, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
    offsets = np.empty(len(ends) + 1, np.int32)
    offsets[0] = 0
    np.add(ends, 1, out=offsets[1:], casting="same_kind")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    values = pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
    return pc.binary_slice(values, 0, -1)  # a copy, but one that Python's lock is not held for


def _numbers(first: int, count: int) -> pa.BinaryArray:
    return pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())


def _unpack_hex(text: str) -> Box | None:
    return Box(*PACKED_BOX.unpack(bytes.fromhex(text))) if text else None
