"""Writing: rows become requests on workers, are checked there by the server, and the driver publishes each once."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import os
import struct
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from pyspark_aviso.client import STORED, EventType, connect, pause, reason_of, refusal
from pyspark_aviso.errors import PipelineError
from pyspark_aviso.options import Options

__all__ = [
    "BatchLedger",
    "BatchWriter",
    "Row",
    "Staged",
    "Stager",
    "StreamWriter",
    "cell_value",
    "cut",
    "publish",
    "rows_of",
]

_MOST_SHOWN = 20  # refused rows that an error lists
_MOST_ROWS = 1000  # of a request
_MOST_BYTES = 4 * 1024 * 1024
_OWN = frozenset({"event_type", "identifier", "payload"})
_UNREAD = frozenset({"time", *(column.name for column in STORED)}) - _OWN

# What Spark calls

Messages = list[WriterCommitMessage | None]
_StreamArrowWriter = getattr(spark, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""Spark 4.0 hands rows to the writer of a stream, later versions record batches; `_dicts` takes both."""


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame.

    Tasks only prepare requests and have them checked; the driver publishes when all tasks have succeeded. A task that
    is retried or run twice by speculation therefore never publishes a row twice, and a failed job publishes nothing.
    Made on the driver, pickled and sent to the workers: it holds the options and the event types, both of which pickle.
    """

    def __init__(self, options: Options, event_types: Mapping[str, EventType], schema: StructType) -> None:
        self._options = options
        self._stager = Stager(options, schema, event_types)
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Prepare the rows of a partition. Called on a worker, once per attempt of a task; the result is pickled."""
        return self._stager.stage(_partition(), iterator)

    def commit(self, messages: Messages) -> None:
        """Publish. Called on the driver, once, after all tasks; with what one attempt of each of them returned."""
        publish(self._options, _staged(messages), self._write)

    def abort(self, messages: Messages) -> None:
        """Some task failed. Called on the driver instead of `commit`: nothing has been published."""


class StreamWriter(_StreamArrowWriter):  # type: ignore[misc, valid-type]  # it depends on the version of Spark
    """Publishes every micro-batch of a query, as `BatchWriter` does.

    A micro-batch that Spark runs again after a crash is recognised by its keys, and by a ledger beside the query's
    checkpoint where a server takes no keys.
    """

    def __init__(self, options: Options, event_types: Mapping[str, EventType], schema: StructType) -> None:
        self._options = options
        self._stager = Stager(options, schema, event_types)

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Prepare the rows of a partition. Called on a worker, once per attempt of a task; the result is pickled."""
        staged = self._stager.stage(_partition(), iterator)
        context = TaskContext.get()
        # the id of the query stays the same when it is started again from its checkpoint
        staged.query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return staged

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish. Called on the driver, once per micro-batch, and again with the same number after a crash."""
        staged = _staged(messages)
        query = self._options.write_id or next((each.query for each in staged if each is not None and each.query), None)
        write = f"{query or uuid.uuid4().hex}/{batchId}"
        if self._options.ledger is None:
            publish(self._options, staged, write)
            return
        with contextlib.closing(BatchLedger(Path(self._options.ledger), batchId)) as ledger:
            publish(self._options, staged, write, ledger)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Some task failed. Called on the driver instead of `commit`: nothing of this attempt has been published."""


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _staged(messages: Messages) -> list[Staged | None]:
    return [message if isinstance(message, Staged) else None for message in messages]


# On workers: rows become requests


class Staged(WriterCommitMessage):
    """What one task has prepared: requests in the order of its rows, and the rows that would be refused. Pickles.

    A row is named by the number of its task's partition and its place in it; both survive a retry of the task.
    """

    query: str | None = None  # the id of the streaming query

    def __init__(self, partition: int, requests: Sequence[bytes], refused: Mapping[int, str]) -> None:
        self.partition = partition
        self.refused = dict(sorted(refused.items())[:_MOST_SHOWN])  # place and reason of the first few
        self.refused_count = len(refused)
        self._packed = zlib.compress(b"\n".join(requests), 1)
        self._filled = bool(requests)

    @property
    def requests(self) -> list[bytes]:
        """Return the bodies to publish."""
        return zlib.decompress(self._packed).split(b"\n") if self._filled else []


class Stager:
    """Turns rows into requests; made on the driver, pickled, used on workers."""

    def __init__(self, options: Options, schema: StructType, event_types: Mapping[str, EventType]) -> None:
        if len(options.event_types) > 1:
            raise PipelineError("option 'event_type' must name one event type for writing; several go into a column")
        self._options = options
        self._default = options.event_types[0] if options.event_types else None
        self._fields = {
            name: {column.field: column.name for column in each.columns if column.field is not None}
            for name, each in event_types.items()
        }
        self._names = schema.fieldNames()
        if "event_type" not in self._names and self._default is None:
            raise PipelineError("which event type? Set the option 'event_type' or add a column of that name")
        for name in _OWN & set(self._names):
            if not isinstance(schema[name].dataType, StringType):
                raise PipelineError(f"column '{name}' must hold text; payloads and identifiers are JSON text (to_json)")
        known = {column for fields in self._fields.values() for column in fields.values()} | _OWN
        unknown = [name for name in self._names if name not in known | _UNREAD]
        if unknown and event_types and "identifier" not in self._names:
            there = ", ".join(sorted(known))
            raise PipelineError(f"column '{unknown[0]}' is no field of an event type; columns that count: {there}")

    def stage(self, partition: int, rows: Iterable[Any]) -> Staged:
        """Return all rows of a partition, checked by the server if it does that without storing them."""
        requests: list[bytes] = []
        refused: dict[int, str] = {}
        places: list[int] = []
        for place, row in enumerate(_dicts(rows)):
            try:
                requests.append(self._request(row))
                places.append(place)
            except ValueError as error:
                refused[place] = str(error)
        checked = zip(places, _check(self._options, requests), strict=True)
        refused |= {place: complaint for place, complaint in checked if complaint is not None}
        return Staged(partition, [] if refused else requests, refused)

    def _request(self, row: Mapping[str, Any]) -> bytes:
        name = row.get("event_type") or self._default
        if not name:
            raise ValueError("column 'event_type' is null and the option 'event_type' is not set")
        if "identifier" in self._names:
            identifier = _json("identifier", row["identifier"])
            if not identifier.startswith("{"):
                raise ValueError("column 'identifier' must hold a JSON object")
        else:
            others = {column: column for column in row if column not in _OWN | _UNREAD}
            columns = self._fields.get(name, others)
            values = {field: row.get(column) for field, column in columns.items()}
            given = {field: cell_value(field, value) for field, value in values.items() if value is not None}
            identifier = json.dumps(given, ensure_ascii=False)
        payload = _json("payload", row.get("payload"))
        try:
            return f'{{"event_type":{json.dumps(name)},"identifier":{identifier},"payload":{payload}}}'.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text holds half a character: {error}") from None


def _dicts(rows: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for each in rows:
        if isinstance(each, pa.RecordBatch):
            yield from each.to_pylist()
        else:
            yield each.asDict()


def _json(name: str, text: str | None) -> str:
    """Return JSON text as it is, on one line; ValueError if it is none."""
    if text is None:
        return "null"
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column '{name}' is not JSON: {error}") from None
    return " ".join(text.split("\n")).strip()  # within strings line ends are escaped


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def cell_value(name: str, value: Any) -> Any:
    """Return the JSON value of a cell for the field of that name; ValueError if it has none."""
    if isinstance(value, bytes | bytearray):
        return _polygon(name, bytes(value))
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, str | bool | int | float | list):
        return value
    raise ValueError(f"Field '{name}': a column of type {type(value).__name__} cannot be published")


_POLYGON, _SRID, _WGS84 = 3, 0x20000000, 4326


def _polygon(name: str, data: bytes) -> list[list[float]]:
    """Return the pairs of latitude and longitude of a polygon of one ring in well-known binary."""
    try:
        order = "<" if data[0] else ">"
        (kind,) = struct.unpack_from(f"{order}I", data, 1)
        place = 5
        if kind & _SRID:
            (srid,) = struct.unpack_from(f"{order}I", data, place)
            if srid not in (0, _WGS84):
                raise ValueError("expected degrees of latitude and longitude (EPSG:4326)")
            kind, place = kind & ~_SRID, place + 4
        rings, count = struct.unpack_from(f"{order}II", data, place)
        if (kind, rings) != (_POLYGON, 1) or len(data) != place + 8 + 16 * count:
            raise ValueError("expected well-known binary of a polygon with one ring")
        numbers = struct.unpack_from(f"{order}{2 * count}d", data, place + 8)
    except (struct.error, IndexError):
        raise ValueError(f"Field '{name}': expected a polygon as well-known binary") from None
    except ValueError as error:
        raise ValueError(f"Field '{name}': {error}") from None
    return [[lat, lon] for lon, lat in zip(numbers[::2], numbers[1::2], strict=True)]


# On the driver: requests are published


@dataclass(frozen=True)
class Row:
    """A request, where it comes from, and its idempotency key."""

    partition: int
    place: int
    request: bytes
    content: bytes  # its digest
    key: str

    def __str__(self) -> str:
        return _row_name(self.partition, self.place)

    @property
    def item(self) -> bytes:
        """Return the request as an item of a batch."""
        return b'{"idempotency_key":"%b",%b' % (self.key.encode(), self.request[1:])


class _Stopped(Exception):
    """Publishing cannot go on; the text says at which row and why."""


def _row_name(partition: int, place: int) -> str:
    return f"row {place} of partition {partition}"


def _digest(request: bytes) -> bytes:
    return blake2b(request, digest_size=16).hexdigest().encode()


def rows_of(parts: Sequence[Staged], write: str) -> list[Row]:
    """Return all rows in the order of partitions and places; `write` names the write they belong to.

    A key consists of the write, the content and how often that content came before. So the same rows have the same
    keys when a write is repeated, even if Spark brings them in another order.
    """
    seen: Counter[bytes] = Counter()
    rows = []
    for part in parts:
        for place, request in enumerate(part.requests):
            content = _digest(request)
            key = _digest(f"{write}/{seen[content]}/".encode() + content).decode()
            seen[content] += 1
            rows.append(Row(part.partition, place, request, content, key))
    return rows


def publish(options: Options, staged: Sequence[Staged | None], write: str, ledger: BatchLedger | None = None) -> int:
    """Publish every row once, in the order of partitions and rows; how many.

    `write` names this write: a server that takes batches recognises rows that it got under the same name before.
    If a row would be refused by the rules of its event type, nothing is published at all. Rows that the server
    refuses nevertheless do not keep the others from being published. PipelineError lists both.
    """
    parts = sorted((each for each in staged if each is not None), key=lambda each: each.partition)
    count = sum(each.refused_count for each in parts)
    if count:
        shown = [f"{_row_name(each.partition, place)}: {why}" for each in parts for place, why in each.refused.items()]
        raise PipelineError(f"nothing was published, because {count} rows would be refused: {_listed(shown, count)}")
    rows = [row for row in rows_of(parts, write) if ledger is None or not ledger.take(row.content)]
    refused: list[str] = []
    published = 0
    try:
        with connect(options) as client:
            for row, complaint in _outcomes(client, rows, options, ledger):
                published += complaint is None
                refused += [] if complaint is None else [f"{row}: {complaint}"]
    except _Stopped as stop:
        more = f"; refused before: {_listed(refused, len(refused))}" if refused else ""
        raise PipelineError(f"published at least {published} of {len(rows)} rows, then stopped: {stop}{more}") from None
    if refused:
        raise PipelineError(f"published {published} of {len(rows)} rows; refused: {_listed(refused, len(refused))}")
    return published


def cut(rows: Sequence[Any], sizes: Iterable[int]) -> Iterator[Sequence[Any]]:
    """Yield the rows in pieces that make a request each."""
    start = total = 0
    for place, size in enumerate(sizes):
        total += size
        if place > start and (place - start == _MOST_ROWS or total > _MOST_BYTES):
            yield rows[start:place]
            start, total = place, size
    if rows:
        yield rows[start:]


def _outcomes(
    client: httpx.Client, rows: Sequence[Row], options: Options, ledger: BatchLedger | None
) -> Iterator[tuple[Row, str | None]]:
    """Yield for each row None if it was published, else why the server refused it."""
    # the reference server does not know the route
    batches = bool(rows) and _post(client, _BATCHES, b"[]", options).status_code == 200
    pieces = list(cut(rows, (len(row.request) for row in rows))) if batches else [[row] for row in rows]

    def send(piece: Sequence[Row]) -> list[str | None]:
        told = _send_many(client, options, piece) if batches else [_send_one(client, options, piece[0])]
        for row, complaint in zip(piece, told, strict=True):
            if complaint is None and ledger is not None:
                ledger.add(row.content)
        return told

    if options.connections == 1:
        for piece in pieces:
            yield from zip(piece, send(piece), strict=True)
        return
    with ThreadPoolExecutor(options.connections, thread_name_prefix="publish") as threads:
        for piece, told in zip(pieces, threads.map(send, pieces), strict=True):
            yield from zip(piece, told, strict=True)


def _send_many(client: httpx.Client, options: Options, rows: Sequence[Row]) -> list[str | None]:
    found = _send_batch(client, options, _BATCHES, [row.item for row in rows], str(rows[0]))
    assert found is not None
    return found


def _send_one(client: httpx.Client, options: Options, row: Row) -> str | None:
    """Send a row to a server that takes neither batches nor keys."""
    failures = 0
    while True:
        try:
            response = client.post("/api/v1/notification", content=row.request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            failure: Exception = error  # it was not sent, so it may be sent again
        except httpx.HTTPError as error:
            # It was sent, and nobody knows whether it arrived: to send it again might publish it twice.
            words = f"{row}: the connection broke and it is unknown whether it was published: {reason_of(error)}"
            raise _Stopped(words) from None
        else:
            if response.status_code == 200:
                return None
            failure = refused = refusal(response)
            if refused.status == 400:
                return str(refused)
            if refused.status != 503:
                raise _Stopped(f"{row}: status {refused.status}: {refused}")
        failures += 1
        if failures > options.retries:
            raise _Stopped(f"{row}: not published: {reason_of(failure)}")
        time.sleep(pause(failures))


# Batches, of which a lost answer does no harm: checks store nothing, and the rest have keys

_BATCHES = "/api/v1/notifications"
_CHECKS = f"{_BATCHES}?dry_run=true"
_PASSING = frozenset({429, 500, 503})
_UNSTORED = "NOTIFICATION_STORAGE_FAILED"


def _check(options: Options, requests: Sequence[bytes]) -> Iterator[str | None]:
    """Yield for each request why the server would refuse it, None if it would not or does not say beforehand."""
    with connect(options) as client:
        known = True
        for piece in cut(requests, map(len, requests)):
            try:
                found = _send_batch(client, options, _CHECKS, piece, "a check of rows") if known else None
            except _Stopped as stop:
                raise PipelineError(f"rows cannot be checked: {stop}") from None
            known = found is not None
            yield from [None] * len(piece) if found is None else found


def _send_batch(
    client: httpx.Client, options: Options, path: str, items: Sequence[bytes], name: str
) -> list[str | None] | None:
    """Return for each item why the server refuses it, or None; None of all if it does not know what is asked.

    Asks again while the server is away or busy; _Stopped if that does not help. `name` is that of the first item.
    """
    failures = 0
    while True:
        response = _post(client, path, b"[" + b",".join(items) + b"]", options, f"{name} and {len(items) - 1} more")
        if response.status_code == 200:
            outcomes = json.loads(response.content)["outcomes"]
            unstored = next((each for each in outcomes if each.get("code") == _UNSTORED), None)
            if unstored is None:
                return [each["message"] if each["status"] == "error" else None for each in outcomes]
            failures += 1
            if failures > options.retries:
                raise _Stopped(f"{name} and {len(items) - 1} more: not known to be published: {unstored['message']}")
            time.sleep(pause(failures))
            continue
        refused = refusal(response)
        if path == _CHECKS and (refused.status in (404, 405) or "dry_run" in str(refused)):
            return None
        if refused.status != 413:
            raise _Stopped(f"{name}: status {refused.status}: {refused}")
        if len(items) == 1:
            return [str(refused)]
        middle = len(items) // 2  # two halves of what is too much for one request
        first = _send_batch(client, options, path, items[:middle], name) or []
        return first + (_send_batch(client, options, path, items[middle:], name) or [])


def _post(client: httpx.Client, path: str, content: bytes, options: Options, name: str = "") -> httpx.Response:
    """Return the answer to a request that may be sent again; _Stopped if there is none."""
    failures = 0
    while True:
        try:
            response = client.post(path, content=content)
        except httpx.HTTPError as error:
            failure: Exception = error
        else:
            if response.status_code not in _PASSING:
                return response
            failure = refusal(response)
        failures += 1
        if failures > options.retries:
            words = f"{name}: not known to be published" if name else "nothing was sent"
            raise _Stopped(f"{words}: {reason_of(failure)}")
        time.sleep(pause(failures))


def _listed(complaints: Sequence[str], count: int) -> str:
    shown = "\n  ".join(complaints[:_MOST_SHOWN])
    more = f"\n  … and {count - _MOST_SHOWN} more" if count > _MOST_SHOWN else ""
    return f"\n  {shown}{more}"


class BatchLedger:
    """Which rows of a micro-batch were published already, over the end of the process.

    One file per micro-batch, a line for each published row; the files of earlier micro-batches are removed. When Spark
    runs a micro-batch again after a crash, rows that are in its file are not published again. A line is written after
    the server has answered, so a process that is killed between the two publishes that row twice: as many rows as there
    are connections, at most. Lines survive the end of the process, not of the machine.
    """

    def __init__(self, folder: Path, batch: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / str(batch)
        written = path.read_bytes() if path.exists() else b""
        complete = written[: written.rfind(b"\n") + 1]
        self._known = Counter(complete.split())
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, len(complete))
        for other in folder.iterdir():
            if other.name.isdigit() and int(other.name) < batch:
                other.unlink()

    def take(self, content: bytes) -> bool:
        """Return whether a row of this content was published before; each remembered one is found once."""
        if not self._known[content]:
            return False
        self._known[content] -= 1
        return True

    def add(self, content: bytes) -> None:
        """Note that a row of this content has been published."""
        with self._lock:
            os.write(self._file, content + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
