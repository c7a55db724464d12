"""GET /api/v1/insight…: what was published, when, where and how late, from tables that the pipeline has made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aviso_server.config.settings import Settings
from aviso_server.errors import InvalidRequest, RequestError
from aviso_server.http.request import Request
from aviso_server.http.response import Answer, Count, HttpError, RequestId, Response, forbidden
from aviso_server.insight.counts import QUESTIONS
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.times import Instant, parse_instant

if TYPE_CHECKING:
    from aviso_server.insight.counts import Reader

__all__ = ["INSIGHTS", "InsightList", "Insights", "get_insight", "list_insight"]

_MAX_INSIGHTS = 2  # answers about the archive that are put together at a time

Seconds = Annotated[int, Meta(description="Seconds; less than 1/32 towards zero.")]
Moment = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
Step = Literal["hour", "day"]


class InsightOverview(Answer, frozen=True):
    """The tables of an event type, and how fresh they are."""

    event_type: str
    notifications: Annotated[Count, Meta(description="How many are counted.")]
    through: Annotated[Count, Meta(description="All up to this sequence are counted.")]
    updated: Annotated[Instant, Meta(description="When that was.")]
    first: Moment
    last: Moment
    tables: list[Annotated[str, Meta(extra_json_schema={"enum": list(QUESTIONS)})]]


class InsightList(Answer, frozen=True):
    """The tables of the event types that the caller may read."""

    enabled: Annotated[bool, Meta(description="Whether this server makes such tables.")]
    event_types: list[InsightOverview]
    request_id: RequestId


class _Insight(InsightOverview, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: Instant
    to: Instant


class CountedAt(Answer, frozen=True):
    time: Instant
    count: Count


class ValueCountedAt(Answer, frozen=True):
    time: Instant
    value: str
    count: Count


class ValueCounted(Answer, frozen=True):
    value: str
    count: Count


class ValueSeen(ValueCounted, frozen=True):
    first: Instant
    last: Instant


class CountedBetween(Answer, frozen=True, rename={"from_": "from"}):
    from_: float
    to: float
    count: Count


class FieldCounted(Answer, frozen=True):
    field: str
    values: list[ValueCounted]
    other: Annotated[Count, Meta(description="How often all less frequent values came.")]
    bins: Annotated[
        list[CountedBetween] | UnsetType, Meta(description="Many numbers, counted in ranges without their upper ends.")
    ] = UNSET


class FieldSeen(Answer, frozen=True):
    field: str
    values: list[ValueSeen]
    other: Annotated[Count, Meta(description="How often all less frequent values came.")]


class DelaysAt(Answer, frozen=True):
    time: Instant
    count: Count
    minimum: Seconds
    maximum: Seconds
    percentiles: dict[str, Seconds]


class Delays(Answer, frozen=True):
    """Delays since the time that the identifier names."""

    count: Count
    minimum: Seconds
    maximum: Seconds
    percentiles: dict[str, Seconds]
    rows: list[DelaysAt]


class HoursInsight(_Insight, frozen=True, kw_only=True):
    """Counts of notifications."""

    step: Step
    rows: list[CountedAt]
    request_id: RequestId


class FieldsInsight(_Insight, frozen=True, kw_only=True):
    """Counts of each value of a field; for one field also over time."""

    step: Step
    fields: list[FieldCounted]
    rows: list[ValueCountedAt] | UnsetType = UNSET
    request_id: RequestId


class DelaysInsight(_Insight, frozen=True, kw_only=True):
    """Delays between the time an identifier names and its publication; null if identifiers name no time."""

    step: Step
    run: Delays | None
    valid: Delays | None
    request_id: RequestId


class CoverageInsight(_Insight, frozen=True, kw_only=True):
    """Counts of notifications that touch each cell of one degree, by its south-western corner."""

    highest: Count
    cells: list[tuple[int, int, Count]]
    request_id: RequestId


class SeenInsight(_Insight, frozen=True, kw_only=True):
    """The first and last time of each value of a field."""

    fields: list[FieldSeen]
    request_id: RequestId


INSIGHTS: dict[str, type[_Insight]] = dict(
    zip(QUESTIONS, (HoursInsight, FieldsInsight, DelaysInsight, CoverageInsight, SeenInsight), strict=True)
)
"""The type of the answer to each question."""


class Insights:
    """The insight tables of an archive on this machine, read in threads."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = settings.archive.enabled and settings.insight.enabled
        self.available = self.enabled and urlsplit(settings.archive.path).scheme in ("", "file")
        self._path = settings.archive.path
        self._turns = asyncio.Semaphore(_MAX_INSIGHTS)
        self._reader: Reader | None = None

    async def overviews(self) -> list[dict[str, Any]]:
        """Return what there is of every event type."""
        if not self.available:
            return []

        def read() -> list[dict[str, Any]]:
            from aviso_server.insight.answers import overview  # pyarrow is large: only who needs it waits for it

            return [overview(state) for state in self._open().states() if state.days]

        async with self._turns:
            return await asyncio.to_thread(read)

    async def answer(
        self, stream: str, name: str, start: int | None, end: int | None, field: str | None
    ) -> dict[str, Any] | None:
        """Return what a table says of a stream; None if there is nothing."""

        def read() -> dict[str, Any] | None:
            from aviso_server.insight.answers import answer

            return answer(self._open(), stream, name, start, end, field)

        async with self._turns:
            return await asyncio.to_thread(read)

    def _open(self) -> Reader:
        from aviso_server.insight.counts import Reader

        if self._reader is None:
            self._reader = Reader(self._path)
        return self._reader


async def list_insight(request: Request) -> Response:
    """List what insight there is.

    From tables that are made from the archive every few minutes.
    """
    service = request.service
    shown: list[InsightOverview] = []
    for members in await service.insights.overviews():
        try:
            event_type = service.catalogue.find(members["event_type"])
        except RequestError:
            continue  # nobody can ask for it any more
        if service.may_know(event_type.base, request.user):
            shown.append(msgspec.convert(members, InsightOverview))
    return Response.json(InsightList(service.insights.enabled, shown, request.id))


async def get_insight(request: Request) -> Response:
    """Tell what was published, when, where and how late.

    From tables that are made from the archive every few minutes.
    """
    service, name = request.service, request.params["name"]
    try:
        event_type = service.catalogue.find(request.params["event_type"])
    except RequestError as error:
        raise _nothing(error.message) from None
    _check(request, event_type)
    if name not in QUESTIONS:
        raise _nothing(f"There is no insight named '{name}'; there are {', '.join(QUESTIONS)}")
    if not service.insights.enabled:
        raise _nothing("There is no insight on this server: archive.enabled and insight.enabled must be true")
    if not service.insights.available:
        raise _nothing("The archive is not on this machine; 'aviso-server pipeline report' can read its insight")
    try:
        found = await service.insights.answer(event_type.base, name, *_asked(request))
    except InvalidRequest as error:
        raise HttpError.of("INVALID_INSIGHT_REQUEST", error.message, details=error.details) from None
    if found is None:
        raise _nothing(f"There is no insight of event type '{event_type.name}' yet; it comes some minutes after it")

    def build() -> Response:
        members: dict[str, Any] = {**found, "request_id": request.id}
        return Response.json(msgspec.convert(members, INSIGHTS[name]))

    return await asyncio.to_thread(build)


def _check(request: Request, event_type: EventType | GenericType) -> None:
    """Let callers through who may read all of the event type."""
    service = request.service
    if service.gate is None:
        return
    service.gate.allow(event_type, request.user, "read", request.id)
    if not service.may_know(event_type.base, request.user):
        raise forbidden(f"Insight of event type '{event_type.name}' is for administrators: it is about all of it")


def _asked(request: Request) -> tuple[int | None, int | None, str | None]:
    """Read `from`, `to` and `field`; InvalidRequest names what is wrong."""
    given = request.parameters(("from", "to", "field"))
    start, end = (parse_instant(name, given[name]) if name in given else None for name in ("from", "to"))
    for name, instant in (("from", start), ("to", end)):
        if instant is not None and instant < 0:
            raise InvalidRequest(f"Parameter '{name}' must not be before 1970", field=name)
    return start, end, given.get("field")


def _nothing(sentence: str) -> HttpError:
    return HttpError.of("INSIGHT_NOT_FOUND", sentence)
