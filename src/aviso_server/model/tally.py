"""How many notifications there are, when they were stored and where they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from aviso_server.model.geometry.cell import cells_of
from aviso_server.model.notification import Box, Notification
from aviso_server.model.run import Run

__all__ = ["Cell", "Tally"]

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
        """How many notifications were counted."""
        return self.times.total()

    @property
    def placed(self) -> int:
        """How many of them lie somewhere."""
        return self.cells.total()

    def add(self, notifications: Sequence[Notification]) -> None:
        """Count these too."""
        if isinstance(notifications, Run):
            self.times.update([time // self.unit for time in notifications.times])
            self._place(notifications.boxes or ())
        else:
            self.times.update([each.time // self.unit for each in notifications])
            self._place(each.box for each in notifications)

    def merge(self, other: Tally) -> None:
        """Count what another tally has counted."""
        self.times.update(other.times)
        self.cells.update(other.cells)

    def members(self) -> dict[str, Any]:
        """The counts as they travel, ready for JSON."""
        return {"times": list(self.times.items()), "cells": [(*cell, count) for cell, count in self.cells.items()]}

    @classmethod
    def of_members(cls, unit: int, members: object) -> Tally:
        """The counts that have travelled; ValueError if they are none."""
        found = msgspec.convert(members, _Wire)
        tally = cls(unit)
        tally.times.update(dict(found.times))
        tally.cells.update({(lat, lon): count for lat, lon, count in found.cells})
        return tally

    def _place(self, boxes: Iterable[Box | None]) -> None:
        known = [box for box in boxes if box is not None]
        if known:
            cells = cells_of(np.array(known, dtype=np.float64))
            self.cells.update(zip(*cells.T.tolist(), strict=True))
