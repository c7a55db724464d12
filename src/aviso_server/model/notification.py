"""A notification, before and after the log has numbered it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

__all__ = ["Box", "Draft", "Notification", "Part", "Rendered", "Run"]


class Box(NamedTuple):
    """The smallest rectangle around a shape, in degrees, limits included."""

    min_lat: float
    min_lon: float
    max_lat: float
    max_lon: float

    def overlaps(self, other: Box) -> bool:
        """Return True if the two share at least one point; touching counts."""
        return (
            self.min_lat <= other.max_lat
            and other.min_lat <= self.max_lat
            and self.min_lon <= other.max_lon
            and other.min_lon <= self.max_lon
        )

    def covers(self, lat: float, lon: float) -> bool:
        """Return True if the point lies in the rectangle or on its edge."""
        return self.min_lat <= lat <= self.max_lat and self.min_lon <= lon <= self.max_lon


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A checked notification on its way into the log: no sequence and no time yet."""

    stream: str  # the topic base: the log numbers each stream by itself
    topic: str  # wire form: tokens percent-encoded, joined by dots
    identifier: bytes  # JSON object, compact, keys sorted: what readers get as data.identifier
    payload: bytes  # JSON value, compact, keys sorted; b"null" if there is none
    box: Box | None = None  # around the polygon or point cloud of the identifier


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A stored notification."""

    sequence: int
    time: int  # when it was stored: nanoseconds since 1970, UTC, never lower than its predecessor's
    topic: str
    identifier: bytes
    payload: bytes
    box: Box | None = None

    def values(self) -> dict[str, Any]:
        """Decode the identifier; all values are text, but for shapes."""
        values: dict[str, Any] = msgspec.json.decode(self.identifier)
        return values


Part = bytes | Literal["sequence", "identifier", "payload", "time"]
"""A part of a rendering: bytes that never change, or the name of a column."""

Rendered = bytes | memoryview
"""Rendered notifications; a memoryview where making bytes would copy everything once more."""


class Run(Sequence[Notification]):
    """A sequence of notifications, ascending, kept as columns."""

    @property
    @abstractmethod
    def last(self) -> int:
        """The sequence of the newest."""

    @property
    @abstractmethod
    def times(self) -> Sequence[int]:
        """When they were stored."""

    @property
    @abstractmethod
    def boxes(self) -> Sequence[Box | None] | None:
        """The boxes of all; None if no notification has one."""

    @abstractmethod
    def without(self, through: int, deleted: Collection[int]) -> Run:
        """Return those beyond a sequence that are not among the deleted ones."""

    @abstractmethod
    def containing(self, members: Sequence[bytes]) -> Run:
        """Return those whose identifiers contain all these bytes."""

    @abstractmethod
    def rewritten(self, mark: bytes, rewrite: Callable[[bytes], bytes]) -> Run:
        """Return the same notifications, with identifiers that contain `mark` rewritten."""

    @abstractmethod
    def joined(self, parts: Sequence[Part]) -> Rendered:
        """Join the parts of each notification, and all notifications; times as events show them."""
