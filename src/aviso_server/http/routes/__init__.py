"""The table of routes: method, path, handler, who may, and which answers and errors there are.

Dispatch, the OpenAPI and AsyncAPI documents and the labels of metrics come from it; words come from the docstrings of
handlers and answers. Whatever is not in it is answered with 404 and an empty body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from aviso_server.config.settings import Settings
from aviso_server.delivery.formats import EVENT_STREAM
from aviso_server.http.app import Documented, Handler, Method, Route
from aviso_server.http.openapi import FRAME_TABLE, asyncapi_document, openapi_document, parameter
from aviso_server.http.request import Request
from aviso_server.http.response import JSON, NOTIFY, REPLAY, SUBSCRIPTION, WATCH, Response
from aviso_server.http.routes import (
    admin,
    explanation,
    insights,
    pages,
    publish,
    schemas,
    streams,
    subscriptions,
)
from aviso_server.insight.counts import QUESTIONS
from aviso_server.model.event_type import Catalogue

__all__ = ["ROUTES"]

_UNREADABLE = ("INVALID_JSON", "UNKNOWN_FIELD", "INVALID_REQUEST_SHAPE")
_BODY_ERRORS = (*_UNREADABLE, "UNKNOWN_EVENT_TYPE")
_KEY_ERRORS = ("IDEMPOTENCY_KEY_IN_DOUBT", "IDEMPOTENCY_KEY_REUSED")
_PUBLISH_ERRORS = (*_BODY_ERRORS, "INVALID_NOTIFICATION_REQUEST", *_KEY_ERRORS, "NOTIFICATION_STORAGE_FAILED")
_STREAM_FAILED = "SSE_STREAM_INITIALIZATION_FAILED"
_STREAM = {200: Documented(FRAME_TABLE, media_type=EVENT_STREAM)}
_WHEN = {"type": "string", "minLength": 1}
_FALSE_UNLESS_GIVEN = {"enum": ["true", "false"], "default": "false"}


_KEY = parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": publish.MAX_KEY},
    "Any text of printable ASCII characters, new for every new request. The same request under the same key is stored "
    "once, and answered with the first outcome, for as long as keys are remembered.",
)
_BATCH_PARAMETERS = (
    parameter(
        "all_or_nothing",
        "query",
        _FALSE_UNLESS_GIVEN,
        "Store all notifications, or none if one of them cannot be accepted.",
    ),
    parameter(
        "dry_run",
        "query",
        _FALSE_UNLESS_GIVEN,
        "Check the notifications and say what would become of each. Nothing is stored.",
    ),
    _KEY,
)
_AS_OF = parameter(
    "as_of",
    "query",
    _WHEN,
    "Answer as the archive knew it at this date and time: without what was archived later, and with what was deleted "
    "since. The archive keeps what it knew for a day.",
)
_INSIGHT_PARAMETERS = (
    parameter("name", "path", {"enum": list(QUESTIONS)}, "What to ask for.", example=QUESTIONS[0]),
    parameter("from", "query", _WHEN, "The first hour, as a date and time; 7 days before `to` without it."),
    parameter("to", "query", _WHEN, "The last hour, at most 366 days after `from`; the newest without it."),
    parameter("field", "query", {"type": "string"}, "Only this identifier field, for `fields` and `seen`."),
)
_PAGE_PARAMETERS = (
    parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": subscriptions.MAX_PAGE, "default": subscriptions.PAGE},
        "Subscriptions in one answer, at most.",
    ),
    parameter("after", "query", {"type": "string", "pattern": "/"}, "What `next` says in the page before."),
)

_SUBSCRIPTIONS = "/api/v1/subscriptions"


def _of_one(
    method: Method, path: str, handler: Handler, answer: type | Documented, body: Any = None, status: int = 200
) -> Route:
    """Build a route of one subscription."""
    errors = ["SUBSCRIPTION_NOT_FOUND", "INVALID_SUBSCRIPTION_REQUEST", *(_UNREADABLE if body else ())]
    if method in ("PUT", "PATCH"):
        errors += ["UNKNOWN_EVENT_TYPE", "SUBSCRIPTION_EXISTS"]
    more: dict[str, Any] = {"body": body, "errors": tuple(errors), "endpoint": SUBSCRIPTION}
    return Route(method, f"{_SUBSCRIPTIONS}/{{name}}{path}", handler, "user", "subscriptions", {status: answer}, **more)


async def openapi(request: Request) -> Response:
    """Show the OpenAPI document of this server."""
    return await _document(request, openapi_document)


async def asyncapi(request: Request) -> Response:
    """Show the AsyncAPI document of this server."""
    return await _document(request, asyncapi_document)


async def _document(request: Request, build: Callable[[Sequence[Route], Catalogue, Settings], Any]) -> Response:
    service, name = request.service, build.__name__
    if name not in service.documents:
        document = await asyncio.to_thread(build, ROUTES, service.catalogue, service.settings)
        service.documents[name] = msgspec.json.encode(document)
    return Response(200, service.documents[name], JSON)


# A table reads best with its own line breaks.
# fmt: off
ROUTES = (
    Route("GET", "/health", admin.health, "open", "health", {200: admin.Health}),
    Route("GET", "/ready", admin.ready, "open", "health", {
        200: admin.Ready,
        503: Documented("The log cannot be reached, or a live feed is being restarted.", (admin.Ready,)),
    }),
    Route("GET", "/", pages.home, "open", "general", {200: Documented("The page.", media_type="text/html")}),
    Route("GET", "/swagger-ui/{path}", pages.api_page),
    Route("GET", "/docs/{path}", pages.documentation),
    Route("GET", "/static/{path}", pages.static_file),
    Route("GET", "/api-docs/openapi.json", openapi),
    Route("GET", "/api-docs/asyncapi.json", asyncapi),
    Route("GET", "/api/v1/schema", schemas.list_schemas, "open", "schema", {200: schemas.SchemaList}),
    Route("GET", "/api/v1/schema/{event_type}", schemas.get_schema, "open", "schema",
          {200: schemas.SchemaOne, 404: schemas.SchemaNotFound}),
    Route("POST", "/api/v1/notification", publish.notify, "writer", "notification", {200: publish.Published},
          body="notification", parameters=(_KEY,), endpoint=NOTIFY, heavy=True,
          errors=(*_PUBLISH_ERRORS, "NOTIFICATION_PROCESSING_FAILED")),
    Route("POST", "/api/v1/notifications", publish.notify_many, "writer", "notification", {200: publish.BatchPublished},
          body="batch", parameters=_BATCH_PARAMETERS, endpoint=NOTIFY, heavy=True,
          errors=(*_PUBLISH_ERRORS, "BATCH_REFUSED")),
    Route("POST", "/api/v1/watch", streams.watch, "reader", "streaming", _STREAM,
          body="watch", endpoint=WATCH, heavy=True,
          errors=(*_BODY_ERRORS, "INVALID_WATCH_REQUEST", _STREAM_FAILED)),
    Route("POST", "/api/v1/replay", streams.replay, "reader", "streaming", _STREAM,
          body="replay", parameters=(_AS_OF,), endpoint=REPLAY, heavy=True,
          errors=(*_BODY_ERRORS, "INVALID_REPLAY_REQUEST", _STREAM_FAILED)),
    Route("POST", "/api/v1/explain", explanation.explain, "reader", "streaming", {200: explanation.Explanation},
          body="explain", parameters=(_AS_OF,), endpoint=WATCH, heavy=True,
          errors=(*_BODY_ERRORS, "INVALID_WATCH_REQUEST")),
    Route("GET", "/api/v1/streams", streams.list_streams, "reader", "streaming", {200: streams.StreamList}),
    Route("POST", _SUBSCRIPTIONS, subscriptions.create_subscription, "user", "subscriptions",
          {201: subscriptions.SubscriptionAnswer},
          body=subscriptions.NewSubscription, endpoint=SUBSCRIPTION, heavy=True,
          errors=(*_BODY_ERRORS, "INVALID_SUBSCRIPTION_REQUEST", "SUBSCRIPTION_EXISTS", "TOO_MANY_SUBSCRIPTIONS")),
    Route("GET", _SUBSCRIPTIONS, subscriptions.list_subscriptions, "user", "subscriptions",
          {200: subscriptions.SubscriptionList}, parameters=_PAGE_PARAMETERS,
          endpoint=SUBSCRIPTION, errors=("INVALID_SUBSCRIPTION_REQUEST",)),
    _of_one("GET", "", subscriptions.read_subscription, subscriptions.SubscriptionAnswer),
    _of_one("PATCH", "", subscriptions.change_subscription, subscriptions.SubscriptionAnswer,
            subscriptions.ChangedSubscription),
    _of_one("PUT", "", subscriptions.replace_subscription, subscriptions.SubscriptionAnswer,
            subscriptions.NewSubscription),
    _of_one("DELETE", "", subscriptions.delete_subscription, Documented("It is gone.", media_type=""), status=204),
    _of_one("POST", "/pause", subscriptions.pause_subscription, subscriptions.SubscriptionAnswer),
    _of_one("POST", "/resume", subscriptions.resume_subscription, subscriptions.SubscriptionAnswer),
    _of_one("POST", "/rotate", subscriptions.rotate_secret, subscriptions.Rotated),
    _of_one("POST", "/test", subscriptions.test_subscription, subscriptions.OneAttempt),
    _of_one("GET", "/deliveries", subscriptions.list_attempts, subscriptions.AttemptList),
    _of_one("GET", "/dead", subscriptions.list_dead_letters, subscriptions.DeadLetterList),
    _of_one("POST", "/dead/retry", subscriptions.retry_dead_letters, subscriptions.LettersMoved, subscriptions.Letters),
    _of_one("POST", "/dead/skip", subscriptions.skip_dead_letters, subscriptions.LettersMoved, subscriptions.Letters),
    _of_one("POST", "/pull", subscriptions.pull, subscriptions.Pulled, subscriptions.PullRequest),
    _of_one("POST", "/ack", subscriptions.acknowledge, subscriptions.Acknowledged, subscriptions.Leases),
    _of_one("POST", "/nack", subscriptions.hand_back, subscriptions.Acknowledged, subscriptions.HandBack),
    _of_one("POST", "/extend", subscriptions.extend_leases, subscriptions.Acknowledged, subscriptions.Extension),
    Route("GET", "/api/v1/insight", insights.list_insight, "reader", "streaming", {200: insights.InsightList}),
    Route("GET", "/api/v1/insight/{event_type}/{name}", insights.get_insight, "reader", "streaming",
          {200: Documented("What the tables say.", tuple(insights.INSIGHTS.values()))},
          parameters=_INSIGHT_PARAMETERS, errors=("INVALID_INSIGHT_REQUEST", "INSIGHT_NOT_FOUND")),
    Route("GET", "/api/v1/admin/overview", admin.overview, "admin", "admin", {200: admin.Overview}),
    Route("DELETE", "/api/v1/admin/notification/{notification_id}", admin.delete_notification, "admin", "admin", {
        200: Documented("The notification is gone.", (admin.Deleted,)),
        400: Documented("The id is not `<stream>@<sequence>` with a positive sequence.", (admin.Deleted,)),
        404: Documented("There is no such notification.", (admin.Deleted,)),
        500: Documented("The notification could not be deleted.", (admin.Deleted,)),
    }),
    Route("DELETE", "/api/v1/admin/wipe/stream", admin.wipe_stream, "admin", "admin", {
        200: Documented("The notifications of the stream are gone; its numbering continues.", (admin.Wiped,)),
        400: Documented("The body is not JSON with a `stream_name`, in plain text.", media_type="text/plain"),
        404: Documented("There is no such stream.", (admin.Wiped,)),
        500: Documented("The stream could not be wiped.", (admin.Wiped,)),
    }, body="stream_name"),
    Route("DELETE", "/api/v1/admin/wipe/all", admin.wipe_all, "admin", "admin", {
        200: Documented("All notifications are gone; the numbering of every stream continues.", (admin.Wiped,)),
        500: Documented("Not every stream could be wiped.", (admin.Wiped,)),
    }),
    Route("GET", "/api/v1/auth/check", admin.check_auth, "user", "general", {200: admin.Identity}),
)
# fmt: on
