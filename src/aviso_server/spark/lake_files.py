"""Reading data files of the lake with Spark: by Spark itself from a disk, and by its workers from an object store.

Spark reads Parquet from S3 only with packages that PySpark does not bring. pyarrow does it by itself, so that workers
fetch the columns that are needed, each file in a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from aviso_server.lake.files import DataFile
from aviso_server.lake.storage import is_local, open_file

__all__ = ["read_files"]

_FORMAT = "aviso-lake"


def read_files(session: SparkSession, files: Sequence[DataFile], schema: str) -> DataFrame:
    """The rows of some files; columns that a file does not have are null."""
    paths = [each.path for each in files]
    if all(is_local(path) for path in paths):
        return session.read.schema(schema).parquet(*paths)
    session.dataSource.register(LakeSource)
    return session.read.format(_FORMAT).schema(schema).option("paths", msgspec.json.encode(paths).decode()).load()


class LakeSource(DataSource):
    """Data files of the lake. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return _FORMAT

    def reader(self, schema: StructType) -> _LakeReader:
        """The reader. Called on the driver; the reader is pickled."""
        return _LakeReader(msgspec.json.decode(self.options["paths"], type=list[str]), schema)


class _File(InputPartition):
    """A partition: one file. Pickles."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _LakeReader(DataSourceReader):
    """Made on the driver; copies of it go to workers and read."""

    def __init__(self, paths: list[str], schema: StructType) -> None:
        self._paths = paths
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file. Called on the driver."""
        return [_File(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one file. Called on a worker, once per attempt of a task."""
        assert isinstance(partition, _File)
        schema = to_arrow_schema(self._schema)
        with open_file(partition.path) as content:
            parquet = pq.ParquetFile(content, pre_buffer=True)
            columns = [field.name for field in schema if field.name in parquet.schema_arrow.names]
            if parquet.num_row_groups:
                for batch in parquet.iter_batches(columns=columns, use_threads=False):
                    yield _shaped(batch, schema)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
