"""Rows of a DataFrame as notifications, checked before any of them is published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import zstandard
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from aviso_server.errors import InvalidRequest, MalformedRequest, PipelineError
from aviso_server.model.columns import BOX, TIME_NS, Column, columns_of
from aviso_server.model.json_value import loads
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.catalogue import AnyType
from aviso_server.pipeline.cells import cell_value

__all__ = ["MOST_SHOWN", "Staged", "Stager", "row_name"]

MOST_SHOWN = 20
"""How many refused rows an error lists."""

_UNREAD = frozenset({"sequence", "time", "topic", *(column.name for column in BOX), TIME_NS.name})
_OWN = frozenset({"event_type", "identifier", "payload"})


class Staged(WriterCommitMessage):
    """What one task has prepared: requests in the order of its rows, and the rows that would be refused. Pickles.

    A row is named by the number of its task's partition and its place in it; both survive a retry of the task.
    """

    query: str | None = None  # the id of the streaming query

    def __init__(
        self, partition: int, requests: Sequence[bytes], refused: Sequence[tuple[int, str]], count: int
    ) -> None:
        self.partition = partition
        self.refused = tuple(refused)  # the first few: place and reason
        self.refused_count = count
        self._packed = zstandard.compress(b"\n".join(requests))
        self._filled = bool(requests)

    @property
    def requests(self) -> list[bytes]:
        """The bodies to publish."""
        return zstandard.decompress(self._packed).split(b"\n") if self._filled else []


class Stager:
    """Turns record batches into requests; made on the driver, pickled, used on workers."""

    def __init__(self, schema: StructType, default: str | None, catalogue: Mapping[str, EventType]) -> None:
        self._default = default
        self._catalogue = dict(catalogue)
        self._names = schema.fieldNames()
        if "event_type" not in self._names and default is None:
            raise PipelineError("which event type? Set the option 'event_type' or add a column of that name")
        for name in _OWN & set(self._names):
            if not isinstance(schema[name].dataType, StringType):
                raise PipelineError(f"column '{name}' must hold text; payloads and identifiers are JSON text (to_json)")
        known = {column.name for each in catalogue.values() for column in columns_of(each)} | _OWN | _UNREAD
        unknown = [name for name in self._names if name not in known]
        if unknown and catalogue and "identifier" not in self._names:
            fields = ", ".join(sorted(known - _UNREAD))
            raise PipelineError(f"column '{unknown[0]}' is no field of an event type; columns that count: {fields}")

    def stage(self, partition: int, batches: Iterable[pa.RecordBatch]) -> Staged:
        """All rows of a partition, checked with the rules of the server's own schema."""
        requests: list[bytes] = []
        refused: list[tuple[int, str]] = []
        count = 0
        for place, row in enumerate(_rows(batches)):
            try:
                requests.append(self._request(row))
            except InvalidRequest as error:
                count += 1
                if len(refused) < MOST_SHOWN:
                    refused.append((place, error.message))
        return Staged(partition, requests, refused, count)

    def _request(self, row: dict[str, Any]) -> bytes:
        name = row.get("event_type") or self._default
        if not name:
            raise InvalidRequest("column 'event_type' is null and the option 'event_type' is not set")
        event_type: AnyType = self._catalogue[name] if name in self._catalogue else GenericType(name)
        payload = _json("payload", row.get("payload"))
        if "identifier" in self._names:
            identifier = _json("identifier", row["identifier"])
            if not isinstance(identifier, dict):
                raise InvalidRequest("column 'identifier' must hold a JSON object")
        else:
            identifier = _fields(columns_of(event_type), row) if isinstance(event_type, EventType) else _rest(row)
        event_type.check(identifier, payload)
        return msgspec.json.encode({"event_type": name, "identifier": identifier, "payload": payload})


def row_name(partition: int, place: int) -> str:
    """A row as people find it again."""
    return f"row {place} of partition {partition}"


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _fields(columns: Sequence[Column], row: dict[str, Any]) -> dict[str, Any]:
    """The identifier in the columns of a row; a null is a field that is not there."""
    return {
        column.field: cell_value(column.field, row[column.name])
        for column in columns
        if column.field is not None and row.get(column.name) is not None
    }


def _rest(row: dict[str, Any]) -> dict[str, Any]:
    """The identifier of a schema-less event: every column that means nothing else."""
    return {
        name: cell_value(name, value) for name, value in row.items() if name not in _OWN | _UNREAD and value is not None
    }


def _json(name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return loads(text.encode())
    except (MalformedRequest, UnicodeEncodeError) as error:
        raise InvalidRequest(f"column '{name}' is not JSON: {error}", field=name) from None
