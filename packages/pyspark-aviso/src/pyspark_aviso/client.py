"""Talking to a server, ours or ECMWF's: requests, its event types and their columns, and replays as Arrow batches."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_aviso import __version__
from pyspark_aviso.errors import PipelineError, Refused
from pyspark_aviso.options import Options, instant

__all__ = [
    "STORED",
    "Column",
    "EventType",
    "Field",
    "Interrupted",
    "LimitReached",
    "Opening",
    "Replay",
    "ask",
    "choose_types",
    "column_array",
    "connect",
    "event_type_of",
    "fetch_types",
    "merge",
    "open_replay",
    "pause",
    "reason_of",
    "refusal",
]

_ARROW = "application/vnd.apache.arrow.stream"
_EVENTS = "text/event-stream"
_LONGEST_PAUSE = 10.0  # seconds
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

# Requests


def connect(options: Options) -> httpx.Client:
    """Return a client of the server that the options name, with their credentials; it does not pickle."""
    headers = {"user-agent": f"pyspark-aviso/{__version__}", "content-type": "application/json"}
    auth = None
    if options.token is not None:
        headers["authorization"] = f"Bearer {options.token}"
    elif options.username is not None:
        auth = httpx.BasicAuth(options.username, options.password or "")
    return httpx.Client(
        base_url=options.url,
        headers=headers,
        auth=auth,
        timeout=httpx.Timeout(options.timeout, connect=min(10.0, options.timeout)),
        limits=httpx.Limits(max_connections=max(options.connections, 4)),
        trust_env=urlsplit(options.url).hostname not in _LOOPBACK,
    )


def ask(client: httpx.Client, path: str) -> Any:
    """Return the JSON under a path; Refused if the server does not want to, PipelineError if it makes no sense."""
    try:
        response = client.get(path)
    except httpx.HTTPError as error:
        raise PipelineError(f"no server answers at {client.base_url}: {reason_of(error)}") from None
    if response.status_code != 200:
        raise refusal(response)
    try:
        return json.loads(response.content)
    except ValueError:
        raise PipelineError(f"what answers at {client.base_url} is not an aviso server") from None


def pause(failures: int) -> float:
    """Return seconds to wait after so many failures in a row."""
    return min(0.1 * 2.0**failures, _LONGEST_PAUSE)


def reason_of(error: Exception) -> str:
    """Return what an error says, or at least what it is."""
    return str(error) or type(error).__name__


def refusal(response: httpx.Response) -> Refused:
    """Return why the server refused, in its own words where it gave any."""
    try:
        body: Any = json.loads(response.content)
    except ValueError:
        body = None
    members = body if isinstance(body, dict) else {}
    message, details = members.get("message"), members.get("details")
    words = str(message) if message else f"the server answered with status {response.status_code}"
    if details and details != message:
        words += f" ({details})"
    return Refused(words, response.status_code, str(members.get("code", "")))


# Event types and their columns

ColumnKind = Literal["integer", "number", "text", "instant", "shape"]
"""What a column holds: a whole number, a double, text, a point in time, or a shape as well-known binary."""

_KINDS: Mapping[str, ColumnKind] = {
    "IntHandler": "integer",
    "FloatHandler": "number",
    "PolygonHandler": "shape",
    "PointCloudHandler": "shape",
}
"""By the type of a field; all others hold text."""

_TYPES: Mapping[ColumnKind, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "instant": pa.timestamp("us", tz="UTC"),
    "shape": pa.binary(),
}


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    name: str
    kind: ColumnKind
    field: str | None = None  # the identifier field it shows; None for what every notification has


_FIRST = (
    Column("sequence", "integer"),
    Column("time", "instant"),
    Column("event_type", "text"),
    Column("topic", "text"),
)
_LAST = (Column("identifier", "text"), Column("payload", "text"))
_BOX = tuple(Column(name, "number") for name in ("box_min_lat", "box_min_lon", "box_max_lat", "box_max_lon"))
_TIME_NS = Column("time_ns", "integer")  # to the nanosecond; timestamps have microseconds

STORED = (_FIRST[0], _TIME_NS, _FIRST[3], *_BOX, *_LAST)
"""What a log keeps of a notification. Every other column is made of it, and time takes the server to make most."""

_UNTYPED = frozenset(column.name for column in (*_FIRST, *STORED))


@dataclass(frozen=True)
class Field:
    """An identifier field as the server's schema describes it."""

    type: str
    required: bool
    values: tuple[str, ...] = ()
    range: tuple[float, float] | None = None

    @property
    def kind(self) -> ColumnKind:
        """Return what its column holds."""
        return _KINDS.get(self.type, "text")


@dataclass(frozen=True)
class EventType:
    """An event type; one that nobody configured has no fields. Pickles."""

    name: str
    fields: Mapping[str, Field] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return what all notifications have, the fields, and the box if there are shapes.

        Letter case does not make a name different, as in SQL. A field whose name is taken gets `identifier_` in front.
        """
        taken = set(_UNTYPED)
        shown = []
        for name, each in self.fields.items():
            column = name if name.lower() not in taken else _free_name(f"identifier_{name}", taken, self.fields)
            taken.add(column.lower())
            shown.append(Column(column, each.kind, name))
        boxes = _BOX if any(column.kind == "shape" for column in shown) else ()
        return (*_FIRST, *shown, *boxes, *_LAST)

    @property
    def wire_columns(self) -> tuple[Column, ...]:
        """Return the same and the time in nanoseconds: all that a server sends."""
        return (*self.columns, _TIME_NS)


def fetch_types(options: Options) -> dict[str, EventType]:
    """Return all configured event types of the server, as its schema route describes them."""
    with connect(options) as client:
        answer = ask(client, "/api/v1/schema")
    try:
        return {name: event_type_of(name, definition["identifier"]) for name, definition in answer["schema"].items()}
    except (KeyError, TypeError, AttributeError):
        raise PipelineError(f"what answers at {options.url} is not an aviso server") from None


def choose_types(names: Iterable[str], known: Mapping[str, EventType]) -> dict[str, EventType]:
    """Return the event types of these names; one that nobody configured is taken as schema-less."""
    return {name: known.get(name, EventType(name)) for name in names}


def merge(tables: Iterable[Sequence[Column]]) -> tuple[Column, ...]:
    """Return the columns of a table with the rows of all these; where kinds differ the column holds text."""
    merged: dict[str, Column] = {}
    for column in (column for table in tables for column in table if column not in _LAST):
        known = merged.setdefault(column.name.lower(), column)
        if known.kind != column.kind:
            merged[column.name.lower()] = Column(known.name, "text", known.field)
    return (*merged.values(), *_LAST)


def event_type_of(name: str, identifier: Mapping[str, Mapping[str, Any]]) -> EventType:
    """Return the event type that the schema route describes with these fields."""
    fields = {}
    for each, rules in identifier.items():
        if "required" in rules:
            bounds = rules.get("range")
            fields[each] = Field(
                str(rules.get("type")),
                bool(rules["required"]),
                tuple(rules.get("values") or ()),
                (bounds[0], bounds[1]) if bounds else None,
            )
    return EventType(name, fields)


def _free_name(wanted: str, taken: set[str], fields: Iterable[str]) -> str:
    others = taken | {name.lower() for name in fields}
    name, number = wanted, 2
    while name.lower() in others:
        name, number = f"{wanted}_{number}", number + 1
    return name


# Replays


class Interrupted(Exception):
    """The replay broke off; going on after the last row may work."""


class LimitReached(Exception):
    """The server gives no more per request; going on after the last row works."""


@dataclass(frozen=True)
class Opening:
    """What the server says before the first row; None where it does not say."""

    start: int | None = None
    end: int | None = None
    first: int | None = None  # the oldest sequence it holds
    trimmed: int | None = None  # the newest sequence that retention has removed
    equals: Mapping[str, str] | None = None  # the texts that fields must have, as the server understood the request


class Replay:
    """An open replay: its opening, and an iterator over its rows that raises if they are not complete."""

    def __init__(self, opening: Opening, batches: Iterator[pa.RecordBatch], typed: bool) -> None:
        self.opening = opening
        self.batches = batches
        self.typed = typed  # the server sends Arrow


@contextmanager
def open_replay(
    client: httpx.Client,
    body: Mapping[str, Any],
    columns: Sequence[Column],
    last: int | None = None,
    batch_rows: int = 4096,
) -> Iterator[Replay]:
    """Return the answer to a replay request; Refused if the server does not accept it.

    Columns that are not asked for may be there or not. Rows after `last` are left out, for servers that know no end.
    """
    # `handling=lenient`: our server then lets required fields be left out; others ignore it
    headers = {"accept": f"{_ARROW}, {_EVENTS};q=0.5", "accept-encoding": "identity", "prefer": "handling=lenient"}
    if all(column.name in _UNTYPED for column in columns):
        headers["prefer"] += ", return=minimal"  # only what the log keeps: `column_array` makes the rest
    content = json.dumps(body).encode()
    with client.stream("POST", "/api/v1/replay", content=content, headers=headers) as response:
        if response.status_code != 200:
            response.read()
            raise refusal(response)
        kind = response.headers.get("content-type", "")
        if kind.startswith(_ARROW):
            yield _arrow_replay(response)
        elif kind.startswith(_EVENTS):
            frames = _frames(response.iter_bytes())
            opening = _opening_frame(frames)
            yield Replay(opening, _event_batches(frames, str(body["event_type"]), columns, last, batch_rows), False)
        else:
            raise PipelineError(f"what answers at {response.url} is not an aviso server")


def column_array(batch: pa.RecordBatch, name: str, event_type: str) -> pa.Array | None:
    """Return a column of a batch as sent, or made of what the log keeps; None if it is not there."""
    if name in batch.schema.names:
        return batch.column(name)
    if name == "time" and "time_ns" in batch.schema.names:
        return pc.divide(batch.column("time_ns"), 1000).cast(_TYPES["instant"])
    if name == "event_type":
        return pa.repeat(pa.scalar(event_type), batch.num_rows)
    return None


class _Body(io.RawIOBase):
    """The body of an answer as a file that pyarrow can read from."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_bytes()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _arrow_replay(response: httpx.Response) -> Replay:
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
        json.loads(words["aviso.equals"]) if "aviso.equals" in words else None,
    )
    return Replay(opening, _arrow_batches(reader), True)


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
        elif ending in ("server_shutdown", "max_duration_reached"):
            raise Interrupted(f"the server closed the stream: {ending}")
        else:
            raise PipelineError(f"the server reports: {words.get(b'aviso.message', b'an error').decode()}")


# Server-sent events, from servers that know no Arrow


def _frames(chunks: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield name and members of every complete frame, however the stream was cut into chunks.

    Lines end with LF only: other line separators may stand unescaped inside JSON text.
    """
    rest: list[bytes] = []
    for chunk in chunks:
        rest.append(chunk)
        if b"\n" not in chunk:
            continue
        *blocks, last = b"".join(rest).split(b"\n\n")
        rest = [last]
        for block in blocks:
            lines = [line.partition(b":") for line in block.split(b"\n")]
            name = next((value.strip().decode() for key, _, value in lines if key == b"event"), "")
            data = b"\n".join(value.removeprefix(b" ") for key, _, value in lines if key == b"data")
            yield name, json.loads(data) if data else {}


def _opening_frame(frames: Iterator[tuple[str, Any]]) -> Opening:
    for name, members in frames:
        if name == "replay-control" and members.get("type") == "replay_started":
            return Opening(end=members.get("end_sequence"))
    raise Interrupted("the stream ended before its first frame")


def _event_batches(
    frames: Iterator[tuple[str, Any]], event_type: str, columns: Sequence[Column], last: int | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    waiting: list[_Event] = []
    ending: Exception | None = Interrupted("the stream ended before it was complete")
    try:
        for name, members in frames:
            if name != "replay":
                if _is_end(name, members):
                    ending = None
                    break
                continue
            event = _Event(members)
            if last is not None and event.sequence > last:
                ending = None
                break
            waiting.append(event)
            if len(waiting) == batch_rows:
                yield _event_batch(waiting, event_type, columns)
                waiting = []
    except (Interrupted, LimitReached, PipelineError) as error:
        ending = error
    except httpx.TransportError as error:
        ending = Interrupted(reason_of(error))
    if waiting:  # whatever happened then, these have arrived
        yield _event_batch(waiting, event_type, columns)
    if ending is not None:
        raise ending


def _is_end(name: str, members: Mapping[str, Any]) -> bool:
    """Return whether a frame completes the replay; raise if it ends it otherwise."""
    if name == "error":
        raise PipelineError(f"the server reports: {members.get('message') or members.get('error')}")
    if name == "connection-closing":
        raise Interrupted(f"the server closed the stream: {members.get('reason')}")
    if name != "replay-control":
        return False
    if members.get("type") == "notification_replay_limit_reached":
        raise LimitReached
    return members.get("type") == "replay_completed"


class _Event:
    """A notification as an event stream has it."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self.sequence = int(members["id"].rpartition("@")[2])
        self.time = instant(members["time"])
        self.identifier: dict[str, Any] = members["data"]["identifier"]
        self.payload = members["data"].get("payload")


def _event_batch(events: Sequence[_Event], event_type: str, columns: Sequence[Column]) -> pa.RecordBatch:
    fixed: Mapping[str, Callable[[_Event], Any]] = {
        "sequence": lambda event: event.sequence,
        "time": lambda event: event.time // 1000,
        "time_ns": lambda event: event.time,
        "event_type": lambda event: event_type,
        "topic": lambda event: None,  # events do not carry it, so nobody knows it
        "identifier": lambda event: _compact(event.identifier),
        "payload": lambda event: _compact(event.payload),
    }
    shapes = sorted((each.field or "" for each in columns if each.kind == "shape"), key=lambda n: (n != "polygon", n))
    arrays = []
    for column in {column.name: column for column in (_FIRST[0], *columns)}.values():
        if column in _BOX:
            values = [_box(event.identifier, shapes)[_BOX.index(column)] for event in events]
        elif column.field is None:
            values = [fixed[column.name](event) for event in events]
        else:
            values = [_value(column, event.identifier.get(column.field)) for event in events]
        arrays.append(pa.array(values, _TYPES[column.kind]))
    names = list(dict.fromkeys([_FIRST[0].name, *(column.name for column in columns)]))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _value(column: Column, value: Any) -> Any:
    """Return the value of a field for its column; null where it is of another type."""
    if column.kind == "shape":
        pairs = _pairs(value)
        return None if pairs is None else _wkb(pairs, column.field == "point_cloud")
    text = value if value is None or isinstance(value, str) else _compact(value)
    if text is None or column.kind == "text":
        return text
    try:
        return int(text) if column.kind == "integer" else float(text)
    except ValueError:
        return None


def _pairs(value: Any) -> list[tuple[float, float]] | None:
    """Return latitudes and longitudes of a shape, an array or the text (lat,lon,lat,lon,…); None if it is neither."""
    try:
        if isinstance(value, str):
            numbers = [float(part) for part in value.strip().strip("()").split(",")]
            return list(zip(numbers[::2], numbers[1::2], strict=True))
        return [(float(lat), float(lon)) for lat, lon in value] or None
    except (TypeError, ValueError):
        return None


def _wkb(pairs: Sequence[tuple[float, float]], points: bool) -> bytes:
    """Return a ring as a Polygon, points as a MultiPoint; little-endian, longitude first."""
    if points:
        each = b"".join(struct.pack("<BIdd", 1, 1, lon, lat) for lat, lon in pairs)
        return struct.pack("<BII", 1, 4, len(pairs)) + each
    return struct.pack("<BIII", 1, 3, 1, len(pairs)) + b"".join(struct.pack("<dd", lon, lat) for lat, lon in pairs)


def _box(identifier: Mapping[str, Any], shapes: Sequence[str]) -> tuple[float | None, ...]:
    for name in shapes:
        if pairs := _pairs(identifier.get(name)):
            lats, lons = [lat for lat, _ in pairs], [lon for _, lon in pairs]
            return min(lats), min(lons), max(lats), max(lons)
    return (None,) * 4


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
