"""POST /api/v1/notification: publish."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

from aviso_server.delivery.hub import GENERIC
from aviso_server.delivery.outlet import Send
from aviso_server.errors import LogError, RequestError, UnknownEventType
from aviso_server.http.answers import ENDPOINTS, JSON, Refusal, refusal_of, respond
from aviso_server.http.body import Receive, header, read_body
from aviso_server.http.idempotency import HEADER, REPLAYED, Keyring, header_text
from aviso_server.http.metrics.tally import UNKNOWN, NotificationStatus, Tally
from aviso_server.http.requests import check_publishable, parse_request
from aviso_server.http.service import Service
from aviso_server.log.base import Appended, Keyed
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Draft
from aviso_server.model.timestamp import SECOND, seconds_text

__all__ = ["Counted", "accepted", "check", "notify", "storage_failed"]

logger = logging.getLogger(__name__)

_ENDPOINT = ENDPOINTS["notification"]


async def notify(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Store one notification and answer when it is safe; under an Idempotency-Key once, however often it is sent."""
    given = header(scope, HEADER)
    body = await read_body(scope, receive, service.settings.limits.max_body_bytes)
    counted = Counted(service.tally)
    try:
        draft, appended = await _store(service, scope, body, given, request_id, counted)
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
    answer = accepted(service, draft.topic, request_id)
    if given is not None:
        known = counted.event_type in service.catalogue.event_types
        name = counted.event_type if known else draft.stream
        place = compact(f"{name}@{appended.sequence}")
        answer = b'%b,"sequence":%d,"id":%b}' % (answer[:-1], appended.sequence, place)
    if appended.repeated:
        service.tally.replayed[counted.event_type] += 1
    await respond(send, 200, JSON, answer, request_id, [REPLAYED] if appended.repeated else [])


def accepted(service: Service, topic: str, request_id: str) -> bytes:
    """The body of the answer to a publisher whose notification is safe."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "notification processed",
            extra={"event": "api.notification.processed", "request_id": request_id, "topic": topic},
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


async def _store(
    service: Service, scope: Any, body: bytes, given: bytes | None, request_id: str, counted: Counted
) -> tuple[Draft, Appended]:
    """The notification in a body, and where it is now; `given` is its idempotency key."""
    log, traces = service.log, service.traces
    with nullcontext() if traces is None else traces.publish(scope, request_id):
        draft = check(service, scope, body, request_id, counted)
        key = None if given is None else Keyring(scope).of_item(header_text(given), draft)
        with (
            service.operations.timed("publish"),
            nullcontext() if traces is None else traces.commit(draft.stream, log.kind),
        ):
            if key is None:
                appended = Appended((await log.append(draft)).sequence)
            else:
                [outcome] = await log.append_keyed([Keyed(draft, key)], whole=True)
                assert isinstance(outcome, Appended)  # a refusal of the whole is raised
                appended = outcome
        if traces is not None and not appended.repeated:
            traces.stored(draft.stream, appended.sequence)
    return draft, appended


class Counted:
    """One publish request on its way to the count it belongs to."""

    __slots__ = ("_tally", "event_type")

    def __init__(self, tally: Tally) -> None:
        self.event_type = UNKNOWN
        self._tally = tally

    def end(self, status: NotificationStatus) -> None:
        """Count it."""
        self._tally.notifications[self.event_type, status] += 1
