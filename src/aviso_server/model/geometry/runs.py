"""A ring cut into runs of neighbouring edges, so that whole runs can be dismissed by their boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Boxes", "Numbers", "Runs", "overlap", "runs_of"]

Numbers = npt.NDArray[np.float64]
Boxes = Numbers  # left, bottom, right, top along the first axis

_EDGES = 32


class Runs(NamedTuple):
    """The edges of a ring in runs; a run has one vertex more than edges."""

    x: Numbers  # (runs, edges + 1)
    y: Numbers
    edge_boxes: Boxes  # (4, runs, edges)
    boxes: Boxes  # (4, runs)


def runs_of(x: Numbers, y: Numbers) -> Runs:
    """Cut the ring with these vertices into runs; edges of no length at its end fill up the last one."""
    last = len(x) - 1
    starts = np.arange(0, max(last, 1), _EDGES)
    vertices = np.minimum(starts[:, None] + np.arange(_EDGES + 1), last)
    x, y = x[vertices], y[vertices]
    edge_boxes = np.stack(
        (
            np.minimum(x[:, :-1], x[:, 1:]),
            np.minimum(y[:, :-1], y[:, 1:]),
            np.maximum(x[:, :-1], x[:, 1:]),
            np.maximum(y[:, :-1], y[:, 1:]),
        )
    )
    boxes = np.concatenate((edge_boxes[:2].min(axis=2), edge_boxes[2:].max(axis=2)))
    return Runs(x, y, edge_boxes, boxes)


def overlap(ours: Boxes, theirs: Boxes) -> npt.NDArray[np.bool_]:
    """Which boxes overlap; touching counts."""
    both: npt.NDArray[np.bool_] = (ours[0] <= theirs[2]) & (ours[2] >= theirs[0])
    both &= (ours[1] <= theirs[3]) & (ours[3] >= theirs[1])
    return both
