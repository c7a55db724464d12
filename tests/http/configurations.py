"""Configurations for tests of the interface description: every type of field, and none at all."""

from __future__ import annotations

from typing import Any

__all__ = ["EVERY_FIELD_TYPE", "LENIENT", "NO_SCHEMA", "STRICT_WITHOUT_SCHEMA"]

_BASE: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://localhost:8000"},
    "notification_backend": {"kind": "in_memory", "in_memory": {"max_history_per_topic": 50, "max_topics": 200}},
}

EVERY_FIELD_TYPE: dict[str, Any] = {
    **_BASE,
    "notification_schema": {
        "everything": {
            "payload": {"required": True},
            "topic": {"base": "every", "key_order": ["text", "day", "clock", "word", "whole", "number", "version"]},
            "identifier": {
                "text": {"type": "StringHandler", "max_length": 3, "required": True, "description": "A short word."},
                "day": {"type": "DateHandler", "canonical_format": "%Y-%m-%d", "required": False},
                "clock": {"type": "TimeHandler", "required": False},
                "word": {"type": "EnumHandler", "values": ["Red", "blue"], "required": True},
                "whole": {"type": "IntHandler", "range": [10, 20], "required": False},
                "number": {"type": "FloatHandler", "range": [-1.5, 1.5], "required": False},
                "version": {"type": "ExpverHandler", "default": "0001", "required": False},
                "polygon": {"type": "PolygonHandler", "required": False},
            },
        },
        "area": {
            "topic": {"base": "area", "key_order": ["clock"]},
            "identifier": {
                "clock": {"type": "TimeHandler", "required": False},
                "polygon": {"type": "PolygonHandler", "required": True},
            },
        },
        "cloud": {
            "payload": {"required": False},
            "topic": {"base": "cloud", "key_order": ["network"]},
            "identifier": {
                "network": {"type": "StringHandler", "required": False},
                "point_cloud": {"type": "PointCloudHandler", "max_points": 5, "required": True},
            },
        },
        "météo / 2": {
            "topic": {"base": "meteo", "key_order": ["level"]},
            "identifier": {"level": {"type": "IntHandler", "required": False}},
        },
    },
}
LENIENT: dict[str, Any] = {**EVERY_FIELD_TYPE, "notification_schema_strict": False}
NO_SCHEMA: dict[str, Any] = _BASE
STRICT_WITHOUT_SCHEMA: dict[str, Any] = {**_BASE, "notification_schema_strict": True}
