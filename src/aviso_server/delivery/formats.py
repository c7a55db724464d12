"""The formats of a replay: server-sent events, lines of JSON, an Arrow stream, a Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.delivery import sse
from aviso_server.delivery.history import Render
from aviso_server.model.batch import END_OF_STREAM, Column, arrow_schema, batch_message, last_message, record_batch
from aviso_server.model.cloudevent import EMPTY_DIGEST, REPLAY, Renderer, extend_digest
from aviso_server.model.notification import Notification, Rendered
from aviso_server.store import Bounds

__all__ = [
    "ARROW",
    "EVENT_STREAM",
    "LINES",
    "PARQUET",
    "ArrowStream",
    "DownloadFormat",
    "EventStream",
    "Format",
    "JsonLines",
    "ParquetFile",
    "Receipt",
]


EVENT_STREAM = "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"


class Format(Protocol):
    """How a replay looks on the wire: notifications, and one of several endings."""

    aborts: ClassVar[bool]
    """Whether an incomplete replay ends as an aborted transfer, because its readers may not look for an ending."""
    topics: ClassVar[bool]
    """Whether notifications are shown with their topics."""

    @property
    def render(self) -> Render:
        """Render notifications as they go out."""

    def completed(self, time: int) -> bytes:
        """Say that everything was sent."""

    def limit_reached(self, time: int, limit: int) -> bytes:
        """Say that there is more than one request may have."""

    def failed(self, message: str) -> bytes:
        """Say that the rest could not be read."""

    def closing(self, time: int, reason: sse.Reason) -> bytes:
        """End the answer."""


class DownloadFormat(Format, Protocol):
    """A format that is asked for, with a content type of its own."""

    content_type: ClassVar[str]

    def opening(self, bounds: Bounds) -> bytes:
        """Return what comes before the notifications."""


class Receipt:
    """Counts and chains what a replay sends, so that its reader can prove to have everything."""

    def __init__(self, topic: str) -> None:
        self.end = 0  # the last sequence that the replay covers
        self._topic = topic
        self._count = self._first = self._last = 0
        self._digest = EMPTY_DIGEST

    def over(self, render: Render, before: bytes, after: bytes) -> Render:
        """Return a rendering that is counted: each event stands between `before` and `after`."""

        def counted(notifications: Sequence[Notification]) -> Rendered:
            rendered = render(notifications)
            for piece in bytes(rendered).split(after):
                event = piece.removeprefix(before)
                if len(event) < len(piece) or (not before and event):
                    self._take(event)
            return rendered

        return counted

    def _take(self, event: bytes) -> None:
        found = msgspec.json.decode(event, type=_Counted)
        if found.specversion:
            self._count += 1
            self._first = self._first or found.sequence
            self._last = found.sequence
            self._digest = extend_digest(self._digest, event)

    def frame(self, time: int, complete: bool) -> bytes:
        """Build the frame that says so."""
        digest = f"sha-256-chain:{self._digest.hex()}"
        return sse.receipt(self._topic, time, self._count, complete, (self._first, self._last), digest, self.end)


class _Counted(msgspec.Struct, gc=False):
    sequence: int
    specversion: str = ""


class EventStream:
    """Server-sent events, as the contract has them; the opening frame is out already."""

    aborts: ClassVar[bool] = False
    topics: ClassVar[bool] = False

    def __init__(
        self, topic: str, renderer: Renderer, request_id: str, name: bytes = REPLAY, receipt: Receipt | None = None
    ) -> None:
        self._topic = topic
        self._request_id = request_id
        self._receipt = receipt
        self.render: Render = partial(renderer.frames, name, request_id=request_id)
        if receipt is not None:
            self.render = receipt.over(self.render, b"event: " + name + b"\ndata: ", b"\n\n")

    def completed(self, time: int) -> bytes:
        receipt = b"" if self._receipt is None else self._receipt.frame(time, complete=True)
        return receipt + sse.completed(self._topic, time)

    def limit_reached(self, time: int, limit: int) -> bytes:
        receipt = b"" if self._receipt is None else self._receipt.frame(time, complete=False)
        return receipt + sse.limit_reached(self._topic, time, limit)

    def failed(self, message: str) -> bytes:
        return sse.stream_failed(self._topic, message, self._request_id)

    def closing(self, time: int, reason: sse.Reason) -> bytes:
        return sse.closing(self._topic, time, reason, self._request_id)


class JsonLines:
    """One CloudEvent per line, then one line that says how it ended; for people and their tools."""

    content_type: ClassVar[str] = LINES
    aborts: ClassVar[bool] = True
    topics: ClassVar[bool] = False

    def __init__(self, topic: str, renderer: Renderer, request_id: str, receipt: Receipt | None = None) -> None:
        self._frames = EventStream(topic, renderer, request_id)
        self._ended = False
        self._receipt = receipt
        self.render: Render = partial(renderer.lines, request_id=request_id)
        if receipt is not None:
            self.render = receipt.over(self.render, b"", b"\n")

    def opening(self, bounds: Bounds) -> bytes:
        """Nothing: the first line is a notification."""
        return b""

    def completed(self, time: int) -> bytes:
        return self._receipt_line(time, complete=True) + self._last_line(self._frames.completed(time))

    def limit_reached(self, time: int, limit: int) -> bytes:
        return self._receipt_line(time, complete=False) + self._last_line(self._frames.limit_reached(time, limit))

    def _receipt_line(self, time: int, complete: bool) -> bytes:
        return b"" if self._receipt is None else self._last_line(self._receipt.frame(time, complete))

    def failed(self, message: str) -> bytes:
        return self._last_line(self._frames.failed(message))

    def closing(self, time: int, reason: sse.Reason) -> bytes:
        """Write the body of `connection-closing`, unless another line says how the replay ended."""
        return b"" if self._ended else self._last_line(self._frames.closing(time, reason))

    def _last_line(self, frame: bytes) -> bytes:
        self._ended = True
        return frame.partition(b"\ndata: ")[2].removesuffix(b"\n")


class ArrowStream:
    """Record batches of typed columns, then one without rows whose metadata says how it ended.

    The metadata of the schema says what the replay is about to cover.
    """

    content_type: ClassVar[str] = ARROW
    aborts: ClassVar[bool] = True
    topics: ClassVar[bool] = True

    def __init__(
        self, event_type: str, columns: Sequence[Column], request_id: str, equals: Mapping[str, str] | None = None
    ) -> None:
        self._event_type = event_type
        self._columns = columns
        self._request_id = request_id
        self._equals = equals or {}
        self._ended = False
        self.render: Render = self._batch

    def opening(self, bounds: Bounds) -> bytes:
        """Write the schema, with the bounds of the replay and the texts that fields must have as metadata."""
        metadata = _metadata(self._event_type, self._request_id, bounds)
        metadata["aviso.equals"] = msgspec.json.encode(self._equals).decode()
        message: bytes = arrow_schema(self._columns, metadata).serialize().to_pybytes()
        return message

    def completed(self, time: int) -> bytes:
        """Everything is there."""
        return self._last_batch({"aviso.ending": "replay_completed"}) + END_OF_STREAM

    def limit_reached(self, time: int, limit: int) -> bytes:
        """Say that this is a part; the rest begins after the last row."""
        words = {"aviso.ending": "notification_replay_limit_reached", "aviso.max_allowed": str(limit)}
        return self._last_batch(words) + END_OF_STREAM

    def failed(self, message: str) -> bytes:
        """Say that the rest could not be read."""
        return self._last_batch({"aviso.ending": "error", "aviso.message": message})

    def closing(self, time: int, reason: sse.Reason) -> bytes:
        """Say that the server could not go on, unless the stream has ended already."""
        return b"" if self._ended else self._last_batch({"aviso.ending": reason})

    def _batch(self, notifications: Sequence[Notification]) -> bytes:
        if not notifications:
            return b""
        return batch_message(record_batch(self._columns, self._event_type, notifications))

    def _last_batch(self, words: dict[str, str]) -> bytes:
        self._ended = True
        return last_message(self._columns, words)


class ParquetFile:
    """Row groups as they are read, then the footer that makes them a file.

    Without the footer it is no Parquet file, so a replay that breaks off is never taken for a whole one. The metadata
    of the file says what the replay covers and how it ended.
    """

    content_type: ClassVar[str] = PARQUET
    aborts: ClassVar[bool] = True
    topics: ClassVar[bool] = True

    def __init__(self, event_type: str, columns: Sequence[Column], request_id: str) -> None:
        self._event_type = event_type
        self._columns = columns
        self._written = _Written()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._written, "w"), arrow_schema(columns), compression="zstd", store_schema=True
        )
        self._request_id = request_id
        self._metadata: dict[str, str] = {}
        self.render: Render = self._row_group

    def opening(self, bounds: Bounds) -> bytes:
        """Write the mark at the beginning; the bounds of the replay go into the footer."""
        self._metadata = _metadata(self._event_type, self._request_id, bounds)
        return self._written.take()

    def completed(self, time: int) -> bytes:
        """Everything is there."""
        return self._footer({"aviso.ending": "replay_completed"})

    def limit_reached(self, time: int, limit: int) -> bytes:
        """Say that this is a part; the rest begins after the last row."""
        return self._footer({"aviso.ending": "notification_replay_limit_reached", "aviso.max_allowed": str(limit)})

    def failed(self, message: str) -> bytes:
        """Write no footer: without one it is no file."""
        return b""

    def closing(self, time: int, reason: sse.Reason) -> bytes:
        """Write nothing: nothing comes after the footer."""
        return b""

    def _row_group(self, notifications: Sequence[Notification]) -> bytes:
        if notifications:
            self._writer.write_batch(record_batch(self._columns, self._event_type, notifications))
        return self._written.take()

    def _footer(self, words: dict[str, str]) -> bytes:
        self._writer.add_key_value_metadata(self._metadata | words)
        self._writer.close()
        return self._written.take()


class _Written:
    """A file to write to that hands on what was written and forgets it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


def _metadata(event_type: str, request_id: str, bounds: Bounds) -> dict[str, str]:
    return {
        "aviso.event_type": event_type,
        "aviso.request_id": request_id,
        "aviso.start_sequence": str(bounds.start),
        "aviso.end_sequence": str(bounds.end),
        "aviso.first_sequence": str(bounds.first),
        "aviso.last_sequence": str(bounds.last),
        "aviso.trimmed_sequence": str(bounds.trimmed),
    }
