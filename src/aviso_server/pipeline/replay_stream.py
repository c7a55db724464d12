"""What a server sends on a replay, whichever form it chose: bounds first, then record batches, then how it ended."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pyarrow as pa

from aviso_server.errors import PipelineError
from aviso_server.model.arrow import record_batch
from aviso_server.model.columns import Column
from aviso_server.model.event_stream import Frame, frames
from aviso_server.model.geometry.box import box_of
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Notification
from aviso_server.model.timestamp import parse_instant
from aviso_server.pipeline.connection import ARROW

__all__ = ["Interrupted", "LimitReached", "Opening", "Replayed", "is_arrow", "replayed"]

_BATCH_ROWS = 4096
_RETRIED = ("server_shutdown", "max_duration_reached")


class Interrupted(Exception):
    """The replay broke off; going on after the last row may work."""


class LimitReached(Exception):
    """The server gives no more per request; going on after the last row works."""


class Opening(msgspec.Struct, frozen=True):
    """What the server says before the first row; None where it does not say."""

    start: int | None = None
    end: int | None = None
    first: int | None = None  # the oldest sequence it holds
    trimmed: int | None = None  # the newest sequence that retention has removed


class _Data(msgspec.Struct, frozen=True):
    identifier: dict[str, Any]
    payload: Any = None


class _Event(msgspec.Struct, frozen=True):
    id: str
    time: str
    data: _Data


_event = msgspec.json.Decoder(_Event).decode
_members = msgspec.json.Decoder(dict[str, Any]).decode


class Replayed:
    """An open replay: its opening, and an iterator over its rows that raises if they are not complete."""

    def __init__(self, opening: Opening, batches: Iterator[pa.RecordBatch]) -> None:
        self.opening = opening
        self.batches = batches


def is_arrow(response: httpx.Response) -> bool:
    """True if the server sends Arrow."""
    return bool(response.headers.get("content-type", "").startswith(ARROW))


def replayed(
    response: httpx.Response,
    event_type: str,
    columns: Sequence[Column],
    last: int | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Replayed:
    """The replay in an answer; rows after `last` are left out, for servers that know no end."""
    if is_arrow(response):
        return _arrow(response)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise PipelineError(f"what answers at {response.url} is not an aviso server")
    stream = frames(response.iter_bytes())
    return Replayed(_opening_frame(stream), _sse_batches(stream, event_type, columns, last, batch_rows))


class _Body(io.RawIOBase):
    """The body of an answer as a file that pyarrow can read from."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_bytes()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, target: Any) -> int:
        """Fill the buffer with what there is; 0 at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _arrow(response: httpx.Response) -> Replayed:
    try:
        reader = pa.ipc.open_stream(io.BufferedReader(_Body(response), 256 * 1024))
    except pa.ArrowInvalid as error:
        raise Interrupted(f"the stream broke off at its beginning: {error}") from None
    words = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}

    def number(name: str) -> int | None:
        return int(words[name]) if name in words else None

    opening = Opening(
        number("aviso.start_sequence"),
        number("aviso.end_sequence"),
        number("aviso.first_sequence"),
        number("aviso.trimmed_sequence"),
    )
    return Replayed(opening, _arrow_batches(reader))


def _arrow_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            raise Interrupted("the stream ended before it was complete") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise Interrupted(f"the stream broke off: {error}") from None
        words = dict(metadata.items()) if metadata is not None else {}
        ending = words.get(b"aviso.ending", b"").decode()
        if not ending:
            yield batch
        elif ending == "replay_completed":
            return
        elif ending == "notification_replay_limit_reached":
            raise LimitReached
        elif ending in _RETRIED:
            raise Interrupted(f"the server closed the stream: {ending}")
        else:
            raise PipelineError(f"the server reports: {words.get(b'aviso.message', b'an error').decode()}")


def _opening_frame(stream: Iterator[Frame]) -> Opening:
    for frame in stream:
        members = _members(frame.data)
        if frame.event == "replay-control" and members.get("type") == "replay_started":
            return Opening(end=members.get("end_sequence"))
    raise Interrupted("the stream ended before its first frame")


def _sse_batches(
    stream: Iterator[Frame], event_type: str, columns: Sequence[Column], last: int | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    shapes = [column.field for column in columns if column.kind == "shape" and column.field is not None]
    waiting: list[Notification] = []
    ending: Exception | None = Interrupted("the stream ended before it was complete")
    try:
        for frame in stream:
            if frame.event != "replay":
                if _is_end(frame):
                    ending = None
                    break
                continue
            notification = _notification(frame.data, shapes)
            if last is not None and notification.sequence > last:
                ending = None
                break
            waiting.append(notification)
            if len(waiting) == batch_rows:
                yield _without_topic(record_batch(columns, event_type, waiting))
                waiting = []
    except (Interrupted, LimitReached, PipelineError) as error:
        ending = error
    except httpx.TransportError as error:
        ending = Interrupted(str(error) or type(error).__name__)
    if waiting:  # whatever happened then, these have arrived
        yield _without_topic(record_batch(columns, event_type, waiting))
    if ending is not None:
        raise ending


def _is_end(frame: Frame) -> bool:
    """True for the frame that completes a replay, False for those that mean nothing to us; the others are raised."""
    if frame.event not in ("error", "connection-closing", "replay-control"):
        return False
    members = _members(frame.data)
    if frame.event == "error":
        raise PipelineError(f"the server reports: {members.get('message') or members.get('error')}")
    if frame.event == "connection-closing":
        raise Interrupted(f"the server closed the stream: {members.get('reason')}")
    if members.get("type") == "notification_replay_limit_reached":
        raise LimitReached
    return members.get("type") == "replay_completed"


def _notification(data: bytes, shapes: Sequence[str]) -> Notification:
    event = _event(data)
    sequence = int(event.id.rpartition("@")[2])
    time = parse_instant("time", event.time)
    identifier = event.data.identifier
    return Notification(
        sequence, time, "", compact(identifier), compact(event.data.payload), box_of(identifier, shapes)
    )


def _without_topic(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Events do not carry their topic, so nobody knows it."""
    place = batch.schema.get_field_index("topic")
    return batch.set_column(place, batch.schema.field(place), pa.nulls(batch.num_rows, pa.string()))
