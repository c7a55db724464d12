"""JSON objects in the OpenAPI document."""

from __future__ import annotations

from typing import Any

__all__ = ["closed"]


def closed(members: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": {**members, **(optional or {})},
        "required": list(members),
        "additionalProperties": False,
    }
