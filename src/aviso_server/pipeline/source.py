"""The `aviso` data source of Spark: read, stream, publish."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from aviso_server.errors import PipelineError
from aviso_server.pipeline.batch_reader import BatchReader
from aviso_server.pipeline.catalogue import AnyType, event_types, fetch_catalogue
from aviso_server.pipeline.options import Options, read_options
from aviso_server.pipeline.stream_reader import StreamReader
from aviso_server.pipeline.table import spark_schema, table_columns
from aviso_server.pipeline.writers import BatchWriter, StreamWriter

__all__ = ["AvisoSource", "register"]


class AvisoSource(DataSource):
    """Notifications of an aviso server as a table, see docs/spark.md.

    Spark makes one on the driver for every read and write, and pickles it; it asks the server for its event types.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return "aviso"

    def schema(self) -> StructType:
        """The columns of the event types. Called on the driver by `load()`, unless the user gave a schema."""
        return spark_schema(table_columns(self._event_types.values()))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch reader. Called on the driver, each time that a query is planned; the reader is pickled."""
        return BatchReader(self._read_options, self._event_types, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        """A streaming reader. Called on the driver when a query starts; the reader is pickled."""
        return StreamReader(self._read_options, self._event_types, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch writer. Called on the driver; the writer is pickled."""
        if overwrite:
            raise PipelineError("notifications cannot be overwritten; use mode('append')")
        options = read_options(self.options)
        return BatchWriter(options, fetch_catalogue(options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """A streaming writer. Called on the driver, for the tasks and again for every commit; the writer is pickled."""
        if overwrite:
            raise PipelineError("notifications cannot be overwritten; use outputMode('append')")
        options = read_options(self.options)
        return StreamWriter(options, fetch_catalogue(options), schema)

    @cached_property
    def _read_options(self) -> Options:
        options = read_options(self.options)
        if not options.event_types:
            raise PipelineError("option 'event_type' is missing: one event type, or several separated by commas")
        return options

    @cached_property
    def _event_types(self) -> dict[str, AnyType]:
        return event_types(self._read_options.event_types, fetch_catalogue(self._read_options))


def register(spark: SparkSession) -> None:
    """Make `format("aviso")` known to a session, and let Spark push filters down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(AvisoSource)
