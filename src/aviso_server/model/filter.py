"""A filter: which notifications of a stream a reader wants."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from aviso_server.model import topic as topics
from aviso_server.model.constraint import Constraint, Kind, Operand
from aviso_server.model.geometry import (
    Point,
    PointCloud,
    Polygon,
    ShapeError,
    cloud_touches,
    contains,
    intersects,
    parse_point_cloud,
    parse_polygon,
    payload_polygon,
)
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box, Notification
from aviso_server.model.run import Run

__all__ = ["Area", "Filter", "Shape", "View"]

Area = Polygon | Point
Shape = Polygon | PointCloud

_UNREAD: Any = object()


class View:
    """A notification as filters look at it: each thing is parsed once, however many filters ask for it."""

    __slots__ = ("_parsed", "_shape", "notification", "values")

    def __init__(self, notification: Notification, positional: bool = False) -> None:
        self.notification = notification
        self.values = positional_values(notification.topic) if positional else notification.values()
        self._parsed: dict[tuple[str, Kind], Operand | None] = {}
        self._shape: Shape | None = _UNREAD

    def parsed(self, name: str, kind: Kind) -> Operand | None:
        """The value of a field as something to compare with operands; None if there is no such value."""
        key = (name, kind)
        if key not in self._parsed:
            text = self.values.get(name)
            self._parsed[key] = kind_value(kind, text) if isinstance(text, str) else None
        return self._parsed[key]

    @property
    def box(self) -> Box | None:
        """The stored box."""
        return self.notification.box

    @property
    def shape(self) -> Shape | None:
        """Where it belongs on the map: its polygon, its point cloud, or what its payload says."""
        if self._shape is _UNREAD:
            self._shape = self._read_shape()
        return self._shape

    def _read_shape(self) -> Shape | None:
        try:
            if isinstance(text := self.values.get("polygon"), str):
                return parse_polygon(text, sys.maxsize)
            if isinstance(pairs := self.values.get("point_cloud"), list):
                return parse_point_cloud(pairs, sys.maxsize)
        except ShapeError:
            pass  # a text field of that name, not a shape
        return payload_polygon(msgspec.json.decode(self.notification.payload))


class Filter(msgspec.Struct, frozen=True, dict=True):
    """Field tests and an area, all of which must hold; immutable, hashable and picklable."""

    event_type: str
    stream: str
    topic: str  # as people read it, wildcards as *
    equals: tuple[tuple[str, str], ...] = ()  # field and the canonical text it must have
    tests: tuple[tuple[str, Constraint], ...] = ()
    area: Area | None = None
    positional: bool = False  # schema-less event types are matched by the tokens of their topic

    @property
    def is_open(self) -> bool:
        """True if every notification of the stream passes."""
        return not (self.equals or self.tests) and self.area is None

    def matches(self, notification: Notification) -> bool:
        """True if the reader wants this notification."""
        if self.positional:
            return self.passes(View(notification, positional=True))
        for member in self._members:
            if member not in notification.identifier:
                return False
        return not (self.tests or self.area) or self.passes(View(notification))

    def choose(self, notifications: Sequence[Notification]) -> Sequence[Notification]:
        """Those that the reader wants."""
        if self.is_open:
            return notifications
        if isinstance(notifications, Run) and not self.positional:
            notifications = notifications.having(self._members)
            if not (self.tests or self.area):
                return notifications
        return [each for each in notifications if self.matches(each)]

    @cached_property
    def _members(self) -> tuple[bytes, ...]:
        """The pinned fields as they stand in a stored identifier.

        Quotes inside of values are escaped there, so these bytes occur only where the field has this value.
        """
        return tuple(compact(name) + b":" + compact(text) for name, text in self.equals)

    def passes(self, view: View) -> bool:
        """The same, for a notification that several filters look at."""
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
    """The canonical text of a field as a value of that kind; None if it is none."""
    if kind == "text":
        return text.lower()
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        return None


def positional_values(topic: str) -> dict[str, Any]:
    """The tokens of a topic by position, and their number under `#`; nothing if the topic is malformed."""
    try:
        tokens = topics.parse(topic)
    except ValueError:
        return {}
    values: dict[str, Any] = {str(place): token for place, token in enumerate(tokens)}
    values["#"] = str(len(tokens))
    return values
