"""Reading data files of the lake with Spark: by Spark itself from a disk, and by its workers from an object store.

Spark reads Parquet from S3 only with packages that PySpark does not bring. pyarrow does it by itself, so that workers
fetch the columns and the row groups that are needed, each file in a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from aviso_server.lake.files import DataFile
from aviso_server.lake.storage import is_local, storage_of

__all__ = ["read_files"]

_FORMAT = "aviso-lake"


class _Task(msgspec.Struct, frozen=True):
    paths: list[str]
    picked: list[int] | None = None  # sequences: row groups that have none of them are left out
    limits: tuple[int, int] | None = None  # the first and the last sequence that matter


def read_files(
    session: SparkSession,
    files: Sequence[DataFile],
    schema: str,
    options: Mapping[str, str] | None = None,
    picked: Sequence[int] | None = None,
    limits: tuple[int, int] | None = None,
) -> DataFrame:
    """The rows of some files; columns that a file does not have are null.

    `options` are Spark's own, for Parquet. `picked` and `limits` say which sequences matter: others may be left out.
    """
    paths = [each.path for each in files]
    if all(is_local(path) for path in paths):
        return session.read.options(**(options or {})).schema(schema).parquet(*paths)
    session.dataSource.register(LakeSource)
    task = _Task(paths, None if picked is None else list(picked), limits)
    return session.read.format(_FORMAT).schema(schema).option("task", msgspec.json.encode(task).decode()).load()


class LakeSource(DataSource):
    """Data files of the lake. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return _FORMAT

    def reader(self, schema: StructType) -> _LakeReader:
        """The reader. Called on the driver; the reader is pickled."""
        return _LakeReader(msgspec.json.decode(self.options["task"], type=_Task), schema)


class _File(InputPartition):
    """A partition: one file. Pickles."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _LakeReader(DataSourceReader):
    """Made on the driver; copies of it go to workers and read."""

    def __init__(self, task: _Task, schema: StructType) -> None:
        self._task = task
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file. Called on the driver."""
        return [_File(path) for path in self._task.paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one file. Called on a worker, once per attempt of a task."""
        assert isinstance(partition, _File)
        schema = to_arrow_schema(self._schema)
        with storage_of(partition.path).open(partition.path) as content:
            parquet = pq.ParquetFile(content, pre_buffer=True)
            columns = [field.name for field in schema if field.name in parquet.schema_arrow.names]
            groups = self._groups(parquet)
            if groups:
                for batch in parquet.iter_batches(row_groups=groups, columns=columns, use_threads=False):
                    yield _shaped(batch, schema)

    def _groups(self, parquet: pq.ParquetFile) -> list[int]:
        """The row groups that have sequences that matter."""
        task, place = self._task, parquet.schema_arrow.get_field_index("sequence")
        picked = None if task.picked is None else np.array(sorted(task.picked), np.int64)
        found = []
        for number in range(parquet.num_row_groups):
            facts = parquet.metadata.row_group(number).column(place).statistics
            if facts is not None and facts.has_min_max:
                if task.limits is not None and (facts.max < task.limits[0] or facts.min > task.limits[1]):
                    continue
                if picked is not None and not np.any((picked >= facts.min) & (picked <= facts.max)):
                    continue
            found.append(number)
        return found


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
