"""The AsyncAPI document of this server: its event streams, made from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from aviso_server import __version__
from aviso_server.config.settings import Settings
from aviso_server.http.openapi import FRAMES, SAMPLE_PAYLOAD, cloud_event_schema, component
from aviso_server.http.response import Instant
from aviso_server.http.routing import Route
from aviso_server.model.event_type import Catalogue, EventType
from aviso_server.model.fields.areas import PointCloudField, PolygonField
from aviso_server.model.fields.field import PAIR_SCHEMA, Field
from aviso_server.model.json_schema import published_sample, published_schema

__all__ = ["asyncapi_document"]

_ABOUT = f"""\
A stream is the answer to a POST request and comes as server-sent events. What to ask with is in the OpenAPI document
of the same server, `openapi.json`.

{FRAMES}"""


class ConnectionEstablished(msgspec.Struct):
    """The first frame of a watch without a start."""

    type: Literal["connection_established"]
    topic: str
    timestamp: Instant
    connection_will_close_in_seconds: int
    request_id: str


class ReplayStarted(msgspec.Struct):
    """The first frame of a replay, and of a watch with a start."""

    type: Literal["replay_started"]
    topic: str
    timestamp: Instant
    from_sequence: int | None
    from_date: str | None
    batch_size: int
    request_id: str


class ReplayCompleted(msgspec.Struct):
    """All of the history that was asked for has been delivered."""

    type: Literal["replay_completed"]
    topic: str
    timestamp: Instant


class ReplayReceipt(msgspec.Struct):
    """What a replay has sent, if its reader asked for a receipt."""

    type: Literal["replay_receipt"]
    topic: str
    timestamp: Instant
    count: int
    of: int | None
    first_sequence: int | None
    last_sequence: int | None
    digest: str
    watermark: int


class ReplayLimitReached(msgspec.Struct):
    """There is more history than one request may have; ask again from a later start."""

    type: Literal["notification_replay_limit_reached"]
    topic: str
    timestamp: Instant
    max_allowed: int
    message: str


class Heartbeat(msgspec.Struct):
    """A sign of life."""

    timestamp: Instant
    topic: str


class StreamError(msgspec.Struct):
    """Something failed; the stream ends after it."""

    error: str
    message: str
    topic: str
    request_id: str


class ConnectionClosing(msgspec.Struct):
    """The last frame; `reason` says why the stream ended."""

    reason: Literal["end_of_stream", "max_duration_reached", "server_shutdown"]
    message: str
    topic: str
    timestamp: Instant
    request_id: str


_FRAMES: dict[str, tuple[str, type]] = {
    "connection_established": ("live-notification", ConnectionEstablished),
    "replay_started": ("replay-control", ReplayStarted),
    "replay_completed": ("replay-control", ReplayCompleted),
    "replay_receipt": ("replay-control", ReplayReceipt),
    "notification_replay_limit_reached": ("replay-control", ReplayLimitReached),
    "heartbeat": ("heartbeat", Heartbeat),
    "error": ("error", StreamError),
    "connection_closing": ("connection-closing", ConnectionClosing),
}
"""Frames that are no notifications: the name of the event, and its members."""

_OF_REPLAY = ("replay_started", "replay_completed", "notification_replay_limit_reached", "error", "connection_closing")


def asyncapi_document(routes: Iterable[Route], catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """Build the document for these event types: for each of them what is published, watched and replayed."""
    paths = {route.name: route.path for route in routes}
    address = urlsplit(settings.application.base_url)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages = {name: _control(name, *parts) for name, parts in _FRAMES.items()}
    for each in catalogue.event_types.values():
        event, request = component("Event", each.name), component("Notification", each.name)
        messages[event], messages[request] = _event(each), _request(each)
        for verb, route, told in (
            ("publish", "notify", [request]),
            ("watch", "watch", [event, *_FRAMES]),
            ("replay", "replay", [event, *_OF_REPLAY]),
        ):
            name = component(verb, each.name)
            channels[name] = _channel(paths[route], f"{verb.capitalize()} {each.name}", told)
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


def _control(name: str, event: str, frame: Any) -> dict[str, Any]:
    payload = msgspec.json.schema_components([frame], ref_template="#/{name}")[1][frame.__name__]
    return {"name": event, "title": name, "summary": payload.pop("description"), "payload": payload}


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
