"""Spark jobs that read rows of the archive, ready to be stopped and fair to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.layout import DataFile

__all__ = ["Scanner", "reason"]

_SETTINGS = {
    # Plans are small and known: nothing is learned on the way.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.caseSensitive": "true",
    # As many parts as there are cores, however many files.
    "spark.sql.files.maxPartitionBytes": "1g",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Sequences to pick out: a set for Spark, so that its generated code is always the same, and single values for the
    # statistics of pages.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    "spark.sql.parquet.pushdown.inFilterThreshold": "100000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # What is counted is little by the time that it is put together.
    "spark.sql.shuffle.partitions": "4",
}
_NEVER = {"parquet.filter.dictionary.enabled": "false"}  # to read dictionaries in advance costs more than it saves
_PAGES = "parquet.filter.columnindex.enabled"
_SPARK_TYPES = {"long": "bigint"}
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_MESSAGE = re.compile(r"\A(?:An error occurred while calling \S+\n: )?(.+)$", re.MULTILINE)
_LONGEST = 300


class Scanner:
    """Reads files with a session of its own where that is possible."""

    def __init__(self, session: SparkSession) -> None:
        # Of a Spark Connect server a client has one session, and no context.
        self._context = session.sparkContext if hasattr(session, "_jsparkSession") else None
        self._session = session if self._context is None else session.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        self.cores = None if self._context is None else self._context.defaultParallelism
        """How many tasks run at the same time, if that is known."""

    def rows(
        self,
        files: Sequence[DataFile],
        columns: Mapping[str, str],
        condition: Column | None,
        select: Sequence[str | Column],
        pages: bool,
    ) -> pa.Table:
        """The rows that pass, in order of their sequences; with `pages`, statistics of pages are looked at too."""
        return _ascending(self.frame(files, columns, condition, pages).select(*select).toArrow())

    def frame(
        self, files: Sequence[DataFile], columns: Mapping[str, str], condition: Column | None, pages: bool = False
    ) -> DataFrame:
        """The rows that pass, to go on with."""
        schema = ", ".join(
            f"`{name.replace('`', '``')}` {_SPARK_TYPES.get(kind, kind)}" for name, kind in columns.items()
        )
        reading = self._session.read.options(**_NEVER, **{_PAGES: str(pages).lower()}).schema(schema)
        frame = reading.parquet(*[file.path for file in files])
        return frame if condition is None else frame.where(condition)

    @contextmanager
    def tagged(self, tag: str, pool: str) -> Iterator[None]:
        """Whatever this thread starts within can be stopped by the tag, and shares cores fairly with other pools."""
        context = self._context
        if context is None:
            self._session.addTag(tag)
        else:
            context.setLocalProperty("spark.scheduler.pool", pool)
            context.addJobTag(tag)
        try:
            yield
        finally:
            if context is None:
                self._session.removeTag(tag)
            else:
                context.removeJobTag(tag)

    def stop(self, tag: str) -> None:
        """End what runs under the tag."""
        if self._context is None:
            self._session.interruptTag(tag)
        else:
            self._context.cancelJobsWithTag(tag)


def reason(error: Exception) -> PipelineError:
    """What Spark said, without its stack: the innermost cause if there are several."""
    text = str(error)
    causes = _CAUSE.findall(text) or _MESSAGE.findall(text)
    return PipelineError(f"the archive cannot be read: {causes[-1][:_LONGEST] if causes else type(error).__name__}")


def _ascending(table: pa.Table) -> pa.Table:
    """Spark deals out the largest parts of files first, so that they come back in another order."""
    table = table.combine_chunks()
    if table.num_rows < 2:
        return table
    sequences = table.column("sequence").to_numpy()
    if bool(np.all(sequences[1:] > sequences[:-1])):
        return table
    return table.take(pc.sort_indices(table.column("sequence")))
