"""Writes: `df.write.format("aviso")` and `df.writeStream.format("aviso")`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aviso_server.errors import PipelineError
from aviso_server.model.schema import EventType
from aviso_server.pipeline.ledger import BatchLedger
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.publishing import NoLedger, publish
from aviso_server.pipeline.staging import Staged, Stager

__all__ = ["BatchWriter", "StreamWriter"]

Messages = list[WriterCommitMessage | None]


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame.

    Tasks only prepare requests and check them; the driver publishes when all tasks have succeeded. A task that is
    retried or run twice by speculation therefore never publishes a row twice, and a failed job publishes nothing.
    Made on the driver, pickled and sent to the workers: it holds the options and the event types, both of which pickle.
    """

    def __init__(self, options: Options, catalogue: Mapping[str, EventType], schema: StructType) -> None:
        self._options = options
        self._stager = Stager(schema, _default(options), catalogue)
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Prepare the rows of a partition. Called on a worker, once per attempt of a task; the result is pickled."""
        return self._stager.stage(_partition(), iterator)

    def commit(self, messages: Messages) -> None:
        """Publish. Called on the driver, once, after all tasks; with what one attempt of each of them returned."""
        publish(self._options, _staged(messages), NoLedger(), self._write)

    def abort(self, messages: Messages) -> None:
        """Some task failed. Called on the driver instead of `commit`: nothing has been published."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes every micro-batch of a query, as `BatchWriter` does.

    A micro-batch that Spark runs again after a crash is recognised by its keys, and by a ledger beside the query's
    checkpoint where a server takes no keys.
    """

    def __init__(self, options: Options, catalogue: Mapping[str, EventType], schema: StructType) -> None:
        self._options = options
        self._stager = Stager(schema, _default(options), catalogue)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Prepare the rows of a partition. Called on a worker, once per attempt of a task; the result is pickled."""
        staged = self._stager.stage(_partition(), iterator)
        staged.query = _query()
        return staged

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish. Called on the driver, once per micro-batch, and again with the same number after a crash."""
        staged = _staged(messages)
        query = self._options.write_id or next((each.query for each in staged if each is not None and each.query), None)
        write = f"{query or uuid.uuid4().hex}/{batchId}"
        if self._options.ledger is None:
            publish(self._options, staged, NoLedger(), write)
            return
        ledger = BatchLedger(Path(self._options.ledger), batchId)
        try:
            publish(self._options, staged, ledger, write)
        finally:
            ledger.close()

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        """Some task failed. Called on the driver instead of `commit`: nothing of this attempt has been published."""


def _default(options: Options) -> str | None:
    if len(options.event_types) > 1:
        raise PipelineError("option 'event_type' must name one event type for writing; several go into a column")
    return options.event_types[0] if options.event_types else None


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _query() -> str | None:
    """The id of the streaming query, which stays the same when it is started again from its checkpoint."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


def _staged(messages: Messages) -> list[Staged | None]:
    return [message if isinstance(message, Staged) else None for message in messages]
