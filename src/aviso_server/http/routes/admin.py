"""For operators: /health, /ready, /api/v1/auth/check and /api/v1/admin/…, which shows the server and removes data."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aviso_server import __version__
from aviso_server.archive.reports import AuditResult, Quarantine
from aviso_server.archive.supervisor import State
from aviso_server.delivery.clients import Watcher
from aviso_server.diagnostics.log_records import RECENT, RecentRecord
from aviso_server.errors import InvalidRequest, LogError, MalformedRequest, StreamUnusable
from aviso_server.http.app import Service
from aviso_server.http.auth import User, unauthorized
from aviso_server.http.request import Request, aside
from aviso_server.http.response import Answer, Count, HttpError, RequestId, Response
from aviso_server.http.routes.streams import First, Last, Trimmed
from aviso_server.lateness.watch import LatenessOverview
from aviso_server.log.base import Batching, StoragePolicy, StreamState, Waiting
from aviso_server.model.json_text import loads, quoted, unsigned
from aviso_server.model.times import SECOND, event_time, seconds_text

__all__ = [
    "Deleted",
    "Health",
    "Identity",
    "Overview",
    "Ready",
    "Wiped",
    "check_auth",
    "delete_notification",
    "health",
    "overview",
    "ready",
    "wipe_all",
    "wipe_stream",
]

logger = logging.getLogger(__name__)

_LOG_SECONDS = 1.0  # for a log that lives elsewhere: whoever asks for readiness does not wait long
_MAX_ARCHIVED = 256  # streams that are shown; names of generic event types are without limit
_MAX_STREAMS = 512
_MAX_WATCHERS = 20
_HIDDEN = "administrators find the reason in GET /api/v1/admin/overview"
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last that can be written


class Health(Answer, frozen=True):
    """The server is alive."""

    status: Literal["ok"] = "ok"


class LiveFeedState(Answer, frozen=True):
    """Present once a live feed has failed."""

    restarts: Annotated[Count, Meta(description="Times since the start that a live feed failed and was restarted.")]
    down: Annotated[Count, Meta(description="Live feeds that are being restarted.")]


class ArchivedStream(Answer, frozen=True):
    event_type: str
    first: Annotated[Count, Meta(description="Oldest sequence that is archived.")]
    last: Annotated[Count, Meta(description="Newest sequence that is archived; 0 if none is.")]
    files: Count
    bytes: Count
    last_error: str | None
    lag: Annotated[int | None, Meta(description="Sequences that are not archived yet; null if the log does not say.")]


class ArchiveState(Answer, frozen=True):
    """The state of the archive, on a server that has one."""

    state: Annotated[str, Meta(extra_json_schema={"enum": [*get_args(State)]})]
    job: str
    reason: Annotated[str | None, Meta(description="Why it does not run, or what it complains of.")]
    streams: dict[str, ArchivedStream]
    log_waits: Annotated[bool, Meta(description="Whether the log only trims what is archived.")]
    audit: Annotated[AuditResult | None, Meta(description="What the last audit found; null if there was none.")]


class Ready(Answer, frozen=True):
    """Notifications can be stored and read."""

    status: Literal["ready", "not_ready"]
    backend_connected: bool
    live_feed: LiveFeedState | UnsetType = UNSET
    archive: ArchiveState | UnsetType = UNSET


class Identity(Answer, frozen=True):
    """The caller."""

    auth_enabled: Annotated[bool, Meta(description="Whether the server checks credentials at all.")]
    username: str | None
    realm: str | None
    roles: tuple[str, ...]
    admin: Annotated[bool, Meta(description="Whether the admin operations are allowed.")]
    expires_at: Annotated[str | None, Meta(description="When the token expires.")]
    request_id: RequestId


async def health(request: Request) -> Response:
    """Tell whether the server is alive."""
    return Response.json(Health())


async def ready(request: Request) -> Response:
    """Tell whether notifications can be stored and read; with an archive, also how that is doing."""
    service = request.service
    connected, restarts = service.log.connected, service.hub.restarts
    down = sum(feed.down for feed in service.hub.feeds)
    is_ready = connected and not down
    archive = await _archive_state(service, None)
    answer = Ready(
        "ready" if is_ready else "not_ready",
        connected,
        LiveFeedState(restarts, down) if restarts else UNSET,
        UNSET if archive is None else archive,
    )
    return Response.json(answer, 200 if is_ready else 503)


async def check_auth(request: Request) -> Response:
    """Tell who the server thinks the caller is.

    On a server without authentication everybody is nobody in particular, and may do everything.
    """
    user, gate = request.user, request.service.gate
    if gate is not None and user is None:
        raise unauthorized("Credentials are needed", gate.mode)
    if user is None:  # without authentication the admin routes are open
        return Response.json(Identity(False, None, None, (), True, None, request.id))
    expires_at = seconds_text(min(user.expires, _LAST_SECOND))
    return Response.json(
        Identity(gate is not None, user.name, user.realm, user.roles, user.admin, expires_at, request.id)
    )


async def _archive_state(service: Service, user: User | None) -> ArchiveState | None:
    """Return state, reason, streams and the last audit, as far as a user may know; None without an archive."""
    archive, log = service.archive, service.log
    if archive is None:
        return None
    details = await archive.describe()
    lasts: dict[str, int] = {}
    with suppress(LogError, TimeoutError):
        async with asyncio.timeout(_LOG_SECONDS):
            names = [stream for stream in await log.streams() if service.may_know(stream, user)]
            for stream in names[:_MAX_ARCHIVED]:
                lasts[stream] = (await log.state(stream)).last
    empty = {"first": 1, "last": 0, "files": 0, "bytes": 0, "last_error": None}
    archived = {stream: each for stream, each in details["streams"].items() if service.may_know(stream, user)}
    streams = {
        stream: ArchivedStream(
            stream if (event_type := service.catalogue.of_stream(stream)) is None else event_type.name,
            **each,
            lag=max(0, lasts[stream] - each["last"]) if stream in lasts else None,
        )
        for stream, each in sorted({**dict.fromkeys(lasts, empty), **archived}.items())[:_MAX_ARCHIVED]
    }
    audit = None if archive.audited is None else archive.audited.result
    if audit is not None:
        known = {name: each for name, each in audit.streams.items() if service.may_know(name, user)}
        audit = msgspec.structs.replace(audit, streams=known)
    reason = details["reason"]
    if reason is not None and service.gate is not None and not (user is not None and user.admin):
        reason = _HIDDEN  # it may name a stream
    return ArchiveState(details["state"], details["job"], reason, streams, isinstance(log, Waiting), audit)


# The overview


class LogState(Answer, frozen=True):
    kind: str
    connected: bool
    waiting: Annotated[Count, Meta(description="Notifications that wait to be written.")]


class Retention(Answer, frozen=True):
    seconds: int | None
    max_messages: int | None
    max_bytes: int | None
    newest_of_each_topic_only: bool


class Watchers(Answer, frozen=True):
    live: Count
    catching_up: Count
    backlog_bytes: Count
    furthest_behind: Count


class StreamOverview(Answer, frozen=True):
    stream: str
    event_type: str
    configured: bool
    first: First
    last: Last
    count: Count
    bytes: Count
    trimmed: Trimmed
    retention: Retention
    watchers: Watchers


class SlowWatcher(Answer, frozen=True):
    event_type: str
    topic: str
    user: str | None
    request_id: str
    catching_up: bool
    behind: Count
    backlog_bytes: Count


class Overview(Answer, frozen=True):
    """The streams, their watchers, and recent errors."""

    time: str
    version: str
    log: LogState
    connections: Count
    streams: list[StreamOverview]
    slowest_watchers: list[SlowWatcher]
    lateness: LatenessOverview | None
    archive: ArchiveState | None
    audit: AuditResult | None
    quarantine: Annotated[Quarantine | None, Meta(description="Null if loads have put nothing aside on this machine.")]
    recent_errors: Sequence[RecentRecord]
    request_id: RequestId


async def overview(request: Request) -> Response:
    """Show the streams with what they hold and who reads them, the slowest watchers, and recent errors."""
    service, log = request.service, request.service.log
    try:
        states = await _states(service, request.user)
    except LogError as error:
        raise HttpError.of("SERVICE_UNAVAILABLE", f"The log cannot be reached: {error}") from None
    archive = await _archive_state(service, request.user)
    watchers = [each for each in service.hub.open_streams if isinstance(each, Watcher)]
    by_stream: dict[str, list[Watcher]] = {}
    for each in watchers:
        by_stream.setdefault(each.wanted.stream, []).append(each)
    answer = Overview(
        event_time(service.clock()),
        __version__,
        LogState(log.kind, log.connected, log.waiting if isinstance(log, Batching) else 0),
        len(service.connections),
        [_stream(service, name, state, by_stream.get(name, ())) for name, state in states.items()],
        _slowest(watchers, states),
        None if service.lateness is None else service.lateness.describe(),
        archive,
        None if archive is None else archive.audit,
        await service.quarantined.describe(),
        RECENT.newest_first(),
        request.id,
    )
    return Response.json(answer)


async def _states(service: Service, user: User | None) -> dict[str, StreamState]:
    """Return what every stream holds: those of configured event types first, used or not, then the others."""
    configured = [each.base for each in service.catalogue.event_types.values()]
    folded = {name.lower() for name in configured}
    others = [name for name in await service.log.streams() if name.lower() not in folded]
    known = [name for name in dict.fromkeys([*configured, *others]) if service.may_know(name, user)]
    states = {}
    for name in known[:_MAX_STREAMS]:
        with suppress(StreamUnusable):  # the records say why
            states[name] = await service.log.state(name)
    return states


def _stream(service: Service, name: str, state: StreamState, own: Sequence[Watcher]) -> StreamOverview:
    behind = [each for each in own if each.catching_up]
    event_type = service.catalogue.of_stream(name)
    policy = service.settings.policies.get(name, StoragePolicy())
    return StreamOverview(
        name,
        name if event_type is None else event_type.name,
        event_type is not None,
        state.first,
        state.last,
        state.count,
        state.bytes,
        state.trimmed,
        Retention(
            None if policy.retention_ns is None else policy.retention_ns // SECOND,
            policy.max_messages,
            policy.max_bytes,
            policy.allow_duplicates is False,
        ),
        Watchers(
            len(own) - len(behind),
            len(behind),
            sum(each.backlog_bytes for each in own),
            max((_behind(each, state) for each in behind), default=0),
        ),
    )


def _slowest(watchers: Iterable[Watcher], states: Mapping[str, StreamState]) -> list[SlowWatcher]:
    """Return the watchers that are furthest behind or have the largest backlog; those that keep up are left out."""
    shown = [
        SlowWatcher(
            each.wanted.event_type,
            each.wanted.topic,
            each.user,
            each.request_id,
            each.catching_up,
            _behind(each, states[each.wanted.stream]) if each.wanted.stream in states else 0,
            each.backlog_bytes,
        )
        for each in watchers
        if each.catching_up or each.backlog_bytes
    ]
    return sorted(shown, key=lambda each: (each.behind, each.backlog_bytes), reverse=True)[:_MAX_WATCHERS]


def _behind(watcher: Watcher, state: StreamState) -> int:
    """Count the sequences between a watcher that catches up and the newest notification."""
    return max(state.last + 1 - watcher.position, 0) if watcher.catching_up else 0


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
                await asyncio.sleep(0)  # other requests get their turn
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
