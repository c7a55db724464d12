"""Count notifications by time and by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from aviso_server.model.notification import Box, Notification, Run
from aviso_server.model.shapes import cells_of

__all__ = ["Tally"]


Cell = tuple[int, int]
"""The latitude and the longitude of the south-western corner of a square of one degree."""


class _Wire(msgspec.Struct, frozen=True):
    times: list[tuple[int, int]]
    cells: list[tuple[int, int, int]]


class Tally:
    """Counts by interval of time and by cell of the map; each notification is counted in one of each at most."""

    def __init__(self, unit: int) -> None:
        self.unit = unit  # nanoseconds in an interval
        self.times: Counter[int] = Counter()  # by the number of the interval since 1970
        self.cells: Counter[Cell] = Counter()  # by where the middle of the box lies; without a box, nowhere

    @property
    def total(self) -> int:
        return self.times.total()

    @property
    def placed(self) -> int:
        """The number of notifications that have a place on the map."""
        return self.cells.total()

    def add(self, notifications: Sequence[Notification]) -> None:
        if isinstance(notifications, Run):
            self.times.update([time // self.unit for time in notifications.times])
            self._place(notifications.boxes or ())
        else:
            self.times.update([each.time // self.unit for each in notifications])
            self._place(each.box for each in notifications)

    def merge(self, other: Tally) -> None:
        self.times.update(other.times)
        self.cells.update(other.cells)

    def members(self) -> dict[str, Any]:
        """Return the counts ready for JSON."""
        return {"times": list(self.times.items()), "cells": [(*cell, count) for cell, count in self.cells.items()]}

    @classmethod
    def of_members(cls, unit: int, members: object) -> Tally:
        """Read what `members` returned; ValueError if it is something else."""
        found = msgspec.convert(members, _Wire)
        tally = cls(unit)
        tally.times.update(dict(found.times))
        tally.cells.update({(lat, lon): count for lat, lon, count in found.cells})
        return tally

    def _place(self, boxes: Iterable[Box | None]) -> None:
        known = [box for box in boxes if box is not None]
        if known:
            self.place(np.array(known, dtype=np.float64))

    def place(self, boxes: npt.NDArray[np.float64]) -> None:
        """Count boxes by the cell of their middle; rows are in the order of `Box`."""
        cells, counts = np.unique(cells_of(boxes), axis=0, return_counts=True)
        self.cells.update(dict(zip(map(tuple, cells.tolist()), counts.tolist(), strict=True)))
