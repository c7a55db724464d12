"""The application: which route answers which request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aviso_server.delivery.outlet import Send
from aviso_server.http import admin, operate, pages, schema
from aviso_server.http.acting import ACTING
from aviso_server.http.answers import JSON, Refusal, empty, error_members, json_answer, respond, text_answer
from aviso_server.http.archive_details import archive_details
from aviso_server.http.auth.archive_job import ARCHIVE_JOB
from aviso_server.http.auth.check import check
from aviso_server.http.auth.layer import is_guarded
from aviso_server.http.batch.route import notify_many
from aviso_server.http.body import Receive
from aviso_server.http.explain import explain
from aviso_server.http.insight import list_insight, one_insight
from aviso_server.http.metrics.tally import Measured
from aviso_server.http.notify import notify
from aviso_server.http.refused import log_refusal
from aviso_server.http.request_id import new_request_id
from aviso_server.http.service import Service
from aviso_server.http.stream_list import list_streams
from aviso_server.http.streams import replay, watch

__all__ = ["App"]

logger = logging.getLogger(__name__)

Whole = Callable[[Service, Any, Receive, Send, str], Awaitable[None]]
Plain = Callable[[Service, Send, str], Awaitable[None]]
OfName = Callable[[Service, Send, str, str], Awaitable[None]]
OfPath = Callable[[Service, Send, str, bytes], Awaitable[None]]
OfPair = Callable[[Service, Any, Send, str, bytes], Awaitable[None]]


async def health(service: Service, send: Send, request_id: str) -> None:
    """The process is alive."""
    await json_answer(send, 200, {"status": "ok"}, request_id)


async def ready(service: Service, send: Send, request_id: str) -> None:
    """The log can be reached; with an archive, also how that is doing."""
    connected = service.log.connected
    answer: dict[str, Any] = {"status": "ready" if connected else "not_ready", "backend_connected": connected}
    if service.archive is not None:
        answer["archive"] = await archive_details(service.archive, service.log)
    await json_answer(send, 200 if connected else 503, answer, request_id)


async def openapi(service: Service, send: Send, request_id: str) -> None:
    """The OpenAPI document of this server."""
    await respond(send, 200, JSON, service.openapi, request_id, [])


async def asyncapi(service: Service, send: Send, request_id: str) -> None:
    """The AsyncAPI document of this server."""
    await respond(send, 200, JSON, service.asyncapi, request_id, [])


_WHOLE: dict[tuple[str, str], Whole] = {
    ("POST", "/api/v1/notification"): notify,
    ("POST", "/api/v1/notifications"): notify_many,
    ("POST", "/api/v1/watch"): watch,
    ("POST", "/api/v1/replay"): replay,
    ("POST", "/api/v1/explain"): explain,
    ("DELETE", "/api/v1/admin/wipe/stream"): admin.wipe_stream,
    ("GET", "/api/v1/auth/check"): check,
    ("GET", "/api/v1/streams"): list_streams,
    ("GET", "/api/v1/insight"): list_insight,
}
_PLAIN: dict[tuple[str, str], Plain] = {
    ("GET", "/"): pages.home,
    ("GET", "/health"): health,
    ("GET", "/ready"): ready,
    ("GET", "/api-docs/openapi.json"): openapi,
    ("GET", "/api-docs/asyncapi.json"): asyncapi,
    ("GET", "/api/v1/schema"): schema.all_schemas,
    ("DELETE", "/api/v1/admin/wipe/all"): admin.wipe_all,
    ("GET", "/api/v1/admin/overview"): operate.overview,
}
_OF_NAME: dict[tuple[str, bytes], OfName] = {
    ("GET", b"/api/v1/schema/"): schema.one_schema,
    ("DELETE", b"/api/v1/admin/notification/"): admin.delete_notification,
}
_OF_PAIR: dict[tuple[str, bytes], OfPair] = {
    ("GET", b"/api/v1/insight/"): one_insight,
}
_OF_PATH: dict[tuple[str, bytes], OfPath] = {
    ("GET", b"/swagger-ui/"): pages.api_page,
    ("GET", b"/static/"): pages.static_file,
}


_TEMPLATES = {
    b"/api/v1/schema/": "/api/v1/schema/{event_type}",
    b"/api/v1/admin/notification/": "/api/v1/admin/notification/{notification_id}",
    b"/api/v1/insight/": "/api/v1/insight/{event_type}/{name}",
    b"/swagger-ui/": "/swagger-ui/{path}",
    b"/static/": "/static/{path}",
}
"""What the routes are called in metrics."""

_API = "/api/v1"
_WORK = frozenset(f"{_API}/{name}" for name in ("notification", "notifications", "watch", "replay", "explain"))


class App:
    """The ASGI application of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gate = service.gate
        self._limits = service.limits
        self._measuring = service.settings.metrics.enabled
        self._admits = self._gate is not None or self._limits.active  # else every caller is welcome at any time

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not self._measuring:
            await self._answer(scope, receive, send)
            return
        measured = Measured(self._service.tally, scope, send)
        try:
            await self._answer(scope, receive, measured)
        finally:
            measured.finish()

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        try:
            self._limits.check_connections(scope, self._service.connections())
            whole = None if self._admits else _WHOLE.get((scope["method"], scope["path"]))
            if whole is not None:
                scope["route"] = scope["path"]
                await whole(self._service, scope, receive, send, request_id)
            else:
                await self._route(scope, receive, send, request_id)
        except Refusal as refusal:
            self._limits.note(refusal)
            log_refusal(refusal, scope, request_id)
            await _refuse(send, refusal, request_id)
        except ConnectionError:
            pass  # the client has left
        except Exception:
            logger.exception(
                "request failed", extra={"event": "api.request.processing.failed", "request_id": request_id}
            )
            internal = Refusal.error(500, "INTERNAL_ERROR", "internal_error", "The server could not handle the request")
            await _refuse(send, internal, request_id)

    async def _route(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        key = (scope["method"], scope["path"])
        whole = _WHOLE.get(key)
        plain = None if whole is not None else _PLAIN.get(key)
        if whole is not None or plain is not None:
            scope["route"] = key[1]
        if self._admits and scope["path"].startswith(_API):
            await self._admit(scope, request_id)
        if whole is not None:
            return await whole(self._service, scope, receive, send, request_id)
        if plain is not None:
            return await plain(self._service, send, request_id)
        method, path = scope["method"], scope["raw_path"]
        for (verb, prefix), of_name in _OF_NAME.items():
            rest = path.removeprefix(prefix)
            if method == verb and rest != path and rest and b"/" not in rest:
                scope["route"] = _TEMPLATES[prefix]
                return await of_name(self._service, send, request_id, unquote(rest.decode("latin-1")))
        for (verb, prefix), of_pair in _OF_PAIR.items():
            rest = path.removeprefix(prefix)
            if method == verb and rest != path and rest.count(b"/") == 1:
                scope["route"] = _TEMPLATES[prefix]
                return await of_pair(self._service, scope, send, request_id, rest)
        for (verb, prefix), of_path in _OF_PATH.items():
            if method == verb and path.startswith(prefix):
                scope["route"] = _TEMPLATES[prefix]
                return await of_path(self._service, send, request_id, path.removeprefix(prefix))
        await empty(send, 404, request_id)

    async def _admit(self, scope: Any, request_id: str) -> None:
        """Find out who is calling and whether they call too often."""
        job = self._service.archive_job
        if job is not None and job.shown_by(scope):
            scope["user"] = ARCHIVE_JOB
            return
        if self._gate is not None and is_guarded(scope["path"]):
            try:
                scope["user"] = user = await self._gate.admit(scope, request_id)
                ACTING.set(user)
            except Refusal:
                self._limits.check_rate(scope)  # guessing credentials counts too
                raise
        self._limits.check_rate(scope)
        if scope.get("route") in _WORK:
            self._limits.check_memory()


async def _refuse(send: Send, refusal: Refusal, request_id: str) -> None:
    if isinstance(refusal.members, str):
        return await text_answer(send, refusal.status, refusal.members, request_id, refusal.headers)
    await json_answer(send, refusal.status, error_members(refusal, request_id), request_id, refusal.headers)
