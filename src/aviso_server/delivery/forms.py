"""The forms that a replay can be written in: server-sent events, lines of JSON, an Arrow stream, a Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

import msgspec

from aviso_server.delivery import frames
from aviso_server.model.cloudevent import REPLAY, Renderer
from aviso_server.model.notification import Notification
from aviso_server.model.run import Rendered

__all__ = [
    "ARROW",
    "EVENT_STREAM",
    "LINES",
    "PARQUET",
    "Bounds",
    "EventStream",
    "Form",
    "JsonLines",
    "Render",
    "TableForm",
]

EVENT_STREAM = "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"

Render = Callable[[Sequence[Notification]], Rendered]
"""Makes the bytes that a client gets of notifications; called outside of the event loop."""


class Bounds(msgspec.Struct, frozen=True):
    """What a span means in a stream as it is now."""

    start: int  # the first sequence that may be in it
    end: int  # the last one
    first: int  # the oldest sequence still held
    last: int  # the newest sequence ever given out
    trimmed: int  # the newest sequence that retention has removed


class Form(Protocol):
    """How a replay looks on the wire: notifications, and one of several endings."""

    breaks_off: ClassVar[bool]
    """Whether an incomplete replay ends as a broken transfer, because its readers may not look for an ending."""
    watchful: ClassVar[bool]
    """Whether the replay ends with an error when retention was faster than its reader."""
    plain: ClassVar[bool]
    """Whether a notification looks the same whatever came before it, and does not show its topic."""

    @property
    def render(self) -> Render:
        """Notifications as they go out."""

    def completed(self, time: int) -> bytes:
        """Everything was sent."""

    def limit_reached(self, time: int, limit: int) -> bytes:
        """As much as one request may have was sent, and there is more."""

    def failed(self, message: str) -> bytes:
        """The rest could not be read."""

    def closing(self, time: int, reason: frames.Reason) -> bytes:
        """The very end."""


class TableForm(Form, Protocol):
    """A form that is asked for, with a content type of its own."""

    content_type: ClassVar[str]

    def opening(self, bounds: Bounds) -> bytes:
        """What comes before the notifications."""


class EventStream:
    """Server-sent events, as the contract has them; the opening frame is out already."""

    breaks_off: ClassVar[bool] = False
    watchful: ClassVar[bool] = False
    plain: ClassVar[bool] = True

    def __init__(self, topic: str, renderer: Renderer, request_id: str) -> None:
        self._topic = topic
        self._request_id = request_id
        self.render: Render = partial(renderer.frames, REPLAY)

    def completed(self, time: int) -> bytes:
        """The frame `replay_completed`."""
        return frames.completed(self._topic, time)

    def limit_reached(self, time: int, limit: int) -> bytes:
        """The frame `notification_replay_limit_reached`."""
        return frames.limit_reached(self._topic, time, limit)

    def failed(self, message: str) -> bytes:
        """The frame `error`."""
        return frames.stream_failed(self._topic, message, self._request_id)

    def closing(self, time: int, reason: frames.Reason) -> bytes:
        """The frame `connection-closing`."""
        return frames.closing(self._topic, time, reason, self._request_id)


class JsonLines:
    """One CloudEvent per line, then one line that says how it ended; for people and their tools."""

    content_type: ClassVar[str] = LINES
    breaks_off: ClassVar[bool] = True
    watchful: ClassVar[bool] = True
    plain: ClassVar[bool] = True

    def __init__(self, topic: str, renderer: Renderer, request_id: str) -> None:
        self._frames = EventStream(topic, renderer, request_id)
        self._ended = False
        self.render: Render = renderer.lines

    def opening(self, bounds: Bounds) -> bytes:
        """Nothing: the first line is a notification."""
        return b""

    def completed(self, time: int) -> bytes:
        """The body of `replay_completed`."""
        return self._last_line(self._frames.completed(time))

    def limit_reached(self, time: int, limit: int) -> bytes:
        """The body of `notification_replay_limit_reached`."""
        return self._last_line(self._frames.limit_reached(time, limit))

    def failed(self, message: str) -> bytes:
        """The body of `error`."""
        return self._last_line(self._frames.failed(message))

    def closing(self, time: int, reason: frames.Reason) -> bytes:
        """The body of `connection-closing`, if no other line has said how it ended."""
        return b"" if self._ended else self._last_line(self._frames.closing(time, reason))

    def _last_line(self, frame: bytes) -> bytes:
        self._ended = True
        return frame.partition(b"\ndata: ")[2].removesuffix(b"\n")
