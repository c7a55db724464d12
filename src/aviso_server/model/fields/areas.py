"""Fields that say where a notification belongs on the map: PolygonHandler and PointCloudHandler."""

from __future__ import annotations

from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, PolygonTooLarge, Problem
from aviso_server.model import shapes
from aviso_server.model.fields.field import PAIR_SCHEMA, SpatialField
from aviso_server.model.json_text import identifier_text

__all__ = ["PointCloudField", "PolygonField", "read_polygon"]


class PolygonField(SpatialField, frozen=True, kw_only=True):
    """A closed ring of latitude, longitude pairs; readers get the array, whatever the publisher sent."""

    type_name: ClassVar[str] = "PolygonHandler"
    accepts: ClassVar[str] = (
        "a closed ring [[lat,lon],…] or '(lat,lon,lat,lon,…)' of at least 4 pairs, the last equal to the first"
    )
    example: ClassVar[Any] = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]]

    def canonical(self, name: str, text: str) -> str:
        return shapes.polygon_json(read_polygon(name, text)).decode()

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, shapes.Polygon]:
        polygon = read_polygon(name, value, max_vertices)
        return shapes.polygon_json(polygon), polygon

    def value_schema(self) -> dict[str, Any]:
        pairs = {"type": "array", "items": PAIR_SCHEMA, "minItems": shapes.MIN_VERTICES}
        return {"anyOf": [{"type": "string", "pattern": shapes.POLYGON_TEXT}, pairs]}


def read_polygon(name: str, value: object, max_vertices: int = shapes.MAX_VERTICES) -> shapes.Polygon:
    """Read a polygon in any form; InvalidRequest names the field and the defect."""
    try:
        return shapes.polygon_of(value if isinstance(value, list) else identifier_text(name, value), max_vertices)
    except shapes.ShapeError as error:
        kind = PolygonTooLarge if isinstance(error, shapes.TooManyVertices) else InvalidRequest
        raise kind(f"field '{name}' must be a valid polygon: {error}", str(error), field=name) from None


MAX_POINTS = 10_000


class PointCloudField(SpatialField, frozen=True, kw_only=True):
    """A list of latitude, longitude pairs; order and duplicates are kept."""

    max_points: int = MAX_POINTS

    type_name: ClassVar[str] = "PointCloudHandler"
    accepts: ClassVar[str] = "[[lat,lon],…] with 1 to max_points pairs of numbers; watch and replay filter by `polygon`"
    example: ClassVar[Any] = [[52.5, 13.4], [48.1, 11.6]]

    def canonical(self, name: str, text: str) -> str:
        raise InvalidRequest(f"field '{name}' must be an array of [lat, lon] pairs; got text", field=name)

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, shapes.PointCloud]:
        try:
            cloud = shapes.parse_point_cloud(value, self.max_points)
        except shapes.ShapeError as error:
            raise InvalidRequest(f"field '{name}' {error}", str(error), field=name) from None
        return cloud.canonical, cloud

    def problem(self) -> Problem | None:
        if not 1 <= self.max_points <= MAX_POINTS:
            return Problem("max_points", f"{self.max_points} is out of range", f"a whole number from 1 to {MAX_POINTS}")
        return None

    def sample(self) -> Any:
        return self.example[: self.max_points]

    def value_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": PAIR_SCHEMA, "minItems": 1, "maxItems": self.max_points}
