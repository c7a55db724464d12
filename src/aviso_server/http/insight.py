"""GET /api/v1/insight…: what was published, when, where and how late, from tables that the pipeline has made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from aviso_server.config.settings import Settings
from aviso_server.delivery.outlet import Send
from aviso_server.errors import InvalidRequest, RequestError
from aviso_server.http.answers import Refusal, json_answer
from aviso_server.http.auth.refusals import forbidden
from aviso_server.http.auth.user import User
from aviso_server.http.body import Receive
from aviso_server.http.service import Service
from aviso_server.insight.tables import QUESTIONS
from aviso_server.model.schema import EventType, GenericType
from aviso_server.model.timestamp import parse_instant

if TYPE_CHECKING:
    from aviso_server.insight.reading import Reader

__all__ = ["list_insight", "one_insight"]

_PARAMETERS = ("from", "to", "field")
_LONGEST = 1024  # bytes of a query


async def list_insight(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """What there is, of the event types that the caller may read, and how fresh it is."""
    shown: list[dict[str, Any]] = []
    if _available(service.settings):
        async with service.insight_turns:
            overviews = await asyncio.to_thread(_overviews, _reader(service))
        for members in overviews:
            try:
                event_type = service.catalogue.find(members["event_type"])
                _check(service, scope, event_type, request_id)
            except (RequestError, Refusal):
                continue
            shown.append(members)
    answer = {"enabled": _enabled(service.settings), "event_types": shown, "request_id": request_id}
    await json_answer(send, 200, answer, request_id)


async def one_insight(service: Service, scope: Any, send: Send, request_id: str, rest: bytes) -> None:
    """What one table says of one event type: `{event_type}/{name}`."""
    event_type_name, _, name = unquote(rest.decode("latin-1")).rpartition("/")
    try:
        event_type = service.catalogue.find(event_type_name)
    except RequestError as error:
        raise _nothing(error.message) from None
    _check(service, scope, event_type, request_id)
    if name not in QUESTIONS:
        raise _nothing(f"There is no insight named '{name}'; there are {', '.join(QUESTIONS)}")
    if not _enabled(service.settings):
        raise _nothing("There is no insight on this server: archive.enabled and insight.enabled must be true")
    if not _available(service.settings):
        raise _nothing("The archive is not on this machine; 'aviso-server pipeline report' can read its insight")
    try:
        start, end, field = _query(scope["query_string"])
        async with service.insight_turns:
            found = await asyncio.to_thread(_answer(service, event_type.base, name, start, end, field))
    except InvalidRequest as error:
        message, details = error.message, error.details
        label = "Invalid Insight Request"
        raise Refusal.error(400, "INVALID_INSIGHT_REQUEST", label, message, details=details) from None
    if found is None:
        raise _nothing(f"There is no insight of event type '{event_type_name}' yet; it comes some minutes after it")
    await json_answer(send, 200, {**found, "request_id": request_id}, request_id)


def _enabled(settings: Settings) -> bool:
    return settings.archive.enabled and settings.insight.enabled


def _available(settings: Settings) -> bool:
    """True if the tables are where this process can read them."""
    return _enabled(settings) and urlsplit(settings.archive.path).scheme in ("", "file")


def _check(service: Service, scope: Any, event_type: EventType | GenericType, request_id: str) -> None:
    """Let callers through who may read the event type, all of it."""
    if service.gate is None:
        return
    user: User | None = scope.get("user")
    service.gate.allow(event_type, user, "read", request_id)
    rule = service.settings.stream_auth.get(event_type.name)
    if rule is not None and rule.plugins and not (user is not None and user.admin):
        # plugins let some notifications through and others not; counts are about all of them
        raise forbidden(f"Insight of event type '{event_type.name}' is for administrators: it is about all of it")


def _query(text: bytes) -> tuple[int | None, int | None, str | None]:
    """`from`, `to` and `field`; InvalidRequest names what is wrong."""
    if len(text) > _LONGEST:
        raise InvalidRequest(f"The query is longer than {_LONGEST} bytes")
    given: dict[str, str] = {}
    for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
        if name not in _PARAMETERS:
            raise InvalidRequest(f"Unknown parameter '{name}'; accepted are {', '.join(_PARAMETERS)}", field=name)
        if name in given:
            raise InvalidRequest(f"Parameter '{name}' is given twice", field=name)
        given[name] = value
    start, end = (parse_instant(name, given[name]) if name in given else None for name in ("from", "to"))
    for name, instant in (("from", start), ("to", end)):
        if instant is not None and instant < 0:
            raise InvalidRequest(f"Parameter '{name}' must not be before 1970", field=name)
    return start, end, given.get("field")


def _reader(service: Service) -> Callable[[], Reader]:
    def made() -> Reader:
        from aviso_server.insight.reading import Reader  # pyarrow is large: only who needs it waits for it

        if service.insight is None:
            service.insight = Reader(service.settings.archive.path)
        return service.insight

    return made


def _overviews(reader: Callable[[], Reader]) -> list[dict[str, Any]]:
    from aviso_server.insight.answers import overview

    return [overview(state) for state in reader().states() if state.days]


def _answer(
    service: Service, stream: str, name: str, start: int | None, end: int | None, field: str | None
) -> Callable[[], dict[str, Any] | None]:
    reader = _reader(service)

    def read() -> dict[str, Any] | None:
        from aviso_server.insight.answers import answer

        return answer(reader(), stream, name, start, end, field)

    return read


def _nothing(sentence: str) -> Refusal:
    return Refusal.error(404, "INSIGHT_NOT_FOUND", "not_found", sentence)
