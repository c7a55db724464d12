"""POST /api/v1/explain: what a watch request means, and how many stored notifications it lets through."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from aviso_server.archive.flight_client import Slots
from aviso_server.delivery.history import chunks
from aviso_server.errors import InvalidRequest, LogError, LogUnavailable, MalformedRequest
from aviso_server.http.app import Service
from aviso_server.http.request import Request, RequestBody, read_request
from aviso_server.http.response import WATCH, Answer, Count, RequestId, Response, http_error, unavailable
from aviso_server.http.routes.streams import prepare, read_as_of
from aviso_server.model.event_type import EventType
from aviso_server.model.explain import (
    DEFAULT_DAYS,
    MOST_DAYS,
    Clause,
    Tally,
    Verdict,
    area_value,
    clauses_of,
    filter_sentence,
    start_sentence,
    verdicts,
)
from aviso_server.model.fields import SpatialField
from aviso_server.model.filter import Filter
from aviso_server.model.json_text import loads, quoted
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import Point
from aviso_server.model.times import SECOND, Instant, Span, event_time
from aviso_server.store import PastStore, Store

__all__ = ["Counted", "Explanation", "count", "count_turn", "explain"]

MAX_CELLS = 1000
"""Cells of the map that are listed: those with the most notifications."""

_HOUR = 3600 * SECOND
_DAY = 24 * _HOUR
_DAYS_BY_HOUR = 14  # up to so many days are counted by the hour
_MAX_WAITING = 32
_TURN_SECONDS = 10.0  # that somebody waits for others who count
_LOG_SECONDS = 30.0  # that counting in the log may take
_ID = re.compile(r"(.*)@([0-9]{1,18})", re.DOTALL)

Source = Literal["archive", "log"]
Operator = Literal["eq", "in", "gt", "gte", "lt", "lte", "between", "meets", "contains"]


class ClauseAnswer(Answer, frozen=True):
    field: Annotated[str, Meta(description="`#` is the number of keys, for event types that are not configured.")]
    operator: Operator
    value: Annotated[Any, Meta(description="What it compares with, in canonical form.")]
    sentence: str


class VerdictAnswer(ClauseAnswer, frozen=True):
    passed: bool
    seen: Annotated[str | None, Meta(description="What it looked at; null if there was nothing.")]


class AreaAnswer(Answer, frozen=True):
    kind: Literal["point", "polygon"]
    value: Annotated[
        str | list[tuple[float, float]], Meta(description="A point as text, a polygon as an array of pairs.")
    ]
    box: Annotated[list[float], Meta(min_length=4, max_length=4)]


class StartAnswer(Answer, frozen=True):
    sequence: int | None
    time: str | None
    sentence: str


class Meaning(Answer, frozen=True):
    sentence: str
    clauses: Annotated[list[ClauseAnswer], Meta(description="All of them must hold.")]
    any_value: Annotated[list[str], Meta(description="Fields that do not matter.")]
    area: AreaAnswer | None
    start: StartAnswer


class Interval(Answer, frozen=True):
    start: Instant
    count: Count


class MatchTimes(Answer, frozen=True):
    unit: Literal["hour", "day"]
    counts: Annotated[list[Interval], Meta(description="In UTC, without gaps.")]


class Cell(Answer, frozen=True):
    lat: Annotated[int, Meta(description="The southern side of the cell.")]
    lon: Annotated[int, Meta(description="Its western side.")]
    count: Count


class MatchPlaces(Answer, frozen=True, kw_only=True):
    degrees: Literal[1] = 1
    cells: Annotated[list[Cell], Meta(description="Those with the most notifications first.")]
    in_other_cells: Annotated[Count, Meta(description="In cells that are not listed.")]
    without_place: Annotated[Count, Meta(description="Notifications that lie nowhere.")]


class Matches(Answer, frozen=True, rename={"from_": "from"}):
    """The stored notifications that the filter lets through."""

    count: Annotated[Count, Meta(description="As many as a replay from `from` to `last_sequence` brings.")]
    days: Annotated[int, Meta(ge=1, le=MOST_DAYS)]
    from_: Instant
    to: Instant
    first_sequence: Count
    last_sequence: Count
    source: Annotated[Sequence[Source], Meta(description="Where it was counted.")]
    times: MatchTimes
    places: MatchPlaces | None


class NotificationVerdict(Answer, frozen=True):
    """The reason why a notification is kept or dropped."""

    id: str
    found: bool
    time: str | None
    kept: bool | None
    sentence: str
    clauses: list[VerdictAnswer]


class Explanation(Answer, frozen=True, kw_only=True):
    """The meaning of a watch request, and what it would have delivered."""

    status: Literal["success"] = "success"
    event_type: str
    topic: str
    meaning: Meaning
    matches: Annotated[Matches | None, Meta(description="null if `days` is 0: nothing was counted.")]
    notification: NotificationVerdict | None
    request_id: RequestId


class _Question:
    """The members of the request that a watch does not have."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()  # the keys of the identifier, sorted
        self.days = DEFAULT_DAYS
        self.notification_id: str | None = None
        self.sequence = 0

    def parse(self, body: bytes) -> RequestBody:
        """Parse the watch request in a body; RequestError says what is wrong with any of it."""
        members = loads(body)
        request = read_request(members, ("days", "notification_id"))
        self.names = tuple(sorted(request.identifier))
        if (days := members.get("days")) is not None:
            if type(days) is not int:
                raise MalformedRequest("INVALID_REQUEST_SHAPE", "Invalid request body: 'days' must be a whole number")
            if not 0 <= days <= MOST_DAYS:
                raise InvalidRequest(
                    f"Field 'days' must lie between 1 and {MOST_DAYS}, or be 0 to count nothing; got {days}",
                    field="days",
                )
            self.days = days
        self.notification_id = asked = members.get("notification_id")
        if asked is None:
            return request
        if not isinstance(asked, str):
            raise MalformedRequest(
                "INVALID_REQUEST_SHAPE", "Invalid request body: 'notification_id' must be a string or null"
            )
        found = _ID.fullmatch(asked)
        if found is None or found[1] != request.event_type:
            raise InvalidRequest(
                f"Field 'notification_id' must be '{request.event_type}@' and a sequence; got {quoted(asked)}",
                field="notification_id",
            )
        self.sequence = int(found[2])
        return request


async def explain(request: Request) -> Response:
    """Explain a filter and try it.

    What a watch request means, how many stored notifications of the last days it lets through, when and where, and
    which part of it keeps or drops a given notification.
    """
    question = _Question()
    wanted, span, _ = await prepare(request, "watch", question.parse)
    if request.service.counts.waiting >= _MAX_WAITING:
        raise unavailable(f"More than {_MAX_WAITING} others wait for an explanation; try again later")
    left = asyncio.ensure_future(request.client_left())
    work = asyncio.ensure_future(_explained(request, wanted, span, question))
    try:
        await asyncio.wait((left, work), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError("the client left before its answer was ready")
        return work.result()
    except InvalidRequest as error:
        request.service.limits.note_invalid(error)
        raise http_error(error, WATCH) from None
    except LogError as error:
        raise unavailable(f"What is stored cannot be read now: {error}") from None
    finally:
        left.cancel()
        work.cancel()
        await asyncio.gather(left, work, return_exceptions=True)


async def _explained(request: Request, wanted: Filter, span: Span, question: _Question) -> Response:
    service, as_of = request.service, read_as_of(request)
    store, now = service.hub.store, service.clock()
    if as_of is not None:
        store, now = await store.as_of(wanted.stream, as_of), as_of
    notification, counted = None, None
    if question.notification_id is not None:
        notification = await _find(store, wanted, question.sequence)
    if notification is not None and service.ecpds is not None:
        # the caller may read what they ask for, but perhaps not this one
        notification = None if service.ecpds.hides(wanted, request.user, notification) else notification
    if question.days:
        unit = _HOUR if question.days <= _DAYS_BY_HOUR else _DAY
        async with count_turn(service.counts):
            counted = await count(store, wanted, now - question.days * _DAY, unit)

    def build() -> Response:
        clauses, asked = clauses_of(wanted, question.names), question.notification_id
        return Response.json(
            Explanation(
                event_type=wanted.event_type,
                topic=wanted.topic,
                meaning=_meaning(service, wanted, span, clauses, question),
                matches=None if counted is None else _matches(service, wanted, counted, now, question.days),
                notification=None if asked is None else _verdict(asked, wanted, clauses, notification),
                request_id=request.id,
            )
        )

    return await asyncio.to_thread(build)  # large polygons take long to compare, and many cells long to sort


async def _find(store: Store, wanted: Filter, sequence: int) -> Notification | None:
    """Find one notification of the stream in the log or the archive; None if there is none."""
    if not 1 <= sequence <= (await store.state(wanted.stream)).last:
        return None
    found: list[Notification] = []
    everything = Filter(wanted.event_type, wanted.stream, wanted.topic, positional=wanted.positional)
    await _read(store, everything, sequence, sequence, found.extend)
    return found[0] if found else None


def _meaning(service: Service, wanted: Filter, span: Span, clauses: Sequence[Clause], question: _Question) -> Meaning:
    event_type = service.catalogue.find(wanted.event_type)
    names = event_type.fields if isinstance(event_type, EventType) else question.names
    asked = {clause.field for clause in clauses}
    area, shown = wanted.area, None
    if area is not None:
        asked |= {"polygon", "point", "point_cloud"}
        point = isinstance(area, Point)
        box = [area.lat, area.lon, area.lat, area.lon] if isinstance(area, Point) else list(area.box)
        shown = AreaAnswer("point" if point else "polygon", area_value(area), box)
    time = None if span.from_time is None else event_time(span.from_time)
    return Meaning(
        filter_sentence(wanted, clauses),
        [ClauseAnswer(*_parts(clause)) for clause in clauses],
        [name for name in names if name not in asked],
        shown,
        StartAnswer(span.from_sequence, time, start_sentence(span)),
    )


def _parts(clause: Clause) -> tuple[str, Any, Any, str]:
    return clause.field, clause.operator, clause.value, clause.sentence


def _matches(service: Service, wanted: Filter, counted: Counted, now: int, days: int) -> Matches:
    event_type = service.catalogue.event_types.get(wanted.event_type)
    spatial = event_type is not None and any(isinstance(field, SpatialField) for field in event_type.fields.values())
    since = now - days * _DAY
    return Matches(
        counted.tally.total,
        days,
        event_time(since),
        event_time(now),
        counted.first,
        counted.last,
        counted.sources,
        _times(counted.tally, since, now),
        _places(counted.tally) if spatial else None,
    )


def _times(tally: Tally, since: int, now: int) -> MatchTimes:
    """Return all intervals of the time that was asked for, also those without a notification."""
    first, last = since // tally.unit, max(now // tally.unit, *tally.times, 0)
    counts = [Interval(event_time(number * tally.unit), tally.times[number]) for number in range(first, last + 1)]
    return MatchTimes("hour" if tally.unit == _HOUR else "day", counts)


def _places(tally: Tally) -> MatchPlaces:
    cells = sorted(tally.cells.items(), key=lambda item: (-item[1], item[0]))[:MAX_CELLS]
    return MatchPlaces(
        cells=[Cell(lat, lon, many) for (lat, lon), many in cells],
        in_other_cells=tally.placed - sum(many for _, many in cells),
        without_place=tally.total - tally.placed,
    )


def _verdict(
    name: str, wanted: Filter, clauses: tuple[Clause, ...], notification: Notification | None
) -> NotificationVerdict:
    if notification is None:
        sentence = f"{name} is not there: it was never published, was deleted, or is no longer kept."
        return NotificationVerdict(name, False, None, None, sentence, [])
    found: Sequence[Verdict] = verdicts(wanted, clauses, notification)
    dropping = [verdict.clause.sentence for verdict in found if not verdict.passed]
    if dropping:
        sentence = f"{name} is dropped, because it is not true that {', nor that '.join(dropping)}."
    else:
        sentence = f"{name} is kept: {'all of it is true' if found else 'the filter lets everything through'}."
    shown = [VerdictAnswer(*_parts(each.clause), each.passed, each.seen) for each in found]
    return NotificationVerdict(name, True, event_time(notification.time), not dropping, sentence, shown)


# Counting


class Counted(msgspec.Struct, frozen=True):
    """A count of as many notifications as a replay from one sequence to another brings."""

    tally: Tally
    first: int
    last: int  # lower than `first` if there was nothing to count
    sources: Sequence[Source]


@asynccontextmanager
async def count_turn(slots: Slots) -> AsyncIterator[None]:
    """Wait for a turn to count, and hold it; the 503 if others take too long."""
    limit = asyncio.timeout(_TURN_SECONDS)
    try:
        async with limit, slots.turn():
            limit.reschedule(None)
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise unavailable(
            f"Others have been counting for {_TURN_SECONDS:g} s; try again later, or set 'days' to 0 to count nothing"
        ) from None


async def count(store: Store, wanted: Filter, since: int, unit: int) -> Counted:
    """Count what was stored at or after a time, in intervals of `unit` nanoseconds; LogError if it cannot be read.

    Everything that is archived is counted there and the rest in the log, each notification once. A log that still has
    all of it stands in for an archive that cannot be asked.
    """
    stream = wanted.stream
    state = await store.state(stream)
    start, end = await store.start_of(stream, Span(from_time=since)), state.last
    if isinstance(store, PastStore):
        assert store.archive is not None
        return Counted(await store.archive.count(wanted, start, end, unit, store.version), start, end, ["archive"])
    tally, sources, left = Tally(unit), list[Source](), [(start, end)]
    if store.archive is not None and start <= end:
        covered = await store.archive.coverage(stream, state.trimmed)
        low, high = max(start, covered.first), min(end, covered.last)
        whole = state.trimmed < start  # in the log
        if low <= high and (store.archive.reachable or not whole):
            try:
                tally.merge(await store.archive.count(wanted, low, high, unit))
            except LogUnavailable:
                if not whole:
                    raise
            else:
                sources.append("archive")
                left = [(start, low - 1), (high + 1, end)]
    ranges = [(low, high) for low, high in left if low <= high]
    try:
        async with asyncio.timeout(_LOG_SECONDS):
            for low, high in ranges:
                await _read(store, wanted, low, high, tally.add)
    except TimeoutError:
        raise LogUnavailable(f"counting took longer than {_LOG_SECONDS:g} s; ask for fewer days") from None
    if ranges or not sources:
        sources.append("log")
    return Counted(tally, start, end, sources)


async def _read(
    store: Store, wanted: Filter, start: int, end: int, take: Callable[[Sequence[Notification]], None]
) -> None:
    """Read as a replay without pauses does: filtered in threads, also across what retention moves meanwhile."""

    def taken(notifications: Sequence[Notification]) -> bytes:
        take(notifications)
        return b""

    with closing(chunks(store, wanted, taken, start, end)) as found:
        async for _ in found:
            pass
