"""The request bodies in the OpenAPI document: one schema per event type, and examples that work."""

from __future__ import annotations

import re
from typing import Any

from aviso_server.http.openapi.explain import explain_members
from aviso_server.model.identifier_schema import (
    filter_samples,
    filter_schema,
    generic_filter_schema,
    generic_published_schema,
    published_sample,
    published_schema,
)
from aviso_server.model.schema import TOPIC_BASE, Catalogue, EventType
from aviso_server.model.span import SEQUENCE_TEXT
from aviso_server.model.timestamp import ACCEPTED, INSTANT_TEXT

__all__ = ["SAMPLE_PAYLOAD", "body_components", "component", "request_body", "wipe_body"]

SAMPLE_PAYLOAD = {"location": "/archive/2025/07/06"}

_GENERIC = "OfAnyEventType"
_NAMES = {"notification": "Notification", "watch": "Watch", "replay": "Replay", "explain": "Explain"}
_IDENTIFIERS = {"notification": "Identifier", "watch": "Filter", "replay": "Filter", "explain": "Filter"}
_ABSENT = {"type": "null"}
_IGNORED_TEXT = {"type": ["string", "null"], "description": "Accepted and ignored."}
_PAYLOAD = "Any JSON value; readers get it as `data.payload`. null is the same as leaving it out."
_SEQUENCE_WORDS = "A sequence number as text. It is the number after the `@` in the `id` of an event."


def body_components(catalogue: Catalogue) -> dict[str, Any]:
    """The schemas of all request bodies, by their names under `components`."""
    schemas: dict[str, Any] = {}
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


def request_body(endpoint: str, catalogue: Catalogue) -> dict[str, Any]:
    """The body of notification, watch, replay or explain."""
    components = [component(_NAMES[endpoint], name) for name in catalogue.event_types]
    if _takes_any_event_type(catalogue):
        components.append(_NAMES[endpoint] + _GENERIC)
    references = [_reference(component) for component in components]
    examples = {name: {"value": value} for name, value in _examples(endpoint, catalogue).items()}
    return {
        "required": True,
        "description": "JSON. The `Content-Type` is not looked at; the body may be compressed with gzip, deflate, br "
        "or zstd if `Content-Encoding` says so.",
        "content": {"application/json": {"schema": {"anyOf": references}, "examples": examples}},
    }


def wipe_body(catalogue: Catalogue) -> dict[str, Any]:
    """The body of the request that empties one stream."""
    example = next(iter(catalogue.event_types), "my_event")
    schema = {
        "type": "object",
        "properties": {
            "stream_name": {
                "type": "string",
                "description": "An event type, a topic base or a stream name, in any letter case.",
                "examples": [example],
            }
        },
        "required": ["stream_name"],
    }
    content = {"schema": schema, "examples": {example: {"value": {"stream_name": example}}}}
    return {"required": True, "content": {"application/json": content}}


def _takes_any_event_type(catalogue: Catalogue) -> bool:
    # a strict server without event types refuses everything, but a list of alternatives must not be empty
    return not catalogue.strict or not catalogue.event_types


def component(name: str, event_type: str) -> str:
    """A component name for any event type: characters that are not allowed there become `.code.`."""
    return name + "." + re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}.", event_type)


def _reference(component: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{component}"}


def _configured(endpoint: str, event_type: EventType) -> dict[str, Any]:
    identifier = _reference(component(_IDENTIFIERS[endpoint], event_type.name))
    return _body(endpoint, {"const": event_type.name}, identifier, bool(event_type.payload_required))


def _generic(endpoint: str, catalogue: Catalogue) -> dict[str, Any]:
    identifier = _reference(_IDENTIFIERS[endpoint] + _GENERIC)
    name: dict[str, Any] = {
        "type": "string",
        "description": "An event type that is not configured: it has any keys.",
        "pattern": f"^{TOPIC_BASE.pattern}$",
    }
    if catalogue.event_types:
        name["not"] = {"enum": list(catalogue.event_types)}
    return _body(endpoint, name, identifier, False)


def _body(
    endpoint: str, event_type: dict[str, Any], identifier: dict[str, Any], payload_required: bool
) -> dict[str, Any]:
    properties: dict[str, Any] = {"event_type": event_type, "identifier": identifier}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": ["event_type", "identifier"],
        "additionalProperties": False,
    }
    if endpoint == "notification":
        needed = payload_required
        types = {"type": ["object", "array", "string", "number", "boolean"]} if needed else {}
        properties["payload"] = {"description": _PAYLOAD, "examples": [SAMPLE_PAYLOAD], **types}
        properties |= {"from_id": _IGNORED_TEXT, "from_date": _IGNORED_TEXT, "to_id": _ABSENT, "to_date": _ABSENT}
        schema["required"] = ["event_type", "identifier", *(["payload"] if needed else [])]
        return schema
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
            properties |= explain_members()
    properties["payload"] = {"description": "Accepted and ignored."}
    return schema


def _sequence(words: str, example: str) -> dict[str, Any]:
    return {"type": ["string", "null"], "pattern": SEQUENCE_TEXT, "description": words, "examples": [example]}


def _instant(words: str, example: str) -> dict[str, Any]:
    words = f"{words} Accepts {ACCEPTED}."
    return {"type": ["string", "null"], "pattern": INSTANT_TEXT, "description": words, "examples": [example]}


def _start(given: str, other: str) -> dict[str, Any]:
    return {"type": "object", "required": [given], "properties": {given: {"type": "string"}, other: _ABSENT}}


def _both(first: str, second: str) -> dict[str, Any]:
    texts = {first: {"type": "string"}, second: {"type": "string"}}
    return {"type": "object", "required": [first, second], "properties": texts}


def _examples(endpoint: str, catalogue: Catalogue) -> dict[str, Any]:
    """Requests that this server accepts."""
    examples: dict[str, Any] = {}
    for name, event_type in catalogue.event_types.items():
        if endpoint == "notification":
            examples[name] = {
                "event_type": name,
                "identifier": published_sample(event_type),
                "payload": SAMPLE_PAYLOAD,
            }
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


_EXTRAS: dict[str, dict[str, Any]] = {
    "notification": {"payload": SAMPLE_PAYLOAD},
    "watch": {},
    "replay": {"from_id": "1"},
    "explain": {"days": 1},
}
_STARTS: dict[str, dict[str, dict[str, Any]]] = {
    "watch": {"": {}, ", history from a sequence first": {"from_id": "1"}},
    "explain": {"": {}, ", tried on the last 30 days": {"days": 30}},
    "replay": {
        "": {"from_id": "1"},
        ", from a time on": {"from_date": "2025-01-15T10:00:00Z"},
        ", between two sequences": {"from_id": "1", "to_id": "10"},
    },
}
