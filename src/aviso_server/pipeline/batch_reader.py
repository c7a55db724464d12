"""Batch reads: `spark.read.format("aviso")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aviso_server.model.columns import wire_columns
from aviso_server.model.timestamp import event_time
from aviso_server.pipeline.catalogue import AnyType
from aviso_server.pipeline.connection import connect
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.planning import Planner, SequenceRange, Stretch, split
from aviso_server.pipeline.pushdown import Pushed, push
from aviso_server.pipeline.reading import read_range
from aviso_server.pipeline.table import Table, table_columns

__all__ = ["BatchReader"]


class BatchReader(DataSourceReader):
    """Reads history, cut into ranges of sequences.

    Made on the driver while a query is planned, then pickled and sent to the workers: it holds the options, the event
    types and the shape of the table, all of which pickle, and no connection.
    """

    def __init__(self, options: Options, event_types: dict[str, AnyType], schema: StructType) -> None:
        self._options = options
        self._event_types = event_types
        self._columns = table_columns(event_types.values())
        self._table = Table(schema, self._columns)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Sequence[Filter]:  # noqa: N802  # Spark's name
        """Remember the filters for `partitions`. Called once, on the driver, before it.

        All of them are handed back: what the server sends may be more than was asked for, so Spark looks at it again.
        """
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read. Called once, on the driver, when the query is planned; the ranges are pickled.

        What the server holds at this moment is what the query sees.
        """
        ranges: list[InputPartition] = []
        with connect(self._options) as client:
            for name, event_type in self._event_types.items():
                pushed = push(self._filters, name, event_type, self._columns, self._options.identifier)
                if pushed.nothing:
                    continue
                identifier = {**self._options.identifier, **pushed.identifier}
                planner = Planner(client, name, event_type, identifier, self._options.retries)
                stretch = _narrowed(planner, planner.stretch(self._options.span), pushed)
                ranges += [
                    SequenceRange(name, planner.identifier, start, end, planner.bounded)
                    for start, end in split(stretch, self._options.partitions, self._options.rows_per_partition)
                ]
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Called on a worker, once per attempt of a task; opens its own connection.

        An attempt that is made again reads the same rows again: what a sequence stands for never changes.
        """
        if not isinstance(partition, SequenceRange):
            return  # Spark's stand-in for no partitions at all
        columns = wire_columns(self._event_types[partition.event_type])
        for batch in read_range(self._options, partition, columns):
            yield self._table.shape(batch, columns)


def _narrowed(planner: Planner, stretch: Stretch, pushed: Pushed) -> Stretch:
    """The part of the stretch that filters on `sequence` and `time` leave."""
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
