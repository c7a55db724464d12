"""The frames of a stream that are not notifications."""

from __future__ import annotations

from typing import Any, Literal

from aviso_server.model.json_text import compact
from aviso_server.model.times import SECOND, Span, seconds_text

__all__ = [
    "Reason",
    "closing",
    "completed",
    "connection_established",
    "heartbeat",
    "limit_reached",
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

_WEIGHTS: dict[Reason, int] = {"end_of_stream": 0, "max_duration_reached": 1, "server_shutdown": 2}


def weight(reason: Reason) -> int:
    """Rank the reasons that may be due at once; the heaviest is named."""
    return _WEIGHTS[reason]


def _frame(event: str, **members: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + compact(members) + b"\n\n"


def _now(time: int) -> str:
    return seconds_text(time // SECOND)


def connection_established(topic: str, time: int, max_duration: int, request_id: str) -> bytes:
    """Build the opening of a stream that is live from the start."""
    return _frame(
        "live-notification",
        type="connection_established",
        topic=topic,
        timestamp=_now(time),
        connection_will_close_in_seconds=max_duration,
        request_id=request_id,
    )


def replay_started(
    topic: str, time: int, span: Span, batch_size: int, request_id: str, end_sequence: int | None = None
) -> bytes:
    """Build the opening of a stream that begins with history; `end_sequence` is set if the request has an end."""
    return _frame(
        "replay-control",
        type="replay_started",
        topic=topic,
        from_sequence=span.from_sequence,
        from_date=None if span.from_time is None else _now(span.from_time),
        batch_size=batch_size,
        timestamp=_now(time),
        request_id=request_id,
        end_sequence=end_sequence,
        to_date=None if span.to_time is None else _now(span.to_time),
    )


def completed(topic: str, time: int) -> bytes:
    return _frame("replay-control", type="replay_completed", topic=topic, timestamp=_now(time))


def receipt(
    topic: str, time: int, count: int, complete: bool, sequences: tuple[int, int], digest: str, end: int
) -> bytes:
    """Build the receipt of a replay: how many were sent, of how many, their digest, and up to where that is all."""
    first, last = sequences
    return _frame(
        "replay-control",
        type="replay_receipt",
        topic=topic,
        timestamp=_now(time),
        count=count,
        of=count if complete else None,
        first_sequence=first or None,
        last_sequence=last or None,
        digest=digest,
        watermark=end if complete else last,
    )


def limit_reached(topic: str, time: int, limit: int) -> bytes:
    """Build the end of what one request may have of history, when there is more."""
    return _frame(
        "replay-control",
        type="notification_replay_limit_reached",
        topic=topic,
        max_allowed=limit,
        message=f"More than {limit} notifications match; ask again from a later start or with a narrower filter",
        timestamp=_now(time),
    )


def heartbeat(topic: str, time: int) -> bytes:
    return _frame("heartbeat", timestamp=_now(time), topic=topic)


def stream_failed(topic: str, message: str, request_id: str) -> bytes:
    """Build the frame for a log that could not be read; the closing frame follows."""
    return _frame("error", error="stream_processing_failed", message=message, topic=topic, request_id=request_id)


def closing(topic: str, time: int, reason: Reason, request_id: str) -> bytes:
    """Build the last frame of every orderly end."""
    return _frame(
        "connection-closing",
        reason=reason,
        message=_REASONS[reason],
        topic=topic,
        timestamp=_now(time),
        request_id=request_id,
    )
