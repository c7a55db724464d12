"""POST /api/v1/watch and /api/v1/replay: server-sent events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from aviso_server.delivery import frames
from aviso_server.delivery.outlet import Outlet, Send
from aviso_server.errors import InvalidRequest, LogError, RequestError
from aviso_server.http.answers import ENDPOINTS, Refusal, refusal_of
from aviso_server.http.auth.user import User
from aviso_server.http.body import Receive, client_left, header, read_body
from aviso_server.http.metrics.tally import unmeasured
from aviso_server.http.replay_forms import is_lenient, send_in_form, wanted_form
from aviso_server.http.requests import Request, parse_request
from aviso_server.http.service import Service
from aviso_server.model.filter import Filter
from aviso_server.model.schema import EventType, GenericType, read_point
from aviso_server.model.span import Span, read_end, read_start
from aviso_server.model.timestamp import SECOND

__all__ = ["prepare", "replay", "watch"]

logger = logging.getLogger(__name__)


async def watch(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """A stream of history, if a start is given, and of everything that comes after."""
    wanted, span, cap = await prepare(service, scope, receive, "watch", request_id)
    until = _until(scope)
    hub, outlet = service.hub, Outlet(unmeasured(send), scope.get("hang_up"))
    try:
        watcher = await hub.watcher(wanted, outlet, request_id)
    except LogError as error:
        raise _initialization_failed(wanted, error, request_id) from None
    watcher.user = _user_name(scope)
    try:
        await _open(scope, send, request_id)
        now = service.clock()
        if span.has_start:
            batch_size = hub.pace.batch_size
            await outlet.deliver(frames.replay_started(wanted.topic, now, span, batch_size, request_id))
        else:
            duration = service.settings.watch_endpoint.connection_max_duration_sec
            if until is not None:
                duration = min(duration, max(until - now, 0) // SECOND)
            await outlet.deliver(frames.connection_established(wanted.topic, now, duration, request_id))
        _log_established("watch", wanted, request_id)
        await outlet.deliver(frames.heartbeat(wanted.topic, now))
        if span.has_start:
            watcher.go_back(span, cap)
        else:
            watcher.go_live()
        hub.begin(watcher, until)
        await client_left(receive)
    finally:
        hub.release(watcher)


async def replay(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """A stream of history that ends."""
    wanted, span, cap = await prepare(service, scope, receive, "replay", request_id)
    hub, outlet = service.hub, Outlet(unmeasured(send), scope.get("hang_up"))
    form = wanted_form(service, scope, wanted, request_id)
    job = service.archive_job
    # the archive job wants to know what the log has: what it has archived it knows itself
    history = hub.log_history if job is not None and job.shown_by(scope) else hub.history
    try:
        if form is not None:
            bounds = await history.bounds(wanted.stream, span)
        else:
            last = (await service.log.state(wanted.stream)).last
            end = await history.end_of(wanted.stream, span, last)
    except LogError as error:
        raise _initialization_failed(wanted, error, request_id) from None
    stream = hub.replay(wanted, outlet, request_id, _until(scope), form, history)
    stream.user = _user_name(scope)
    try:
        if form is not None:
            _log_established("replay", wanted, request_id)
            return await send_in_form(stream, form, bounds, cap, receive, send)
        await _open(scope, send, request_id)
        opening = frames.replay_started(
            wanted.topic,
            service.clock(),
            span,
            hub.pace.batch_size,
            request_id,
            end_sequence=end if span.has_end else None,
        )
        await outlet.deliver(opening)
        _log_established("replay", wanted, request_id)
        stream.begin(span, end, cap)
        await client_left(receive)
    finally:
        hub.release(stream)


async def prepare(
    service: Service,
    scope: Any,
    receive: Receive,
    name: str,
    request_id: str,
    parse: Callable[[bytes], Request] = parse_request,
) -> tuple[Filter, Span, int | None]:
    """The filter, the span and the cap of a request, with all checks in the contract's order."""
    body = await read_body(scope, receive, service.settings.limits.max_body_bytes)
    try:
        request = parse(body)
        event_type = service.catalogue.find(request.event_type)
        if service.gate is not None:
            service.gate.allow(event_type, scope["user"], "read", request_id)
        service.limits.check_identifier(request.identifier, len(body))
        wanted, span = _compile(event_type, request, name, name == "replay" and is_lenient(scope))
    except RequestError as error:
        service.limits.note_invalid(error)
        raise refusal_of(error, ENDPOINTS[name]) from None
    if service.ecpds is not None:
        await service.ecpds.check(wanted, scope["user"], request_id)
    cap = event_type.max_historical_notifications or service.settings.watch_endpoint.max_historical_notifications
    return wanted, span, cap


def _compile(event_type: EventType | GenericType, request: Request, name: str, lenient: bool) -> tuple[Filter, Span]:
    point = read_point(request.identifier)
    span = read_start(request.from_id, request.from_date)
    if name == "replay":
        if not span.has_start:
            raise InvalidRequest("Replay endpoint requires either from_id or from_date", field="from_id")
        span = read_end(span, request.to_id, request.to_date)
        return event_type.compile(request.identifier, "replay", point, lenient), span
    if request.to_id is not None or request.to_date is not None:
        raise InvalidRequest("to_id and to_date are only supported for the replay endpoint, not /watch", field="to_id")
    return event_type.compile(request.identifier, "watch", point), span


def _until(scope: Any) -> int | None:
    """When the caller's token is not taken any more; None for callers without one."""
    user: User | None = scope.get("user")
    return None if user is None else user.until


def _user_name(scope: Any) -> str | None:
    user: User | None = scope.get("user")
    return None if user is None else f"{user.realm}/{user.name}"


async def _open(scope: Any, send: Send, request_id: str) -> None:
    headers = [
        (b"x-request-id", request_id.encode()),
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"access-control-allow-origin", b"*"),
        (b"x-accel-buffering", b"no"),
    ]
    if (header(scope, b"connection") or b"").lower() != b"close":  # to whoever asks for it the server says that itself
        headers.insert(3, (b"connection", b"keep-alive"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def _log_established(name: str, wanted: Filter, request_id: str) -> None:
    logger.info(
        "stream established",
        extra={
            "event": f"api.{name}.stream.established",
            "request_id": request_id,
            "event_type": wanted.event_type,
            "topic": wanted.topic,
        },
    )


def _initialization_failed(wanted: Filter, error: LogError, request_id: str) -> Refusal:
    logger.error(
        "stream could not be opened: %s",
        error,
        extra={"event": "stream.sse.initialization.failed", "request_id": request_id, "topic": wanted.topic},
    )
    return Refusal.error(
        500,
        "SSE_STREAM_INITIALIZATION_FAILED",
        "SSE stream creation failed",
        "The stream could not be opened",
        details=str(error),
        topic=wanted.topic,
    )
