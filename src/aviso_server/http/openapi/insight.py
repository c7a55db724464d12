"""The insight routes in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from aviso_server.http.openapi.objects import closed
from aviso_server.http.openapi.streams import REQUEST_ID
from aviso_server.insight.tables import QUESTIONS

__all__ = ["FIELD", "NAME", "SPAN", "insight_answers", "insight_list"]

_WHOLE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_INSTANT = {"type": "string", "format": "date-time"}
_SECONDS = {"type": "integer", "description": "Seconds; less than 1/32 towards zero."}


def _parameter(name: str, place: str, words: str, schema: dict[str, Any], example: str) -> dict[str, Any]:
    common = {"name": name, "in": place, "description": words, "schema": schema, "example": example}
    return {**common, "required": place == "path"}


_WHEN = {"type": "string", "minLength": 1}
_FROM = "The first hour, as a date and time; 7 days before `to` without it."
_TO = "The last hour; the newest without it. At most 366 days after `from`."
SPAN = [
    _parameter("from", "query", _FROM, _WHEN, "2025-07-06T00:00:00Z"),
    _parameter("to", "query", _TO, _WHEN, "2025-07-13T00:00:00Z"),
]
FIELD = _parameter("field", "query", "Only this identifier field, for `fields` and `seen`.", _TEXT, "class")
NAME = _parameter("name", "path", "What to ask for.", {"enum": list(QUESTIONS)}, QUESTIONS[0])


def insight_list() -> dict[str, Any]:
    """The answer that says what there is."""
    members = {
        "enabled": {"type": "boolean", "description": "Whether this server makes such tables."},
        "event_types": {"type": "array", "items": closed(_overview())},
        "request_id": _TEXT,
    }
    example = {"enabled": True, "event_types": [], "request_id": REQUEST_ID}
    return {"schema": closed(members), "example": example}


def insight_answers() -> dict[str, Any]:
    """The answers about one event type."""
    common = {**_overview(), "from": _INSTANT, "to": _INSTANT, "request_id": _TEXT}
    step = {"step": {"enum": ["hour", "day"]}}
    counted = {"time": _INSTANT, "count": _WHOLE}
    value = {"value": _TEXT, "count": _WHOLE}
    seen = {**value, "first": _INSTANT, "last": _INSTANT}
    spread = {
        "count": _WHOLE,
        "minimum": _SECONDS,
        "maximum": _SECONDS,
        "percentiles": {"type": "object", "additionalProperties": _SECONDS},
    }
    delays = {
        "description": "Since the time that the identifier names; null if it names none.",
        "anyOf": [closed({**spread, "rows": _list(closed({"time": _INSTANT, **spread}))}), {"type": "null"}],
    }
    cell = {
        "type": "array",
        "description": "The south-western corner of a cell of one degree, and how many notifications touch the cell.",
        "prefixItems": [{"type": "integer"}, {"type": "integer"}, _WHOLE],
        "minItems": 3,
        "maxItems": 3,
    }
    own: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**step, "rows": _list(closed(counted))}, {}),
        ({**step, "fields": _list(_field(value))}, {"rows": _list(closed({**counted, "value": _TEXT}))}),
        ({**step, "run": delays, "valid": delays}, {}),
        ({"highest": _WHOLE, "cells": _list(cell)}, {}),
        ({"fields": _list(_field(seen))}, {}),
    ]
    return {"schema": {"anyOf": [closed({**common, **members}, optional) for members, optional in own]}}


def _overview() -> dict[str, Any]:
    moment = {"type": ["string", "null"], "format": "date-time"}
    return {
        "event_type": _TEXT,
        "notifications": {**_WHOLE, "description": "How many are counted."},
        "through": {**_WHOLE, "description": "All up to this sequence are counted."},
        "updated": {**_INSTANT, "description": "When that was."},
        "first": moment,
        "last": moment,
        "tables": {"type": "array", "items": {"enum": list(QUESTIONS)}},
    }


def _field(value: dict[str, Any]) -> dict[str, Any]:
    other = {**_WHOLE, "description": "How often all less frequent values came."}
    return closed({"field": _TEXT, "values": _list(closed(value)), "other": other})


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
