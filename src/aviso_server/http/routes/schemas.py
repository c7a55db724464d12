"""GET /api/v1/schema and /api/v1/schema/{event_type}."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from aviso_server.http.request import Request
from aviso_server.http.response import Answer, Count, RequestId, Response

__all__ = ["SchemaList", "SchemaNotFound", "SchemaOne", "get_schema", "list_schemas"]

logger = logging.getLogger(__name__)

_NO_SCHEMA = "No notification schema is configured"

Described = Annotated[Any, Meta(extra_json_schema={"$ref": "#/components/schemas/EventType"})]
"""An event type, as the model describes it."""


class SchemaList(Answer, frozen=True, kw_only=True):
    """All event types."""

    status: Literal["success"] = "success"
    total_schemas: Count
    event_types: list[str]
    schema: dict[str, Described]
    message: Annotated[str, Meta(description="Only if no schema is configured at all.")] | UnsetType = UNSET


class SchemaOne(Answer, frozen=True, kw_only=True):
    """One event type."""

    status: Literal["success"] = "success"
    event_type: str
    schema: Described


class SchemaNotFound(Answer, frozen=True, kw_only=True):
    """There is no such event type."""

    status: Literal["error"] = "error"
    request_id: RequestId
    message: str
    available_types: list[str] | UnsetType = UNSET


async def list_schemas(request: Request) -> Response:
    """List all event types with their fields."""
    event_types = request.service.catalogue.event_types
    answer = SchemaList(
        total_schemas=len(event_types),
        event_types=sorted(event_types),
        schema={name: each.describe() for name, each in event_types.items()},
        message=UNSET if request.service.settings.schema_configured else _NO_SCHEMA,
    )
    logger.debug("schemas listed", extra={"event": "api.schema.list.succeeded", "request_id": request.id})
    return Response.json(answer)


async def get_schema(request: Request) -> Response:
    """Show one event type with its fields."""
    event_types, name = request.service.catalogue.event_types, request.params["event_type"]
    found = event_types.get(name)
    if found is None:
        if not request.service.settings.schema_configured:
            return Response.json(SchemaNotFound(request_id=request.id, message=_NO_SCHEMA), 404)
        message = f"No schema found for event type '{name}'"
        known = sorted(event_types)
        return Response.json(SchemaNotFound(request_id=request.id, message=message, available_types=known), 404)
    told = {"event": "api.schema.get.succeeded", "request_id": request.id, "event_type": name}
    logger.debug("schema shown", extra=told)
    return Response.json(SchemaOne(event_type=name, schema=found.describe()))
