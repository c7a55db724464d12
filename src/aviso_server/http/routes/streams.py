"""POST /api/v1/watch and /api/v1/replay, and GET /api/v1/streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Literal

from msgspec import Meta

from aviso_server.delivery import sse
from aviso_server.delivery.clients import Replay
from aviso_server.delivery.formats import (
    ARROW,
    EVENT_STREAM,
    LINES,
    PARQUET,
    DownloadFormat,
    EventStream,
    Format,
    JsonLines,
    Receipt,
)
from aviso_server.diagnostics.log_records import CALLER
from aviso_server.errors import InvalidRequest, LogError, RequestError, StreamUnusable
from aviso_server.http.app import Service
from aviso_server.http.request import Request, RequestBody, aside, parse_request
from aviso_server.http.response import (
    REPLAY,
    WATCH,
    Answer,
    Count,
    Headers,
    HttpError,
    RequestId,
    Response,
    StreamingResponse,
    http_error,
)
from aviso_server.model.batch import STORED, wire_columns
from aviso_server.model.event_type import EventType, GenericType, read_point
from aviso_server.model.filter import Filter
from aviso_server.model.times import SECOND, Span, parse_instant, read_end, read_start
from aviso_server.store import Bounds

__all__ = ["First", "Last", "StreamList", "Trimmed", "list_streams", "prepare", "read_as_of", "replay", "watch"]

logger = logging.getLogger(__name__)

Start = Callable[[], Awaitable[None]]
"""Sends the head of a streaming response."""

_RECEIPT = b"receipt"
_LENIENT = b"handling=lenient"  # required fields may be left out
_STREAMS_AT_ONCE = 256  # that are listed in one turn of the event loop
_MINIMAL = b"return=minimal"  # what the log keeps, without the columns that are made of it


async def watch(request: Request) -> StreamingResponse:
    """Watch notifications as they are published.

    With `from_id` or `from_date` the stream starts with history and then goes on live, without a gap.
    """
    service, hub = request.service, request.service.hub
    wanted, span, cap = await prepare(request, "watch")
    _refuse_as_of(request)
    until, writer = _until(request), request.writer()
    try:
        watcher = await hub.watcher(wanted, writer, request.id)
    except LogError as error:
        raise _initialization_failed(wanted, error, request.id) from None
    watcher.user, watcher.caller = _user_name(request), CALLER.get()

    async def write(start: Start) -> None:
        try:
            await start()
            now = service.clock()
            if span.has_start:
                await writer.deliver(sse.replay_started(wanted.topic, now, span, hub.pace.batch_size, request.id))
            else:
                duration = service.settings.watch_endpoint.connection_max_duration_sec
                if until is not None:
                    duration = min(duration, max(until - now, 0) // SECOND)
                await writer.deliver(sse.connection_established(wanted.topic, now, duration, request.id))
            _log_established("watch", wanted, request.id)
            await writer.deliver(sse.heartbeat(wanted.topic, now))
            if span.has_start:
                watcher.go_back(span, cap)
            else:
                watcher.go_live()
            hub.begin(watcher, until)
            await request.client_left()
        finally:
            hub.release(watcher)

    return StreamingResponse(_event_stream_headers(request), write)


async def replay(request: Request) -> StreamingResponse:
    """Replay stored notifications.

    The stream ends when the history has been delivered. `Accept` chooses server-sent events, lines of JSON, Arrow or
    Parquet. With `Prefer: receipt`, events and lines end with a receipt: how many there were, their digest, and up to
    which sequence that is everything.
    """
    service, hub = request.service, request.service.hub
    wanted, span, cap = await prepare(request, "replay")
    receipt = Receipt(wanted.topic) if request.prefers(_RECEIPT) else None
    form = _form(request, wanted, receipt)
    job = service.archive_job
    # the archive job wants to know what the log has: what it has archived it knows itself
    store = hub.store.without_archive() if job is not None and job.shown_by(request.scope) else hub.store
    try:
        if (time := read_as_of(request)) is not None:
            store = await store.as_of(wanted.stream, time)
        if form is not None:
            bounds = await store.bounds(wanted.stream, span)
            end = bounds.end
        else:
            last = (await store.state(wanted.stream)).last
            end = await store.end_of(wanted.stream, span, last)
    except InvalidRequest as error:
        service.limits.note_invalid(error)
        raise http_error(error, REPLAY) from None
    except LogError as error:
        raise _initialization_failed(wanted, error, request.id) from None
    writer = request.writer()
    format_: Format | None = form
    if receipt is not None:
        receipt.end = end
        format_ = form or EventStream(wanted.topic, hub.renderer(wanted.event_type), request.id, receipt=receipt)
    stream = hub.replay(wanted, writer, request.id, _until(request), format_, store)
    stream.user, stream.caller = _user_name(request), CALLER.get()

    async def write(start: Start) -> None:
        try:
            await start()
            if form is not None:
                _log_established("replay", wanted, request.id)
                await _write_table(request, stream, form, bounds, cap)
                return
            opening = sse.replay_started(
                wanted.topic,
                service.clock(),
                span,
                hub.pace.batch_size,
                request.id,
                end_sequence=end if span.has_end else None,
            )
            await writer.deliver(opening)
            _log_established("replay", wanted, request.id)
            stream.begin(span, end, cap)
            await request.client_left()
        finally:
            hub.release(stream)

    return StreamingResponse(_event_stream_headers(request) if form is None else _table_headers(form), write)


def _refuse_as_of(request: Request) -> None:
    """Refuse a watch of the past; HttpError with 400."""
    try:
        if read_as_of(request) is not None:
            raise InvalidRequest("as_of is only supported for replay and explain, not /watch", field="as_of")
    except InvalidRequest as error:
        request.service.limits.note_invalid(error)
        raise http_error(error, WATCH) from None


def read_as_of(request: Request) -> int | None:
    """Return the time in the query whose knowledge is asked for; InvalidRequest says what is wrong with it."""
    given = request.parameters(("as_of",), others=True)
    if not given:
        return None
    time = parse_instant("as_of", given["as_of"])
    if time > request.service.clock():
        raise InvalidRequest("as_of lies in the future: nobody knows yet what will be known then", field="as_of")
    return time


def _form(request: Request, wanted: Filter, receipt: Receipt | None) -> DownloadFormat | None:
    """Return the format that the client likes best; None for server-sent events."""
    service = request.service
    media_type = request.preferred((EVENT_STREAM, ARROW, LINES, PARQUET))
    if media_type == ARROW:
        from aviso_server.delivery.formats import ArrowStream  # pyarrow is large: only who asks for it waits for it

        columns = STORED if request.prefers(_MINIMAL) else wire_columns(service.catalogue.find(wanted.event_type))
        equals = {} if wanted.positional else dict(wanted.equals)
        return ArrowStream(wanted.event_type, columns, request.id, equals)
    if media_type == PARQUET:
        from aviso_server.delivery.formats import ParquetFile

        return ParquetFile(wanted.event_type, wire_columns(service.catalogue.find(wanted.event_type)), request.id)
    if media_type == LINES:
        return JsonLines(wanted.topic, service.hub.renderer(wanted.event_type), request.id, receipt)
    return None


async def _write_table(request: Request, stream: Replay, form: DownloadFormat, bounds: Bounds, cap: int | None) -> None:
    await stream.writer.deliver(form.opening(bounds))
    stream.begin(Span(from_sequence=bounds.start), bounds.end, cap)
    aborted = asyncio.ensure_future(stream.aborted.wait())
    left = asyncio.ensure_future(request.client_left())
    try:
        # returning before the last chunk aborts the transfer, so that nobody takes a part for the whole
        await asyncio.wait((aborted, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        aborted.cancel()
        left.cancel()


def _event_stream_headers(request: Request) -> Headers:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"access-control-allow-origin", b"*"),
        (b"x-accel-buffering", b"no"),
    ]
    if (request.header(b"connection") or b"").lower() != b"close":  # uvicorn answers `close` itself
        headers.insert(2, (b"connection", b"keep-alive"))
    return headers


def _table_headers(form: DownloadFormat) -> Headers:
    return [
        (b"content-type", form.content_type.encode()),
        (b"cache-control", b"no-cache"),
        (b"vary", b"accept"),
        (b"x-accel-buffering", b"no"),
    ]


async def prepare(
    request: Request,
    action: Literal["watch", "replay"],
    parse: Callable[[bytes], RequestBody] = parse_request,
) -> tuple[Filter, Span, int | None]:
    """Return the filter, the span and the cap of a request, with all checks in the contract's order."""
    service = request.service
    endpoint = REPLAY if action == "replay" else WATCH
    lenient = action == "replay" and request.prefers(_LENIENT)
    body = await request.body()
    try:
        asked = await aside(body, parse, body)
        event_type = service.catalogue.find(asked.event_type)
        if service.gate is not None:
            service.gate.allow(event_type, request.user, "read", request.id)
        service.limits.check_identifier(asked.identifier, len(body))
        try:
            wanted, span = await aside(body, _compile, event_type, asked, action, lenient)
        except InvalidRequest as error:
            service.limits.note_invalid(error)
            raise http_error(error, endpoint, _faults(event_type, asked, action, lenient)) from None
    except RequestError as error:
        service.limits.note_invalid(error)
        raise http_error(error, endpoint) from None
    if service.ecpds is not None:
        await service.ecpds.check(wanted, request.user, request.id)
    cap = event_type.max_historical_notifications or service.settings.watch_endpoint.max_historical_notifications
    return wanted, span, cap


def _compile(
    event_type: EventType | GenericType, asked: RequestBody, action: Literal["watch", "replay"], lenient: bool
) -> tuple[Filter, Span]:
    point = read_point(asked.identifier)
    span = _span(asked, action)
    return event_type.compile(asked.identifier, action, point, lenient), span


def _span(asked: RequestBody, action: Literal["watch", "replay"]) -> Span:
    span = read_start(asked.from_id, asked.from_date)
    if action == "replay":
        if not span.has_start:
            raise InvalidRequest("Replay endpoint requires either from_id or from_date", field="from_id")
        return read_end(span, asked.to_id, asked.to_date)
    if asked.to_id is not None or asked.to_date is not None:
        raise InvalidRequest("to_id and to_date are only supported for the replay endpoint, not /watch", field="to_id")
    return span


def _faults(
    event_type: EventType | GenericType, asked: RequestBody, action: Literal["watch", "replay"], lenient: bool
) -> Iterator[InvalidRequest]:
    """Yield everything that is wrong with a request, each part by itself."""
    start = Span()
    for read in (
        lambda: read_point(asked.identifier),
        lambda: read_start(asked.from_id, None),
        lambda: read_start(None, asked.from_date),
        lambda: read_end(start, asked.to_id, None),
        lambda: read_end(start, None, asked.to_date),
        lambda: _span(asked, action),
    ):
        try:
            read()
        except InvalidRequest as error:
            yield error
    yield from event_type.reading_faults(asked.identifier, action, lenient)


def _until(request: Request) -> int | None:
    """Return when the caller's token expires; None for callers without one."""
    return None if request.user is None else request.user.until


def _user_name(request: Request) -> str | None:
    return None if request.user is None else f"{request.user.realm}/{request.user.name}"


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


def _initialization_failed(wanted: Filter, error: LogError, request_id: str) -> HttpError:
    logger.error(
        "stream could not be opened: %s",
        error,
        extra={"event": "stream.sse.initialization.failed", "request_id": request_id, "topic": wanted.topic},
    )
    message = "The stream could not be opened"
    return HttpError.of("SSE_STREAM_INITIALIZATION_FAILED", message, details=str(error), topic=wanted.topic)


First = Annotated[Count, Meta(description="Oldest sequence that the log holds; one more than `last` if it is empty.")]
Last = Annotated[Count, Meta(description="Newest sequence that was given out.")]
Trimmed = Annotated[Count, Meta(description="Newest sequence that retention has removed.")]


class ListedStream(Answer, frozen=True):
    """What the log holds of a stream."""

    stream: Annotated[str, Meta(description="The topic base.")]
    event_type: Annotated[str, Meta(description="What to ask for.")]
    first: First
    last: Last
    count: Count
    bytes: Count
    trimmed: Trimmed


class StreamList(Answer, frozen=True, kw_only=True):
    """The streams that the caller may know of."""

    status: Literal["success"] = "success"
    streams: list[ListedStream]
    request_id: RequestId


async def list_streams(request: Request) -> Response:
    """List streams and what the log holds of them.

    Those that the caller may read. The archive of this server begins its work here.
    """
    service = request.service
    shown: list[ListedStream] = []
    try:
        for place, name in enumerate(await service.log.streams()):
            if place % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            event_type = _event_type(service, name)
            if event_type is None or not service.may_know(name, request.user):
                continue
            try:
                state = await service.log.state(name)
            except StreamUnusable:
                continue
            shown.append(
                ListedStream(name, event_type.name, state.first, state.last, state.count, state.bytes, state.trimmed)
            )
    except LogError as error:
        raise HttpError.of("SERVICE_UNAVAILABLE", f"The log is away: {error}") from None
    return Response.json(StreamList(streams=shown, request_id=request.id))


def _event_type(service: Service, stream: str) -> EventType | GenericType | None:
    """Return the event type of a stream; None if nobody can ask for it any more."""
    for each in service.catalogue.event_types.values():
        if each.base == stream:
            return each
    try:
        return service.catalogue.find(stream)
    except RequestError:
        return None
