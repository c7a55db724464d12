"""A filter: which notifications of a stream a reader wants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from aviso_server.model import topic as topics
from aviso_server.model.fields import COMPARISONS, Constraint, Kind, Operand
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Notification, Run
from aviso_server.model.predicates import cloud_touches, contains, intersects
from aviso_server.model.shapes import Point, PointCloud, Polygon, geometry_problem, payload_polygon, stored_shape

__all__ = ["LONGEST_FILTER", "Area", "Filter", "Shape", "View"]

Area = Polygon | Point
Shape = Polygon | PointCloud

LONGEST_FILTER = 16 * 1024 * 1024
"""Bytes that a filter may have as JSON: more than the largest request makes."""

_UNREAD: Any = object()
_OPERANDS: dict[Kind, type] = {"integer": int, "number": float, "text": str}


class View:
    """A notification as filters look at it: each thing is parsed once, however many filters ask for it."""

    __slots__ = ("_parsed", "_shape", "notification", "values")

    def __init__(self, notification: Notification, positional: bool = False) -> None:
        self.notification = notification
        self.values = positional_values(notification.topic) if positional else notification.values()
        self._parsed: dict[tuple[str, Kind], Operand | None] = {}
        self._shape: Shape | None = _UNREAD

    def parsed(self, name: str, kind: Kind) -> Operand | None:
        """Return the value of a field as something to compare with operands; None if there is none."""
        key = (name, kind)
        if key not in self._parsed:
            text = self.values.get(name)
            self._parsed[key] = kind_value(kind, text) if isinstance(text, str) else None
        return self._parsed[key]

    @property
    def box(self) -> Box | None:
        return self.notification.box

    @property
    def shape(self) -> Shape | None:
        """Its polygon, its point cloud, or the polygon of its payload."""
        if self._shape is _UNREAD:
            self._shape = self._read_shape()
        return self._shape

    def _read_shape(self) -> Shape | None:
        for field in ("polygon", "point_cloud"):
            if (shape := stored_shape(field, self.values.get(field))) is not None:
                return shape
        return payload_polygon(msgspec.json.decode(self.notification.payload))


class Filter(msgspec.Struct, frozen=True, dict=True):
    """Field tests and an area, all of which must hold; immutable and hashable. Travels as JSON, or pickled."""

    event_type: str
    stream: str
    topic: str  # as people read it, wildcards as *
    equals: tuple[tuple[str, str], ...] = ()  # field and the canonical text it must have
    tests: tuple[tuple[str, Constraint], ...] = ()
    area: Area | None = None
    positional: bool = False  # schema-less event types are matched by the tokens of their topic
    shaped: bool = False  # notifications of the event type have a polygon or a point cloud

    def to_json(self) -> bytes:
        """Write the filter as JSON; ValueError if it compares with a number that JSON cannot say."""
        if any(isinstance(each, float) and not math.isfinite(each) for _, test in self.tests for each in test.operands):
            raise ValueError("a filter compares with a number that is not finite")
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> Filter:
        """Read what `to_json` has written; ValueError says what is wrong with anything else."""
        if len(text) > LONGEST_FILTER:
            raise ValueError(f"a filter of {len(text):,} bytes is too long; accepted are {LONGEST_FILTER:,}")
        found = msgspec.json.decode(text, type=cls)
        for name, test in found.tests:
            if test.operator not in COMPARISONS or not test.operands:
                raise ValueError(f"field '{name}': '{test.operator}' of {len(test.operands)} values is no constraint")
            if test.operator == "between" and len(test.operands) != 2:
                raise ValueError(f"field '{name}': 'between' needs two values")
            if any(type(each) is not _OPERANDS[test.kind] for each in test.operands):
                raise ValueError(f"field '{name}': a value is not of the kind '{test.kind}'")
        if isinstance(found.area, Polygon) and not len(found.area.lats) == len(found.area.lons) > 1:
            raise ValueError("the area is not a polygon")
        return found

    @property
    def is_open(self) -> bool:
        """True if every notification of the stream passes."""
        return not (self.equals or self.tests) and self.area is None

    def matches(self, notification: Notification) -> bool:
        if self.positional:
            return self.passes(View(notification, positional=True))
        for member in self._members:
            if member not in notification.identifier:
                return False
        return not (self.tests or self.area) or self.passes(View(notification))

    def choose(self, notifications: Sequence[Notification]) -> Sequence[Notification]:
        """Return those that match."""
        if self.is_open:
            return notifications
        if isinstance(notifications, Run) and not self.positional:
            notifications = notifications.containing(self._members)
            if not (self.tests or self.area):
                return notifications
        return [each for each in notifications if self.matches(each)]

    def malformed(self, notifications: Sequence[Notification]) -> list[int]:
        """Return the places of those whose stored geometry is malformed, so that there is no event of them."""
        if not self.shaped or isinstance(notifications, Run):  # what a run holds was written by us
            return []
        return [place for place, each in enumerate(notifications) if geometry_problem(each.identifier) is not None]

    @cached_property
    def _members(self) -> tuple[bytes, ...]:
        """The pinned fields as they stand in a stored identifier.

        Quotes inside of values are escaped there, so these bytes occur only where the field has this value.
        """
        return tuple(compact(name) + b":" + compact(text) for name, text in self.equals)

    def passes(self, view: View) -> bool:
        """Do what `matches` does, for a notification that several filters look at."""
        values = view.values
        for name, text in self.equals:
            if values.get(name) != text:
                return False
        for name, constraint in self.tests:
            value = view.parsed(name, constraint.kind)
            if value is None or not constraint.holds(value):
                return False
        return self.area is None or self._reaches(view, self.area)

    def _reaches(self, view: View, area: Area) -> bool:
        box = view.box
        if isinstance(area, Point):
            if box is not None and not box.covers(area.lat, area.lon):
                return False
            return isinstance(view.shape, Polygon) and contains(view.shape, area)
        if box is None or not box.overlaps(area.box):
            return False
        if isinstance(view.shape, PointCloud):
            return cloud_touches(view.shape, area)
        return view.shape is not None and intersects(view.shape, area)


def kind_value(kind: Kind, text: str) -> Operand | None:
    """Convert the canonical text of a field to a value of that kind; None if it is of another kind."""
    if kind == "text":
        return text.lower()
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        return None


def positional_values(topic: str) -> dict[str, Any]:
    """Return the tokens of a topic by position, and their number under `#`; nothing if the topic is malformed."""
    try:
        tokens = topics.parse(topic)
    except ValueError:
        return {}
    values: dict[str, Any] = {str(place): token for place, token in enumerate(tokens)}
    values["#"] = str(len(tokens))
    return values
