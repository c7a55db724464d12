"""Streaming reads: `spark.readStream.format("aviso")`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from aviso_server.errors import PipelineError
from aviso_server.model.columns import wire_columns
from aviso_server.pipeline.catalogue import AnyType
from aviso_server.pipeline.connection import connect
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.planning import Planner, SequenceRange, Stretch, split
from aviso_server.pipeline.reading import lost, read_range
from aviso_server.pipeline.table import Table, table_columns

__all__ = ["StreamReader"]

Offset = dict[str, int]
"""Event type -> the last sequence that has been read."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, micro-batch by micro-batch; an offset is the last sequence read of each event type.

    Spark keeps the offsets in the checkpoint of the query, so a restarted query goes on exactly after what it had.
    One instance lives on the driver as long as the query and keeps a connection; copies of it are pickled and sent to
    the workers, without the connection.
    """

    def __init__(self, options: Options, event_types: dict[str, AnyType], schema: StructType) -> None:
        if options.to_id is not None or options.to_date is not None:
            name = "to_id" if options.to_id is not None else "to_date"
            raise PipelineError(f"option '{name}' is for batch reads; a stream has no end")
        self._options = options
        self._event_types = event_types
        self._table = Table(schema, table_columns(event_types.values()))
        self._client: httpx.Client | None = None
        self._planners: dict[str, Planner] = {}
        self._target: Offset | None = None
        self._asked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection and what hangs on it."""
        return {**self.__dict__, "_client": None, "_planners": {}}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Where a new query starts. Called on the driver, once in the life of a checkpoint."""
        offset = {}
        for name in self._event_types:
            planner, span = self._planner(name), self._options.span
            stretch = planner.stretch(span)
            if stretch.first is not None or stretch.end >= stretch.start:
                offset[name] = stretch.start - 1
            elif "from_id" in span:  # nothing there, and the server does not say where it would be
                offset[name] = max(int(span["from_id"]) - 1, 0)
            else:
                offset[name] = planner.latest(0).end
        return offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """How far the next micro-batch goes. Called on the driver, once per trigger.

        Waits for `poll_interval` since the last question if there was nothing new, so that an idle query is quiet.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = self._ask(start, most)
        if found == start and self._target is None:
            time.sleep(max(0.0, self._asked + self._options.poll_interval - time.monotonic()))
        self._asked = time.monotonic()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The option `max_rows_per_batch`. Called on the driver."""
        rows = self._options.max_rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember what there is now, for queries that read that and stop. Called on the driver, once per run."""
        self._target = {name: self._planner(name).latest(0).end for name in self._event_types}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of one micro-batch. Called on the driver, again with the same offsets after a restart."""
        ranges: list[InputPartition] = []
        for name in self._event_types:
            planner = self._planner(name)
            # an event type that was added to the query since its checkpoint begins with what is still there
            strict = self._options.fail_on_data_loss and name in start
            stretch = Stretch(start.get(name, 0) + 1, end.get(name, 0))
            ranges += [
                SequenceRange(name, planner.identifier, low, high, planner.bounded, strict)
                for low, high in split(stretch, self._options.partitions, self._options.rows_per_partition)
            ]
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Called on a worker, once per attempt of a task; opens its own connection."""
        assert isinstance(partition, SequenceRange)
        columns = wire_columns(self._event_types[partition.event_type])
        for batch in read_range(self._options, partition, columns):
            yield self._table.shape(batch, columns)

    def commit(self, end: Offset) -> None:
        """Spark will not ask for anything up to `end` again. Called on the driver; the server need not know."""

    def stop(self) -> None:
        """Let go of the connection. Called on the driver when the query ends."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, start: Offset, most: int | None) -> Offset:
        share = None if most is None else max(1, most // len(self._event_types))
        found: Offset = {}
        for name in self._event_types:
            last = start.get(name, 0)
            news = self._planner(name).latest(last)
            if self._options.fail_on_data_loss and name in start and news.lost_before(last + 1):
                raise lost(name, last + 1, news)
            end = news.end if self._target is None else min(news.end, self._target.get(name, 0))
            if share is not None:
                end = min(end, last + share)
            found[name] = max(end, last)
        return found

    def _planner(self, name: str) -> Planner:
        if self._client is None:
            self._client = connect(self._options)
        if name not in self._planners:
            self._planners[name] = Planner(
                self._client, name, self._event_types[name], self._options.identifier, self._options.retries
            )
        return self._planners[name]
