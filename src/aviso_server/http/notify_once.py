"""POST /api/v1/notification with an Idempotency-Key: publish once, however often it is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from aviso_server.delivery.outlet import Send
from aviso_server.errors import LogError, RequestError, UnknownEventType
from aviso_server.http.answers import ENDPOINTS, JSON, Refusal, refusal_of, respond
from aviso_server.http.body import Receive, header, read_body
from aviso_server.http.idempotency import HEADER, REPLAYED, Keyring, header_text
from aviso_server.http.notify import Counted, check, notify, storage_failed
from aviso_server.http.service import Service
from aviso_server.log.base import Appended, Keyed
from aviso_server.model.json_value import compact
from aviso_server.model.timestamp import SECOND, seconds_text

__all__ = ["notify_once"]

_ENDPOINT = ENDPOINTS["notification"]


async def notify_once(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Store one notification unless its key says that it is there; without a key this is `notify`."""
    given = header(scope, HEADER)
    if given is None:
        return await notify(service, scope, receive, send, request_id)
    body = await read_body(scope, receive, service.settings.limits.max_body_bytes)
    counted = Counted(service.tally)
    try:
        name, appended = await _store(service, scope, body, given, request_id, counted)
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
    if appended.repeated:
        service.tally.replayed[counted.event_type] += 1
    answer = b'{"status":"success","request_id":"%b","processed_at":"%b","sequence":%d,"id":%b}' % (
        request_id.encode(),
        seconds_text(service.clock() // SECOND).encode(),
        appended.sequence,
        compact(f"{name}@{appended.sequence}"),
    )
    return await respond(send, 200, JSON, answer, request_id, [REPLAYED] if appended.repeated else [])


async def _store(
    service: Service, scope: Any, body: bytes, given: bytes, request_id: str, counted: Counted
) -> tuple[str, Appended]:
    """The name of the event type, and where the notification is."""
    traces = service.traces
    with nullcontext() if traces is None else traces.publish(scope, request_id):
        draft = check(service, scope, body, request_id, counted)
        entry = Keyed(draft, Keyring(scope).of_item(header_text(given), draft))
        with (
            service.operations.timed("publish"),
            nullcontext() if traces is None else traces.commit(draft.stream, service.log.kind),
        ):
            [outcome] = await service.log.append_keyed([entry], whole=True)
        assert isinstance(outcome, Appended)  # a refusal of the whole is raised
        if traces is not None and not outcome.repeated:
            traces.stored(draft.stream, outcome.sequence)
    known = counted.event_type in service.catalogue.event_types
    return counted.event_type if known else draft.stream, outcome
