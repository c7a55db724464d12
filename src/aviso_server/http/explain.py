"""POST /api/v1/explain: what a watch request means, what it would have brought, and why it drops a notification."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import Any

from aviso_server.delivery.counting import Counted, count
from aviso_server.delivery.outlet import Send
from aviso_server.errors import InvalidRequest, LogError, MalformedRequest
from aviso_server.http.answers import Refusal, json_answer
from aviso_server.http.body import Receive, client_left
from aviso_server.http.requests import Request, read_request
from aviso_server.http.service import Service
from aviso_server.http.streams import prepare
from aviso_server.model.explain import (
    DEFAULT_DAYS,
    MOST_DAYS,
    Clause,
    area_text,
    clauses_of,
    filter_sentence,
    start_sentence,
    verdicts,
)
from aviso_server.model.fields import SpatialField
from aviso_server.model.filter import Filter
from aviso_server.model.geometry import Point
from aviso_server.model.json_value import loads
from aviso_server.model.notification import Notification
from aviso_server.model.schema import EventType
from aviso_server.model.span import Span
from aviso_server.model.tally import Tally
from aviso_server.model.timestamp import SECOND, event_time

__all__ = ["MOST_CELLS", "OWN_MEMBERS", "explain"]

MOST_CELLS = 1000
"""Cells of the map that are listed: those with the most notifications."""
OWN_MEMBERS = ("days", "notification_id")
"""What a request may say besides what a watch may."""

_HOUR = 3600 * SECOND
_DAY = 24 * _HOUR
_DAYS_BY_HOUR = 14  # up to so many days are counted by the hour
_MOST_WAITING = 32
_BUSY = b"5"  # seconds
_ID = re.compile(r"(.*)@([0-9]{1,18})", re.DOTALL)


class _Question:
    """What is asked besides what a watch asks."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()  # the keys of the identifier, sorted
        self.days = DEFAULT_DAYS
        self.notification_id: str | None = None
        self.sequence = 0

    def parse(self, body: bytes) -> Request:
        """The watch request in a body; RequestError says what is wrong with any of it."""
        members = loads(body)
        request = read_request(members, OWN_MEMBERS)
        self.names = tuple(sorted(request.identifier))
        if (days := members.get("days")) is not None:
            if type(days) is not int:
                raise MalformedRequest("INVALID_REQUEST_SHAPE", "Invalid request body: 'days' must be a whole number")
            if not 1 <= days <= MOST_DAYS:
                raise InvalidRequest(f"Field 'days' must lie between 1 and {MOST_DAYS}; got {days}", field="days")
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
                f"Field 'notification_id' must be '{request.event_type}@' and a sequence; got '{asked}'",
                field="notification_id",
            )
        self.sequence = int(found[2])
        return request


async def explain(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Explain a watch request and try it on the past; it ends with its client."""
    question = _Question()
    wanted, span, _ = await prepare(service, scope, receive, "explain", request_id, question.parse)
    if service.counts.waiting >= _MOST_WAITING:
        raise _unavailable(f"More than {_MOST_WAITING} others wait for an explanation; try again later")
    left = asyncio.ensure_future(client_left(receive))
    work = asyncio.ensure_future(_answer(service, scope, wanted, span, question))
    try:
        await asyncio.wait((left, work), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError("the client left before its answer was ready")
        answer = work.result()
    except LogError as error:
        raise _unavailable(f"What is stored cannot be read now: {error}") from None
    finally:
        left.cancel()
        work.cancel()
        await asyncio.gather(left, work, return_exceptions=True)
    await json_answer(send, 200, {"status": "success", **answer, "request_id": request_id}, request_id)


async def _answer(service: Service, scope: Any, wanted: Filter, span: Span, question: _Question) -> dict[str, Any]:
    now = service.clock()
    async with service.counts.turn():
        counted = await count(service.hub, wanted, now - question.days * _DAY, _unit(question.days))
        notification = None
        if question.notification_id is not None:
            notification = await _find(service, wanted, question.sequence)
        if notification is not None and _hidden(service, scope, wanted, notification):
            notification = None
    # in a thread: large polygons take long to compare, and many cells long to sort
    return await asyncio.to_thread(_explanation, service, wanted, span, question, counted, now, notification)


def _explanation(
    service: Service,
    wanted: Filter,
    span: Span,
    question: _Question,
    counted: Counted,
    now: int,
    notification: Notification | None,
) -> dict[str, Any]:
    clauses, asked = clauses_of(wanted, question.names), question.notification_id
    return {
        "event_type": wanted.event_type,
        "topic": wanted.topic,
        "meaning": _meaning(service, wanted, span, clauses, question),
        "matches": _matches(service, wanted, counted, now, question.days),
        "notification": None if asked is None else _judged(asked, wanted, clauses, notification),
    }


async def _find(service: Service, wanted: Filter, sequence: int) -> Notification | None:
    """One notification of the stream, from the log or the archive; None if there is none."""
    hub = service.hub
    if not 1 <= sequence <= (await hub.log.state(wanted.stream)).last:
        return None
    found: list[Notification] = []

    def take(notifications: Any) -> bytes:
        found.extend(notifications)
        return b""

    everything = Filter(wanted.event_type, wanted.stream, wanted.topic, positional=wanted.positional)
    async with aclosing(hub.pieces(hub.history, everything, take, sequence, sequence)) as pieces:
        async for _ in pieces:
            pass
    return found[0] if found else None


def _hidden(service: Service, scope: Any, wanted: Filter, notification: Notification) -> bool:
    """True if the caller may read what they ask for, but not this one."""
    return service.ecpds is not None and service.ecpds.hides(wanted, scope["user"], notification)


def _meaning(
    service: Service, wanted: Filter, span: Span, clauses: tuple[Clause, ...], question: _Question
) -> dict[str, Any]:
    event_type = service.catalogue.find(wanted.event_type)
    names = event_type.fields if isinstance(event_type, EventType) else question.names
    asked = {clause.field for clause in clauses}
    if wanted.area is not None:
        asked |= {"polygon", "point", "point_cloud"}
    area = wanted.area
    shown: dict[str, Any] | None = None
    if area is not None:
        point = isinstance(area, Point)
        shown = {
            "kind": "point" if point else "polygon",
            "text": area_text(area),
            "box": [area.lat, area.lon, area.lat, area.lon] if isinstance(area, Point) else list(area.box),
        }
    return {
        "sentence": filter_sentence(wanted, clauses),
        "clauses": [_clause(clause) for clause in clauses],
        "any_value": [name for name in names if name not in asked],
        "area": shown,
        "start": {
            "sequence": span.from_sequence,
            "time": None if span.from_time is None else event_time(span.from_time),
            "sentence": start_sentence(span),
        },
    }


def _clause(clause: Clause) -> dict[str, Any]:
    return {
        "field": clause.field,
        "operator": clause.operator,
        "value": clause.value,
        "sentence": clause.sentence,
    }


def _matches(service: Service, wanted: Filter, counted: Counted, now: int, days: int) -> dict[str, Any]:
    event_type = service.catalogue.event_types.get(wanted.event_type)
    spatial = event_type is not None and any(isinstance(field, SpatialField) for field in event_type.fields.values())
    since = now - days * _DAY
    return {
        "count": counted.tally.total,
        "days": days,
        "from": event_time(since),
        "to": event_time(now),
        "first_sequence": counted.first,
        "last_sequence": counted.last,
        "source": list(counted.sources),
        "times": _times(counted.tally, since, now),
        "places": _places(counted.tally) if spatial else None,
    }


def _times(tally: Tally, since: int, now: int) -> dict[str, Any]:
    """All intervals of the time that was asked for, those without a notification too."""
    first, last = since // tally.unit, max(now // tally.unit, *tally.times, 0)
    return {
        "unit": "hour" if tally.unit == _HOUR else "day",
        "counts": [
            {"start": event_time(number * tally.unit), "count": tally.times[number]}
            for number in range(first, last + 1)
        ],
    }


def _places(tally: Tally) -> dict[str, Any]:
    cells = sorted(tally.cells.items(), key=lambda item: (-item[1], item[0]))
    listed = cells[:MOST_CELLS]
    return {
        "degrees": 1,
        "cells": [{"lat": lat, "lon": lon, "count": many} for (lat, lon), many in listed],
        "in_other_cells": tally.placed - sum(many for _, many in listed),
        "without_place": tally.total - tally.placed,
    }


def _judged(
    name: str, wanted: Filter, clauses: tuple[Clause, ...], notification: Notification | None
) -> dict[str, Any]:
    if notification is None:
        sentence = f"{name} is not there: it was never published, was deleted, or is not kept any more."
        return {"id": name, "found": False, "time": None, "kept": None, "sentence": sentence, "clauses": []}
    found = verdicts(wanted, clauses, notification)
    dropping = [verdict.clause.sentence for verdict in found if not verdict.passed]
    if dropping:
        sentence = f"{name} is dropped, because it is not true that {', nor that '.join(dropping)}."
    else:
        sentence = f"{name} is kept: {'all of it is true' if found else 'the filter lets everything through'}."
    return {
        "id": name,
        "found": True,
        "time": event_time(notification.time),
        "kept": not dropping,
        "sentence": sentence,
        "clauses": [{**_clause(each.clause), "passed": each.passed, "seen": each.seen} for each in found],
    }


def _unit(days: int) -> int:
    return _HOUR if days <= _DAYS_BY_HOUR else _DAY


def _unavailable(message: str) -> Refusal:
    refusal = Refusal.error(503, "SERVICE_UNAVAILABLE", "service_unavailable", message)
    refusal.headers = [(b"retry-after", _BUSY)]
    return refusal
