"""The one rendering of a notification: a CloudEvent in a server-sent event."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from aviso_server.model.json_value import compact
from aviso_server.model.notification import Notification
from aviso_server.model.run import Rendered, Run
from aviso_server.model.timestamp import event_time

__all__ = ["LIVE", "REPLAY", "Renderer"]

LIVE = b"live-notification"
REPLAY = b"replay"

_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]|~"  # that stay as they are in the address of a schema, beside letters and digits


class Renderer:
    """Renders the notifications of one event type; the parts that never change are encoded once."""

    __slots__ = ("_after_id", "_after_sequence", "_end", "_middle", "_start")

    def __init__(self, event_type: str, base_url: str) -> None:
        schema = compact(f"{base_url}/schema/{quote(event_type, safe=_URL_CHARACTERS)}")
        name = compact(event_type)[1:-1]
        self._start = b'{"data":{"identifier":'
        self._middle = b'},"datacontenttype":"application/json","dataschema":' + schema + b',"id":"' + name + b"@"
        self._after_id = b'","sequence":'
        self._after_sequence = b',"source":' + compact(base_url) + b',"specversion":"1.0","time":"'
        self._end = b'","type":"int.ecmwf.aviso.' + name + b'"}'

    def event(self, notification: Notification) -> bytes:
        """The CloudEvent as compact JSON with sorted keys."""
        sequence = b"%d" % notification.sequence
        return b"".join(
            (
                self._start,
                notification.identifier,
                b',"payload":',
                notification.payload,
                self._middle,
                sequence,
                self._after_id,
                sequence,
                self._after_sequence,
                event_time(notification.time).encode(),
                self._end,
            )
        )

    def frame(self, name: bytes, notification: Notification) -> bytes:
        """The CloudEvent as a server-sent event of that name."""
        return b"event: " + name + b"\ndata: " + self.event(notification) + b"\n\n"

    def frames(self, name: bytes, notifications: Sequence[Notification]) -> Rendered:
        """Many events as one piece of bytes: `frame` of each, written for speed."""
        return self._joined(b"event: " + name + b"\ndata: ", b"\n\n", notifications)

    def lines(self, notifications: Sequence[Notification]) -> Rendered:
        """Many events as one piece of bytes: `event` of each on a line of its own."""
        return self._joined(b"", b"\n", notifications)

    def _joined(self, before: bytes, after: bytes, notifications: Sequence[Notification]) -> Rendered:
        if isinstance(notifications, Run):
            return notifications.joined(
                (
                    before + self._start,
                    "identifier",
                    b',"payload":',
                    "payload",
                    self._middle,
                    "sequence",
                    self._after_id,
                    "sequence",
                    self._after_sequence,
                    "time",
                    self._end + after,
                )
            )
        template = (
            before
            + self._start
            + b'%b,"payload":%b'
            + self._middle.replace(b"%", b"%%")
            + b"%d"
            + self._after_id
            + b"%d"
            + self._after_sequence.replace(b"%", b"%%")
            + b"%b"
            + self._end.replace(b"%", b"%%")
            + after
        )
        pieces = []
        last_time, time = -1, b""
        for notification in notifications:
            if notification.time != last_time:  # what was stored together has one time
                last_time = notification.time
                time = event_time(last_time).encode()
            sequence = notification.sequence
            pieces.append(template % (notification.identifier, notification.payload, sequence, sequence, time))
        return b"".join(pieces)
