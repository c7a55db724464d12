"""JSON schemas of identifiers: what may be published, and what watch and replay may ask for."""

from __future__ import annotations

from typing import Any

from aviso_server.model import shapes
from aviso_server.model.event_type import EventType
from aviso_server.model.fields import PAIR_SCHEMA, PointCloudField, PolygonField

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
    "anyOf": [{"type": "string", "pattern": shapes.POINT_TEXT}, PAIR_SCHEMA],
}
_SCALAR = {"type": ["string", "number", "boolean"]}
_ONE_PLACE = {"not": {"type": "object", "required": ["polygon", "point"]}}


def published_schema(event_type: EventType) -> dict[str, Any]:
    """Build a JSON schema that the identifier of every acceptable notification satisfies."""
    return {
        "type": "object",
        "description": "Every field of the event type must be present.",
        "properties": {name: field.json_schema() for name, field in event_type.fields.items()},
        "required": list(event_type.fields),
        "additionalProperties": False,
    }


def filter_schema(event_type: EventType) -> dict[str, Any]:
    """Build a JSON schema that the identifier of every acceptable watch or replay request satisfies."""
    fields = event_type.fields
    clouds = any(isinstance(field, PointCloudField) for field in fields.values())
    properties = {
        name: field.filter_schema() for name, field in fields.items() if not isinstance(field, PointCloudField)
    }
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
        properties["polygon"] = _AREA.json_schema()
        schema["required"] = required + (["polygon"] if "point_cloud" in needed else [])
        return schema
    if not isinstance(fields.get("polygon"), PolygonField):
        return schema
    properties["point"] = _POINT_SCHEMA
    if "polygon" in needed:
        schema["anyOf"] = [{"required": ["polygon"]}, {"required": ["point"]}]
    return {**schema, **_ONE_PLACE}


def generic_published_schema() -> dict[str, Any]:
    """Build the schema of identifiers to publish for an event type that is not configured."""
    return {
        "type": "object",
        "description": "Any keys; every value is text, a number or a truth value, and not empty.",
        "not": {"type": "object", "required": ["point"]},
        "additionalProperties": {**_SCALAR, "minLength": 1},
    }


def generic_filter_schema() -> dict[str, Any]:
    """Build the schema of identifiers to watch or replay for an event type that is not configured."""
    return {
        "type": "object",
        "description": "The same keys as were published; the text `*` matches every value.",
        "properties": {
            "polygon": {**_SCALAR, "description": "Only notifications whose area meets this area."},
            "point": {**_SCALAR, "description": "Only notifications whose area has this place in its interior."},
        },
        "additionalProperties": _SCALAR,
        **_ONE_PLACE,
    }


def published_sample(event_type: EventType) -> dict[str, Any]:
    return {name: field.sample() for name, field in event_type.fields.items()}


def filter_samples(event_type: EventType) -> dict[str, dict[str, Any]]:
    """Return identifiers to watch or replay with, by what they show."""
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
