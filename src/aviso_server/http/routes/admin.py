"""DELETE /api/v1/admin/…: remove one notification, a stream's, or all."""

from __future__ import annotations

import logging
import re

from aviso_server.errors import InvalidRequest, LogError, MalformedRequest
from aviso_server.http.body import aside
from aviso_server.http.http_errors import HttpError
from aviso_server.http.request import Request
from aviso_server.http.response import Answer, RequestId, Response
from aviso_server.http.service import Service
from aviso_server.model.json_text import loads, quoted, unsigned

__all__ = ["Deleted", "Wiped", "delete_notification", "wipe_all", "wipe_stream"]

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 2 * 1024 * 1024
_SHOWN = 256  # characters of a name that answers and log records repeat
_JSON_TYPE = re.compile(rb"[^;/\s]+/(?:[^;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


class Deleted(Answer, frozen=True):
    """The outcome of deleting one notification."""

    success: bool
    message: str
    notification_id: str
    request_id: RequestId


class Wiped(Answer, frozen=True):
    """The outcome of a wipe."""

    success: bool
    message: str
    request_id: RequestId


async def delete_notification(request: Request) -> Response:
    """Delete one notification."""
    service, notification_id = request.service, request.params["notification_id"]

    def answer(status: int, message: str, event: str) -> Response:
        _log(request, status, message, f"notification.delete.{event}")
        return Response.json(Deleted(status == 200, message, notification_id, request.id), status)

    try:
        name, sequence = parse_notification_id(notification_id)
    except InvalidRequest as error:
        return answer(400, error.message, "invalid_id")
    try:
        stream = await find_stream(service, name)
        # a sequence beyond 63 bits was never given out
        with service.operations.timed("delete_message"):
            removed = stream is not None and sequence < 2**63 and await service.store.delete(stream, sequence)
    except LogError as error:
        return answer(500, f"Failed to delete sequence {sequence}: {error}", "failed")
    if not removed:
        return answer(404, f"Notification not found: {notification_id}", "not_found")
    return answer(200, f"Notification {notification_id} deleted", "succeeded")


async def wipe_stream(request: Request) -> Response:
    """Delete a stream's notifications; its numbering goes on."""
    service, name = request.service, await _stream_name(request)
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    requested = {"event": "admin.stream.wipe.requested", "request_id": request.id, "stream": shown}
    logger.info("wipe requested", extra=requested)
    try:
        stream = await find_stream(service, name)
        with service.operations.timed("wipe_stream"):
            removed = None if stream is None else await service.store.wipe(stream)
    except LogError as error:
        return _wiped(request, 500, f"Failed to wipe stream {shown}: {error}", "stream.wipe.failed")
    if stream is None:
        known = ", ".join(sorted(service.catalogue.event_types))
        message = f"Stream not found: {shown}" + (f". Known event types: {known}" if known else "")
        return _wiped(request, 404, message, "stream.wipe.not_found")
    return _wiped(request, 200, f"Stream {shown} wiped: {removed or 0} notifications removed", "stream.wipe.succeeded")


async def wipe_all(request: Request) -> Response:
    """Delete all notifications; the numbering of streams goes on."""
    service = request.service
    logger.info("wipe requested", extra={"event": "admin.all.wipe.requested", "request_id": request.id})
    removed = 0
    try:
        with service.operations.timed("wipe_all"):
            for stream in await service.store.streams():
                removed += await service.store.wipe(stream) or 0
    except LogError as error:
        return _wiped(request, 500, f"Failed to wipe all streams: {error}", "all.wipe.failed")
    return _wiped(request, 200, f"All streams wiped: {removed} notifications removed", "all.wipe.succeeded")


def _wiped(request: Request, status: int, message: str, event: str) -> Response:
    _log(request, status, message, event)
    return Response.json(Wiped(status == 200, message, request.id), status)


def _log(request: Request, status: int, message: str, event: str) -> None:
    level = logging.INFO if status < 400 else logging.WARNING if status < 500 else logging.ERROR
    logger.log(level, message, extra={"event": f"admin.{event}", "request_id": request.id})


def parse_notification_id(text: str) -> tuple[str, int]:
    """Split `<stream>@<sequence>`."""
    name, _, digits = text.strip().partition("@")
    if not name or not digits:
        raise InvalidRequest(f"Notification id must be in '<stream>@<sequence>' format; got {quoted(text)}")
    number = unsigned(digits)
    if number is None or len(number) > 20 or int(number) >= 2**64:
        raise InvalidRequest(
            f"Notification id must be in '<stream>@<sequence>' format: {quoted(digits)} is not a positive integer"
        )
    if number == "0":
        raise InvalidRequest(
            "Notification id must be in '<stream>@<sequence>' format: the sequence must be greater than zero"
        )
    return name, int(number)


async def find_stream(service: Service, name: str) -> str | None:
    """Find the stream of an event type, a topic base or a stream name in any letter case; None if there is none.

    An exact match comes first: event types that nobody configured may differ only in their case.
    """
    exact = service.catalogue.event_types.get(name)
    if exact is not None:
        return exact.base
    streams = await service.store.streams()
    if name in streams:
        return name
    event_type = service.catalogue.of_stream(name)
    if event_type is not None:
        return event_type.base
    return next((stream for stream in streams if stream.lower() == name.lower()), None)


async def _stream_name(request: Request) -> str:
    if not _JSON_TYPE.fullmatch((request.header(b"content-type") or b"").strip()):
        raise HttpError(400, "Content type error: expected application/json")
    body = await request.body(_MAX_BODY_BYTES)
    try:
        members = await aside(body, loads, body)
    except MalformedRequest as error:
        raise HttpError(400, f"Json deserialize error: {error.details or error.message}") from None
    if not isinstance(members, dict) or not isinstance(members.get("stream_name"), str):
        raise HttpError(400, "Json deserialize error: expected an object with the string member `stream_name`")
    name: str = members["stream_name"]
    return name
