"""The AsyncAPI document of this server: its event streams, made from its configuration."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from aviso_server import __version__
from aviso_server.config.settings import Settings
from aviso_server.http.openapi.requests import SAMPLE_PAYLOAD, component
from aviso_server.http.openapi.streams import FRAMES, cloud_event_schema
from aviso_server.model.fields.base import PAIR_SCHEMA, Field
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.identifier_schema import published_sample, published_schema
from aviso_server.model.schema import Catalogue, EventType

__all__ = ["asyncapi_document"]

_ABOUT = f"""\
A stream is the answer to a POST request and comes as server-sent events. What to ask with is in the OpenAPI document
of the same server, `openapi.json`.

{FRAMES}"""

_TEXT = {"type": "string"}
_TIME = {"type": "string", "format": "date-time"}
_CONTROL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "connection_established": (
        "live-notification",
        "The first frame of a watch without a start.",
        {
            "type": {"const": "connection_established"},
            "topic": _TEXT,
            "timestamp": _TIME,
            "connection_will_close_in_seconds": {"type": "integer"},
            "request_id": _TEXT,
        },
    ),
    "replay_started": (
        "replay-control",
        "The first frame of a replay, and of a watch with a start.",
        {
            "type": {"const": "replay_started"},
            "topic": _TEXT,
            "timestamp": _TIME,
            "from_sequence": {"type": ["integer", "null"]},
            "from_date": {"type": ["string", "null"]},
            "batch_size": {"type": "integer"},
            "request_id": _TEXT,
        },
    ),
    "replay_completed": (
        "replay-control",
        "All of the history that was asked for has been delivered.",
        {"type": {"const": "replay_completed"}, "topic": _TEXT, "timestamp": _TIME},
    ),
    "notification_replay_limit_reached": (
        "replay-control",
        "There is more history than one request may have; ask again from a later start.",
        {
            "type": {"const": "notification_replay_limit_reached"},
            "topic": _TEXT,
            "timestamp": _TIME,
            "max_allowed": {"type": "integer"},
            "message": _TEXT,
        },
    ),
    "heartbeat": ("heartbeat", "A sign of life.", {"timestamp": _TIME, "topic": _TEXT}),
    "error": (
        "error",
        "Something failed; the stream ends after it.",
        {"error": _TEXT, "message": _TEXT, "topic": _TEXT, "request_id": _TEXT},
    ),
    "connection_closing": (
        "connection-closing",
        "The last frame; `reason` says why the stream ended.",
        {
            "reason": {"enum": ["end_of_stream", "max_duration_reached", "server_shutdown"]},
            "message": _TEXT,
            "topic": _TEXT,
            "timestamp": _TIME,
            "request_id": _TEXT,
        },
    ),
}
"""Frames that are no notifications: the name of the event, what it says, and its members."""

_OF_REPLAY = ("replay_started", "replay_completed", "notification_replay_limit_reached", "error", "connection_closing")


def asyncapi_document(catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """The document for these event types: for each of them what is published, watched and replayed."""
    address = urlsplit(settings.application.base_url)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages = {name: _control(name, *parts) for name, parts in _CONTROL.items()}
    for each in catalogue.event_types.values():
        event, request = component("Event", each.name), component("Notification", each.name)
        messages[event], messages[request] = _event(each), _request(each)
        for verb, path, told in (
            ("publish", "notification", [request]),
            ("watch", "watch", [event, *_CONTROL]),
            ("replay", "replay", [event, *_OF_REPLAY]),
        ):
            name = component(verb, each.name)
            channels[name] = _channel(f"/api/v1/{path}", f"{verb.capitalize()} {each.name}", told)
            operations[name] = _operation(name, "receive" if verb == "publish" else "send", told)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Aviso notification streams",
            "version": __version__,
            "description": _ABOUT,
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


def _operation(name: str, action: str, told: list[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{each}"} for each in told],
        "bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}},
    }


def _control(name: str, event: str, words: str, members: dict[str, Any]) -> dict[str, Any]:
    payload = {"type": "object", "properties": members, "required": list(members)}
    return {"name": event, "title": name, "summary": words, "payload": payload}


def _event(event_type: EventType) -> dict[str, Any]:
    """A notification as readers get it, with the fields of its event type."""
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
    if isinstance(field, PointCloudField):
        return {"type": "array", "items": PAIR_SCHEMA, **words}
    return {"type": "string", **words}


def _request(event_type: EventType) -> dict[str, Any]:
    """What a publisher sends."""
    needed = ["event_type", "identifier", *(["payload"] if event_type.payload_required else [])]
    example = {
        "event_type": event_type.name,
        "identifier": published_sample(event_type),
        "payload": SAMPLE_PAYLOAD,
    }
    payload = {
        "type": "object",
        "properties": {
            "event_type": {"const": event_type.name},
            "identifier": published_schema(event_type),
            "payload": {"description": "Any JSON value."},
        },
        "required": needed,
    }
    return {
        "name": "notification",
        "title": f"Publish a notification of {event_type.name}",
        "payload": payload,
        "examples": [{"name": event_type.name, "payload": example}],
    }
