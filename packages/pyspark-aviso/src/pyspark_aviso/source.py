"""The `aviso` data source of Spark: read, stream, publish."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cached_property

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_aviso.client import EventType, choose_types, fetch_types
from pyspark_aviso.errors import PipelineError
from pyspark_aviso.options import Options, read_options
from pyspark_aviso.read import BatchReader, PushingReader, StreamReader, pushes_filters, spark_schema
from pyspark_aviso.write import BatchWriter, StreamWriter

__all__ = ["AvisoSource", "register"]


class AvisoSource(DataSource):
    """Notifications of an aviso server as a table.

    Spark makes one on the driver for every read and write, and pickles it; it asks the server for its event types.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)` and `USING`. Called on the driver."""
        return "aviso"

    def schema(self) -> StructType:
        """Return the columns of the event types. Called on the driver by `load()`, unless the user gave a schema."""
        return spark_schema(self._event_types.values(), self._read_options.columns)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a batch reader. Called on the driver, each time that a query is planned; the reader is pickled."""
        kind = PushingReader if pushes_filters() else BatchReader
        return kind(self._read_options, self._event_types, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        """Return a streaming reader. Called on the driver when a query starts; the reader is pickled."""
        return StreamReader(self._read_options, self._event_types, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a batch writer. Called on the driver; the writer is pickled."""
        if overwrite:
            raise PipelineError("notifications cannot be overwritten; use mode('append')")
        options = read_options(self.options)
        return BatchWriter(options, fetch_types(options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return a streaming writer. Called on the driver, for tasks and again for every commit; it is pickled."""
        if overwrite:
            raise PipelineError("notifications cannot be overwritten; use outputMode('append')")
        options = read_options(self.options)
        return StreamWriter(options, fetch_types(options), schema)

    @cached_property
    def _read_options(self) -> Options:
        options = read_options(self.options)
        if not options.event_types:
            raise PipelineError("option 'event_type' is missing: one event type, or several separated by commas")
        return options

    @cached_property
    def _event_types(self) -> dict[str, EventType]:
        return choose_types(self._read_options.event_types, fetch_types(self._read_options))


def register(spark: SparkSession) -> None:
    """Make `format("aviso")` known to a session, let Spark push filters down to it, and see to its workers' Python."""
    if isinstance(spark, SparkSession):  # not a session of Spark Connect, whose workers are the server's business
        _choose_python(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(AvisoSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark has found it by itself, and keeps that one
            raise


def _choose_python(spark: SparkSession) -> None:
    """Let workers on this machine run this Python: unless told otherwise, Spark starts the `python3` of the PATH.

    PipelineError if it was told otherwise, and that Python does not have this package.
    """
    context = spark.sparkContext
    if not str(context.master).startswith("local"):
        return
    told = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if told is None:
        context.pythonExec = sys.executable
        return
    if told == sys.executable:
        return
    try:
        found = subprocess.run([told, "-c", "import pyspark_aviso"], capture_output=True, check=False).returncode == 0
    except OSError:
        found = False
    if not found:
        raise PipelineError(
            f"Spark's workers run {told} (PYSPARK_PYTHON or spark.pyspark.python), which has no package pyspark_aviso: "
            f"install it there, or let them run {sys.executable}"
        )
