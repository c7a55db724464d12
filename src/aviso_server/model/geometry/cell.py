"""The map in squares of one degree, to count what lies where."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["LAST_LAT", "LAST_LON", "cells_of"]

LAST_LAT, LAST_LON = 89, 179
"""The squares in the far north and the far east; the poles and the date line belong to them."""


def cells_of(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The south-western corners of the squares with the middles of boxes, both as rows in the order of `Box`.

    Boxes are rounded outward to what files keep of them, so that log and archive agree on every one.
    """
    low = boxes[:, :2].astype(np.float32)
    high = boxes[:, 2:].astype(np.float32)
    low = np.where(low > boxes[:, :2], np.nextafter(low, np.float32(-np.inf)), low)
    high = np.where(high < boxes[:, 2:], np.nextafter(high, np.float32(np.inf)), high)
    middles = (low.astype(np.float64) + high.astype(np.float64)) / 2
    return np.minimum(np.floor(middles).astype(np.int64), np.array([LAST_LAT, LAST_LON], dtype=np.int64))
