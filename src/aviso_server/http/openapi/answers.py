"""The answers in the OpenAPI document: headers, statuses and bodies."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from aviso_server.archive.supervisor import State
from aviso_server.config.settings import Settings
from aviso_server.delivery.forms import ARROW, EVENT_STREAM, LINES, PARQUET
from aviso_server.http.openapi.batch import PLACE, REPLAYED
from aviso_server.http.openapi.errors import error_content, error_statuses
from aviso_server.http.openapi.objects import closed
from aviso_server.http.openapi.streams import FRAMES, REQUEST_ID, stream_examples
from aviso_server.model.fields import FIELD_TYPES
from aviso_server.model.schema import Catalogue

__all__ = [
    "answer_components",
    "deleted",
    "html",
    "identity",
    "json_body",
    "notified",
    "overview",
    "ready",
    "responses",
    "schema_list",
    "schema_one",
    "stream",
    "streams",
    "text",
    "wiped",
]

Answers = dict[str, dict[str, Any]]

_ID = {"$ref": "#/components/headers/X-Request-ID"}
_REQUEST_ID = {"type": "string", "format": "uuid"}
_TEXT = {"schema": {"type": "string"}}
_FORMS = {
    ARROW: {
        "schema": {
            "type": "string",
            "description": "An Arrow stream with a typed column for every field. The metadata `aviso.ending` of its "
            "last batch, which has no rows, is `replay_completed` if everything is there.",
        }
    },
    PARQUET: {
        "schema": {
            "type": "string",
            "description": "A Parquet file with the same columns. Its metadata has `aviso.ending` too; a replay that "
            "could not be completed has no footer and is no file.",
        }
    },
    LINES: {
        "schema": {
            "type": "string",
            "description": "A CloudEvent per line, then one line with the body of the frame that ends a replay.",
        }
    },
}
_NO_ROUTE = "Only for another method or another path, even if it differs by a slash only: the answer is empty."


def responses(endpoint: str, own: Answers) -> Answers:
    """All answers of an operation: its own, and the errors of its endpoint; a status may have several bodies."""
    answers: Answers = {status: _with_id(answer) for status, answer in own.items()}
    for status in error_statuses(endpoint):
        words, content = error_content(endpoint, status)
        answers[str(status)] = _merged(answers.get(str(status)), _with_id(json_body(words, content)))
    if "401" in answers:
        challenge = {"description": "Which credentials are accepted, a line for each.", "schema": {"type": "string"}}
        answers["401"]["headers"] = {**answers["401"]["headers"], "WWW-Authenticate": challenge}
    later = {"description": "Seconds after which to try again.", "schema": {"type": "string"}}
    for busy in {"429", "503"} & answers.keys():
        answers[busy]["headers"] = {**answers[busy]["headers"], "Retry-After": later}
    answers.setdefault("404", _with_id({"description": _NO_ROUTE}))
    return dict(sorted(answers.items()))


def json_body(words: str, content: dict[str, Any]) -> dict[str, Any]:
    """An answer in JSON."""
    return {"description": words, "content": {"application/json": content}}


def text(words: str) -> dict[str, Any]:
    """An answer in plain text."""
    return {"description": words, "content": {"text/plain": _TEXT}}


def html(words: str) -> dict[str, Any]:
    """A page."""
    return {"description": words, "content": {"text/html": _TEXT}}


def stream(endpoint: str, catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """The answer that is an event stream, or what a replay was asked for with `Accept`."""
    headers = {
        name: {"schema": {"type": "string", "const": value}}
        for name, value in (
            ("Cache-Control", "no-cache"),
            ("Access-Control-Allow-Origin", "*"),
            ("X-Accel-Buffering", "no"),
        )
    }
    content = {"schema": {"type": "string"}, "examples": stream_examples(endpoint, catalogue, settings)}
    forms = {EVENT_STREAM: content, **(_FORMS if endpoint == "replay" else {})}
    return {"description": FRAMES, "headers": headers, "content": forms}


def notified() -> dict[str, Any]:
    """The answer to a notification that was stored."""
    time = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}
    members = {"status": {"const": "success"}, "request_id": _REQUEST_ID, "processed_at": time}
    example = {"status": "success", "request_id": REQUEST_ID, "processed_at": "2025-07-06T12:00:00Z"}
    words = "The notification is stored. With an idempotency key, the answer says where."
    return {**json_body(words, {"schema": closed(members, PLACE), "example": example}), "headers": REPLAYED}


def ready(is_ready: bool) -> dict[str, Any]:
    """The answer about readiness."""
    state = "ready" if is_ready else "not_ready"
    members = {"status": {"const": state}, "backend_connected": {"const": is_ready}}
    words = "Notifications can be stored and read." if is_ready else "The place where notifications live is away."
    return json_body(words, {"schema": closed(members, {"archive": _archive()})})


def _archive() -> dict[str, Any]:
    number, text = {"type": "integer", "minimum": 0}, {"type": ["string", "null"]}
    stream = {
        "first": {**number, "description": "Oldest sequence that is archived."},
        "last": {**number, "description": "Newest sequence that is archived; 0 if none is."},
        "lag": {"type": ["integer", "null"], "description": "Sequences that are not archived yet."},
        "files": number,
        "bytes": number,
        "last_error": text,
    }
    members = {
        "state": {"enum": [*get_args(State)]},
        "job": {"type": "string"},
        "reason": {**text, "description": "Why it does not run, or what it complains of."},
        "streams": {"type": "object", "additionalProperties": closed(stream)},
        "log_waits": {"type": "boolean", "description": "Whether the log lets go only of what is archived."},
        "audit": _audit(),
    }
    return {**closed(members), "description": "How the archive is doing, on a server that has one."}


def _audit() -> dict[str, Any]:
    number, text = {"type": "integer", "minimum": 0}, {"type": "string"}
    verdict = {"enum": ["clean", "defects", "unchecked"]}
    defect = {"kind": text, "where": text, "first": number, "last": number}
    stream = {
        "event_type": text,
        "verdict": verdict,
        "defects": {**number, "description": "Sequences that have one."},
        "acknowledged": number,
        "lag": number,
        "first_defects": {"type": "array", "items": closed(defect)},
    }
    members = {
        "at": text,
        "verdict": verdict,
        "seconds": {"type": "number"},
        "streams": {"type": "object", "additionalProperties": closed(stream)},
    }
    return {
        "anyOf": [closed(members), {"type": "null"}],
        "description": "What the last audit found; null if there was none.",
    }


def identity() -> dict[str, Any]:
    """The answer about the caller."""
    text = {"type": ["string", "null"]}
    members = {
        "auth_enabled": {"type": "boolean", "description": "Whether the server checks credentials at all."},
        "username": text,
        "realm": text,
        "roles": {"type": "array", "items": {"type": "string"}},
        "admin": {"type": "boolean", "description": "Whether the admin operations are allowed."},
        "expires_at": {**text, "description": "When the token expires."},
        "request_id": _REQUEST_ID,
    }
    example = {
        "auth_enabled": True,
        "username": "reader-user",
        "realm": "localrealm",
        "roles": ["reader"],
        "admin": False,
        "expires_at": "2025-07-06T12:00:00Z",
        "request_id": REQUEST_ID,
    }
    return json_body("The caller.", {"schema": closed(members), "example": example})


def overview() -> dict[str, Any]:
    """The answer with what an operator wants to see."""
    number, text, maybe = {"type": "integer", "minimum": 0}, {"type": "string"}, {"type": ["integer", "null"]}
    retention = {"seconds": maybe, "max_messages": maybe, "max_bytes": maybe}
    watchers = dict.fromkeys(("live", "catching_up", "backlog_bytes", "furthest_behind"), number)
    stream = {
        "stream": text,
        "event_type": text,
        "configured": {"type": "boolean"},
        "first": {**number, "description": "Oldest sequence that the log holds; one more than `last` if it is empty."},
        "last": {**number, "description": "Newest sequence that was given out."},
        "count": number,
        "bytes": number,
        "trimmed": {**number, "description": "Newest sequence that retention has removed."},
        "retention": closed({**retention, "newest_of_each_topic_only": {"type": "boolean"}}),
        "watchers": closed(watchers),
    }
    watcher = {
        "event_type": text,
        "topic": text,
        "user": {"type": ["string", "null"]},
        "request_id": text,
        "catching_up": {"type": "boolean"},
        "behind": number,
        "backlog_bytes": number,
    }
    words = {"type": ["string", "null"]}
    record = {"time": text, "level": text, "message": text, "event": words, "request_id": words}
    overdue = {"event_type": text, "combination": text, "expected_at": text, "since": text}
    lateness = {
        "learned_at": {**words, "description": "When what is usual was learned; null if it has not been."},
        "watched": {**number, "description": "Combinations that are expected at some time."},
        "overdue_count": number,
        "overdue": {
            "type": "array",
            "items": closed(overdue),
            "description": "Those overdue for longest, at most 100.",
        },
    }
    members = {
        "time": text,
        "version": text,
        "log": closed({"kind": text, "connected": {"type": "boolean"}, "waiting": number}),
        "connections": number,
        "streams": {"type": "array", "items": closed(stream)},
        "slowest_watchers": {"type": "array", "items": closed(watcher)},
        "lateness": {"anyOf": [closed(lateness), {"type": "null"}]},
        "audit": _audit(),
        "quarantine": _quarantine(),
        "recent_errors": {"type": "array", "items": closed(record)},
        "request_id": _REQUEST_ID,
    }
    return json_body("What the server holds and who reads it.", {"schema": closed(members)})


def _quarantine() -> dict[str, Any]:
    number, text = {"type": "integer", "minimum": 0}, {"type": "string"}
    reason = {"code": text, "field": {"type": ["string", "null"]}, "reason": text, "rows": number}
    table = {
        "file": {**text, "description": "Its name in the folder `quarantine` in `archive.work_path`."},
        "event_type": text,
        "at": {**text, "description": "When the load refused them."},
        "rows": number,
        "reasons": {"type": "array", "items": closed(reason), "description": "Those with the most rows, at most 20."},
        "other_reasons": {**number, "description": "Rows that were refused for other reasons."},
    }
    members = {
        "count": {**number, "description": "How many tables there are."},
        "tables": {"type": "array", "items": closed(table), "description": "The newest, at most 20."},
    }
    words = "What loads have refused; null if they have put nothing aside on this machine."
    return {"anyOf": [closed(members), {"type": "null"}], "description": words}


def streams() -> dict[str, Any]:
    """The answer with the streams that there are."""
    number = {"type": "integer", "minimum": 0}
    stream = {
        "stream": {"type": "string", "description": "The topic base."},
        "event_type": {"type": "string", "description": "What to ask for."},
        "first": {**number, "description": "Oldest sequence that the log holds; one more than `last` if it is empty."},
        "last": {**number, "description": "Newest sequence that was given out."},
        "count": number,
        "bytes": number,
        "trimmed": {**number, "description": "Newest sequence that retention has removed."},
    }
    members = {
        "status": {"const": "success"},
        "streams": {"type": "array", "items": closed(stream)},
        "request_id": _REQUEST_ID,
    }
    return json_body("The streams.", {"schema": closed(members)})


def schema_list() -> dict[str, Any]:
    """The answer with all event types."""
    members = {
        "status": {"const": "success"},
        "total_schemas": {"type": "integer", "minimum": 0},
        "event_types": {"type": "array", "items": {"type": "string"}},
        "schema": {"type": "object", "additionalProperties": _reference("EventType")},
    }
    message = {"message": {"type": "string", "description": "Only if no schema is configured at all."}}
    return json_body("All event types.", {"schema": closed(members, message)})


def schema_one() -> Answers:
    """The answers with one event type, or with the names of those that exist."""
    members = {"status": {"const": "success"}, "event_type": {"type": "string"}, "schema": _reference("EventType")}
    refused = {"status": {"const": "error"}, "message": {"type": "string"}, "request_id": _REQUEST_ID}
    types = {"available_types": {"type": "array", "items": {"type": "string"}}}
    return {
        "200": json_body("The event type.", {"schema": closed(members)}),
        "404": json_body("There is no such event type.", {"schema": closed(refused, types)}),
    }


def deleted() -> Answers:
    """The answers to the removal of one notification."""
    words = {
        "200": "The notification is gone.",
        "400": "The id is not `<stream>@<sequence>` with a positive sequence.",
        "404": "There is no such notification.",
        "500": "The notification could not be deleted.",
    }
    return {status: _outcome(status, text, {"notification_id": {"type": "string"}}) for status, text in words.items()}


def wiped(words: dict[str, str]) -> Answers:
    """The answers to the removal of many notifications."""
    return {status: _outcome(status, text, {}) for status, text in words.items()}


def answer_components() -> dict[str, Any]:
    """The parts of answers that several operations share, by their names under `components.schemas`."""
    payload = {"type": ["object", "null"], "properties": {"required": {"type": "boolean"}}, "required": ["required"]}
    members = {
        "payload": {"description": "Whether a payload must be sent; null if nothing is said.", **payload},
        "identifier": {"type": "object", "additionalProperties": _reference("Field")},
    }
    return {
        "EventType": {**closed(members), "description": "What an event type's notifications carry."},
        "Field": {
            "description": "A field of an identifier: its type and the limits of that type.",
            "anyOf": [_field(kind) for kind in FIELD_TYPES.values()],
        },
    }


def _field(kind: Any) -> dict[str, Any]:
    """The definition of a field as the schema route shows it."""
    _, definitions = msgspec.json.schema_components([kind], ref_template="#/{name}")
    parameters = dict(definitions[kind.__name__]["properties"])
    for parameter in parameters.values():
        parameter.pop("default", None)
    description = {"description": {"type": "string"}}
    members = {name: schema for name, schema in parameters.items() if name != "description"}
    return closed({"type": {"const": kind.type_name}, **members}, description)


def _outcome(status: str, words: str, more: dict[str, Any]) -> dict[str, Any]:
    members = {"success": {"const": status == "200"}, "message": {"type": "string"}, **more, "request_id": _REQUEST_ID}
    return json_body(words, {"schema": closed(members)})


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _with_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "headers": {"X-Request-ID": _ID, **answer.get("headers", {})}}


def _merged(first: dict[str, Any] | None, second: dict[str, Any]) -> dict[str, Any]:
    """Two answers with the same status as one."""
    if first is None:
        return second
    bodies = dict(first["content"])
    for media_type, body in second["content"].items():
        if media_type in bodies:
            schemas = [
                *bodies[media_type]["schema"].get("anyOf", [bodies[media_type]["schema"]]),
                *body["schema"].get("anyOf", [body["schema"]]),
            ]
            body = {"schema": {"anyOf": schemas}, "examples": body.get("examples", {})}
        bodies[media_type] = body
    return {**first, "description": f"{first['description']}\n\n{second['description']}", "content": bodies}
