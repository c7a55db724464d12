"""The AsyncAPI document of this server: its event streams, made from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from aviso_server import __version__
from aviso_server.config.settings import Settings
from aviso_server.delivery.sse import FRAMES, ControlFrame
from aviso_server.http.openapi import (
    FRAME_TABLE,
    answer_schemas,
    cloud_event_schema,
    component,
    notification_example,
    notification_schema,
)
from aviso_server.http.routing import Route
from aviso_server.model.event_type import Catalogue, EventType
from aviso_server.model.fields import PAIR_SCHEMA, Field, PointCloudField, PolygonField
from aviso_server.model.json_schema import published_schema

__all__ = ["asyncapi_document"]

_ABOUT = f"""\
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
