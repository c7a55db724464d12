"""The shapes a notification or a request may carry: a point, a polygon, a cloud of points."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from aviso_server.model.geometry.runs import Numbers, Runs, runs_of
from aviso_server.model.notification import Box

__all__ = ["Point", "PointCloud", "Polygon", "ShapeError", "TooManyVertices", "box_around"]


class ShapeError(ValueError):
    """This is not a shape; the text says why, without naming the field."""


class TooManyVertices(ShapeError):
    """A polygon is larger than allowed; nobody has looked at its vertices."""


class Point(NamedTuple):
    """A place on the map, in degrees."""

    lat: float
    lon: float


class Polygon(msgspec.Struct, frozen=True, dict=True):
    """A closed ring of vertices in degrees: the last vertex equals the first."""

    lats: tuple[float, ...]
    lons: tuple[float, ...]
    box: Box

    @classmethod
    def closed(cls, pairs: Iterable[tuple[float, float]]) -> Polygon:
        """Build a polygon from (lat, lon) pairs, at least one; the ring is closed if it is still open."""
        ring = list(pairs)
        if ring[0] != ring[-1] or len(ring) == 1:
            ring.append(ring[0])
        lats, lons = zip(*ring, strict=True)
        return cls(lats, lons, box_around(lats, lons))

    @property
    def vertices(self) -> int:
        """How many vertices the ring has, the closing one included."""
        return len(self.lats)

    @cached_property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """The longitudes and latitudes as arrays, built on first use and not pickled."""
        return np.array(self.lons, dtype=np.float64), np.array(self.lats, dtype=np.float64)

    @cached_property
    def runs(self) -> Runs:
        """The edges in runs of neighbours, built on first use and not pickled."""
        return runs_of(*self.arrays)


class PointCloud(msgspec.Struct, frozen=True, dict=True):
    """A list of places; order and duplicates are kept."""

    lats: tuple[float, ...]
    lons: tuple[float, ...]
    box: Box
    canonical: bytes  # compact JSON, [[lat,lon],...], every number a float

    @property
    def points(self) -> int:
        """How many points the cloud has."""
        return len(self.lats)

    @cached_property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """The longitudes and latitudes as arrays, built on first use and not pickled."""
        return np.array(self.lons, dtype=np.float64), np.array(self.lats, dtype=np.float64)


def box_around(lats: tuple[float, ...], lons: tuple[float, ...]) -> Box:
    """The smallest box around at least one point."""
    return Box(min(lats), min(lons), max(lats), max(lons))
