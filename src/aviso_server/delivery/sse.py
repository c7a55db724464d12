"""The frames of a stream that are not notifications."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from aviso_server.model.json_text import compact
from aviso_server.model.times import SECOND, Instant, Span, seconds_text

__all__ = [
    "FRAMES",
    "ControlFrame",
    "Reason",
    "closing",
    "completed",
    "connection_established",
    "heartbeat",
    "limit_reached",
    "receipt",
    "replay_started",
    "stream_failed",
    "weight",
]

Reason = Literal["end_of_stream", "max_duration_reached", "server_shutdown"]

_REASONS: dict[Reason, str] = {
    "end_of_stream": "The stream has ended",
    "max_duration_reached": "The maximum duration of a connection was reached; reconnect to go on",
    "server_shutdown": "The server is shutting down; reconnect later",
}


def weight(reason: Reason) -> int:
    """Rank the reasons that may be due at once; the heaviest is named."""
    return list(_REASONS).index(reason)


class ControlFrame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The members of a frame; the AsyncAPI document describes the same ones."""

    event: ClassVar[str] = "replay-control"

    topic: str

    def render(self) -> bytes:
        return b"event: " + self.event.encode() + b"\ndata: " + compact(self) + b"\n\n"


class ConnectionEstablished(ControlFrame, frozen=True, kw_only=True):
    """The first frame of a watch without a start."""

    event: ClassVar[str] = "live-notification"

    type: Literal["connection_established"] = "connection_established"
    timestamp: Instant
    connection_will_close_in_seconds: int
    request_id: str


class ReplayStarted(ControlFrame, frozen=True, kw_only=True):
    """The first frame of a replay, and of a watch with a start; the end is that of the request."""

    type: Literal["replay_started"] = "replay_started"
    timestamp: Instant
    from_sequence: int | None
    from_date: str | None
    end_sequence: int | None
    to_date: str | None
    batch_size: int
    request_id: str


class ReplayCompleted(ControlFrame, frozen=True, kw_only=True):
    """All of the history that was asked for has been delivered."""

    type: Literal["replay_completed"] = "replay_completed"
    timestamp: Instant


class ReplayReceipt(ControlFrame, frozen=True, kw_only=True):
    """What a replay has sent, if its reader asked for a receipt."""

    type: Literal["replay_receipt"] = "replay_receipt"
    timestamp: Instant
    count: int
    of: int | None
    first_sequence: int | None
    last_sequence: int | None
    digest: str
    watermark: int


class ReplayLimitReached(ControlFrame, frozen=True, kw_only=True):
    """There is more history than one request may have; ask again from a later start."""

    type: Literal["notification_replay_limit_reached"] = "notification_replay_limit_reached"
    timestamp: Instant
    max_allowed: int
    message: str


class Heartbeat(ControlFrame, frozen=True, kw_only=True):
    """A sign of life."""

    event: ClassVar[str] = "heartbeat"

    timestamp: Instant


class StreamError(ControlFrame, frozen=True, kw_only=True):
    """Something failed; the stream ends if `error` is `stream_processing_failed`."""

    event: ClassVar[str] = "error"

    error: str
    message: str
    request_id: str


class ConnectionClosing(ControlFrame, frozen=True, kw_only=True):
    """The last frame; `reason` says why the stream ended."""

    event: ClassVar[str] = "connection-closing"

    reason: Reason
    message: str
    timestamp: Instant
    request_id: str


FRAMES: dict[str, type[ControlFrame]] = {
    "connection_established": ConnectionEstablished,
    "replay_started": ReplayStarted,
    "replay_completed": ReplayCompleted,
    "replay_receipt": ReplayReceipt,
    "notification_replay_limit_reached": ReplayLimitReached,
    "heartbeat": Heartbeat,
    "error": StreamError,
    "connection_closing": ConnectionClosing,
}
"""All of them by their `type`, or by their event if they have none."""


def _now(time: int) -> str:
    return seconds_text(time // SECOND)


def connection_established(topic: str, time: int, max_duration: int, request_id: str) -> bytes:
    return ConnectionEstablished(
        topic=topic, timestamp=_now(time), connection_will_close_in_seconds=max_duration, request_id=request_id
    ).render()


def replay_started(
    topic: str, time: int, span: Span, batch_size: int, request_id: str, end_sequence: int | None = None
) -> bytes:
    """Build the opening of a stream that begins with history; `end_sequence` is set if the request has an end."""
    return ReplayStarted(
        topic=topic,
        timestamp=_now(time),
        from_sequence=span.from_sequence,
        from_date=None if span.from_time is None else _now(span.from_time),
        end_sequence=end_sequence,
        to_date=None if span.to_time is None else _now(span.to_time),
        batch_size=batch_size,
        request_id=request_id,
    ).render()


def completed(topic: str, time: int) -> bytes:
    return ReplayCompleted(topic=topic, timestamp=_now(time)).render()


def receipt(
    topic: str, time: int, count: int, complete: bool, sequences: tuple[int, int], digest: str, end: int
) -> bytes:
    """Build the receipt of a replay: how many were sent, of how many, their digest, and up to where that is all."""
    first, last = sequences
    return ReplayReceipt(
        topic=topic,
        timestamp=_now(time),
        count=count,
        of=count if complete else None,
        first_sequence=first or None,
        last_sequence=last or None,
        digest=digest,
        watermark=end if complete else last,
    ).render()


def limit_reached(topic: str, time: int, limit: int) -> bytes:
    message = f"More than {limit} notifications match; ask again from a later start or with a narrower filter"
    return ReplayLimitReached(topic=topic, timestamp=_now(time), max_allowed=limit, message=message).render()


def heartbeat(topic: str, time: int) -> bytes:
    return Heartbeat(topic=topic, timestamp=_now(time)).render()


def stream_failed(topic: str, message: str, request_id: str) -> bytes:
    """Build the frame for a log that could not be read; the closing frame follows."""
    return StreamError(topic=topic, error="stream_processing_failed", message=message, request_id=request_id).render()


def closing(topic: str, time: int, reason: Reason, request_id: str) -> bytes:
    """Build the last frame of every orderly end."""
    return ConnectionClosing(
        topic=topic, timestamp=_now(time), reason=reason, message=_REASONS[reason], request_id=request_id
    ).render()
