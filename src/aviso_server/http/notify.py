"""POST /api/v1/notification: publish."""

from __future__ import annotations

import logging
from typing import Any

from aviso_server.delivery.hub import GENERIC
from aviso_server.delivery.outlet import Send
from aviso_server.errors import LogError, RequestError, UnknownEventType
from aviso_server.http.answers import ENDPOINTS, JSON, Refusal, refusal_of, respond
from aviso_server.http.body import Receive, read_body
from aviso_server.http.metrics.tally import UNKNOWN, NotificationStatus, Tally
from aviso_server.http.requests import check_publishable, parse_request
from aviso_server.http.service import Service
from aviso_server.http.traces import Traces
from aviso_server.model.notification import Draft, Notification
from aviso_server.model.timestamp import SECOND, seconds_text

__all__ = ["Counted", "accepted", "check", "notify", "storage_failed"]

logger = logging.getLogger(__name__)

_ENDPOINT = ENDPOINTS["notification"]


async def notify(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Store one notification and answer when it is safe."""
    body = await read_body(scope, receive, service.settings.limits.max_body_bytes)
    counted = Counted(service.tally)
    try:
        if service.traces is None:
            draft = check(service, scope, body, request_id, counted)
            with service.operations.timed("publish"):
                stored = await service.log.append(draft)
        else:
            stored = await _store_traced(service, service.traces, scope, body, request_id, counted)
    except RequestError as error:
        counted.end("rejected" if isinstance(error, UnknownEventType) else "error")
        service.limits.note_invalid(error)
        raise refusal_of(error, _ENDPOINT) from None
    except Refusal as refusal:
        counted.end("rejected" if refusal.status in (401, 403) else "error")
        raise
    except LogError as error:
        counted.end("error")
        raise storage_failed(error, request_id) from None
    counted.end("success")
    await respond(send, 200, JSON, accepted(service, stored, request_id), request_id, [])


def accepted(service: Service, stored: Notification, request_id: str) -> bytes:
    """The body of the answer to a publisher whose notification is safe."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "notification processed",
            extra={"event": "api.notification.processed", "request_id": request_id, "topic": stored.topic},
        )
    return b'{"status":"success","request_id":"%b","processed_at":"%b"}' % (
        request_id.encode(),
        seconds_text(service.clock() // SECOND).encode(),
    )


def storage_failed(error: LogError, request_id: str) -> Refusal:
    """What a publisher is told whose notification could not be stored."""
    logger.error(
        "notification could not be stored: %s",
        error,
        extra={"event": "api.request.processing.failed", "request_id": request_id},
    )
    return Refusal.error(
        500,
        "NOTIFICATION_STORAGE_FAILED",
        "Notification Storage Failed",
        "The notification could not be stored",
        details=str(error),
    )


def check(service: Service, scope: Any, body: bytes, request_id: str, counted: Counted) -> Draft:
    """The notification in a body, with all checks in the contract's order."""
    request = parse_request(body)
    event_type = service.catalogue.find(request.event_type)
    counted.event_type = GENERIC if event_type.generic else event_type.name
    check_publishable(request)
    if service.gate is not None:
        service.gate.allow(event_type, scope["user"], "write", request_id)
    service.limits.check_identifier(request.identifier, len(body))
    return event_type.check(request.identifier, request.payload)


async def _store_traced(
    service: Service, traces: Traces, scope: Any, body: bytes, request_id: str, counted: Counted
) -> Notification:
    with traces.publish(scope, request_id):
        draft = check(service, scope, body, request_id, counted)
        with service.operations.timed("publish"), traces.commit(draft.stream, service.log.kind):
            stored = await service.log.append(draft)
        traces.stored(draft.stream, stored.sequence)
        return stored


class Counted:
    """One publish request on its way to the count it belongs to."""

    __slots__ = ("_tally", "event_type")

    def __init__(self, tally: Tally) -> None:
        self.event_type = UNKNOWN
        self._tally = tally

    def end(self, status: NotificationStatus) -> None:
        """Count it."""
        self._tally.notifications[self.event_type, status] += 1
