"""What the tests of bulk load share: event types with every kind of field, and rows for them."""

from __future__ import annotations

from typing import Any

from aviso_server.model.event_type import EventType, build_event_type

__all__ = ["CLOUD", "DEFINITIONS", "EVERY_FIELD", "LATEST"]

LATEST = 1_900_000_000 * 10**9
"""The moment up to which times are the past."""

DEFINITIONS: dict[str, dict[str, Any]] = {
    "flood": {
        "topic": {"base": "floods", "key_order": ["region", "class", "date", "step"]},
        "identifier": {
            "region": {"type": "EnumHandler", "values": ["north", "south", "East", "kelvin"], "required": True},
            "class": {"type": "StringHandler", "max_length": 8, "required": True},
            "date": {"type": "DateHandler", "required": False},
            "time": {"type": "TimeHandler", "required": False},
            "step": {"type": "IntHandler", "range": [0, 240], "required": False},
            "depth": {"type": "FloatHandler", "range": [-10, 1e23], "required": False},
            "expver": {"type": "ExpverHandler", "default": "0001", "required": False},
            "polygon": {"type": "PolygonHandler", "required": False},
        },
        "payload": {"required": True},
    },
    "observations": {
        "topic": {"base": "observations", "key_order": ["network", "date", "time"]},
        "identifier": {
            "network": {"type": "StringHandler", "required": True},
            "date": {"type": "DateHandler", "canonical_format": "%Y-%m-%d", "required": False},
            "time": {"type": "TimeHandler", "required": False},
            "point_cloud": {"type": "PointCloudHandler", "max_points": 3, "required": False},
        },
    },
}


def _built(name: str) -> EventType:
    event_type, problems = build_event_type(name, DEFINITIONS[name])
    assert event_type is not None, problems
    return event_type


EVERY_FIELD = _built("flood")
CLOUD = _built("observations")
