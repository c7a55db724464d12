"""The one rendering of a notification: a CloudEvent in a server-sent event."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from urllib.parse import quote

from aviso_server.model.json_text import compact
from aviso_server.model.notification import Notification, Part, Rendered, Run
from aviso_server.model.shapes import ARRAY_MARK, TEXT_MARK, PolygonForm, geometry_problem, with_array, with_text
from aviso_server.model.times import event_time
from aviso_server.model.topic import display

__all__ = ["EMPTY_DIGEST", "LIVE", "REPLAY", "Renderer", "extend_digest"]

LIVE = b"live-notification"
REPLAY = b"replay"

EMPTY_DIGEST = bytes(32)
"""The digest of no events."""


def extend_digest(digest: bytes, event: bytes) -> bytes:
    """Return the digest of the events before and one more: SHA-256(digest + SHA-256(event)).

    An event is its JSON as it goes out, byte for byte.
    """
    return hashlib.sha256(digest + hashlib.sha256(event).digest()).digest()


_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]|~"  # that stay as they are in the address of a schema, beside letters and digits


class Renderer:
    """Renders the notifications of one event type; the parts that never change are encoded once."""

    __slots__ = ("_mark", "_parts", "_rewrite", "_template")

    def __init__(self, event_type: str, base_url: str, polygons: PolygonForm | None = None) -> None:
        """Build a renderer that writes polygons in the form `polygons`; None if the event type has no shapes."""
        self._mark, self._rewrite = _REWRITES[polygons]
        schema = compact(f"{base_url}/schema/{quote(event_type, safe=_URL_CHARACTERS)}")
        name = compact(event_type)[1:-1]
        self._parts: tuple[Part, ...] = (
            b'{"data":{"identifier":',
            "identifier",
            b',"payload":',
            "payload",
            b'},"datacontenttype":"application/json","dataschema":' + schema + b',"id":"' + name + b"@",
            "sequence",
            b'","sequence":',
            "sequence",
            b',"source":' + compact(base_url) + b',"specversion":"1.0","time":"',
            "time",
            b'","type":"int.ecmwf.aviso.' + name + b'"}',
        )
        self._template = b"".join(
            part.replace(b"%", b"%%") if isinstance(part, bytes) else b"%d" if part == "sequence" else b"%b"
            for part in self._parts
        )

    def event(self, notification: Notification) -> bytes:
        """Render the CloudEvent as compact JSON with sorted keys."""
        sequence, time = notification.sequence, event_time(notification.time).encode()
        return self._template % (self._shown(notification.identifier), notification.payload, sequence, sequence, time)

    def frame(self, name: bytes, notification: Notification) -> bytes:
        """Render the CloudEvent as a server-sent event of that name."""
        return b"event: " + name + b"\ndata: " + self.event(notification) + b"\n\n"

    def frames(self, name: bytes, notifications: Sequence[Notification], request_id: str = "") -> Rendered:
        """Render many events as one chunk: `frame` of each, written for speed.

        Of a notification whose geometry is malformed there is no event, but a frame `error`.
        """
        return self._joined(
            b"event: " + name + b"\ndata: ", b"\n\n", notifications, b"event: error\ndata: ", request_id
        )

    def lines(self, notifications: Sequence[Notification], request_id: str = "") -> Rendered:
        """Render many events as one chunk: `event` of each on a line of its own."""
        return self._joined(b"", b"\n", notifications, b"", request_id)

    def can_render(self, notification: Notification) -> bool:
        """Return False if the stored geometry is malformed, so that there is no event of it."""
        return self._rewrite is None or geometry_problem(notification.identifier) is None

    def _joined(
        self, before: bytes, after: bytes, notifications: Sequence[Notification], before_error: bytes, request_id: str
    ) -> Rendered:
        if isinstance(notifications, Run):
            if self._rewrite is not None:
                notifications = notifications.rewritten(self._mark, self._rewrite)
            return notifications.joined((before, *self._parts, after))
        template = before + self._template + after
        pieces = []
        last_time, time = -1, b""
        for notification in notifications:
            if notification.time != last_time:  # what was stored together has one time
                last_time = notification.time
                time = event_time(last_time).encode()
            sequence = notification.sequence
            if self._rewrite is not None and (problem := geometry_problem(notification.identifier)) is not None:
                pieces.append(before_error + _failure(notification, problem, request_id) + after)
                continue
            identifier = self._shown(notification.identifier)
            pieces.append(template % (identifier, notification.payload, sequence, sequence, time))
        return b"".join(pieces)

    def _shown(self, identifier: bytes) -> bytes:
        return identifier if self._rewrite is None else self._rewrite(identifier)


def _failure(notification: Notification, problem: str, request_id: str) -> bytes:
    return compact(
        {
            "error": "CloudEvent creation failed",
            "message": problem,
            "topic": display(notification.topic),
            "sequence": notification.sequence,
            "request_id": request_id,
        }
    )


_REWRITES: dict[PolygonForm | None, tuple[bytes, Callable[[bytes], bytes] | None]] = {
    None: (b"", None),
    "array": (TEXT_MARK, with_array),
    "text": (ARRAY_MARK, with_text),
}
"""For each form: the mark of identifiers that are not in it yet, and the function that rewrites them."""
