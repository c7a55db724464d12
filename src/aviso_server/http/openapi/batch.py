"""Batches and idempotency keys in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from aviso_server.config.settings import Settings
from aviso_server.http.batch.body import LINES
from aviso_server.http.idempotency import LONGEST
from aviso_server.http.openapi.objects import closed
from aviso_server.http.openapi.requests import request_body
from aviso_server.http.openapi.streams import REQUEST_ID
from aviso_server.model.schema import Catalogue

__all__ = ["ALL_OR_NOTHING", "KEY", "PLACE", "REPLAYED", "batch_body", "batch_outcomes"]

KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Any text of printable ASCII characters, new for every new request. The same request under the same "
    "key is stored once, and answered with the first outcome, for as long as keys are remembered.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST},
}
ALL_OR_NOTHING = {
    "name": "all_or_nothing",
    "in": "query",
    "required": False,
    "description": "Store all notifications, or none if one of them cannot be accepted.",
    "schema": {"enum": ["true", "false"], "default": "false"},
}
REPLAYED = {
    "Idempotency-Replayed": {
        "description": "There if everything in this request was stored before, under the same key.",
        "schema": {"type": "string", "const": "true"},
    }
}
PLACE: dict[str, Any] = {
    "sequence": {"type": "integer", "minimum": 1, "description": "The place in its stream."},
    "id": {"type": "string", "description": "As watchers get it: `<event type>@<sequence>`."},
}
"""Where a notification is stored."""

_TIME = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}


def batch_body(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """The body of a batch."""
    alone = request_body("notification", catalogue)["content"]["application/json"]["examples"]
    samples = [example["value"] for example in alone.values()]
    keyed = [{**sample, "idempotency_key": f"load-7/{place}"} for place, sample in enumerate(samples)]
    words = (
        "A notification as in the body of `/api/v1/notification`, and perhaps with an `idempotency_key` of its own. "
        "One that cannot be accepted does not harm the others."
    )
    # no `maxItems`: a larger batch is too large, not wrong
    array = {"type": "array", "items": {"description": words}}
    examples = {"every event type": {"value": samples}, "with keys": {"value": keyed}}
    lines = {"type": "string", "description": "A notification per line."}
    return {
        "required": True,
        "description": f"A JSON array of up to {settings.limits.max_batch_items}; or as many lines with a notification "
        f"each, if the `Content-Type` is {' or '.join(LINES)}. The body may be "
        "compressed with gzip, deflate, br or zstd if `Content-Encoding` says so.",
        "content": {"application/json": {"schema": array, "examples": examples}, LINES[0]: {"schema": lines}},
    }


def batch_outcomes() -> dict[str, Any]:
    """The answer to a batch."""
    count = {"type": "integer", "minimum": 0}
    taken = closed({"status": {"const": "success"}, **PLACE}, {"replayed": {"const": True}})
    fault = closed(
        {
            "status": {"const": "error"},
            "code": {"type": "string", "description": "As in the answer to a notification that comes alone."},
            "field": {"type": ["string", "null"]},
            "message": {"type": "string"},
        }
    )
    members = {
        "status": {"enum": ["success", "partial", "error"], "description": "All, some or none of them are stored."},
        "request_id": {"type": "string", "format": "uuid"},
        "processed_at": _TIME,
        "stored": count,
        "replayed": {**count, "description": "Stored before, under the same keys."},
        "refused": count,
        "outcomes": {"type": "array", "items": {"anyOf": [taken, fault]}, "description": "In the order of the batch."},
    }
    example = {
        "status": "partial",
        "request_id": REQUEST_ID,
        "processed_at": "2025-07-06T12:00:00Z",
        "stored": 1,
        "replayed": 1,
        "refused": 1,
        "outcomes": [
            {"status": "success", "sequence": 41, "id": "mars@41", "replayed": True},
            {"status": "success", "sequence": 42, "id": "mars@42"},
            {
                "status": "error",
                "code": "INVALID_NOTIFICATION_REQUEST",
                "field": "step",
                "message": "Required field 'step' is missing for notify operation",
            },
        ],
    }
    content = {"application/json": {"schema": closed(members), "example": example}}
    return {"description": "What became of each notification.", "headers": REPLAYED, "content": content}
