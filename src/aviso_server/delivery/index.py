"""Finds the filters that a notification passes: by pinned values, ranges of numbers and areas on the map.

Ranges and areas are kept in arrays made for searching. Building those takes time, so new filters wait in a list that is
searched one by one, and removed ones are skipped; the arrays are rebuilt when either has grown too large.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import shapely

from aviso_server.model.fields import Kind
from aviso_server.model.filter import Filter, View
from aviso_server.model.notification import Box
from aviso_server.model.shapes import Point

__all__ = ["FilterIndex", "added", "removed"]


_SMALL = 32


class Interest(Protocol):
    """Anything that wants what a filter lets through; told apart by identity, so hashing it is cheap."""

    @property
    def wanted(self) -> Filter:
        """The filter; it never changes."""


I = TypeVar("I", bound=Interest)  # noqa: E741  # the letter of the thing it stands for


class _Rebuilt(Generic[I]):
    """Interests in arrays, new ones that are not in the arrays yet, and removed ones that still are."""

    def __init__(self) -> None:
        self._built: list[I] = []
        self._gone: set[I] = set()
        self._new: dict[I, None] = {}

    def __len__(self) -> int:
        return len(self._built) - len(self._gone) + len(self._new)

    def add(self, interest: I) -> None:
        if interest in self._gone:
            self._gone.remove(interest)
        else:
            self._new[interest] = None

    def discard(self, interest: I) -> None:
        if interest in self._new:
            del self._new[interest]
        else:
            self._gone.add(interest)

    def _refresh(self) -> None:
        """Rebuild the arrays if too many interests came or went since the last time."""
        if len(self._new) + len(self._gone) <= max(_SMALL, len(self._built) // 8):
            return
        self._built = [interest for interest in self._built if interest not in self._gone]
        self._built.extend(self._new)
        self._gone.clear()
        self._new.clear()
        self._build()

    def _build(self) -> None:
        raise NotImplementedError

    def _chosen(self, places: npt.NDArray[Any]) -> Iterator[I]:
        for place in places.tolist():
            interest = self._built[place]
            if interest not in self._gone:
                yield interest


class IntervalIndex(_Rebuilt[I]):
    """Interests by the closed interval that they ask of one numeric field."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._lows: list[float] = []  # in one place a list is searched faster than an array
        self._highs: npt.NDArray[np.float64] = np.empty(0)

    def around(self, value: float) -> Iterator[I]:
        """Yield those whose interval may hold the value."""
        self._refresh()
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
        self._built.sort(key=lambda interest: self._interval(interest)[0])
        intervals = [self._interval(interest) for interest in self._built]
        self._lows = [low for low, _ in intervals]
        self._highs = np.array([high for _, high in intervals])


class AreaIndex(_Rebuilt[I]):
    """Interests by the box around their area."""

    def __init__(self) -> None:
        super().__init__()
        self._tree: shapely.STRtree | None = None

    def near(self, view: View) -> Iterator[I]:
        """Yield those whose area may meet the notification's shape."""
        # a payload's shape has no stored box: only point filters can want it, and they will check
        box = view.box or (view.shape.box if view.shape is not None else None)
        if box is None:
            return
        self._refresh()
        for interest in self._new:
            if box.overlaps(_box(interest.wanted)):
                yield interest
        if self._tree is not None:
            yield from self._chosen(self._tree.query(shapely.box(box.min_lon, box.min_lat, box.max_lon, box.max_lat)))

    def _build(self) -> None:
        boxes = np.array([_box(interest.wanted) for interest in self._built]).reshape(-1, 4)
        self._tree = shapely.STRtree(shapely.box(boxes[:, 1], boxes[:, 0], boxes[:, 3], boxes[:, 2]))


def _box(wanted: Filter) -> Box:
    area = wanted.area
    assert area is not None
    return Box(area.lat, area.lon, area.lat, area.lon) if isinstance(area, Point) else area.box


_MOST_KEYS = 64  # a larger set is tested, not spread over the dictionary

Signature = tuple[tuple[str, Kind | None], ...]  # fields and how their value is read; None: the canonical text
Key = tuple[object, ...]


class FilterIndex(Generic[I]):
    """Interests in one stream, that can be asked for those a notification passes."""

    def __init__(self) -> None:
        self._groups: dict[Signature, dict[Key, _Cell[I]]] = {}
        self._interests: set[I] = set()

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, interest: I) -> bool:
        return interest in self._interests

    def add(self, interest: I) -> None:
        """Add an interest; a second time changes nothing."""
        if interest in self._interests:
            return
        self._interests.add(interest)
        signature, keys = _pins(interest.wanted)
        group = self._groups.setdefault(signature, {})
        for key in keys:
            if key not in group:
                group[key] = _Cell()
            group[key].add(interest, signature)

    def discard(self, interest: I) -> None:
        if interest not in self._interests:
            return
        self._interests.remove(interest)
        signature, keys = _pins(interest.wanted)
        group = self._groups[signature]
        for key in keys:
            group[key].discard(interest, signature)
            if not group[key]:
                del group[key]
        if not group:
            del self._groups[signature]

    def candidates(self, view: View) -> tuple[list[I], list[I]]:
        """Return those that it passes for certain, and those that are still to be tested."""
        sure: list[I] = []
        doubtful: list[I] = []
        value_of, parsed = view.values.get, view.parsed
        for signature, group in self._groups.items():
            key = tuple([value_of(name) if kind is None else parsed(name, kind) for name, kind in signature])
            cell = group.get(key)
            if cell is not None:
                sure.extend(cell.certain)
                if cell.others or cell.intervals or cell.areas is not None:
                    doubtful.extend(cell.possible(view))
        return sure, doubtful

    def match(self, view: View) -> list[I]:
        """Return those that the notification passes, in no particular order."""
        sure, doubtful = self.candidates(view)
        sure.extend(interest for interest in doubtful if interest.wanted.passes(view))
        return sure


T = TypeVar("T")


def added(some: Collection[T], one: T) -> Collection[T]:
    """Return these and one more: a tuple if it is alone, as most are, because a dict takes five times the memory."""
    if not some:
        return (one,)
    found = some if isinstance(some, dict) else dict.fromkeys(some)
    found[one] = None
    return found


def removed(some: Collection[T], one: T) -> Collection[T]:
    """Return these without one."""
    if not isinstance(some, dict):
        return () if one in some else some
    some.pop(one, None)
    return some


class _Cell(Generic[I]):
    """Interests that pin the same values; most cells hold one, so parts that are not needed are not made."""

    __slots__ = ("areas", "certain", "intervals", "others")

    def __init__(self) -> None:
        self.certain: Collection[I] = ()
        self.others: Collection[I] = ()
        self.intervals: dict[tuple[str, Kind], IntervalIndex[I]] | None = None
        self.areas: AreaIndex[I] | None = None

    def __bool__(self) -> bool:
        return bool(self.certain or self.others or self.intervals or self.areas)

    def add(self, interest: I, signature: Signature) -> None:
        place = _access(interest.wanted, signature)
        if place is _CERTAIN:
            self.certain = added(self.certain, interest)
        elif place is _OTHER:
            self.others = added(self.others, interest)
        elif place is _AREA:
            if self.areas is None:
                self.areas = AreaIndex()
            self.areas.add(interest)
        else:
            assert isinstance(place, tuple)
            if self.intervals is None:
                self.intervals = {}
            if place not in self.intervals:
                self.intervals[place] = IntervalIndex(place[0])
            self.intervals[place].add(interest)

    def discard(self, interest: I, signature: Signature) -> None:
        place = _access(interest.wanted, signature)
        if place is _CERTAIN:
            self.certain = removed(self.certain, interest)
        elif place is _OTHER:
            self.others = removed(self.others, interest)
        elif place is _AREA:
            assert self.areas is not None
            self.areas.discard(interest)
            if not self.areas:
                self.areas = None
        else:
            assert isinstance(place, tuple)
            assert self.intervals is not None
            self.intervals[place].discard(interest)
            if not self.intervals[place]:
                del self.intervals[place]

    def possible(self, view: View) -> Iterator[I]:
        yield from self.others
        for (name, kind), intervals in (self.intervals or {}).items():
            value = view.parsed(name, kind)
            if value is not None:
                yield from intervals.around(float(value))
        if self.areas is not None:
            yield from self.areas.near(view)


_CERTAIN, _OTHER, _AREA = "certain", "other", "area"


def _pins(wanted: Filter) -> tuple[Signature, Iterable[Key]]:
    """Return the fields that a filter pins, and their values: several keys if it has a set."""
    names: list[tuple[str, Kind | None]] = [(name, None) for name, _ in wanted.equals]
    keys: list[Key] = [tuple(text for _, text in wanted.equals)]
    for name, test in wanted.tests:
        if test.operator not in ("eq", "in") or (len(keys) > 1 and len(test.operands) > 1):
            continue
        operands = set(test.operands)
        if len(operands) > _MOST_KEYS:
            continue
        names.append((name, test.kind))
        keys = [(*key, operand) for key in keys for operand in operands]
    return tuple(names), keys


def _access(wanted: Filter, signature: Signature) -> str | tuple[str, Kind]:
    """Return by which part a filter is looked up inside its cell."""
    if wanted.area is not None:
        return _AREA
    pinned = {name for name, kind in signature if kind is not None}
    left = [(name, test) for name, test in wanted.tests if name not in pinned]
    if not left:
        return _CERTAIN
    numeric = [(name, test) for name, test in left if test.kind != "text"]
    if not numeric:
        return _OTHER
    # a bounded range tells more than a half-open one
    name, test = next((item for item in numeric if item[1].operator in ("between", "in")), numeric[0])
    return name, test.kind
