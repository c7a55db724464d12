"""Explain a filter in words, which part of it keeps or drops a notification, and count what it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from aviso_server.model.fields import Constraint
from aviso_server.model.filter import Area, Filter, Shape, View
from aviso_server.model.json_text import compact, shortest
from aviso_server.model.notification import Box, Notification, Run
from aviso_server.model.shapes import Point, PointCloud, cells_of
from aviso_server.model.times import Span, event_time

__all__ = [
    "DEFAULT_DAYS",
    "MOST_DAYS",
    "Clause",
    "Tally",
    "Verdict",
    "area_value",
    "clauses_of",
    "filter_sentence",
    "start_sentence",
    "verdicts",
]

DEFAULT_DAYS, MOST_DAYS = 7, 366
"""On how many days of the past a filter is tried, and on how many at most."""

_TOKENS = "#"  # the name under which generic filters ask for the number of tokens

_COMPARED = {
    "eq": "{field} is {value}",
    "gt": "{field} is greater than {value}",
    "gte": "{field} is {value} or greater",
    "lt": "{field} is less than {value}",
    "lte": "{field} is {value} or less",
}


class Clause(msgspec.Struct, frozen=True):
    """One condition of a filter. All conditions together are the filter."""

    field: str
    operator: str
    value: Any  # canonical, ready for JSON
    sentence: str
    alone: Filter  # the filter that has no other condition


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a clause for one notification."""

    clause: Clause
    passed: bool
    seen: str | None  # what it looked at; None if there was nothing


def clauses_of(wanted: Filter, names: Sequence[str] = ()) -> tuple[Clause, ...]:
    """Return the conditions of a filter; `names` are the sorted keys of a request for a schema-less event type."""
    return tuple(_clauses(wanted, names))


def filter_sentence(wanted: Filter, clauses: Sequence[Clause]) -> str:
    subject = f"Notifications of event type '{wanted.event_type}'"
    if not clauses:
        return f"{subject}, all of them."
    return f"{subject} where {', and '.join(clause.sentence for clause in clauses)}."


def start_sentence(span: Span) -> str:
    """Say where a watch begins."""
    if span.from_sequence is not None:
        return f"History from sequence {span.from_sequence} on, then what is published."
    if span.from_time is not None:
        return f"History stored at {event_time(span.from_time)} or later, then what is published."
    return "Only what is published from now on."


def area_value(area: Area) -> str | list[tuple[float, float]]:
    """Write an area as a request would: text for a point, pairs for a polygon."""
    if isinstance(area, Point):
        return f"{shortest(area.lat)},{shortest(area.lon)}"
    return list(zip(area.lats, area.lons, strict=True))


def verdicts(wanted: Filter, clauses: Sequence[Clause], notification: Notification) -> tuple[Verdict, ...]:
    """Return what each clause says; the filter passes the notification if all of them do."""
    view = View(notification, wanted.positional)
    return tuple(Verdict(clause, clause.alone.matches(notification), _seen(clause, view)) for clause in clauses)


def _clauses(wanted: Filter, names: Sequence[str]) -> Iterator[Clause]:
    bare = Filter(wanted.event_type, wanted.stream, wanted.topic, positional=wanted.positional)
    for name, text in wanted.equals:
        alone = msgspec.structs.replace(bare, equals=((name, text),))
        if wanted.positional and name == _TOKENS:
            yield Clause(name, "eq", int(text), f"there are {int(text) - 1} keys", alone)
        else:
            field = names[int(name) - 1] if wanted.positional else name
            yield Clause(field, "eq", text, f"{field} is {_shown(text)}", alone)
    for name, constraint in wanted.tests:
        alone = msgspec.structs.replace(bare, tests=((name, constraint),))
        operands = constraint.operands
        value = list(operands) if constraint.operator in ("in", "between") else operands[0]
        yield Clause(name, constraint.operator, value, _constraint_sentence(name, constraint), alone)
    if wanted.area is not None:
        yield _area_clause(wanted.area, msgspec.structs.replace(bare, area=wanted.area))


def _constraint_sentence(field: str, constraint: Constraint) -> str:
    shown = [_shown(operand) for operand in constraint.operands]
    case = ", in any letter case" if constraint.kind == "text" else ""
    if constraint.operator == "in":
        return f"{field} is one of {', '.join(shown)}{case}"
    if constraint.operator == "between":
        return f"{field} lies between {shown[0]} and {shown[1]}, limits included"
    return _COMPARED[constraint.operator].format(field=field, value=shown[0]) + case


def _area_clause(area: Area, alone: Filter) -> Clause:
    value = area_value(area)
    if isinstance(area, Point):
        return Clause("point", "contains", value, f"its polygon has the point {value} inside", alone)
    words = f"a polygon of {area.vertices} vertices, {_extent(area.box)}"
    return Clause("polygon", "meets", value, f"its shape has a point in common with {words}", alone)


def _seen(clause: Clause, view: View) -> str | None:
    if clause.alone.area is not None:
        return None if view.shape is None else _shape_words(view.shape)
    ((name, _),) = clause.alone.equals or clause.alone.tests
    value = view.values.get(name)
    return value if isinstance(value, str) or value is None else compact(value).decode()


def _shape_words(shape: Shape) -> str:
    if isinstance(shape, PointCloud):
        return f"a cloud of {shape.points} points, {_extent(shape.box)}"
    return f"a polygon of {shape.vertices} vertices, {_extent(shape.box)}"


def _extent(box: Box) -> str:
    south, west, north, east = (shortest(each) for each in box)
    return f"latitudes {south} to {north}, longitudes {west} to {east}"


def _shown(value: object) -> str:
    return compact(value).decode()


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
