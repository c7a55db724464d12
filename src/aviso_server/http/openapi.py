"""The OpenAPI document, of the routes of the table, and the AsyncAPI document, of the streams of every event type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aviso_server import __version__
from aviso_server.config.settings import Settings
from aviso_server.delivery import sse
from aviso_server.delivery.formats import ARROW, EVENT_STREAM, LINES, PARQUET
from aviso_server.delivery.sse import FRAMES, ControlFrame
from aviso_server.http.app import Access, Documented, Route
from aviso_server.http.request import ENCODINGS, LINE_TYPES
from aviso_server.http.response import ERRORS, ErrorBody, ErrorKind
from aviso_server.model.cloudevent import LIVE, REPLAY, Renderer
from aviso_server.model.event_type import TOPIC_BASE, Catalogue, EventType
from aviso_server.model.explain import DEFAULT_DAYS, MOST_DAYS
from aviso_server.model.fields import FIELD_TYPES, PAIR_SCHEMA, Field, PointCloudField, PolygonField
from aviso_server.model.json_schema import (
    filter_samples,
    filter_schema,
    generic_filter_schema,
    generic_published_schema,
    published_sample,
    published_schema,
)
from aviso_server.model.notification import Notification
from aviso_server.model.times import ACCEPTED, INSTANT_TEXT, SECOND, SEQUENCE_TEXT, Span

__all__ = ["FRAME_TABLE", "asyncapi_document", "component", "notification_schema", "openapi_document", "parameter"]

Schema = dict[str, Any]

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
    "subscriptions": "Have notifications kept for you, and sent to you or fetched by your workers.",
    "admin": "See how the server is doing, and remove notifications. Credentials are needed if the server checks them.",
}
_SCHEMES = {
    "bearer_jwt": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A JSON Web Token."},
    "basic": {"type": "http", "scheme": "basic", "description": "A name and a password."},
}
_CREDENTIALS: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES]
_SECURITY: dict[Access, list[dict[str, list[str]]]] = {
    "open": [],
    "reader": [{}, *_CREDENTIALS],
    "writer": [{}, *_CREDENTIALS],
    "user": _CREDENTIALS,
    "admin": _CREDENTIALS,
}
_EVERYWHERE = ("FORBIDDEN", "TOO_MANY_REQUESTS", "INTERNAL_ERROR", "SERVICE_UNAVAILABLE")
_REFERENCE = "#/components/schemas/{name}"
_REQUEST_ID = "6f0c1f0e-3c8b-4c0e-9d55-0a4f8f0b7a11"


def openapi_document(routes: Iterable[Route], catalogue: Catalogue, settings: Settings) -> Schema:
    """Build the document for these routes and event types."""
    documented = [route for route in routes if route.tag]
    types = dict.fromkeys(one for route in documented for _, answer in _documented(route) for one in answer.types)
    bodies = dict.fromkeys(route.body for route in documented if isinstance(route.body, type))
    schemas = {**_body_types(bodies), **answer_schemas([ErrorBody, *types])}
    paths: Schema = {}
    for route in documented:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, catalogue, settings)
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
        "paths": paths,
        "components": {
            "headers": {"X-Request-ID": header},
            "schemas": {
                **_body_schemas(catalogue),
                **schemas,
                **_event_type_schemas(),
                "CloudEvent": cloud_event_schema(),
            },
            "securitySchemes": _SCHEMES,
        },
    }


def _operation(route: Route, catalogue: Catalogue, settings: Settings) -> Schema:
    operation: Schema = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.words[0],
        "description": route.words[1],
        "security": _SECURITY[route.access],
    }
    own = {each["name"] for each in route.parameters}
    parameters = [*[_path_parameter(name, catalogue) for name in route.names if name not in own], *route.parameters]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = _request_body(route.body, catalogue, settings)
    operation["responses"] = _responses(route, catalogue, settings)
    return operation


_PATH_PARAMETERS = {
    "event_type": ("The name of the event type, letter for letter.", "mars"),
    "name": ("The name of a subscription of yours, or the id of any that you may see.", "my-steps"),
    "notification_id": ("`<stream>@<sequence>`; the stream is an event type or a topic base.", "mars@42"),
}


def _path_parameter(name: str, catalogue: Catalogue) -> Schema:
    words, example = _PATH_PARAMETERS[name]
    known = next(iter(catalogue.event_types), "mars")
    return parameter(name, "path", {"type": "string", "minLength": 1}, words, example=example.replace("mars", known))


def parameter(name: str, place: str, schema: Schema, words: str, **more: Any) -> Schema:
    """Describe a parameter of a path, a query or a header."""
    return {"name": name, "in": place, "required": place == "path", "description": words, "schema": schema, **more}


# Answers


def _responses(route: Route, catalogue: Catalogue, settings: Settings) -> Schema:
    answers: Schema = {}
    for status, documented in _documented(route):
        _add(answers, status, documented.words, _content(route, documented, catalogue, settings))
    if route.body is not None:
        for status, words in _refusals(route, settings).items():
            _add(answers, status, words, {"text/plain": {"schema": {"type": "string"}}})
    guarded = () if route.access == "open" else ("UNAUTHORIZED",)
    kinds = [ERRORS[code] for code in (*route.errors, *guarded, *_EVERYWHERE)]
    for status in sorted({kind.status for kind in kinds}):
        _add_errors(answers, route, [kind for kind in kinds if kind.status == status])
    if "404" not in answers:
        _add(answers, 404, "Only for another method or another path, even if it differs by a slash only.", {})
    for code, headers in _HEADERS.items():
        if code in answers:
            answers[code]["headers"] |= headers
    if route.access == "writer":
        answers["200"]["headers"] |= _REPLAYED
    return dict(sorted(answers.items()))


def _documented(route: Route) -> Iterator[tuple[int, Documented]]:
    for status, answer in route.answers.items():
        yield status, answer if isinstance(answer, Documented) else Documented(inspect.getdoc(answer) or "", (answer,))


_TEXT = {"type": "string"}
_HEADERS = {
    "401": {"WWW-Authenticate": {"description": "Which credentials are accepted, a line for each.", "schema": _TEXT}},
    "429": {"Retry-After": {"description": "Seconds after which to try again.", "schema": _TEXT}},
    "503": {"Retry-After": {"description": "Seconds after which to try again.", "schema": _TEXT}},
}
_REPLAYED = {
    "Idempotency-Replayed": {
        "description": "There if everything in this request was stored before, under the same key.",
        "schema": {"type": "string", "const": "true"},
    }
}


def _add(answers: Schema, status: int, words: str, content: Schema) -> None:
    """Add an answer; one status may have several bodies."""
    known = answers.get(str(status))
    if known is None:
        headers = {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}}
        answers[str(status)] = {"description": words, "headers": headers, **({"content": content} if content else {})}
        return
    known["description"] += f"\n\n{words}"
    for media_type, body in content.items():
        before = known["content"].get(media_type)
        if before is not None:
            schema = {"anyOf": [before["schema"], body["schema"]]}
            body = {"schema": schema, "examples": {**before.get("examples", {}), **body.get("examples", {})}}
        known["content"][media_type] = body


def _add_errors(answers: Schema, route: Route, kinds: list[ErrorKind]) -> None:
    words = "\n".join(f"* `{kind.code}`: {kind.when}" for kind in kinds)
    codes = {"properties": {"code": {"enum": [kind.code for kind in kinds]}}}
    schema = {"allOf": [_reference("ErrorBody"), codes]}
    examples = {kind.code: {"description": kind.when, "value": _error_example(kind, route)} for kind in kinds}
    _add(answers, kinds[0].status, words, {"application/json": {"schema": schema, "examples": examples}})


def _error_example(kind: ErrorKind, route: Route) -> Schema:
    label = kind.label or ("" if route.endpoint is None else route.endpoint.label)
    return {"code": kind.code, "error": label, "message": kind.when, "request_id": _REQUEST_ID}


def _refusals(route: Route, settings: Settings) -> dict[int, str]:
    """Return the answers in plain text to a body that cannot be taken."""
    limits = settings.limits
    too_large = {
        "batch": f"The body is larger than {limits.max_batch_bytes} bytes, or holds more than "
        f"{limits.max_batch_items} items.",
        "stream_name": "The body is larger than 2 MiB.",
    }.get(
        route.body if isinstance(route.body, str) else "",
        f"The body is larger than {limits.max_body_bytes} bytes, or its identifier too large.",
    )
    return {
        400: "Plain text: the body is not what `Content-Encoding` says.",
        408: "The request did not arrive in time.",
        413: too_large,
        415: f"Plain text: `Content-Encoding` is none of {', '.join(ENCODINGS)}.",
    }


def _content(route: Route, documented: Documented, catalogue: Catalogue, settings: Settings) -> Schema:
    if documented.media_type == EVENT_STREAM:
        examples = _stream_examples(route.name, catalogue, settings)
        others = _TABLES if route.name == "replay" else {}
        return {EVENT_STREAM: {"schema": _TEXT, "examples": examples}, **others}
    if not documented.media_type:
        return {}
    references = [_reference(one.__name__) for one in documented.types]
    if not references:
        return {documented.media_type: {"schema": _TEXT}}
    return {documented.media_type: {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}


_TABLES = {
    media_type: {"schema": {"type": "string", "description": words}}
    for media_type, words in {
        ARROW: "An Arrow stream with a typed column for every field. The metadata `aviso.ending` of its last batch, "
        "which has no rows, is `replay_completed` if everything is there.",
        PARQUET: "A Parquet file with the same columns. Its metadata has `aviso.ending` too; a replay that could not "
        "be completed has no footer and cannot be read.",
        LINES: "A CloudEvent per line, then one line with the body of the frame that ends a replay.",
    }.items()
}


def answer_schemas(types: Iterable[Any]) -> Schema:
    """Return the schemas of answers; members with a default are always sent."""
    schemas = _body_types(types)
    for schema in schemas.values():
        sent = [name for name, member in schema.get("properties", {}).items() if "default" in member]
        for name in sent:
            del schema["properties"][name]["default"]
        schema["required"] = [*schema.get("required", []), *sent]
    return schemas


def _body_types(types: Iterable[Any]) -> Schema:
    """Return the schemas of request bodies that are types; members with a default may be left out."""
    return msgspec.json.schema_components(types, ref_template=_REFERENCE)[1]


def _event_type_schemas() -> Schema:
    payload = {"type": ["object", "null"], "properties": {"required": {"type": "boolean"}}, "required": ["required"]}
    members = {
        "payload": {"description": "Whether a payload must be sent; null if nothing is said.", **payload},
        "identifier": {"type": "object", "additionalProperties": _reference("Field")},
    }
    return {
        "EventType": {**_closed(members), "description": "What an event type's notifications carry."},
        "Field": {
            "description": "A field of an identifier: its type and the limits of that type.",
            "anyOf": [_field(kind) for kind in FIELD_TYPES.values()],
        },
    }


def _field(kind: Any) -> Schema:
    """Return the definition of a field as the schema route shows it."""
    _, definitions = msgspec.json.schema_components([kind], ref_template="#/{name}")
    members = dict(definitions[kind.__name__]["properties"])
    for member in members.values():
        member.pop("default", None)
    members.pop("description")
    schema = _closed({"type": {"const": kind.type_name}, **members})
    schema["properties"]["description"] = _TEXT
    return schema


def _closed(members: Schema, required: Iterable[str] | None = None) -> Schema:
    """Return the schema of an object with these members, all of them required by default, and no others."""
    needed = list(members if required is None else required)
    return {"type": "object", "properties": members, "required": needed, "additionalProperties": False}


# Request bodies

_SAMPLE_PAYLOAD = {"location": "/archive/2025/07/06"}

_GENERIC = "OfAnyEventType"
_NAMES = {"notification": "Notification", "watch": "Watch", "replay": "Replay", "explain": "Explain"}
_IDENTIFIERS = {"notification": "Identifier", "watch": "Filter", "replay": "Filter", "explain": "Filter"}
_ABSENT = {"type": "null"}
_IGNORED_TEXT = {"type": ["string", "null"], "description": "Accepted and ignored."}
_PAYLOAD = "Any JSON value; readers get it as `data.payload`. null is the same as leaving it out."
_SEQUENCE_WORDS = "A sequence number as text. It is the number after the `@` in the `id` of an event."
_COMPRESSED = "The body may be compressed with gzip, deflate, br or zstd if `Content-Encoding` says so."
_EXPLAIN_MEMBERS: Schema = {
    "days": {
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": MOST_DAYS,
        "description": f"Try the filter on what was stored in so many days; {DEFAULT_DAYS} if it is left out. "
        "0 counts nothing, which is quick.",
        "examples": [DEFAULT_DAYS],
    },
    "notification_id": {
        "type": ["string", "null"],
        "pattern": "@[0-9]{1,18}$",
        "description": "Say which part of the filter keeps or drops this one: `<event type>@<sequence>`.",
    },
}


def _body_schemas(catalogue: Catalogue) -> Schema:
    schemas: Schema = {}
    for each in catalogue.event_types.values():
        schemas[component("Identifier", each.name)] = published_schema(each)
        schemas[component("Filter", each.name)] = filter_schema(each)
        for endpoint in _NAMES:
            schemas[component(_NAMES[endpoint], each.name)] = _configured(endpoint, each)
    if _takes_any_event_type(catalogue):
        schemas[f"Identifier{_GENERIC}"] = generic_published_schema()
        schemas[f"Filter{_GENERIC}"] = generic_filter_schema()
        for endpoint in _NAMES:
            schemas[f"{_NAMES[endpoint]}{_GENERIC}"] = _generic(endpoint, catalogue)
    return schemas


def _request_body(kind: str | type, catalogue: Catalogue, settings: Settings) -> Schema:
    if kind == "batch":
        return _batch_body(catalogue, settings)
    if kind == "stream_name":
        return _stream_name_body(catalogue)
    if isinstance(kind, type):
        content = {"schema": _reference(kind.__name__)}
    else:
        components = [component(_NAMES[kind], name) for name in catalogue.event_types]
        if _takes_any_event_type(catalogue):
            components.append(_NAMES[kind] + _GENERIC)
        examples = {name: {"value": value} for name, value in _examples(kind, catalogue).items()}
        content = {"schema": {"anyOf": [_reference(component) for component in components]}, "examples": examples}
    words = f"JSON, whatever the `Content-Type`. {_COMPRESSED}"
    return {"required": True, "description": words, "content": {"application/json": content}}


def _batch_body(catalogue: Catalogue, settings: Settings) -> Schema:
    samples = list(_examples("notification", catalogue).values())
    keyed = [{**sample, "idempotency_key": f"load-7/{place}"} for place, sample in enumerate(samples)]
    words = (
        "A notification as in the body of `/api/v1/notification`, and perhaps with an `idempotency_key` of its own. "
        "One that cannot be accepted does not harm the others."
    )
    # no `maxItems`: a larger batch is too large, not wrong
    array = {"type": "array", "items": {"description": words}}
    examples = {"every event type": {"value": samples}, "with keys": {"value": keyed}}
    lines = {"type": "string", "description": "A notification per line."}
    return {
        "required": True,
        "description": f"A JSON array of up to {settings.limits.max_batch_items} notifications, or one per line if the "
        f"`Content-Type` is {' or '.join(LINE_TYPES)}. {_COMPRESSED}",
        "content": {"application/json": {"schema": array, "examples": examples}, LINE_TYPES[0]: {"schema": lines}},
    }


def _stream_name_body(catalogue: Catalogue) -> Schema:
    example = next(iter(catalogue.event_types), "my_event")
    words = "An event type, a topic base or a stream name, in any letter case."
    name = {"type": "string", "description": words, "examples": [example]}
    schema = {"type": "object", "properties": {"stream_name": name}, "required": ["stream_name"]}
    content = {"schema": schema, "examples": {example: {"value": {"stream_name": example}}}}
    return {"required": True, "content": {"application/json": content}}


def _takes_any_event_type(catalogue: Catalogue) -> bool:
    # a strict server without event types refuses everything, but a list of alternatives must not be empty
    return not catalogue.strict or not catalogue.event_types


def component(name: str, event_type: str) -> str:
    """Return a component name for an event type: characters that are not allowed there become `.code.`."""
    return name + "." + re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}.", event_type)


def _reference(component: str) -> Schema:
    return {"$ref": f"#/components/schemas/{component}"}


def notification_schema(event_type: EventType, identifier: Schema) -> Schema:
    """Return the schema of what a publisher sends; `identifier` is that of its member."""
    return _body("notification", {"const": event_type.name}, identifier, bool(event_type.payload_required))


def notification_example(event_type: EventType) -> Schema:
    """Return a request that a publisher may send."""
    identifier = published_sample(event_type)
    return {"event_type": event_type.name, "identifier": identifier, "payload": _SAMPLE_PAYLOAD}


def _configured(endpoint: str, event_type: EventType) -> Schema:
    identifier = _reference(component(_IDENTIFIERS[endpoint], event_type.name))
    if endpoint == "notification":
        return notification_schema(event_type, identifier)
    return _body(endpoint, {"const": event_type.name}, identifier, False)


def _generic(endpoint: str, catalogue: Catalogue) -> Schema:
    identifier = _reference(_IDENTIFIERS[endpoint] + _GENERIC)
    name: Schema = {
        "type": "string",
        "description": "An event type that is not configured: it has any keys.",
        "pattern": f"^{TOPIC_BASE.pattern}$",
    }
    if catalogue.event_types:
        name["not"] = {"enum": list(catalogue.event_types)}
    return _body(endpoint, name, identifier, False)


def _body(endpoint: str, event_type: Schema, identifier: Schema, payload_required: bool) -> Schema:
    properties: Schema = {"event_type": event_type, "identifier": identifier}
    if endpoint == "notification":
        required = [*properties, *(["payload"] if payload_required else [])]
        types = {"type": ["object", "array", "string", "number", "boolean"]} if payload_required else {}
        properties["payload"] = {"description": _PAYLOAD, "examples": [_SAMPLE_PAYLOAD], **types}
        properties |= {"from_id": _IGNORED_TEXT, "from_date": _IGNORED_TEXT, "to_id": _ABSENT, "to_date": _ABSENT}
        return _closed(properties, required)
    schema = _closed(properties)
    properties["from_id"] = _sequence(f"Start here. {_SEQUENCE_WORDS} 0 is the beginning.", "1")
    properties["from_date"] = _instant("Start with what was stored at or after this time.", "2025-01-15T10:00:00Z")
    if endpoint == "replay":
        properties["to_id"] = _sequence(f"End here, inclusive. {_SEQUENCE_WORDS}", "10")
        properties["to_date"] = _instant("End with what was stored at or before this time.", "2025-01-16T10:00:00Z")
        schema["oneOf"] = [_start("from_id", "from_date"), _start("from_date", "from_id")]
        schema["not"] = _both("to_id", "to_date")
    else:
        properties |= {"to_id": _ABSENT, "to_date": _ABSENT}
        schema["not"] = _both("from_id", "from_date")
        if endpoint == "explain":
            properties |= _EXPLAIN_MEMBERS
    properties["payload"] = {"description": "Accepted and ignored."}
    return schema


def _sequence(words: str, example: str) -> Schema:
    return {"type": ["string", "null"], "pattern": SEQUENCE_TEXT, "description": words, "examples": [example]}


def _instant(words: str, example: str) -> Schema:
    words = f"{words} Accepts {ACCEPTED}."
    return {"type": ["string", "null"], "pattern": INSTANT_TEXT, "description": words, "examples": [example]}


def _start(given: str, other: str) -> Schema:
    return {"type": "object", "required": [given], "properties": {given: {"type": "string"}, other: _ABSENT}}


def _both(first: str, second: str) -> Schema:
    texts = {first: {"type": "string"}, second: {"type": "string"}}
    return {"type": "object", "required": [first, second], "properties": texts}


def _examples(endpoint: str, catalogue: Catalogue) -> Schema:
    """Return requests that this server accepts."""
    examples: Schema = {}
    for name, event_type in catalogue.event_types.items():
        if endpoint == "notification":
            examples[name] = notification_example(event_type)
            continue
        for title, identifier in filter_samples(event_type).items():
            request = {"event_type": name, "identifier": identifier}
            for words, start in _STARTS[endpoint].items():
                # every start once is enough to show how it is written
                if title == "required fields only" or not words:
                    examples[f"{name}: {title}{words}"] = {**request, **start}
    if not catalogue.strict:
        request = {"event_type": "my_event", "identifier": {"place": "oslo", "level": 3}}
        examples["an event type that is not configured"] = {**request, **_EXTRAS[endpoint]}
    return examples


_EXTRAS: dict[str, Schema] = {
    "notification": {"payload": _SAMPLE_PAYLOAD},
    "watch": {},
    "replay": {"from_id": "1"},
    "explain": {"days": 1},
}
_STARTS: dict[str, dict[str, Schema]] = {
    "watch": {"": {}, ", history from a sequence first": {"from_id": "1"}},
    "explain": {"": {}, ", tried on the last 30 days": {"days": 30}},
    "replay": {
        "": {"from_id": "1"},
        ", from a time on": {"from_date": "2025-01-15T10:00:00Z"},
        ", between two sequences": {"from_id": "1", "to_id": "10"},
    },
}


# Event streams

_NOON = 1_751_803_200 * SECOND  # 2025-07-06T12:00:00Z

FRAME_TABLE = """\
Every frame is an `event:` line, one `data:` line of JSON and an empty line. `Last-Event-ID` is ignored: to go on after
a break, send the last sequence plus one as `from_id`.

| `event:` | `data:` |
|---|---|
| `live-notification` | first `{"type": "connection_established", ...}`, then CloudEvents as they are published |
| `replay` | CloudEvents of history |
| `replay-control` | `replay_started`, `replay_completed` or `notification_replay_limit_reached` as `type` |
| `heartbeat` | a sign of life |
| `error` | something failed; if `error` is `stream_processing_failed` the stream ends |
| `connection-closing` | the last frame; `reason` is `end_of_stream`, `max_duration_reached` or `server_shutdown` |

A stream that ends without `replay_completed` did not deliver all of the history that was asked for."""


def _stream_examples(endpoint: str, catalogue: Catalogue, settings: Settings) -> Schema:
    """Return whole streams of the endpoint, as this server would write them."""
    live, history, topic = _events(catalogue, settings)
    pace = settings.watch_endpoint
    span = Span(from_sequence=7)
    opening = sse.replay_started(topic, _NOON, span, pace.replay_batch_size, _REQUEST_ID)
    completed = sse.completed(topic, _NOON)
    if endpoint == "replay":
        opening = sse.replay_started(topic, _NOON, span, pace.replay_batch_size, _REQUEST_ID, end_sequence=None)
        closing = sse.closing(topic, _NOON, "end_of_stream", _REQUEST_ID)
        failed = sse.stream_failed(topic, "the log could not be read", _REQUEST_ID)
        limit = pace.max_historical_notifications or 1
        return {
            "history": _example(opening, history, completed, closing),
            "history beyond the limit": _example(opening, history, sse.limit_reached(topic, _NOON, limit), closing),
            "a failure on the way": _example(opening, history, failed, closing),
        }
    duration = pace.connection_max_duration_sec
    established = sse.connection_established(topic, _NOON, duration, _REQUEST_ID)
    heartbeat = sse.heartbeat(topic, _NOON)
    closing = sse.closing(topic, _NOON + duration * SECOND, "max_duration_reached", _REQUEST_ID)
    return {
        "live": _example(established, heartbeat, live, closing),
        "history first": _example(opening, heartbeat, history, completed, live, closing),
    }


def cloud_event_schema() -> Schema:
    """Return the schema of a notification as readers get it."""
    members: Schema = {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "pattern": "@[0-9]+$", "description": "`<event type>@<sequence>`."},
        "type": {"type": "string", "pattern": "^int\\.ecmwf\\.aviso\\.", "description": "Ends in the event type."},
        "source": {"type": "string", "description": "The base URL of the server."},
        "time": {"type": "string", "format": "date-time", "description": "When it was stored, in UTC."},
        "sequence": {"type": "integer", "minimum": 1, "description": "Its number in the stream."},
        "datacontenttype": {"const": "application/json"},
        "dataschema": {"type": "string"},
        "data": {
            "type": "object",
            "properties": {
                "identifier": {
                    "type": "object",
                    "description": "Canonical values, as text; a point cloud is an array of pairs.",
                    "additionalProperties": {"type": ["string", "array"]},
                },
                "payload": {"description": "What the publisher sent; null if it sent nothing."},
            },
            "required": ["identifier", "payload"],
        },
    }
    return {
        "type": "object",
        "description": "A notification: the `data:` of `live-notification` and `replay` frames.",
        "properties": members,
        "required": list(members),
    }


def _events(catalogue: Catalogue, settings: Settings) -> tuple[bytes, bytes, str]:
    """Return a live event, one of history, and the topic of the request that gets them."""
    event_type, identifier, payload, topic = "my_event", b'{"level":"3","place":"oslo"}', b"null", "my_event.*.*"
    # an event type with plain text values makes the clearest example
    plain = (each for each in catalogue.event_types.values() if not each.shaped)
    if (first := next(plain, None)) is not None:
        draft = first.check(published_sample(first), _SAMPLE_PAYLOAD)
        event_type, identifier, payload = first.name, draft.identifier, draft.payload
        topic = first.compile(filter_samples(first)["required fields only"], "replay").topic
    renderer = Renderer(event_type, settings.application.base_url)
    stored = Notification(7, _NOON - 60 * SECOND, topic, identifier, payload)
    fresh = Notification(8, _NOON + SECOND, topic, identifier, payload)
    return renderer.frame(LIVE, fresh), renderer.frame(REPLAY, stored), topic


def _example(*parts: bytes) -> Schema:
    return {"value": b"".join(parts).decode()}


_ABOUT_STREAMS = f"""\
A stream is the answer to a POST request and comes as server-sent events. What to ask with is in the OpenAPI document
of the same server, `openapi.json`.

{FRAME_TABLE}"""


_OF_REPLAY = ("replay_started", "replay_completed", "notification_replay_limit_reached", "error", "connection_closing")


def asyncapi_document(routes: Iterable[Route], catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """Build the document for these event types: for each of them what is published, watched and replayed."""
    paths = {route.name: route.path for route in routes}
    address = urlsplit(settings.application.base_url)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages = {name: _control(name, frame) for name, frame in FRAMES.items()}
    for each in catalogue.event_types.values():
        event, request = component("Event", each.name), component("Notification", each.name)
        messages[event], messages[request] = _event(each), _request(each)
        for verb, route, told in (
            ("publish", "notify", [request]),
            ("watch", "watch", [event, *FRAMES]),
            ("replay", "replay", [event, *_OF_REPLAY]),
        ):
            name = component(verb, each.name)
            channels[name] = _channel(paths[route], f"{verb.capitalize()} {each.name}", told)
            operations[name] = _stream_operation(name, "receive" if verb == "publish" else "send", told)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Aviso notification streams",
            "version": __version__,
            "description": _ABOUT_STREAMS,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "this": {
                "host": address.netloc,
                "protocol": address.scheme,
                **({"pathname": address.path} if address.path.strip("/") else {}),
                "description": "This server, as application.base_url names it.",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _channel(path: str, title: str, told: list[str]) -> dict[str, Any]:
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in told}
    return {"address": path, "title": title, "messages": references}


def _stream_operation(name: str, action: str, told: list[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{each}"} for each in told],
        "bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}},
    }


def _control(name: str, frame: type[ControlFrame]) -> dict[str, Any]:
    payload = answer_schemas([frame])[frame.__name__]
    return {"name": frame.event, "title": name, "summary": payload.pop("description"), "payload": payload}


def _event(event_type: EventType) -> dict[str, Any]:
    """Describe a notification as readers get it, with the fields of its event type."""
    payload = cloud_event_schema()
    payload["properties"]["type"] = {"const": f"int.ecmwf.aviso.{event_type.name}"}
    payload["properties"]["data"]["properties"]["identifier"] = {
        "type": "object",
        "description": "Canonical values, as text.",
        "properties": {name: _delivered(field) for name, field in event_type.fields.items()},
    }
    return {
        "name": "live-notification",
        "title": f"Notification of {event_type.name}",
        "summary": "A CloudEvent; `event:` is live-notification as it is published, replay when it comes from history.",
        "payload": payload,
    }


def _delivered(field: Field) -> dict[str, Any]:
    words = {"description": field.description} if field.description else {}
    if isinstance(field, PolygonField):
        return {"type": ["array", "string"], "items": PAIR_SCHEMA, **words}
    if isinstance(field, PointCloudField):
        return {"type": "array", "items": PAIR_SCHEMA, **words}
    return {"type": "string", **words}


def _request(event_type: EventType) -> dict[str, Any]:
    """Describe what a publisher sends."""
    return {
        "name": "notification",
        "title": f"Publish a notification of {event_type.name}",
        "payload": notification_schema(event_type, published_schema(event_type)),
        "examples": [{"name": event_type.name, "payload": notification_example(event_type)}],
    }
