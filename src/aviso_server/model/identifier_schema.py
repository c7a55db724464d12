"""JSON schemas of identifiers: what may be published, and what watch and replay may ask for."""

from __future__ import annotations

from typing import Any

from aviso_server.model import geometry
from aviso_server.model.fields.base import PAIR_SCHEMA
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.fields.polygon import PolygonField
from aviso_server.model.schema import EventType

__all__ = [
    "filter_samples",
    "filter_schema",
    "generic_filter_schema",
    "generic_published_schema",
    "published_sample",
    "published_schema",
]

_POINT = "52.55,13.5"
_AREA = PolygonField(required=False, description="Only notifications whose area or points meet this area")
_POINT_SCHEMA = {
    "description": "Only notifications whose area has this place in its interior. Accepts 'lat,lon' or [lat,lon].",
    "examples": [_POINT],
    "anyOf": [{"type": "string", "pattern": geometry.POINT_TEXT}, PAIR_SCHEMA],
}
_SCALAR = {"type": ["string", "number", "boolean"]}
_ONE_PLACE = {"not": {"type": "object", "required": ["polygon", "point"]}}


def published_schema(event_type: EventType) -> dict[str, Any]:
    """A JSON schema that the identifier of every acceptable notification satisfies: all fields, nothing else."""
    return {
        "type": "object",
        "description": "Every field of the event type must be present.",
        "properties": {name: field.json_schema() for name, field in event_type.fields.items()},
        "required": list(event_type.fields),
        "additionalProperties": False,
    }


def filter_schema(event_type: EventType) -> dict[str, Any]:
    """A JSON schema that the identifier of every acceptable watch or replay request satisfies."""
    fields = event_type.fields
    clouds = any(isinstance(field, PointCloudField) for field in fields.values())
    properties = {
        name: field.filter_schema() for name, field in fields.items() if not isinstance(field, PointCloudField)
    }
    properties.setdefault("polygon", _AREA.json_schema())
    needed = [name for name, field in fields.items() if field.required]
    required = [name for name in needed if name not in ("polygon", "point_cloud")]
    schema: dict[str, Any] = {
        "type": "object",
        "description": "Fields that are left out match everything; those that are there must all match.",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if clouds:
        schema["required"] = required + (["polygon"] if "point_cloud" in needed else [])
        return schema
    properties["point"] = _POINT_SCHEMA
    if "polygon" in needed:
        schema["anyOf"] = [{"required": ["polygon"]}, {"required": ["point"]}]
    return {**schema, **_ONE_PLACE}


def generic_published_schema() -> dict[str, Any]:
    """The same for an event type that nobody configured: any keys, each with a non-empty scalar."""
    return {
        "type": "object",
        "description": "Any keys; every value is text, a number or a truth value, and not empty.",
        "not": {"type": "object", "required": ["point"]},
        "additionalProperties": {**_SCALAR, "minLength": 1},
    }


def generic_filter_schema() -> dict[str, Any]:
    """The same for reading one: the keys that were published, `*` for any value."""
    return {
        "type": "object",
        "description": "The same keys as were published; the text `*` matches every value.",
        "properties": {"polygon": _AREA.json_schema(), "point": _POINT_SCHEMA},
        "additionalProperties": _SCALAR,
        **_ONE_PLACE,
    }


def published_sample(event_type: EventType) -> dict[str, Any]:
    """An identifier that may be published."""
    return {name: field.sample() for name, field in event_type.fields.items()}


def filter_samples(event_type: EventType) -> dict[str, dict[str, Any]]:
    """Identifiers to watch or replay with, by what they show."""
    fields = event_type.fields
    needed = {name: field.sample() for name, field in fields.items() if field.required}
    plain = {name: value for name, value in needed.items() if name not in ("polygon", "point_cloud")}
    area = {**plain, "polygon": fields["polygon"].sample() if "polygon" in fields else _AREA.sample()}
    start = area if plain.keys() != needed.keys() else plain
    samples = {"required fields only": start}
    if "polygon" in fields and isinstance(fields["polygon"], PolygonField):
        samples |= {"in an area": area, "around a place": {**plain, "point": _POINT}}
    elif "point_cloud" in fields:
        samples["in an area"] = area
    for name, field in fields.items():
        for operator in ("gte", "in"):
            if operator in field.operators and "with a constraint" not in samples:
                operand = [field.sample()] if operator == "in" else field.sample()
                samples["with a constraint"] = {**start, name: {operator: operand}}
    return samples
