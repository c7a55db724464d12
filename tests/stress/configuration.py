"""The configuration of the stress tests: two plain event types and one with areas, on disk."""

from __future__ import annotations

from typing import Any

__all__ = ["configuration"]


def configuration(**changes: Any) -> dict[str, Any]:
    """A configuration with some top-level keys added or replaced."""
    plain = {
        "port": {"type": "StringHandler", "required": False},
        "level": {"type": "IntHandler", "required": False},
    }
    return {
        "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://localhost"},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "notification_schema": {
            "tide": {"topic": {"base": "tides", "key_order": ["port", "level"]}, "identifier": plain},
            "gale": {"topic": {"base": "gale", "key_order": ["port"]}, "identifier": plain},
            "area": {
                "topic": {"base": "area", "key_order": ["kind"]},
                "identifier": {
                    "kind": {"type": "StringHandler", "required": False},
                    "polygon": {"type": "PolygonHandler", "required": False},
                },
            },
        },
        **changes,
    }
