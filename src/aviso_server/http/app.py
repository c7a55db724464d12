"""The ASGI application: the parts of a running server, routes, and the way from a request to its route and back."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import msgspec

from aviso_server.archive.flight_client import Slots
from aviso_server.archive.lake import Lake
from aviso_server.archive.reports import Quarantined
from aviso_server.config.settings import Settings
from aviso_server.counters import LAGS, Histogram, Operations, RequestTally
from aviso_server.delivery.clients import Send
from aviso_server.delivery.hub import GENERIC, Hub
from aviso_server.diagnostics.log_records import ANONYMOUS, CALLER
from aviso_server.diagnostics.otlp import Traces
from aviso_server.http.auth import ARCHIVE_JOB, ArchiveJobToken, Gate, User
from aviso_server.http.ecpds import EcpdsPlugin
from aviso_server.http.limits import Browsers, RequestLimits
from aviso_server.http.request import Receive, Request
from aviso_server.http.response import Endpoint, HttpError, Response, StreamingResponse, log_http_error
from aviso_server.lateness.watch import Watch
from aviso_server.log.base import Log
from aviso_server.model.event_type import Catalogue
from aviso_server.store import Store
from aviso_server.subscriptions.registry import Subscriptions

if TYPE_CHECKING:
    from aviso_server.http.routes.insights import Insights

__all__ = ["Access", "App", "Documented", "Handler", "Method", "Route", "Router", "Service"]

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response | StreamingResponse]]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Access = Literal["open", "user", "reader", "writer", "admin"]
"""Callers that are let in: anybody; those with credentials; readers or writers of the event type; administrators."""
Body = Literal["notification", "batch", "watch", "replay", "explain", "stream_name"]
"""The kinds of request bodies that no type describes."""

_MAX_NAME_BYTES = 4096  # of what stands in a path for a parameter
_PARAMETER = re.compile(r"\\\{(\w+)\\\}")


class Documented(msgspec.Struct, frozen=True):
    """One answer in the OpenAPI document: of these types in JSON, or of another media type."""

    words: str
    types: tuple[Any, ...] = ()
    media_type: str = "application/json"


class Route(msgspec.Struct, frozen=True):
    """One line of the table of routes; without a tag it is not documented.

    `{path}` in a path takes all that is left of it, other parameters one segment.
    """

    method: Method
    path: str
    handler: Handler
    access: Access = "open"
    tag: str = ""
    answers: Mapping[int, Documented | type] = {}  # of an answer's own type, its docstring says the rest
    body: Body | type[msgspec.Struct] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()  # besides those of the path
    errors: tuple[str, ...] = ()  # codes, besides those that every route may answer with
    endpoint: Endpoint | None = None  # labels the errors of its body
    heavy: bool = False  # refused while the process is short of memory

    @property
    def name(self) -> str:
        """The name of the handler, which is the operation's."""
        return self.handler.__name__

    @property
    def words(self) -> tuple[str, str]:
        """The first line of the handler's docstring, and the rest of it."""
        summary, _, rest = (inspect.getdoc(self.handler) or "").partition("\n")
        return summary.rstrip("."), rest.strip()

    @property
    def names(self) -> list[str]:
        """The parameters in the path."""
        return re.findall(r"\{(\w+)\}", self.path)


class Router:
    """Finds routes: those without parameters in a dictionary, then the others by pattern."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[tuple[str, str], Route] = {}
        self._patterns: list[tuple[str, re.Pattern[bytes], Route]] = []
        for route in routes:
            if route.names:
                self._patterns.append((route.method, _pattern(route.path), route))
            else:
                self._exact[route.method, route.path] = route

    def find(self, request: Request) -> None:
        """Set the route and the path parameters of a request; the route stays None if there is none."""
        scope = request.scope
        route = self._exact.get((scope["method"], scope["path"]))
        if route is None:
            for method, pattern, candidate in self._patterns:
                if method == scope["method"] and (found := pattern.fullmatch(scope["raw_path"])) is not None:
                    route = candidate
                    request.params = {name: value.decode("latin-1") for name, value in found.groupdict().items()}
                    break
            else:
                return
        request.route = route
        scope["route"] = route.path  # for metrics and traces

    def knows(self, path: str) -> bool:
        """Return whether a route has this path, under any method and with or without a slash at its end."""
        trimmed = path.rstrip("/")
        raw = trimmed.encode()
        return any(known == trimmed for _, known in self._exact) or any(
            pattern.fullmatch(raw) for _, pattern, _ in self._patterns
        )

    def decode(self, request: Request) -> None:
        """Decode the path parameters; HttpError if they are too long."""
        size = sum(map(len, request.params.values()))
        if size > _MAX_NAME_BYTES:
            raise HttpError(414, f"The name in the path has {size} bytes; the limit is {_MAX_NAME_BYTES}")
        request.params = {name: unquote(value) for name, value in request.params.items()}


def _pattern(path: str) -> re.Pattern[bytes]:
    def group(found: re.Match[str]) -> str:
        return f"(?P<{found[1]}>{'.*' if found[1] == 'path' else '[^/]+'})"

    return re.compile(_PARAMETER.sub(group, re.escape(path)).encode(), re.DOTALL)


_MAX_COUNTS = 2  # explanations at a time; the others wait in order


@dataclass(kw_only=True, slots=True)
class Service:
    """The parts of a running server, put together by `server.wiring`."""

    settings: Settings
    catalogue: Catalogue
    log: Log
    store: Store
    hub: Hub
    clock: Callable[[], int]
    operations: Operations
    limits: RequestLimits
    browsers: Browsers
    quarantined: Quarantined
    insights: Insights
    gate: Gate | None = None
    ecpds: EcpdsPlugin | None = None
    archive: Lake | None = None
    archive_job: ArchiveJobToken | None = None
    lateness: Watch | None = None
    subscriptions: Subscriptions | None = None
    traces: Traces | None = None
    tally: RequestTally = field(default_factory=RequestTally)
    loop_lag: Histogram = field(default_factory=lambda: Histogram(LAGS))
    counts: Slots = field(default_factory=lambda: Slots(_MAX_COUNTS))  # the right to count in the past
    connections: Collection[object] = ()  # of clients
    documents: dict[str, bytes] = field(default_factory=dict)  # of the API, made for the first who asks

    def may_know(self, stream: str, user: User | None) -> bool:
        """Return whether the user, None for anybody, may know that a stream exists and what it holds.

        Whatever lists or counts streams asks here.
        """
        return self.gate is None or self.gate.rules.may_know(stream, user)

    def label(self, event_type: str) -> str:
        """Return the label of an event type in metrics; those that nobody configured share one."""
        return event_type if event_type in self.catalogue.event_types else GENERIC

    def label_of_stream(self, stream: str) -> str:
        """Return the label of a stream's event type in metrics."""
        folded = stream.lower()
        return next((each.name for each in self.catalogue.event_types.values() if each.base.lower() == folded), GENERIC)

    async def close(self) -> None:
        """Close the connections to other services and stop the pipeline process."""
        if self.lateness is not None:
            await self.lateness.stop()
        if self.archive is not None:
            await self.archive.close()
        for each in (self.gate, self.ecpds):
            if each is not None:
                await each.close()


_API = "/api/v1"
_NOT_FOUND = Response(404)
_LONGEST_MISTYPED = 200  # characters of a path that is compared with ours
_UNMATCHED = "unmatched"  # the route of a request that no route answers
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})


class App:
    """Answers the requests of one service by a table of routes."""

    def __init__(self, service: Service, routes: Sequence[Route]) -> None:
        self._service = service
        self._routes = routes
        self._router = Router(routes)
        self._measuring = service.settings.metrics.enabled
        self._admitting = service.gate is not None or service.limits.active  # else everybody may call at any time

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        service, measured = self._service, None
        request = Request(service, scope, receive, send)  # streams write to the client without being measured
        if self._measuring:
            send = measured = Measured(service.tally, scope, send)
        try:
            service.limits.check_connections(scope, len(service.connections))
            self._router.find(request)
            service.browsers.check(request)
            if self._admitting and scope["path"].startswith(_API):
                await self._admit(request)
            if request.params:
                self._router.decode(request)
            response: Response | StreamingResponse
            response = self._not_found(request) if request.route is None else await request.route.handler(request)
            await response.send(send, request.id)
        except HttpError as error:
            service.limits.note(error)
            log_http_error(error, request)
            await error.response(request.id).send(send, request.id)
        except ConnectionError:
            pass  # the client has left
        except Exception:
            logger.exception(
                "request failed", extra={"event": "api.request.processing.failed", "request_id": request.id}
            )
            internal = HttpError.of("INTERNAL_ERROR", "The server could not handle the request")
            await internal.response(request.id).send(send, request.id)
        finally:
            if measured is not None:
                measured.finish()

    def _not_found(self, request: Request) -> Response:
        """Build the 404: empty as the contract has it, with a hint for people who mistype a path of ours."""
        path = request.scope["path"]
        person = (request.header(b"user-agent") or b"").startswith((b"curl/", b"Mozilla/", b"Wget/", b"HTTPie/"))
        if person and path == "/docs":  # others of this protocol have nothing there
            return Response(307, headers=[(b"location", b"/docs/")])
        if not person or not path.startswith("/api") or len(path) > _LONGEST_MISTYPED or self._router.knows(path):
            return _NOT_FOUND
        paths = sorted({route.path for route in self._routes if route.tag})
        meant = [f"Did you mean {near}?" for near in get_close_matches(path, paths, 1)]
        return Response.text(" ".join([f"There is no {path} here.", *meant, "See /swagger-ui/ for all paths."]), 404)

    async def _admit(self, request: Request) -> None:
        """Find out who is calling and whether they call too often."""
        service, scope = self._service, request.scope
        CALLER.set(ANONYMOUS)  # a pipelined request inherits the context of the one before it
        if service.archive_job is not None and service.archive_job.shown_by(scope):
            request.user = ARCHIVE_JOB
            CALLER.set(ARCHIVE_JOB.caller)
            return
        access = _access_to(scope["path"]) if request.route is None else request.route.access
        if service.gate is not None and access != "open":
            try:
                request.user = await service.gate.admit(scope, access == "admin", request.id)
            except HttpError:
                service.limits.check_rate(request)  # guessing credentials counts too
                raise
        service.limits.check_rate(request)
        if request.route is not None and request.route.heavy:
            service.limits.check_memory()


def _access_to(path: str) -> Access:
    """Return who may learn that there is no route below `/api/v1`."""
    if path.startswith(f"{_API}/admin"):
        return "admin"
    guarded = (path.startswith(f"{_API}/") or path == _API) and not path.startswith(f"{_API}/schema")
    return "user" if guarded else "open"


class Measured:
    """The way of one answer to its client, timed until the headers are out."""

    __slots__ = ("_begun", "_method", "_open", "_scope", "_tally", "send")

    def __init__(self, tally: RequestTally, scope: Any, send: Send) -> None:
        self.send = send
        self._tally = tally
        self._scope = scope
        self._method = scope["method"] if scope["method"] in _METHODS else "other"
        self._open = True
        tally.in_flight[self._method] += 1
        self._begun = perf_counter()

    async def __call__(self, message: Any) -> None:
        """Pass a message on."""
        if self._open and message["type"] == "http.response.start":
            self.finish()
            route = self._scope.get("route", _UNMATCHED)
            self._tally.answered(route, self._method, message["status"], perf_counter() - self._begun)
        await self.send(message)

    def finish(self) -> None:
        """Take the request out of those in flight; it may be over without an answer."""
        if self._open:
            self._open = False
            self._tally.in_flight[self._method] -= 1
