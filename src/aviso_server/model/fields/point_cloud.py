"""PointCloudHandler: many points on the map."""

from __future__ import annotations

from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model import geometry
from aviso_server.model.fields.base import PAIR_SCHEMA, SpatialField

__all__ = ["MAX_POINTS", "PointCloudField"]

MAX_POINTS = 10_000


class PointCloudField(SpatialField, frozen=True, kw_only=True):
    """A list of latitude, longitude pairs; order and duplicates are kept."""

    max_points: int = MAX_POINTS

    type_name: ClassVar[str] = "PointCloudHandler"
    accepts: ClassVar[str] = "[[lat,lon],…] with 1 to max_points pairs of numbers; watch and replay filter by `polygon`"
    example: ClassVar[Any] = [[52.5, 13.4], [48.1, 11.6]]
    widget: ClassVar[str] = "points"

    def canonical(self, name: str, text: str) -> str:
        """A point cloud has no text form."""
        raise InvalidRequest(f"field '{name}' must be an array of [lat, lon] pairs; got text", field=name)

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[Any, geometry.PointCloud]:
        """The pairs as readers get them, and the cloud."""
        try:
            cloud = geometry.parse_point_cloud(value, self.max_points)
        except geometry.ShapeError as error:
            raise InvalidRequest(
                f"field '{name}' must be a valid point cloud: {error}", str(error), field=name
            ) from None
        return [list(pair) for pair in zip(cloud.lats, cloud.lons, strict=True)], cloud

    def problem(self) -> Problem | None:
        """The number of points is limited, and at least one must be possible."""
        if not 1 <= self.max_points <= MAX_POINTS:
            return Problem("max_points", f"{self.max_points} is out of range", f"a whole number from 1 to {MAX_POINTS}")
        return None

    def sample(self) -> Any:
        """As many points of the example as are allowed."""
        return self.example[: self.max_points]

    def value_schema(self) -> dict[str, Any]:
        """An array of pairs."""
        return {"type": "array", "items": PAIR_SCHEMA, "minItems": 1, "maxItems": self.max_points}
