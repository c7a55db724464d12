"""The event streams in the OpenAPI document: what the frames are, and whole streams as examples."""

from __future__ import annotations

from typing import Any

from aviso_server.config.settings import Settings
from aviso_server.delivery import frames
from aviso_server.http.openapi.requests import SAMPLE_PAYLOAD
from aviso_server.model.cloudevent import LIVE, REPLAY, Renderer
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.identifier_schema import filter_samples, published_sample
from aviso_server.model.notification import Notification
from aviso_server.model.schema import Catalogue
from aviso_server.model.span import Span
from aviso_server.model.timestamp import SECOND

__all__ = ["FRAMES", "REQUEST_ID", "cloud_event_schema", "stream_examples"]

REQUEST_ID = "6f0c1f0e-3c8b-4c0e-9d55-0a4f8f0b7a11"

_NOON = 1_751_803_200 * SECOND  # 2025-07-06T12:00:00Z

FRAMES = """\
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


def stream_examples(endpoint: str, catalogue: Catalogue, settings: Settings) -> dict[str, Any]:
    """Whole streams of the endpoint, as this server would write them."""
    live, history, topic = _events(catalogue, settings)
    pace = settings.watch_endpoint
    span = Span(from_sequence=7)
    opening = frames.replay_started(topic, _NOON, span, pace.replay_batch_size, REQUEST_ID)
    completed = frames.completed(topic, _NOON)
    if endpoint == "replay":
        opening = frames.replay_started(topic, _NOON, span, pace.replay_batch_size, REQUEST_ID, end_sequence=None)
        closing = frames.closing(topic, _NOON, "end_of_stream", REQUEST_ID)
        failed = frames.stream_failed(topic, "the log could not be read", REQUEST_ID)
        limit = pace.max_historical_notifications or 1
        return {
            "history": _example(opening, history, completed, closing),
            "history beyond the limit": _example(opening, history, frames.limit_reached(topic, _NOON, limit), closing),
            "a failure on the way": _example(opening, history, failed, closing),
        }
    duration = pace.connection_max_duration_sec
    established = frames.connection_established(topic, _NOON, duration, REQUEST_ID)
    heartbeat = frames.heartbeat(topic, _NOON)
    closing = frames.closing(topic, _NOON + duration * SECOND, "max_duration_reached", REQUEST_ID)
    return {
        "live": _example(established, heartbeat, live, closing),
        "history first": _example(opening, heartbeat, history, completed, live, closing),
    }


def cloud_event_schema() -> dict[str, Any]:
    """A notification as readers get it."""
    members: dict[str, Any] = {
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
    """A live event, one of history, and the topic of the request that gets them."""
    event_type, identifier, payload, topic = "my_event", b'{"level":"3","place":"oslo"}', b"null", "my_event.*.*"
    # an event type with plain text values makes the clearest example
    plain = (
        each
        for each in catalogue.event_types.values()
        if not any(isinstance(field, PointCloudField) for field in each.fields.values())
    )
    if (first := next(plain, None)) is not None:
        draft = first.check(published_sample(first), SAMPLE_PAYLOAD)
        event_type, identifier, payload = first.name, draft.identifier, draft.payload
        topic = first.compile(filter_samples(first)["required fields only"], "replay").topic
    renderer = Renderer(event_type, settings.application.base_url)
    stored = Notification(7, _NOON - 60 * SECOND, topic, identifier, payload)
    fresh = Notification(8, _NOON + SECOND, topic, identifier, payload)
    return renderer.frame(LIVE, fresh), renderer.frame(REPLAY, stored), topic


def _example(*parts: bytes) -> dict[str, Any]:
    return {"value": b"".join(parts).decode()}
