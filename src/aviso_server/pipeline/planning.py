"""Finding out what there is to read: which sequences a stream has, and what its server understands.

Our server says all of it before the first row. A server that does not is asked the same things by replays that are
hung up on after their first notification.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import httpx
import msgspec
from pyspark.sql.datasource import InputPartition

from aviso_server.errors import PipelineError, Refused
from aviso_server.model.columns import wire_columns
from aviso_server.model.fields.enum import EnumField
from aviso_server.model.fields.float import FloatField
from aviso_server.model.fields.integer import IntField
from aviso_server.model.fields.polygon import PolygonField
from aviso_server.model.schema import EventType
from aviso_server.model.timestamp import event_time, parse_instant
from aviso_server.pipeline.catalogue import AnyType
from aviso_server.pipeline.connection import open_replay, pause
from aviso_server.pipeline.replay_stream import Interrupted, Opening, is_arrow, replayed

__all__ = ["Planner", "SequenceRange", "Stretch", "split"]

_HIGHEST = str(2**64 - 1)
_EVERYWHERE = "(-90,-180,-90,180,90,180,90,-180,-90,-180)"


class Stretch(msgspec.Struct, frozen=True):
    """A part of a stream: nothing if the end lies before the start."""

    start: int
    end: int
    first: int | None = None  # the oldest sequence that is held, if the server says so
    trimmed: int | None = None  # the newest sequence that retention has removed, if the server says so

    def lost_before(self, sequence: int) -> bool:
        """True if retention has removed something at or after the sequence and all that came before it."""
        return (
            self.first is not None and self.trimmed is not None and self.first > sequence and self.trimmed >= sequence
        )


class SequenceRange(InputPartition):
    """A partition: the notifications of one event type from one sequence to another. Pickles."""

    def __init__(
        self, event_type: str, identifier: dict[str, Any], start: int, end: int, bounded: bool, strict: bool = False
    ) -> None:
        super().__init__((event_type, start, end))
        self.event_type = event_type
        self.identifier = identifier
        self.start = start
        self.end = end
        self.bounded = bounded  # the server knows `to_id`
        self.strict = strict  # rows that retention removed before they were read are an error


class Planner:
    """Asks one server about one event type and a filter; lives on the driver."""

    def __init__(
        self, client: httpx.Client, name: str, event_type: AnyType, identifier: Mapping[str, Any], retries: int
    ) -> None:
        self.name = name
        self.identifier = dict(identifier)
        self.bounded = True  # until the server says that it does not know `to_id`
        self._client = client
        self._event_type = event_type
        self._columns = wire_columns(event_type)
        self._retries = retries
        self._filled = False

    def stretch(self, span: Mapping[str, str]) -> Stretch:
        """The sequences that a span means now."""
        opening, first_row = self._look(span)
        if opening.start is not None and opening.end is not None:
            return Stretch(opening.start, opening.end, opening.first, opening.trimmed)
        return Stretch(1, 0) if first_row is None else Stretch(first_row, self._end(span, first_row))

    def latest(self, after: int) -> Stretch:
        """What has come after a sequence."""
        opening, _ = self._look({"from_id": _HIGHEST, "to_id": _HIGHEST} if self.bounded else {"from_id": _HIGHEST})
        if opening.end is not None:
            return Stretch(after + 1, opening.end, opening.first, opening.trimmed)
        return Stretch(after + 1, self._search(after))

    def _end(self, span: Mapping[str, str], start: int) -> int:
        """The last sequence of a span that has a first one, from a server that answers with events."""
        end = {key: span[key] for key in ("to_id", "to_date") if key in span} or {"to_id": _HIGHEST}
        if self.bounded:
            opening, _ = self._look({"from_id": "0", **end})
            if opening.end is not None:
                return opening.end
        if "to_date" in end:
            after = {"from_date": event_time(parse_instant("to_date", end["to_date"]) + 1)}
            later = self._first_row(after)
            return later - 1 if later is not None else self._search(start)
        return min(self._search(start), int(end["to_id"]))

    def _search(self, known: int) -> int:
        """The newest sequence that passes the filter, by asking whether there is any from a sequence on."""
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
        """What the server says first, and the first sequence if it answers with events."""
        failures = 0
        while True:
            known = dict(span) if self.bounded else {key: span[key] for key in span if not key.startswith("to_")}
            body = {"event_type": self.name, "identifier": self.identifier, **known}
            try:
                with open_replay(self._client, body) as response:
                    stream = replayed(response, self.name, self._columns, batch_rows=1)
                    row = None if is_arrow(response) else next(stream.batches, None)
                    return stream.opening, None if row is None else row.column("sequence")[0].as_py()
            except Refused as error:
                if error.code == "UNKNOWN_FIELD" and any(key.startswith("to_") for key in known):
                    self.bounded = False
                elif "Required field" in str(error) and not self._filled:
                    self._fill(error)
                else:
                    raise PipelineError(f"event type '{self.name}': {error}") from None
            except (httpx.HTTPError, Interrupted) as error:
                failures += 1
                if failures > self._retries:
                    reason = str(error) or type(error).__name__
                    raise PipelineError(f"event type '{self.name}': the server cannot be asked: {reason}") from None
                time.sleep(pause(failures))

    def _fill(self, error: Refused) -> None:
        """Ask for any value of the required fields that were left out."""
        self._filled = True
        fields = self._event_type.fields if isinstance(self._event_type, EventType) else {}
        for name, field in fields.items():
            if not field.required or name in self.identifier:
                continue
            if isinstance(field, EnumField):
                self.identifier[name] = {"in": list(field.values)}
            elif field.wildcard:
                self.identifier[name] = "*"
            elif isinstance(field, IntField | FloatField):
                self.identifier[name] = {"gte": field.range[0] if field.range is not None else -(2**63)}
            elif isinstance(field, PolygonField):
                self.identifier[name] = _EVERYWHERE
            else:
                raise PipelineError(
                    f"event type '{self.name}': the server wants a value for the field '{name}'; "
                    f"give one in the option 'identifier' or with a filter like {name} = '…' ({error})"
                ) from None


def split(stretch: Stretch, partitions: int | None, rows_per_partition: int) -> list[tuple[int, int]]:
    """The stretch cut into ranges of nearly the same size, in order and without gaps."""
    length = stretch.end - stretch.start + 1
    if length <= 0:
        return []
    count = min(length, partitions if partitions is not None else -(-length // rows_per_partition))
    edges = [stretch.start + length * place // count for place in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]
