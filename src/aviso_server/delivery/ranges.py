"""Indexes over ranges of numbers and over areas on the map.

Both keep their filters in arrays made for searching. Building those takes time, so newcomers wait in a list that is
searched one by one, and leavers are struck out; once either has grown too large the arrays are made anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import shapely

from aviso_server.model.filter import Filter, View
from aviso_server.model.geometry import Point
from aviso_server.model.notification import Box

__all__ = ["AreaIndex", "Interest", "IntervalIndex"]

_SMALL = 32


class Interest(Protocol):
    """Anything that wants what a filter lets through; told apart by identity, so hashing it is cheap."""

    @property
    def wanted(self) -> Filter:
        """The filter; it never changes."""


I = TypeVar("I", bound=Interest)  # noqa: E741  # the letter of the thing it stands for


class _Settling(Generic[I]):
    """Interests that are settled in arrays, newcomers that are not yet, and the settled ones that have left."""

    def __init__(self) -> None:
        self._settled: list[I] = []
        self._gone: set[I] = set()
        self._new: dict[I, None] = {}

    def __len__(self) -> int:
        return len(self._settled) - len(self._gone) + len(self._new)

    def add(self, interest: I) -> None:
        """Put one in that is not there."""
        if interest in self._gone:
            self._gone.remove(interest)
        else:
            self._new[interest] = None

    def discard(self, interest: I) -> None:
        """Take one out that is there."""
        if interest in self._new:
            del self._new[interest]
        else:
            self._gone.add(interest)

    def _settle(self) -> None:
        """Rebuild the arrays if too many came or went since the last time."""
        if len(self._new) + len(self._gone) <= max(_SMALL, len(self._settled) // 8):
            return
        self._settled = [interest for interest in self._settled if interest not in self._gone]
        self._settled.extend(self._new)
        self._gone.clear()
        self._new.clear()
        self._build()

    def _build(self) -> None:
        raise NotImplementedError

    def _chosen(self, places: npt.NDArray[Any]) -> Iterator[I]:
        for place in places.tolist():
            interest = self._settled[place]
            if interest not in self._gone:
                yield interest


class IntervalIndex(_Settling[I]):
    """Interests by the closed interval that they ask of one numeric field."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._lows: list[float] = []  # in one place a list is searched faster than an array
        self._highs: npt.NDArray[np.float64] = np.empty(0)

    def around(self, value: float) -> Iterator[I]:
        """Those whose interval may hold the value."""
        self._settle()
        for interest in self._new:
            low, high = self._interval(interest)
            if low <= value <= high:
                yield interest
        reached = bisect_right(self._lows, value)
        if reached:
            yield from self._chosen((self._highs[:reached] >= value).nonzero()[0])

    def _interval(self, interest: I) -> tuple[float, float]:
        return dict(interest.wanted.tests)[self._name].interval()

    def _build(self) -> None:
        self._settled.sort(key=lambda interest: self._interval(interest)[0])
        intervals = [self._interval(interest) for interest in self._settled]
        self._lows = [low for low, _ in intervals]
        self._highs = np.array([high for _, high in intervals])


class AreaIndex(_Settling[I]):
    """Interests by the box around their area."""

    def __init__(self) -> None:
        super().__init__()
        self._tree: shapely.STRtree | None = None

    def near(self, view: View) -> Iterator[I]:
        """Those whose area may meet the notification's shape."""
        # a payload's shape has no stored box: only point filters can want it, and they will check
        box = view.box or (view.shape.box if view.shape is not None else None)
        if box is None:
            return
        self._settle()
        for interest in self._new:
            if box.overlaps(_box(interest.wanted)):
                yield interest
        if self._tree is not None:
            yield from self._chosen(self._tree.query(shapely.box(box.min_lon, box.min_lat, box.max_lon, box.max_lat)))

    def _build(self) -> None:
        boxes = np.array([_box(interest.wanted) for interest in self._settled]).reshape(-1, 4)
        self._tree = shapely.STRtree(shapely.box(boxes[:, 1], boxes[:, 0], boxes[:, 3], boxes[:, 2]))


def _box(wanted: Filter) -> Box:
    area = wanted.area
    assert area is not None
    return Box(area.lat, area.lon, area.lat, area.lon) if isinstance(area, Point) else area.box
