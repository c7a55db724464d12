"""DELETE /api/v1/admin/…: remove one notification, a stream's, or all."""

from __future__ import annotations

import logging
import re
from typing import Any

import orjson

from aviso_server.delivery.outlet import Send
from aviso_server.errors import InvalidRequest, LogError
from aviso_server.http.acting import acting_user
from aviso_server.http.answers import Refusal, json_answer
from aviso_server.http.body import Receive, header, read_body
from aviso_server.http.service import Service

__all__ = ["delete_notification", "wipe_all", "wipe_stream"]

logger = logging.getLogger(__name__)

_BODY_LIMIT = 2 * 1024 * 1024
_SHOWN = 256  # characters of a name that answers and log records repeat
_JSON_TYPE = re.compile(rb"[^;/\s]+/(?:[^;\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_SEQUENCE = re.compile(r"\+?0*([0-9]+)")


async def delete_notification(service: Service, send: Send, request_id: str, notification_id: str) -> None:
    """Remove one notification for good."""

    async def answer(status: int, message: str, event: str) -> None:
        extra = {"event": f"admin.notification.delete.{event}", "request_id": request_id, **acting_user()}
        logger.log(_level(status), message, extra=extra)
        body = {"success": status == 200, "message": message, "notification_id": notification_id}
        await json_answer(send, status, {**body, "request_id": request_id}, request_id)

    try:
        name, sequence = parse_notification_id(notification_id)
    except InvalidRequest as error:
        return await answer(400, error.message, "invalid_id")
    try:
        stream = await find_stream(service, name)
        # a sequence beyond 63 bits was never given out
        with service.operations.timed("delete_message"):
            removed = stream is not None and sequence < 2**63 and await service.hub.history.delete(stream, sequence)
    except LogError as error:
        return await answer(500, f"Failed to delete sequence {sequence}: {error}", "failed")
    if not removed:
        return await answer(404, f"Notification not found: {notification_id}", "not_found")
    await answer(200, f"Notification {notification_id} deleted", "succeeded")


async def wipe_stream(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Remove all notifications of one stream; its numbering goes on."""
    name = await _stream_name(scope, receive)
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    requested = {"event": "admin.stream.wipe.requested", "request_id": request_id, "stream": shown, **acting_user()}
    logger.info("wipe requested", extra=requested)
    try:
        stream = await find_stream(service, name)
        with service.operations.timed("wipe_stream"):
            removed = None if stream is None else await service.hub.history.wipe(stream)
    except LogError as error:
        return await _wiped(send, 500, f"Failed to wipe stream {shown}: {error}", request_id, "stream.wipe.failed")
    if stream is None:
        known = ", ".join(sorted(service.catalogue.event_types))
        message = f"Stream not found: {shown}; known event types: {known}"
        return await _wiped(send, 404, message, request_id, "stream.wipe.not_found")
    message = f"Stream {shown} wiped: {removed or 0} notifications removed"
    await _wiped(send, 200, message, request_id, "stream.wipe.succeeded")


async def wipe_all(service: Service, send: Send, request_id: str) -> None:
    """Remove all notifications of all streams; their numbering goes on."""
    requested = {"event": "admin.all.wipe.requested", "request_id": request_id, **acting_user()}
    logger.info("wipe requested", extra=requested)
    removed = 0
    try:
        with service.operations.timed("wipe_all"):
            for stream in await service.hub.history.streams():
                removed += await service.hub.history.wipe(stream) or 0
    except LogError as error:
        return await _wiped(send, 500, f"Failed to wipe all streams: {error}", request_id, "all.wipe.failed")
    await _wiped(send, 200, f"All streams wiped: {removed} notifications removed", request_id, "all.wipe.succeeded")


def _level(status: int) -> int:
    if status < 400:
        return logging.INFO
    return logging.WARNING if status < 500 else logging.ERROR


def parse_notification_id(text: str) -> tuple[str, int]:
    """The stream and the sequence of `<stream>@<sequence>`."""
    name, _, digits = text.strip().partition("@")
    if not name or not digits:
        raise InvalidRequest(f"Notification id must be in '<stream>@<sequence>' format; got '{text}'")
    found = _SEQUENCE.fullmatch(digits)
    if found is None or len(found[1]) > 20 or int(found[1]) >= 2**64:
        raise InvalidRequest(
            f"Notification id must be in '<stream>@<sequence>' format: '{digits}' is not a positive integer"
        )
    if int(found[1]) == 0:
        raise InvalidRequest(
            "Notification id must be in '<stream>@<sequence>' format: the sequence must be greater than zero"
        )
    return name, int(found[1])


async def find_stream(service: Service, name: str) -> str | None:
    """The stream that an event type, a topic base or a stream name in any case stands for; None if there is none.

    What is spelled exactly so comes first: event types that nobody configured may differ only in their case.
    """
    exact = service.catalogue.event_types.get(name)
    if exact is not None:
        return exact.base
    streams = await service.hub.history.streams()
    if name in streams:
        return name
    event_type = service.catalogue.of_stream(name)
    if event_type is not None:
        return event_type.base
    return next((stream for stream in streams if stream.lower() == name.lower()), None)


async def _wiped(send: Send, status: int, message: str, request_id: str, event: str) -> None:
    extra = {"event": f"admin.{event}", "request_id": request_id, **acting_user()}
    logger.log(_level(status), message, extra=extra)
    answer = {"success": status == 200, "message": message, "request_id": request_id}
    await json_answer(send, status, answer, request_id)


async def _stream_name(scope: Any, receive: Receive) -> str:
    if not _JSON_TYPE.fullmatch((header(scope, b"content-type") or b"").strip()):
        raise Refusal(400, "Content type error: expected application/json")
    body = await read_body(scope, receive, _BODY_LIMIT)
    try:
        members = orjson.loads(body)
    except ValueError as error:
        raise Refusal(400, f"Json deserialize error: {error}") from None
    if not isinstance(members, dict) or not isinstance(members.get("stream_name"), str):
        raise Refusal(400, "Json deserialize error: expected an object with the string member `stream_name`")
    name: str = members["stream_name"]
    return name
