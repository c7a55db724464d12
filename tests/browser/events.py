"""Event types with every kind of field, and notifications to see on a map."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["configuration", "ring", "storm", "storms"]

STORM = {
    "payload": {"required": False},
    "topic": {"base": "storm", "key_order": ["region", "run_time", "severity"]},
    "identifier": {
        "region": {
            "type": "EnumHandler",
            "values": ["north", "south", "east", "west"],
            "required": True,
            "description": "Part of the domain the storm is in.",
        },
        "run_time": {"type": "TimeHandler", "required": True, "description": "Run of the forecast."},
        "severity": {"type": "IntHandler", "range": [1, 7], "required": True, "description": "From 1 to 7."},
        "anomaly": {"type": "FloatHandler", "range": [0.0, 100.0], "required": False},
        "polygon": {"type": "PolygonHandler", "required": False, "description": "The area concerned."},
    },
}
FIELD = {
    "payload": {"required": True},
    "topic": {"base": "field", "key_order": ["class", "expver", "date", "step"]},
    "identifier": {
        "class": {"type": "StringHandler", "max_length": 2, "required": True},
        "expver": {"type": "ExpverHandler", "default": "0001", "required": False},
        "date": {"type": "DateHandler", "canonical_format": "%Y%m%d", "required": False},
        "step": {"type": "IntHandler", "required": False},
    },
}
BUOYS = {
    "topic": {"base": "buoys", "key_order": ["network"]},
    "identifier": {
        "network": {"type": "StringHandler", "required": True},
        "point_cloud": {"type": "PointCloudHandler", "max_points": 1000, "required": False},
    },
}


def configuration(kind: str = "in_memory", port: int = 0, **more: Any) -> dict[str, Any]:
    """A server with these event types that keeps everything a test publishes."""
    return {
        "application": {"host": "127.0.0.1", "port": port},
        "notification_backend": {
            "kind": kind,
            "in_memory": {"max_history_per_topic": 100_000},
            "sqlite": {"path": "log"},
        },
        "notification_schema": {"storm": STORM, "field": FIELD, "buoys": BUOYS},
        **more,
    }


def ring(latitude: float, longitude: float, size: float) -> str:
    """A square with this corner in the south-west."""
    north, east = latitude + size, longitude + size
    corners = [(latitude, longitude), (latitude, east), (north, east), (north, longitude), (latitude, longitude)]
    return f"({','.join(f'{number:.2f}' for corner in corners for number in corner)})"


def storm(**values: Any) -> dict[str, Any]:
    """The identifier of a storm over Germany, with changes."""
    usual = {"region": "north", "run_time": "1200", "severity": 4, "anomaly": 12.5, "polygon": ring(50, 8, 4)}
    return {**usual, **values}


def storms(number: int, seed: int = 1) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Storms all over the world, the same ones for the same seed."""
    chance = random.Random(seed)
    regions = ("north", "south", "east", "west")
    for each in range(number):
        place = ring(chance.uniform(-50, 62), chance.uniform(-160, 150), chance.uniform(1, 9))
        yield (
            storm(
                region=regions[each % 4],
                severity=chance.randint(1, 7),
                anomaly=round(chance.uniform(0, 100), 1),
                polygon=place,
            ),
            {"name": f"storm {each + 1}", "wind": chance.randint(20, 60)},
        )
