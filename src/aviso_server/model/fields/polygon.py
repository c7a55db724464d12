"""PolygonHandler: an area on the map."""

from __future__ import annotations

from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, PolygonTooLarge
from aviso_server.model import geometry
from aviso_server.model.fields.base import PAIR_SCHEMA, SpatialField
from aviso_server.model.json_value import identifier_text

__all__ = ["PolygonField", "read_polygon"]


class PolygonField(SpatialField, frozen=True, kw_only=True):
    """A closed ring of latitude, longitude pairs; text is kept unchanged."""

    type_name: ClassVar[str] = "PolygonHandler"
    accepts: ClassVar[str] = (
        "a closed ring '(lat,lon,lat,lon,…)' or [[lat,lon],…] of at least 4 pairs, the last equal to the first"
    )
    example: ClassVar[Any] = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
    widget: ClassVar[str] = "polygon"

    def canonical(self, name: str, text: str) -> str:
        """The text itself."""
        read_polygon(name, text)
        return text

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[Any, geometry.Polygon]:
        """The publisher's text, or the text form of the array that was sent, and the polygon."""
        polygon = read_polygon(name, value, max_vertices)
        return (value if type(value) is str else geometry.polygon_text(polygon)), polygon

    def value_schema(self) -> dict[str, Any]:
        """Text or an array of pairs."""
        pairs = {"type": "array", "items": PAIR_SCHEMA, "minItems": geometry.MIN_VERTICES}
        return {"anyOf": [{"type": "string", "pattern": geometry.POLYGON_TEXT}, pairs]}


def read_polygon(name: str, value: object, max_vertices: int = geometry.MAX_VERTICES) -> geometry.Polygon:
    """The polygon of a request value, text or array; InvalidRequest names the field and the defect."""
    try:
        if isinstance(value, list):
            return geometry.polygon_from_pairs(value, max_vertices)
        return geometry.parse_polygon(identifier_text(name, value), max_vertices)
    except geometry.ShapeError as error:
        kind = PolygonTooLarge if isinstance(error, geometry.TooManyVertices) else InvalidRequest
        raise kind(f"field '{name}' must be a valid polygon: {error}", str(error), field=name) from None
