"""What a notification is, before and after the log has numbered it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

__all__ = ["Box", "Draft", "Notification"]


class Box(NamedTuple):
    """The smallest rectangle around a shape, in degrees, limits included."""

    min_lat: float
    min_lon: float
    max_lat: float
    max_lon: float

    def overlaps(self, other: Box) -> bool:
        """True if the two share at least one point; touching counts."""
        return (
            self.min_lat <= other.max_lat
            and other.min_lat <= self.max_lat
            and self.min_lon <= other.max_lon
            and other.min_lon <= self.max_lon
        )

    def covers(self, lat: float, lon: float) -> bool:
        """True if the point lies in the rectangle or on its rim."""
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
        """The identifier as a dictionary; all values are text, but for point clouds."""
        values: dict[str, Any] = msgspec.json.decode(self.identifier)
        return values
