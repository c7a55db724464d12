"""The OpenAPI document of this server, made from its configuration."""

from __future__ import annotations

from typing import Any

from aviso_server import __version__
from aviso_server.config.settings import Settings
from aviso_server.http.openapi import answers
from aviso_server.http.openapi.batch import ALL_OR_NOTHING, KEY, batch_body, batch_outcomes
from aviso_server.http.openapi.explain import explained
from aviso_server.http.openapi.insight import FIELD, NAME, SPAN, insight_answers, insight_list
from aviso_server.http.openapi.requests import body_components, request_body, wipe_body
from aviso_server.http.openapi.streams import cloud_event_schema
from aviso_server.model.schema import Catalogue

__all__ = ["document"]

_ABOUT = """\
Publish notifications over HTTP, watch them live as server-sent events, or replay what was stored.

* Every answer has the header `X-Request-ID`; error bodies repeat it as `request_id`. Name it when you report a problem.
* A path or a method that is not described here is answered with 404 and an empty body.
* Errors are JSON with a `code` for programs and a `message` for people. Bodies that are too large or cannot be
  decompressed are answered in plain text.

A watch is a stream that stays open. Try it with a client that shows a stream as it comes, such as `curl -N`:
a page shows it only when it has ended."""

_TAGS = {
    "health": "Is the server alive and ready?",
    "general": "The console, and this description.",
    "schema": "Which event types there are and what their fields accept.",
    "notification": "Publish.",
    "streaming": "Watch and replay.",
    "admin": "See how the server is doing, and remove notifications. Credentials are needed if the server checks them.",
}
_SCHEMES = {
    "bearer_jwt": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A JSON Web Token."},
    "basic": {"type": "http", "scheme": "basic", "description": "A name and a password."},
}
_CREDENTIALS: list[dict[str, list[str]]] = [{"bearer_jwt": []}, {"basic": []}]
_WITH_OR_WITHOUT: list[dict[str, list[str]]] = [{}, *_CREDENTIALS]
_OPEN: list[dict[str, list[str]]] = []

_SLOW = "The request did not arrive in time."
_ENCODING = "Plain text: the body is not what `Content-Encoding` says."


def document(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """The document for these event types."""
    header = {"description": "The id of this request, new for each.", "schema": {"type": "string", "format": "uuid"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Aviso Notification Service API",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # relative to this document, so that it also holds behind a proxy that adds a prefix
        "servers": [{"url": "../", "description": "This server."}],
        "tags": [{"name": name, "description": words} for name, words in _TAGS.items()],
        "paths": {
            **_general(),
            **_schema(catalogue),
            **_posts(catalogue, settings),
            **_batch(catalogue, settings),
            **_explain(catalogue, settings),
            **_streams(),
            **_insight(catalogue),
            **_admin(catalogue),
            **_auth(),
        },
        "components": {
            "headers": {"X-Request-ID": header},
            "schemas": {
                **body_components(catalogue),
                **answers.answer_components(),
                "CloudEvent": cloud_event_schema(),
            },
            "securitySchemes": _SCHEMES,
        },
    }


def _general() -> dict[str, Any]:
    health = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    alive = answers.json_body("The server is alive.", {"schema": health, "example": {"status": "ok"}})
    return {
        "/health": {"get": _operation("health", "health", "Is the server alive?", _OPEN, "page", {"200": alive})},
        "/ready": {
            "get": _operation(
                "ready",
                "health",
                "Can notifications be stored and read?",
                _OPEN,
                "page",
                {"200": answers.ready(True), "503": answers.ready(False)},
            )
        },
        "/": {"get": _operation("home", "general", "The console", _OPEN, "page", {"200": answers.html("The page.")})},
    }


def _schema(catalogue: Catalogue) -> dict[str, Any]:
    name = _path_parameter("event_type", "The name of the event type, letter for letter.", "mars", catalogue)
    every = {"200": answers.schema_list()}
    return {
        "/api/v1/schema": {"get": _operation("list_schemas", "schema", "All event types", _OPEN, "page", every)},
        "/api/v1/schema/{event_type}": {
            "get": {
                **_operation("get_schema", "schema", "One event type", _OPEN, "page", answers.schema_one()),
                "parameters": [name],
            }
        },
    }


def _posts(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    summaries = {
        "notification": ("notify", "Publish a notification", "It is stored before the answer is sent."),
        "watch": (
            "watch",
            "Watch notifications as they are published",
            "With `from_id` or `from_date` the stream starts with history and then goes on live, without a gap.",
        ),
        "replay": ("replay", "Replay stored notifications", "The stream ends when the history has been delivered."),
    }
    limit = f"The body is larger than {settings.limits.max_body_bytes} bytes, or its identifier too large."
    paths: dict[str, Any] = {}
    for endpoint, (name, summary, words) in summaries.items():
        success = answers.notified() if endpoint == "notification" else answers.stream(endpoint, catalogue, settings)
        own = {"200": success, "400": answers.text(_ENCODING), "408": answers.text(_SLOW), "413": answers.text(limit)}
        tag = "notification" if endpoint == "notification" else "streaming"
        operation = _operation(name, tag, summary, _WITH_OR_WITHOUT, endpoint, own)
        body = request_body(endpoint, catalogue)
        paths[f"/api/v1/{endpoint}"] = {"post": {**operation, "description": words, "requestBody": body}}
    paths["/api/v1/notification"]["post"]["parameters"] = [KEY]
    return paths


def _batch(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    most = settings.limits
    limit = f"The body is larger than {most.max_batch_bytes} bytes, or holds more than {most.max_batch_items} items."
    own = {
        "200": batch_outcomes(),
        "400": answers.text(_ENCODING),
        "408": answers.text(_SLOW),
        "413": answers.text(limit),
    }
    summary = "Publish many notifications"
    operation = _operation("notify_many", "notification", summary, _WITH_OR_WITHOUT, "notifications", own)
    words = "They are stored together before the answer is sent, which says what became of each."
    body = {"parameters": [ALL_OR_NOTHING, KEY], "requestBody": batch_body(catalogue, settings)}
    return {"/api/v1/notifications": {"post": {**operation, "description": words, **body}}}


def _explain(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    limit = f"The body is larger than {settings.limits.max_body_bytes} bytes, or its identifier too large."
    own = {"200": explained(), "400": answers.text(_ENCODING), "408": answers.text(_SLOW), "413": answers.text(limit)}
    operation = _operation("explain", "streaming", "Explain a filter and try it", _WITH_OR_WITHOUT, "explain", own)
    words = (
        "What a watch request means, how many stored notifications of the last days it lets through, when and where, "
        "and which part of it keeps or drops a given notification."
    )
    body = {"description": words, "requestBody": request_body("explain", catalogue)}
    return {"/api/v1/explain": {"post": {**operation, **body}}}


def _streams() -> dict[str, Any]:
    operation = _operation(
        "list_streams",
        "streaming",
        "Streams and what the log holds",
        _WITH_OR_WITHOUT,
        "auth",
        {"200": answers.streams()},
    )
    words = "Those that the caller may read. The archive of this server begins its work here."
    return {"/api/v1/streams": {"get": {**operation, "description": words}}}


def _insight(catalogue: Catalogue) -> dict[str, Any]:
    every = answers.json_body("What there is, of the event types that the caller may read.", insight_list())
    found = answers.json_body("What the tables say.", insight_answers())
    name = _path_parameter("event_type", "The name of the event type, letter for letter.", "mars", catalogue)
    what = _operation("list_insight", "streaming", "What insight there is", _WITH_OR_WITHOUT, "auth", {"200": every})
    summary = "What was published, when, where and how late"
    one = _operation("get_insight", "streaming", summary, _WITH_OR_WITHOUT, "insight", {"200": found})
    words = "From tables that are made from the archive every few minutes."
    return {
        "/api/v1/insight": {"get": {**what, "description": words}},
        "/api/v1/insight/{event_type}/{name}": {
            "get": {**one, "description": words, "parameters": [name, NAME, *SPAN, FIELD]}
        },
    }


def _admin(catalogue: Catalogue) -> dict[str, Any]:
    words = "`<stream>@<sequence>`; the stream is an event type or a topic base."
    identifier = _path_parameter("notification_id", words, "mars@42", catalogue, "@42")
    wiped = {
        "200": "The notifications of the stream are gone; its numbering goes on.",
        "404": "There is no such stream.",
        "500": "The stream could not be wiped.",
    }
    all_wiped = {
        "200": "All notifications are gone; the numbering of every stream goes on.",
        "500": "Not every stream could be wiped.",
    }
    malformed = answers.text(
        f"Plain text: the body is not JSON with a `stream_name`, or its `Content-Type` is not JSON. {_ENCODING}"
    )
    of_stream = {**answers.wiped(wiped), "400": malformed, "408": answers.text(_SLOW)}
    of_stream["413"] = answers.text("The body is larger than 2 MiB.")
    one = _operation(
        "delete_notification", "admin", "Delete one notification", _CREDENTIALS, "admin", answers.deleted()
    )
    stream = _operation("wipe_stream", "admin", "Delete a stream's notifications", _CREDENTIALS, "admin", of_stream)
    everything = _operation(
        "wipe_all", "admin", "Delete all notifications", _CREDENTIALS, "admin", answers.wiped(all_wiped)
    )
    seen = _operation(
        "overview", "admin", "Streams, watchers and recent errors", _CREDENTIALS, "admin", {"200": answers.overview()}
    )
    return {
        "/api/v1/admin/overview": {"get": seen},
        "/api/v1/admin/notification/{notification_id}": {"delete": {**one, "parameters": [identifier]}},
        "/api/v1/admin/wipe/stream": {"delete": {**stream, "requestBody": wipe_body(catalogue)}},
        "/api/v1/admin/wipe/all": {"delete": everything},
    }


def _auth() -> dict[str, Any]:
    summary = "Who does the server think I am?"
    who = _operation("check_auth", "general", summary, _CREDENTIALS, "auth", {"200": answers.identity()})
    words = "On a server without authentication everybody is nobody in particular, and may do everything."
    return {"/api/v1/auth/check": {"get": {**who, "description": words}}}


def _operation(
    name: str,
    tag: str,
    summary: str,
    security: list[dict[str, list[str]]],
    endpoint: str,
    own: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "security": security,
        "responses": answers.responses(endpoint, own),
    }


def _path_parameter(name: str, words: str, example: str, catalogue: Catalogue, suffix: str = "") -> dict[str, Any]:
    known = next(iter(catalogue.event_types), None)
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": words,
        "schema": {"type": "string", "minLength": 1},
        "example": example if known is None else known + suffix,
    }
