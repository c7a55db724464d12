"""Reading: which sequences there are, ranges of them as partitions, and a range to its end whatever happens.

Our server says what it has before the first row. A server that does not is asked the same things by replays that are
hung up on after their first notification.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_aviso.client import (
    STORED,
    Column,
    EventType,
    Interrupted,
    LimitReached,
    Opening,
    column_array,
    connect,
    merge,
    open_replay,
    pause,
    reason_of,
)
from pyspark_aviso.errors import PipelineError, Refused
from pyspark_aviso.options import Options, event_time, instant
from pyspark_aviso.pushdown import Pushed, push

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    LIMITS = True
    """Spark lets a stream limit its micro-batches, which it does since 4.2."""
except ImportError:
    LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # what Spark would have brought
        """Older versions look at the stream once and read up to there by themselves."""


__all__ = [
    "LIMITS",
    "BatchReader",
    "Planner",
    "PushingReader",
    "SequenceRange",
    "StreamReader",
    "Stretch",
    "pushes_filters",
    "read_range",
    "spark_schema",
    "split",
]

_HIGHEST = str(2**64 - 1)
_EVERYWHERE = "(-90,-180,-90,180,90,180,90,-180,-90,-180)"


@dataclass(frozen=True)
class Stretch:
    """A part of a stream: nothing if the end lies before the start."""

    start: int
    end: int
    first: int | None = None  # the oldest sequence that is held, if the server says so
    trimmed: int | None = None  # the newest sequence that retention has removed, if the server says so

    def lost_before(self, sequence: int) -> bool:
        """Return whether retention has removed something at or after the sequence and all that came before it."""
        return (
            self.first is not None and self.trimmed is not None and self.first > sequence and self.trimmed >= sequence
        )


class SequenceRange(InputPartition):
    """A partition: the notifications of one event type from one sequence to another. Pickles."""

    def __init__(
        self,
        event_type: str,
        start: int,
        end: int,
        identifier: Mapping[str, Any] | None = None,
        bounded: bool = True,
        strict: bool = False,
    ) -> None:
        super().__init__((event_type, start, end))
        self.event_type = event_type
        self.start = start
        self.end = end
        self.identifier = dict(identifier or {})
        self.bounded = bounded  # the server knows `to_id`
        self.strict = strict  # rows that retention removed before they were read are an error

    def __str__(self) -> str:
        return f"event type '{self.event_type}', sequences {self.start} to {self.end}"


def split(stretch: Stretch, partitions: int | None, rows_per_partition: int) -> list[tuple[int, int]]:
    """Return the stretch cut into ranges of nearly the same size, in order and without gaps."""
    length = stretch.end - stretch.start + 1
    if length <= 0:
        return []
    count = min(length, partitions if partitions is not None else -(-length // rows_per_partition))
    edges = [stretch.start + length * place // count for place in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]


def read_range(options: Options, wanted: SequenceRange, columns: Sequence[Column] = STORED) -> Iterator[pa.RecordBatch]:
    """Yield all notifications of the range that pass its filter, once and in order; PipelineError if some are lost.

    A broken connection is made again and reading goes on after the last row, so a server may restart meanwhile. Batches
    have at least the columns asked for, as far as the server knows them; by default what the log keeps, which is the
    fastest.
    """
    position, failures = wanted.start, 0
    with connect(options) as client:
        while position <= wanted.end:
            before = position
            try:
                for batch in _batches(client, wanted, position, columns):
                    yield batch
                    position = batch.column("sequence")[-1].as_py() + 1
                return
            except LimitReached:
                if position == before:
                    raise PipelineError(f"{wanted}: the server's limit leaves no room for one row") from None
            except (httpx.TransportError, Interrupted) as error:
                failures = 1 if position > before else failures + 1
                if failures > options.retries:
                    raise PipelineError(f"{wanted}: broken off at sequence {position}: {reason_of(error)}") from None
                time.sleep(pause(failures))


def _batches(
    client: httpx.Client, wanted: SequenceRange, position: int, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    body = {"event_type": wanted.event_type, "identifier": wanted.identifier, "from_id": str(position)}
    if wanted.bounded:
        body["to_id"] = str(wanted.end)
    try:
        with open_replay(client, body, columns, wanted.end) as replay:
            held = Stretch(position, wanted.end, replay.opening.first, replay.opening.trimmed)
            if wanted.strict and held.lost_before(position):
                raise _lost(wanted.event_type, position, held)
            yield from (batch for batch in replay.batches if batch.num_rows)
    except Refused as error:
        if error.status == 503:
            raise Interrupted(str(error)) from None
        raise PipelineError(f"{wanted}: {error}") from None


def _lost(event_type: str, position: int, held: Stretch) -> PipelineError:
    return PipelineError(
        f"event type '{event_type}': notifications from sequence {position} on were removed by retention before they "
        f"were read; the oldest one held is {held.first}. To go on without them set failOnDataLoss to false"
    )


class Planner:
    """Asks one server about one event type and a filter; lives on the driver."""

    def __init__(
        self, client: httpx.Client, event_type: EventType, identifier: Mapping[str, Any], retries: int
    ) -> None:
        self.identifier = dict(identifier)
        self.bounded = True  # until the server says that it does not know `to_id`
        self._client = client
        self._event_type = event_type
        self._retries = retries
        self._filled = False

    def stretch(self, span: Mapping[str, str]) -> Stretch:
        """Return the sequences that a span means now."""
        opening, first_row = self._look(span)
        if opening.start is not None and opening.end is not None:
            return Stretch(opening.start, opening.end, opening.first, opening.trimmed)
        return Stretch(1, 0) if first_row is None else Stretch(first_row, self._end(span, first_row))

    def latest(self, after: int) -> Stretch:
        """Return what has come after a sequence."""
        opening, _ = self._look({"from_id": _HIGHEST, "to_id": _HIGHEST})
        if opening.end is not None:
            return Stretch(after + 1, opening.end, opening.first, opening.trimmed)
        return Stretch(after + 1, self._search(after))

    def ranges(
        self, stretch: Stretch, partitions: int | None, rows_per_partition: int, strict: bool = False
    ) -> list[SequenceRange]:
        """Return the stretch as partitions of the same filter."""
        return [
            SequenceRange(self._event_type.name, low, high, self.identifier, self.bounded, strict)
            for low, high in split(stretch, partitions, rows_per_partition)
        ]

    def narrow(self, texts: Mapping[str, str]) -> None:
        """Ask for these texts of fields too, where the server looks for exactly them.

        It may take a text for another one: 12 for 1200, or refuse it. What it does not confirm is left to Spark; only a
        field that a server insists on has to be given in any case.
        """
        if not texts:
            return
        self.identifier |= texts
        try:
            opening, _ = self._look({"from_id": _HIGHEST, "to_id": _HIGHEST})
        except PipelineError:  # it refuses one of them
            opening = Opening(equals={})
        says = opening.equals is not None or opening.start is not None
        for name, text in texts.items():
            required = self._event_type.fields[name].required
            if not ((opening.equals or {}).get(name) == text if says else required):
                del self.identifier[name]

    def _end(self, span: Mapping[str, str], start: int) -> int:
        """Return the last sequence of a span that has a first one, from a server that answers with events."""
        end = {key: span[key] for key in ("to_id", "to_date") if key in span} or {"to_id": _HIGHEST}
        if self.bounded:
            opening, _ = self._look({"from_id": "0", **end})
            if opening.end is not None:
                return opening.end
        if "to_date" in end:
            later = self._first_row({"from_date": event_time(instant(end["to_date"]) + 1)})
            return later - 1 if later is not None else self._search(start)
        return min(self._search(start), int(end["to_id"]))

    def _search(self, known: int) -> int:
        """Return the newest sequence that passes the filter, by asking whether there is any from a sequence on."""
        step, low = 1, known
        while (found := self._first_row({"from_id": str(low + step)})) is not None:
            low, step = found, step * 2
        beyond = low + step  # none from there on
        while beyond - low > 1:
            middle = (low + beyond) // 2
            found = self._first_row({"from_id": str(middle)})
            if found is None:
                beyond = middle
            else:
                low = found
        return low

    def _first_row(self, span: Mapping[str, str]) -> int | None:
        return self._look(span)[1]

    def _look(self, span: Mapping[str, str]) -> tuple[Opening, int | None]:
        """Return what the server says first, and the first sequence if it answers with events."""
        name, failures = self._event_type.name, 0
        while True:
            known = dict(span) if self.bounded else {key: span[key] for key in span if not key.startswith("to_")}
            body = {"event_type": name, "identifier": self.identifier, **known}
            try:
                with open_replay(self._client, body, STORED, batch_rows=1) as replay:
                    row = None if replay.typed else next(replay.batches, None)
                    return replay.opening, None if row is None else row.column("sequence")[0].as_py()
            except Refused as error:
                if error.code == "UNKNOWN_FIELD" and any(key.startswith("to_") for key in known):
                    self.bounded = False
                elif "Required field" in str(error) and not self._filled:
                    self._fill(error)
                else:
                    raise PipelineError(f"event type '{name}': {error}") from None
            except (httpx.HTTPError, Interrupted) as error:
                failures += 1
                if failures > self._retries:
                    words = f"event type '{name}': the server cannot be asked: {reason_of(error)}"
                    raise PipelineError(words) from None
                time.sleep(pause(failures))

    def _fill(self, error: Refused) -> None:
        """Ask for any value of the required fields that were left out."""
        self._filled = True
        for name, field in self._event_type.fields.items():
            if not field.required or name in self.identifier:
                continue
            if field.values:
                self.identifier[name] = {"in": list(field.values)}
            elif field.type in ("StringHandler", "ExpverHandler"):
                self.identifier[name] = "*"
            elif field.kind in ("integer", "number"):
                self.identifier[name] = {"gte": field.range[0] if field.range is not None else -(2**63)}
            elif field.type == "PolygonHandler":
                self.identifier[name] = _EVERYWHERE
            else:
                raise PipelineError(
                    f"event type '{self._event_type.name}': the server wants a value for the field '{name}'; "
                    f"give one in the option 'identifier' or with a filter like {name} = '…' ({error})"
                ) from None


# The table that Spark sees

_TYPES: Mapping[str, DataType] = {
    "integer": LongType(),
    "number": DoubleType(),
    "text": StringType(),
    "instant": TimestampType(),
    "shape": BinaryType(),
}


def spark_schema(event_types: Iterable[EventType], names: Sequence[str] = ()) -> StructType:
    """Return the columns of a table with the rows of these event types, or those of them that are named."""
    columns: Iterable[Column] = merge([each.columns for each in event_types])
    if names:
        known = {column.name.lower(): column for column in (*columns, STORED[1])}
        columns = [_found(known, name, "option 'columns'") for name in names]
    return StructType([StructField(column.name, _TYPES[column.kind], True) for column in columns])


def _found(known: Mapping[str, Column], name: str, who: str) -> Column:
    if name.lower() not in known:
        there = ", ".join(column.name for column in known.values())
        raise PipelineError(f"{who} asks for a column '{name}' that is not there; columns: {there}")
    return known[name.lower()]


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # older versions do not ask: times are in UTC
        return to_arrow_schema(schema)


class _Table:
    """The shape that rows must have for Spark: all columns of the schema, of its types, in its order. Pickles."""

    def __init__(self, schema: StructType, event_types: Mapping[str, EventType]) -> None:
        merged = {column.name.lower(): column for column in merge([each.columns for each in event_types.values()])}
        known = {**merged, STORED[1].name: STORED[1]}
        self._columns = [_found(known, name, "the schema") for name in schema.fieldNames()]
        self._schema = _arrow_schema(schema)
        names = {column.name.lower() for column in self._columns}
        self._own = {
            name: {each.name.lower(): each for each in event_type.wire_columns if each.name.lower() in names}
            for name, event_type in event_types.items()
        }

    def read(self, options: Options, partition: SequenceRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in this shape."""
        own = self._own[partition.event_type]
        mixed = any(own.get(each.name.lower(), each).kind != each.kind for each in self._columns)
        wanted = [*own.values(), STORED[-2]] if mixed else [*own.values()]
        for batch in read_range(options, partition, wanted):
            arrays = [
                self._array(batch, column, own.get(column.name.lower()), field.type, partition.event_type)
                for column, field in zip(self._columns, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(
        self, batch: pa.RecordBatch, column: Column, own: Column | None, kind: pa.DataType, event_type: str
    ) -> pa.Array:
        found = None if own is None else column_array(batch, own.name, event_type)
        if own is None or found is None:
            return pa.nulls(batch.num_rows, kind)
        if own.kind != column.kind and own.field is not None:  # event types differ: the canonical text it is
            return _texts(batch.column("identifier").to_pylist(), own.field).cast(kind)
        return found if found.type == kind else found.cast(kind)


def _texts(identifiers: Sequence[str], field: str) -> pa.Array:
    values = (json.loads(each).get(field) for each in identifiers)
    texts = [each if each is None or isinstance(each, str) else json.dumps(each) for each in values]
    return pa.array(texts, pa.string())


# What Spark calls


class BatchReader(DataSourceReader):
    """Reads history, cut into ranges of sequences.

    Made on the driver while a query is planned, then pickled and sent to the workers: it holds the options, the event
    types and the shape of the table, all of which pickle, and no connection.
    """

    def __init__(self, options: Options, event_types: dict[str, EventType], schema: StructType) -> None:
        if options.start == "latest":
            raise PipelineError("option 'startingOffsets': latest is for streams; accepted here: earliest, a sequence")
        self._options = options
        self._event_types = event_types
        self._table = _Table(schema, event_types)
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read. Called once, on the driver, when the query is planned; the ranges are pickled.

        What the server holds at this moment is what the query sees.
        """
        options, ranges = self._options, list[InputPartition]()
        columns = merge([each.columns for each in self._event_types.values()])
        with connect(options) as client:
            for event_type in self._event_types.values():
                pushed = push(self._filters, event_type, columns, options.identifier)
                if pushed.nothing:
                    continue
                planner = Planner(client, event_type, {**options.identifier, **pushed.identifier}, options.retries)
                planner.narrow(pushed.texts)
                stretch = _narrowed(planner, planner.stretch(options.span(event_type.name)), pushed)
                ranges += planner.ranges(stretch, options.partitions, options.rows_per_partition)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range. Called on a worker, once per attempt of a task; opens its own connection.

        An attempt that is made again reads the same rows again: what a sequence stands for never changes.
        """
        if isinstance(partition, SequenceRange):  # else Spark's stand-in for no partitions at all
            yield from self._table.read(self._options, partition)


class PushingReader(BatchReader):
    """The same where Spark offers filters, which is since 4.1 and if the session says so."""

    def pushFilters(self, filters: list[Filter]) -> Sequence[Filter]:  # noqa: N802  # Spark's name
        """Remember the filters for `partitions`. Called once, on the driver, before it.

        All of them are handed back: what the server sends may be more than was asked for, so Spark looks at it again.
        """
        self._filters = list(filters)
        return filters


def pushes_filters() -> bool:
    """Return whether Spark is about to offer filters to a reader that is made now.

    Spark refuses a reader that takes filters in a session that pushes none, and tells nobody which one it has. But it
    offers filters from a program of its own.
    """
    program = "pyspark.sql.worker.data_source_pushdown_filters"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program in sys.modules or getattr(main, "name", None) == program


def _narrowed(planner: Planner, stretch: Stretch, pushed: Pushed) -> Stretch:
    """Return the part of the stretch that filters on `sequence` and `time` leave."""
    start, end = stretch.start, stretch.end
    if pushed.from_sequence is not None:
        start = max(start, pushed.from_sequence)
    if pushed.to_sequence is not None:
        end = min(end, pushed.to_sequence)
    if start <= end and (pushed.from_time is not None or pushed.to_time is not None):
        span = {"from_id": "0"} if pushed.from_time is None else {"from_date": event_time(pushed.from_time)}
        if pushed.to_time is not None:
            span["to_date"] = event_time(pushed.to_time)
        by_time = planner.stretch(span)
        start, end = max(start, by_time.start), min(end, by_time.end)
    return Stretch(start, end)


Offset = dict[str, int]
"""Event type -> the last sequence that has been read."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, micro-batch by micro-batch; an offset is the last sequence read of each event type.

    Spark keeps the offsets in the checkpoint of the query, so a restarted query goes on exactly after what it had.
    One instance lives on the driver as long as the query and keeps a connection; copies of it are pickled and sent to
    the workers, without the connection.
    """

    def __init__(self, options: Options, event_types: dict[str, EventType], schema: StructType) -> None:
        if options.has_end:
            name = "endingOffsets" if options.to_date is None else "to_date"
            raise PipelineError(f"option '{name}' is for batch reads; a stream has no end")
        if options.max_rows_per_batch is not None and not LIMITS:
            raise PipelineError("option 'maxRecordsPerBatch' needs Spark 4.2 or newer")
        self._options = options
        self._event_types = event_types
        self._table = _Table(schema, event_types)
        self._client: httpx.Client | None = None
        self._planners: dict[str, Planner] = {}
        self._target: Offset | None = None
        self._found: Offset = {}
        self._asked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connection and what hangs on it."""
        return {**self.__dict__, "_client": None, "_planners": {}}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query starts. Called on the driver, once in the life of a checkpoint."""
        return {name: self._first(name) - 1 for name in self._event_types}

    def _first(self, name: str) -> int:
        planner, span = self._planner(name), self._options.span(name)
        if self._options.start == "latest" and self._options.from_date is None:
            return planner.latest(0).end + 1
        stretch = planner.stretch(span)
        if stretch.first is not None or stretch.end >= stretch.start:
            return stretch.start
        # nothing there, and the server does not say where it would be
        return max(int(span["from_id"]), 1) if "from_id" in span else planner.latest(0).end + 1

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # Spark's name
        """Return how far the next micro-batch goes. Called on the driver, once per trigger.

        Waits for `poll_interval` since the last question if there was nothing new, so that an idle query is quiet.
        Before 4.2 Spark tells neither where it is nor how much it wants.
        """
        most = limit.max_rows if LIMITS and isinstance(limit, ReadMaxRows) else None
        found = self._news({} if start is None else start, most)
        if found == (self._found if start is None else start) and self._target is None:
            time.sleep(max(0.0, self._asked + self._options.poll_interval - time.monotonic()))
        self._asked, self._found = time.monotonic(), found
        return found

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """Return the option `maxRecordsPerBatch`. Called on the driver."""
        rows = self._options.max_rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember what there is now, for queries that read that and stop. Called on the driver, once per run."""
        self._target = {name: self._planner(name).latest(0).end for name in self._event_types}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the ranges of one micro-batch. Called on the driver, again with the same offsets after a restart."""
        options, ranges = self._options, list[InputPartition]()
        for name in self._event_types:
            # an event type that was added to the query since its checkpoint begins with what is still there
            strict = options.fail_on_data_loss and name in start
            stretch = Stretch(start.get(name, 0) + 1, end.get(name, 0))
            ranges += self._planner(name).ranges(stretch, options.partitions, options.rows_per_partition, strict)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range. Called on a worker, once per attempt of a task; opens its own connection."""
        assert isinstance(partition, SequenceRange)
        yield from self._table.read(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Spark will not ask for anything up to `end` again. Called on the driver; the server need not know."""

    def stop(self) -> None:
        """Let go of the connection. Called on the driver when the query ends."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _news(self, start: Offset, most: int | None) -> Offset:
        share = None if most is None else max(1, most // len(self._event_types))
        found: Offset = {}
        for name in self._event_types:
            last = start.get(name, 0)
            news = self._planner(name).latest(last)
            if self._options.fail_on_data_loss and name in start and news.lost_before(last + 1):
                raise _lost(name, last + 1, news)
            end = news.end if self._target is None else min(news.end, self._target.get(name, 0))
            if share is not None:
                end = min(end, last + share)
            found[name] = max(end, last)
        return found

    def _planner(self, name: str) -> Planner:
        if self._client is None:
            self._client = connect(self._options)
        if name not in self._planners:
            options, event_type = self._options, self._event_types[name]
            self._planners[name] = Planner(self._client, event_type, options.identifier, options.retries)
        return self._planners[name]
