"""GET /api/v1/schema and /api/v1/schema/{event_type}."""

from __future__ import annotations

import logging
from typing import Any

from aviso_server.delivery.outlet import Send
from aviso_server.http.answers import json_answer
from aviso_server.http.service import Service

__all__ = ["all_schemas", "one_schema"]

logger = logging.getLogger(__name__)


async def all_schemas(service: Service, send: Send, request_id: str) -> None:
    """Every configured event type with its fields."""
    event_types = service.catalogue.event_types
    answer: dict[str, Any] = {
        "status": "success",
        "total_schemas": len(event_types),
        "event_types": sorted(event_types),
        "schema": {name: each.describe() for name, each in event_types.items()},
    }
    if not service.settings.schema_configured:
        answer["message"] = "No notification schema is configured"
    logger.debug("schemas listed", extra={"event": "api.schema.list.succeeded", "request_id": request_id})
    await json_answer(send, 200, answer, request_id)


async def one_schema(service: Service, send: Send, request_id: str, name: str) -> None:
    """One event type with its fields."""
    event_types = service.catalogue.event_types
    found = event_types.get(name)
    if found is not None:
        answer = {"status": "success", "event_type": name, "schema": found.describe()}
        told = {"event": "api.schema.get.succeeded", "request_id": request_id, "event_type": name}
        logger.debug("schema told", extra=told)
        return await json_answer(send, 200, answer, request_id)
    refused: dict[str, Any] = {"status": "error", "request_id": request_id}
    if service.settings.schema_configured:
        refused["message"] = f"No schema found for event type '{name}'"
        refused["available_types"] = sorted(event_types)
    else:
        refused["message"] = "No notification schema is configured"
    await json_answer(send, 404, refused, request_id)
