"""Which filters want this notification? Found through an index: cost grows with the matches, not with the filters.

A filter goes to one place only, by its most selective part:

1. the fields it pins (equality, `eq`, one `in` set, each of its values): a dictionary from the pinned values;
2. inside such a cell, what is left: an area (a tree of boxes), a range (sorted intervals), or nothing.

What comes out of the places is a superset; the exact test of the filter has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic

from aviso_server.delivery.ranges import AreaIndex, I, IntervalIndex
from aviso_server.model.constraint import Kind
from aviso_server.model.filter import Filter, View

__all__ = ["FilterIndex"]

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
        """Put one in; a second time changes nothing."""
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
        """Take one out; one that is not there changes nothing."""
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
        """Those that it passes for certain, and those whose exact test is still to be made."""
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
        """Those that the notification passes, in no particular order."""
        sure, doubtful = self.candidates(view)
        sure.extend(interest for interest in doubtful if interest.wanted.passes(view))
        return sure


class _Cell(Generic[I]):
    """Interests that pin the same values."""

    __slots__ = ("areas", "certain", "intervals", "others")

    def __init__(self) -> None:
        self.certain: dict[I, None] = {}
        self.others: dict[I, None] = {}
        self.intervals: dict[tuple[str, Kind], IntervalIndex[I]] = {}
        self.areas: AreaIndex[I] | None = None

    def __bool__(self) -> bool:
        return bool(self.certain or self.others or self.intervals or self.areas)

    def add(self, interest: I, signature: Signature) -> None:
        place = _access(interest.wanted, signature)
        if place is _CERTAIN:
            self.certain[interest] = None
        elif place is _OTHER:
            self.others[interest] = None
        elif place is _AREA:
            if self.areas is None:
                self.areas = AreaIndex()
            self.areas.add(interest)
        else:
            assert isinstance(place, tuple)
            if place not in self.intervals:
                self.intervals[place] = IntervalIndex(place[0])
            self.intervals[place].add(interest)

    def discard(self, interest: I, signature: Signature) -> None:
        place = _access(interest.wanted, signature)
        if place is _CERTAIN:
            del self.certain[interest]
        elif place is _OTHER:
            del self.others[interest]
        elif place is _AREA:
            assert self.areas is not None
            self.areas.discard(interest)
            if not self.areas:
                self.areas = None
        else:
            assert isinstance(place, tuple)
            self.intervals[place].discard(interest)
            if not self.intervals[place]:
                del self.intervals[place]

    def possible(self, view: View) -> Iterator[I]:
        yield from self.others
        for (name, kind), intervals in self.intervals.items():
            value = view.parsed(name, kind)
            if value is not None:
                yield from intervals.around(float(value))
        if self.areas is not None:
            yield from self.areas.near(view)


_CERTAIN, _OTHER, _AREA = "certain", "other", "area"


def _pins(wanted: Filter) -> tuple[Signature, Iterable[Key]]:
    """The fields a filter pins, and the values it pins them to: several keys if it has a set."""
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
    """By which part a filter is looked up inside its cell."""
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
