"""Explanations of filters in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from aviso_server.http.openapi.objects import closed
from aviso_server.model.explain import DEFAULT_DAYS, MOST_DAYS

__all__ = ["explain_members", "explained"]

_NUMBER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_TIME = {"type": "string", "format": "date-time"}
_CLAUSE = {
    "field": {**_TEXT, "description": "`#` is the number of keys, for event types that are not configured."},
    "operator": {"enum": ["eq", "in", "gt", "gte", "lt", "lte", "between", "meets", "contains"]},
    "value": {"description": "What it compares with, in canonical form."},
    "sentence": _TEXT,
}


def explain_members() -> dict[str, Any]:
    """What a request may say besides what a watch may."""
    return {
        "days": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MOST_DAYS,
            "description": f"Try the filter on what was stored in so many days; {DEFAULT_DAYS} if it is left out.",
            "examples": [DEFAULT_DAYS],
        },
        "notification_id": {
            "type": ["string", "null"],
            "pattern": "@[0-9]{1,18}$",
            "description": "Say which part of the filter keeps or drops this one: `<event type>@<sequence>`.",
        },
    }


def explained() -> dict[str, Any]:
    """The answer to a request for an explanation."""
    members = {
        "status": {"const": "success"},
        "event_type": _TEXT,
        "topic": _TEXT,
        "meaning": _meaning(),
        "matches": _matches(),
        "notification": _notification(),
        "request_id": {"type": "string", "format": "uuid"},
    }
    return {"description": "The explanation.", "content": {"application/json": {"schema": closed(members)}}}


def _meaning() -> dict[str, Any]:
    area = {
        "kind": {"enum": ["point", "polygon"]},
        "text": _TEXT,
        "box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
    }
    members = {
        "sentence": _TEXT,
        "clauses": {"type": "array", "items": closed(_CLAUSE), "description": "All of them must hold."},
        "any_value": {"type": "array", "items": _TEXT, "description": "Fields that do not matter."},
        "area": _or_null(closed(area)),
        "start": closed({"sequence": {"type": ["integer", "null"]}, "time": _MAYBE, "sentence": _TEXT}),
    }
    return closed(members)


def _matches() -> dict[str, Any]:
    interval = {"start": _TIME, "count": _NUMBER}
    cell = {
        "lat": {"type": "integer", "description": "The southern side of the cell."},
        "lon": {"type": "integer", "description": "Its western side."},
        "count": _NUMBER,
    }
    places = {
        "degrees": {"const": 1},
        "cells": {"type": "array", "items": closed(cell), "description": "Those with the most notifications first."},
        "in_other_cells": {**_NUMBER, "description": "In cells that are not listed."},
        "without_place": {**_NUMBER, "description": "Notifications that lie nowhere."},
    }
    members = {
        "count": {**_NUMBER, "description": "As many as a replay from `from` to `last_sequence` brings."},
        "days": {"type": "integer", "minimum": 1, "maximum": MOST_DAYS},
        "from": _TIME,
        "to": _TIME,
        "first_sequence": _NUMBER,
        "last_sequence": _NUMBER,
        "source": {"type": "array", "items": {"enum": ["archive", "log"]}, "description": "Where it was counted."},
        "times": closed(
            {
                "unit": {"enum": ["hour", "day"]},
                "counts": {"type": "array", "items": closed(interval), "description": "In UTC, without gaps."},
            }
        ),
        "places": _or_null(closed(places)),
    }
    return closed(members)


def _notification() -> dict[str, Any]:
    verdict = {
        **_CLAUSE,
        "passed": {"type": "boolean"},
        "seen": {**_MAYBE, "description": "What it looked at; null if there was nothing."},
    }
    members = {
        "id": _TEXT,
        "found": {"type": "boolean"},
        "time": _MAYBE,
        "kept": {"type": ["boolean", "null"]},
        "sentence": _TEXT,
        "clauses": {"type": "array", "items": closed(verdict)},
    }
    return _or_null(closed(members))


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "null"}, schema]}
