"""The ASGI application: from a request to its route and back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from time import perf_counter
from typing import Any

import msgspec

from aviso_server.counters import RequestTally
from aviso_server.delivery.clients import Send
from aviso_server.diagnostics.log_records import ANONYMOUS, CALLER
from aviso_server.http.asyncapi import asyncapi_document
from aviso_server.http.auth import ARCHIVE_JOB
from aviso_server.http.body import Receive
from aviso_server.http.http_errors import HttpError, log_http_error
from aviso_server.http.openapi import openapi_document
from aviso_server.http.request import Request
from aviso_server.http.response import Response, StreamingResponse
from aviso_server.http.routes import ROUTES
from aviso_server.http.routing import Access, Route, Router
from aviso_server.http.service import Service

__all__ = ["App"]

logger = logging.getLogger(__name__)

_API = "/api/v1"
_NOT_FOUND = Response(404)
_LONGEST_MISTYPED = 200  # characters of a path that is compared with ours
_UNMATCHED = "unmatched"  # the route of a request that no route answers
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})


class App:
    """Answers the requests of one service by a table of routes."""

    def __init__(self, service: Service, routes: Sequence[Route] = ROUTES) -> None:
        self._service = service
        self._routes = routes
        self._router = Router(routes)
        self._measuring = service.settings.metrics.enabled
        self._admitting = service.gate is not None or service.limits.active  # else everybody may call at any time

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document."""
        return msgspec.json.encode(openapi_document(self._routes, self._service.catalogue, self._service.settings))

    @cached_property
    def asyncapi(self) -> bytes:
        """The AsyncAPI document."""
        return msgspec.json.encode(asyncapi_document(self._routes, self._service.catalogue, self._service.settings))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        service, measured = self._service, None
        request = Request(self, service, scope, receive, send)  # streams write to the client without being measured
        if self._measuring:
            send = measured = Measured(service.tally, scope, send)
        try:
            service.limits.check_connections(scope, service.connections())
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
