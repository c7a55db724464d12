"""Notifications as a table: its columns, Arrow batches of them, and runs of stored notifications kept as columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import compress
from typing import Any, Literal, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import shapely

from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.fields import SpatialField
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Notification, Part, Rendered, Run
from aviso_server.model.shapes import MAX_LAT, MAX_LON, MIN_VERTICES, stored_shape, with_array, wkb
from aviso_server.model.times import SECOND, event_time

__all__ = [
    "BOX",
    "END_OF_STREAM",
    "STORED",
    "TIME_NS",
    "ArrowRun",
    "Column",
    "ColumnKind",
    "arrow_schema",
    "batch_message",
    "canonical_identifiers",
    "columns_of",
    "event_times",
    "field_arrays",
    "last_message",
    "merge",
    "record_batch",
    "shapes_as_wkb",
    "wire_columns",
]


ColumnKind = Literal["integer", "number", "text", "instant", "shape"]
"""The kind of a column: a whole number, a double, text, a point in time, or a shape as well-known binary."""


class Column(msgspec.Struct, frozen=True):
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

BOX = (
    Column("box_min_lat", "number"),
    Column("box_min_lon", "number"),
    Column("box_max_lat", "number"),
    Column("box_max_lon", "number"),
)
"""The box around the shape, in the order of its members."""

TIME_NS = Column("time_ns", "integer")
"""The stored time to the nanosecond: timestamps, which most programs read better, have microseconds."""

STORED = (_FIRST[0], TIME_NS, _FIRST[3], *BOX, *_LAST)
"""The columns that a log stores; every other column is made from them."""

_TAKEN = frozenset(column.name for column in (*_FIRST, *_LAST, *BOX, TIME_NS))


def columns_of(event_type: EventType | GenericType) -> tuple[Column, ...]:
    """Return the columns of an event type: what all notifications have, its fields, and the box if it has shapes.

    Letter case does not make a name different, as in SQL. A field whose name is taken gets `identifier_` in front.
    """
    if isinstance(event_type, GenericType):
        return (*_FIRST, *_LAST)
    taken = set(_TAKEN)
    shown = []
    for name, field in event_type.fields.items():
        column = name if name.lower() not in taken else _free_name(f"identifier_{name}", taken, event_type.fields)
        taken.add(column.lower())
        shown.append(Column(column, "shape" if isinstance(field, SpatialField) else field.kind, name))
    boxes = BOX if any(column.kind == "shape" for column in shown) else ()
    return (*_FIRST, *shown, *boxes, *_LAST)


def wire_columns(event_type: EventType | GenericType) -> tuple[Column, ...]:
    """Return the columns that travel between a server and its readers: all there is to know."""
    return (*columns_of(event_type), TIME_NS)


def merge(tables: Sequence[Iterable[Column]]) -> tuple[Column, ...]:
    """Return the columns of a table with the rows of all these; where kinds differ the column holds text."""
    merged: dict[str, Column] = {}
    for column in (column for table in tables for column in table if column not in _LAST):
        known = merged.setdefault(column.name.lower(), column)
        if known.kind != column.kind:
            merged[column.name.lower()] = Column(known.name, "text", known.field)
    return (*merged.values(), *_LAST)


def _free_name(wanted: str, taken: set[str], fields: Iterable[str]) -> str:
    others = taken | {name.lower() for name in fields}
    name, number = wanted, 2
    while name.lower() in others:
        name, number = f"{wanted}_{number}", number + 1
    return name


END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The mark after the last message of a complete Arrow stream."""

_MICROSECOND = 1000  # nanoseconds

_TYPES: dict[ColumnKind, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "instant": pa.timestamp("us", tz="UTC"),
    "shape": pa.binary(),
}
_PAIRS = pa.list_(pa.list_(pa.float64()))
_SMALL_CLOUD = 1000  # points that are well within the limit of bytes

_identifiers = msgspec.json.Decoder(list[dict[str, Any]]).decode


def arrow_schema(columns: Iterable[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    return pa.schema([pa.field(column.name, _TYPES[column.kind]) for column in columns], metadata=metadata or None)


def record_batch(columns: Sequence[Column], event_type: str, notifications: Sequence[Notification]) -> pa.RecordBatch:
    """Build a batch of notifications of one event type, column by column."""
    run = notifications if isinstance(notifications, ArrowRun) else None
    given = [each.identifier for each in notifications] if run is None else run.identifiers
    identifiers = canonical_identifiers(columns, given)
    made = field_arrays(columns, identifiers)
    if run is not None:
        made |= run.arrays()
    if any(column.name == "identifier" for column in columns):
        made["identifier"] = pa.array(identifiers, pa.string())
    arrays = [
        made[column.name] if column.name in made else _array(column, event_type, notifications) for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def canonical_identifiers(columns: Iterable[Column], identifiers: Sequence[bytes]) -> Sequence[bytes]:
    """Bring identifiers into today's form: older ones hold a polygon as text."""
    if any(column.field == "polygon" and column.kind == "shape" for column in columns):
        return list(map(with_array, identifiers))
    return identifiers


def field_arrays(columns: Iterable[Column], identifiers: Sequence[bytes]) -> dict[str, pa.Array]:
    """Build the columns that show a field, by name, from identifiers as JSON text."""
    shown = {column.field: column for column in columns if column.field is not None}
    if not shown:
        return {}
    found = _at_once(shown, identifiers)
    if found is None:
        values = _identifiers(b"[" + b",".join(identifiers) + b"]")
        return {column.name: _field_array(column, values) for column in shown.values()}
    return {column.name: _typed(found[field], column) for field, column in shown.items()}


def _at_once(shown: Mapping[str, Column], identifiers: Sequence[bytes]) -> dict[str, pa.Array] | None:
    """Read the texts and pairs of fields without touching each value; None if some are neither."""
    kinds = [(field, _PAIRS if column.kind == "shape" else pa.string()) for field, column in shown.items()]
    lines = b"\n".join(identifiers)
    try:
        table = pj.read_json(
            pa.BufferReader(lines),
            pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pj.ParseOptions(pa.schema(kinds), unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(identifiers):
        return None
    return {field: table.column(field).combine_chunks() for field in shown}


def batch_message(batch: pa.RecordBatch) -> bytes:
    """Write a batch as a message of an Arrow stream; the schema must have gone out before."""
    message: bytes = batch.serialize().to_pybytes()
    return message


def last_message(columns: Sequence[Column], words: Mapping[str, str]) -> bytes:
    """Write a batch without rows that carries `words` for readers, as a message of an Arrow stream."""
    schema = arrow_schema(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema), custom_metadata=words)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream[len(schema.serialize().to_pybytes()) :].removesuffix(END_OF_STREAM)


def _array(column: Column, event_type: str, notifications: Sequence[Notification]) -> pa.Array:
    kind = _TYPES[column.kind]
    match column.name:
        case "sequence":
            return pa.array([each.sequence for each in notifications], kind)
        case "time":
            return pa.array([each.time // _MICROSECOND for each in notifications], kind)
        case "time_ns":
            return pa.array([each.time for each in notifications], kind)
        case "event_type":
            return pa.repeat(pa.scalar(event_type, kind), len(notifications))
        case "topic":
            return pa.array([each.topic for each in notifications], kind)
        case "payload":
            return pa.array([each.payload for each in notifications], kind)
    place = BOX.index(column)
    boxes = notifications.boxes if isinstance(notifications, Run) else [each.box for each in notifications]
    if boxes is None:
        return pa.nulls(len(notifications), kind)
    return pa.array([None if box is None else box[place] for box in boxes], kind)


def _field_array(column: Column, values: list[dict[str, Any]]) -> pa.Array:
    field = column.field or ""
    if column.kind == "shape":
        return pa.array([_shape(field, each.get(field)) for each in values], pa.binary())
    return _typed(pa.array([_text(each.get(field)) for each in values], pa.string()), column)


def _typed(values: pa.Array, column: Column) -> pa.Array:
    """Convert the texts or pairs of a field to the type of its column; null where a value is of another type."""
    kind, field = column.kind, column.field or ""
    if kind == "text":
        return values
    if kind == "shape":
        made = shapes_as_wkb(field, values)
        return pa.array([_shape(field, value) for value in values.to_pylist()], pa.binary()) if made is None else made
    try:
        return pc.cast(values, _TYPES[kind])
    except pa.ArrowInvalid:  # some were stored when the field had another type
        return pa.array([_number(text, kind) for text in values.to_pylist()], _TYPES[kind])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return compact(value).decode()


def _number(text: str | None, kind: ColumnKind) -> float | None:
    try:
        number: float | None = pc.cast(pa.array([text], pa.string()), _TYPES[kind])[0].as_py()
    except pa.ArrowInvalid:
        return None
    return number


def _shape(field: str, value: Any) -> bytes | None:
    shape = stored_shape(field, value)
    return None if shape is None else wkb(shape)


def shapes_as_wkb(field: str, lists: pa.ListArray) -> pa.Array | None:
    """Write lists of [lat, lon] pairs as `wkb` does each; None if one of them needs a closer look."""
    given = lists.drop_null()
    pairs = given.flatten()
    numbers = pairs.flatten()
    if not len(given) or pairs.null_count or numbers.null_count:
        return None
    sizes = pc.list_value_length(given).to_numpy()
    smallest, largest = (1, _SMALL_CLOUD) if field == "point_cloud" else (MIN_VERTICES, sys.maxsize)
    if sizes.min() < smallest or sizes.max() > largest or not pc.all(pc.equal(pc.list_value_length(pairs), 2)).as_py():
        return None
    places = numbers.to_numpy().reshape(-1, 2)
    if not np.all(np.abs(places) <= (MAX_LAT, MAX_LON)):
        return None
    rows = np.repeat(np.arange(len(sizes)), sizes)
    if field == "point_cloud":
        shapes = shapely.multipoints(shapely.points(places[:, ::-1]), indices=rows)
    else:
        ends = np.cumsum(sizes)
        if not np.all(places[ends - sizes] == places[ends - 1]):  # a ring is open
            return None
        shapes = shapely.polygons(shapely.linearrings(places[:, ::-1], indices=rows))
    made = np.full(len(lists), None, dtype=object)
    made[pc.is_valid(lists).to_numpy(zero_copy_only=False)] = shapely.to_wkb(shapes, byte_order=1)
    return pa.array(made, pa.binary())


_REMEMBERED = 256  # constants of renderings
_MANY = 16  # times that are worth the preparations
_LONGEST_TIME = 30  # bytes: with nine digits behind the point


class ArrowRun(Run):
    """Columns of texts; all are equally long."""

    def __init__(
        self,
        sequences: pa.BinaryArray,  # decimal
        times: pa.BinaryArray | pa.Int64Array,  # decimal, or numbers
        topics: Callable[[], Sequence[str]],  # asked for only where they are needed, as boxes are: most do without
        identifiers: pa.BinaryArray,
        payloads: pa.BinaryArray,
        boxes: Callable[[], Sequence[Box | None]] | None = None,  # None: no notification has one
    ) -> None:
        self._sequences = sequences
        self._times = times
        self._topics = topics
        self._identifiers = identifiers
        self._payloads = payloads
        self._boxes = boxes
        self._mentioned: dict[bytes, bool] = {}

    @property
    def last(self) -> int:
        return int(self._sequences[-1].as_py())

    @cached_property
    def times(self) -> Sequence[int]:
        times: list[int] = _numbers(self._times).to_pylist()
        return times

    @cached_property
    def boxes(self) -> Sequence[Box | None] | None:
        return None if self._boxes is None else self._boxes()

    @cached_property
    def values(self) -> list[Notification]:
        columns = (
            _numbers(self._sequences).to_pylist(),
            self.times,
            self._topics(),
            self._identifiers.to_pylist(),
            self._payloads.to_pylist(),
        )
        if self.boxes is None:
            return list(map(Notification, *columns))
        return list(map(Notification, *columns, self.boxes))

    def without(self, through: int, deleted: Collection[int]) -> ArrowRun:
        sequences = _numbers(self._sequences)
        gone = pc.is_in(sequences, value_set=pa.array(sorted(deleted), pa.int64()))
        return self._where(pc.and_(pc.greater(sequences, through), pc.invert(gone)))

    def arrays(self) -> dict[str, pa.Array]:
        """Return the columns of a table that are there without a look at each notification."""
        times = _numbers(self._times)
        return {
            "sequence": _numbers(self._sequences),
            "time_ns": times,
            "time": pc.divide(times, _MICROSECOND).cast(_TYPES["instant"]),
            "topic": pa.array(self._topics(), pa.string()),
            "payload": self._payloads.cast(pa.string()),
        }

    @property
    def identifiers(self) -> Sequence[bytes]:
        """The identifiers as they are stored."""
        found: list[bytes] = self._identifiers.to_pylist()
        return found

    def containing(self, members: Sequence[bytes]) -> ArrowRun:
        found = self
        for member in members:
            found = found._where(pc.match_substring(found._identifiers, member))
        return found

    def mentions(self, mark: bytes) -> bool:
        """Return whether these bytes occur in an identifier; one search through all of them, the first time."""
        if mark not in self._mentioned:
            _, offsets, data = self._identifiers.buffers()
            start = self._identifiers.offset
            ends = np.frombuffer(offsets, np.int32)[start : start + len(self) + 1]
            self._mentioned[mark] = data is not None and mark in bytes(memoryview(data)[ends[0] : ends[-1]])
        return self._mentioned[mark]

    def rewritten(self, mark: bytes, rewrite: Callable[[bytes], bytes]) -> ArrowRun:
        if not self.mentions(mark):
            return self
        identifiers = pa.array(map(rewrite, self._identifiers.to_pylist()), pa.binary())
        return ArrowRun(self._sequences, self._times, self._topics, identifiers, self._payloads, self._boxes)

    def joined(self, parts: Sequence[Part]) -> Rendered:
        if not len(self):
            return b""
        times = self._shown_times()
        shown = [times if part == "time" and isinstance(times, bytes) else part for part in parts]
        columns = [
            _scalar(part) if isinstance(part, bytes) else times if part == "time" else self._column(part)
            for part in _merged(shown)
        ]
        joined = pc.binary_join_element_wise(*columns, _scalar(b""))
        return memoryview(joined.buffers()[2]).cast("B")

    def _column(self, name: Part) -> pa.BinaryArray:
        match name:
            case "sequence":
                return self._sequences
            case "identifier":
                return self._identifiers
            case "payload":
                return self._payloads
        raise ValueError(f"no column {name!r}")

    def _shown_times(self) -> bytes | pa.BinaryArray:
        """Return the times as events show them; one if all are the same."""
        first = self._times[0]
        if pc.all(pc.equal(self._times, first)).as_py():  # what was stored together has one time
            return event_time(int(first.as_py())).encode()
        return event_times(_numbers(self._times))

    def _where(self, kept: pa.BooleanArray) -> ArrowRun:
        if kept.true_count == len(self):
            return self
        flags = kept.to_pylist()
        return ArrowRun(
            self._sequences.filter(kept),
            self._times.filter(kept),
            lambda: list(compress(self._topics(), flags)),
            self._identifiers.filter(kept),
            self._payloads.filter(kept),
            None if self._boxes is None else lambda: list(compress(self.boxes or (), flags)),
        )

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Notification]:
        return iter(self.values)

    @overload
    def __getitem__(self, place: int) -> Notification: ...
    @overload
    def __getitem__(self, place: slice) -> ArrowRun: ...
    def __getitem__(self, place: int | slice) -> Notification | ArrowRun:
        if isinstance(place, int):
            return self.values[place]
        return ArrowRun(
            self._sequences[place],
            self._times[place],
            lambda: self._topics()[place],
            self._identifiers[place],
            self._payloads[place],
            None if self._boxes is None else lambda: (self.boxes or ())[place],
        )


@lru_cache(_REMEMBERED)
def _scalar(constant: bytes) -> pa.BinaryScalar:
    return pa.scalar(constant, pa.binary())


def _merged(parts: Iterable[Part]) -> list[Part]:
    """Join constants that are neighbours."""
    merged: list[Part] = []
    for part in parts:
        if merged and isinstance(part, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _numbers(given: pa.BinaryArray | pa.Int64Array) -> pa.Int64Array:
    return given if pa.types.is_int64(given.type) else given.cast(pa.string()).cast(pa.int64())


def event_times(times: pa.Int64Array) -> pa.BinaryArray:
    """Do what `event_time` does, for many times."""
    numbers = times.to_numpy()
    if len(numbers) < _MANY:
        return _one_by_one(numbers)
    written = times.cast(pa.timestamp("ns")).cast(pa.string())  # as 2025-06-15 15:06:40.010000000
    text = np.empty((len(numbers), _LONGEST_TIME), np.uint8)
    text[:, :-1] = np.frombuffer(written.buffers()[2], np.uint8, len(numbers) * 29).reshape(-1, 29)
    text[:, 10] = ord("T")
    fractions = (numbers % SECOND).astype(np.int32)
    lengths = np.select([fractions == 0, fractions % 10**6 == 0, fractions % 1000 == 0], [20, 24, 27], _LONGEST_TIME)
    text[np.arange(len(numbers)), lengths - 1] = ord("Z")
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    same = bool(np.all(lengths == lengths[0]))
    shown = text[:, : lengths[0]].ravel() if same else text[np.arange(_LONGEST_TIME) < lengths[:, None]]
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(ends), pa.py_buffer(shown)])


def _one_by_one(times: npt.NDArray[np.int64]) -> pa.BinaryArray:
    return pa.array([event_time(time).encode() for time in times.tolist()], pa.binary())
