"""Event types that the tests of the model share."""

from __future__ import annotations

from typing import Any

from aviso_server.model.event_type import EventType, build_event_type
from aviso_server.model.notification import Draft, Notification

__all__ = ["CLOUD", "EXTREME", "POLYGON", "PROBE", "SQUARE", "event_type", "stored"]

SQUARE = "(0,0,0,2,2,2,2,0,0,0)"


def event_type(name: str, fields: dict[str, Any], base: str | None = None, order: list[str] | None = None) -> EventType:
    """An event type as a configuration would define it; fields as `type name` or with parameters."""
    identifier = {
        field: {"required": False, **(given if isinstance(given, dict) else {"type": given})}
        for field, given in fields.items()
    }
    definition: dict[str, Any] = {"identifier": identifier}
    if order is not None:
        definition["topic"] = {"base": base or name, "key_order": order}
    built, problems = build_event_type(name, definition)
    assert built is not None, problems
    return built


def stored(draft: Draft, sequence: int = 1) -> Notification:
    """A draft as the log would return it."""
    return Notification(sequence, 10**18, draft.topic, draft.identifier, draft.payload, draft.box)


EXTREME = event_type(
    "extreme_event",
    {
        "region": {"type": "EnumHandler", "values": ["north", "south", "east", "west"], "required": True},
        "run_time": {"type": "TimeHandler", "required": True},
        "severity": {"type": "IntHandler", "range": [1, 7], "required": True},
        "anomaly": {"type": "FloatHandler", "range": [0, 100]},
        "polygon": "PolygonHandler",
    },
    order=["region", "run_time", "severity", "anomaly", "polygon"],
)
POLYGON = event_type(
    "test_polygon",
    {"date": "DateHandler", "time": "TimeHandler", "polygon": {"type": "PolygonHandler", "required": True}},
    base="polygon",
    order=["date", "time"],
)
PROBE = event_type(
    "probe",
    {
        "txt": "StringHandler",
        "num": "IntHandler",
        "exp": "ExpverHandler",
        "kind": {"type": "EnumHandler", "values": ["Red", "*"]},
        "off": "StringHandler",
        "offnum": "IntHandler",
    },
    order=["txt", "num", "exp", "kind"],
)
CLOUD = event_type(
    "cloud", {"kind": "StringHandler", "point_cloud": {"type": "PointCloudHandler", "required": True}}, order=["kind"]
)
