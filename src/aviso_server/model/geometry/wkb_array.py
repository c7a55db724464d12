"""Many polygons as well-known binary at once."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["polygons_as_wkb"]

# what our own rendering and most people write; everything else is read one by one
_NUMBER = r"(?:0|-?[1-9][0-9]{0,2}|-?(?:0|[1-9][0-9]{0,2})\.[0-9]{1,17})"
_PLAIN = rf"^\((?:{_NUMBER},){{7,}}{_NUMBER}\)$"
_HEADER = struct.Struct("<BIII")  # byte order, kind, one ring, its vertices
_VERTEX = 16  # bytes


def polygons_as_wkb(texts: pa.Array) -> pa.Array | None:
    """Texts such as `(0,0,0,2,2,2,0,0)` as `wkb` writes each; None if one of them needs a closer look."""
    given = texts.drop_null()
    if not len(given) or not pc.all(pc.match_substring_regex(given, _PLAIN)).as_py():
        return None
    numbers = pc.split_pattern(pc.utf8_slice_codeunits(given, 1, -1), ",")
    ends = numbers.offsets.to_numpy() // 2
    vertices = np.diff(ends)
    if np.any(np.diff(numbers.offsets.to_numpy()) % 2):
        return None
    places = pc.cast(numbers.flatten(), pa.float64()).to_numpy().reshape(-1, 2)
    if not _are_rings(places, ends):
        return None
    data = _joined(np.ascontiguousarray(places[:, ::-1]), vertices)
    lengths = np.zeros(len(texts), np.int64)
    lengths[pc.is_valid(texts).to_numpy(zero_copy_only=False)] = _HEADER.size + _VERTEX * vertices
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if offsets[-1] >= 2**31:
        return None
    valid = pc.is_valid(texts).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(texts), [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )


def _are_rings(places: npt.NDArray[np.float64], ends: npt.NDArray[Any]) -> bool:
    """True if all of them are closed and on the map."""
    closed = places[ends[:-1]] == places[ends[1:] - 1]
    return bool(np.all(closed) and np.all(np.abs(places) <= (90.0, 180.0)))


def _joined(pairs: npt.NDArray[np.float64], vertices: npt.NDArray[Any]) -> bytes:
    """All polygons one after the other, those with the same number of vertices made together."""
    counts = np.unique(vertices)
    if len(counts) == 1:
        return _block(pairs, int(counts[0])).tobytes()
    sizes = _HEADER.size + _VERTEX * vertices
    begins = np.cumsum(sizes) - sizes
    firsts = np.cumsum(vertices) - vertices
    joined = np.empty(int(sizes.sum()), np.uint8)
    for count in counts:
        rows = np.flatnonzero(vertices == count)
        block = _block(pairs[(firsts[rows, None] + np.arange(count)).ravel()], int(count))
        joined[begins[rows, None] + np.arange(block.shape[1])] = block
    return joined.tobytes()


def _block(pairs: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.uint8]:
    """Polygons of so many vertices each, a row for each of them."""
    places = pairs.view(np.uint8).reshape(-1, _VERTEX * count)
    header = np.frombuffer(_HEADER.pack(1, 3, 1, count), np.uint8)
    return np.hstack((np.broadcast_to(header, (len(places), len(header))), places))
