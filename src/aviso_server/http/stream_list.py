"""GET /api/v1/streams: which streams there are, and what the log holds of them."""

from __future__ import annotations

from typing import Any

from aviso_server.delivery.outlet import Send
from aviso_server.errors import LogError, RequestError
from aviso_server.http.answers import Refusal, json_answer
from aviso_server.http.body import Receive
from aviso_server.http.service import Service
from aviso_server.model.schema import EventType, GenericType

__all__ = ["list_streams"]


async def list_streams(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """The streams that the caller may read, with the sequences that the log holds."""
    shown = []
    try:
        for name in await service.log.streams():
            event_type = _event_type(service, name)
            if event_type is None or not _may_read(service, scope, event_type, request_id):
                continue
            state = await service.log.state(name)
            shown.append(
                {
                    "stream": name,
                    "event_type": event_type.name,
                    "first": state.first,
                    "last": state.last,
                    "count": state.count,
                    "bytes": state.bytes,
                    "trimmed": state.trimmed,
                }
            )
    except LogError as error:
        raise Refusal.error(503, "SERVICE_UNAVAILABLE", "service_unavailable", f"The log is away: {error}") from None
    await json_answer(send, 200, {"status": "success", "streams": shown, "request_id": request_id}, request_id)


def _event_type(service: Service, stream: str) -> EventType | GenericType | None:
    """How to ask for the notifications of a stream; None if nobody can ask for them any more."""
    for each in service.catalogue.event_types.values():
        if each.base == stream:
            return each
    try:
        return service.catalogue.find(stream)
    except RequestError:
        return None


def _may_read(service: Service, scope: Any, event_type: EventType | GenericType, request_id: str) -> bool:
    if service.gate is None:
        return True
    try:
        service.gate.allow(event_type, scope.get("user"), "read", request_id)
    except Refusal:
        return False
    return True
