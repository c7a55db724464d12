"""Rows of one event type as the table that Spark asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aviso_server.errors import PipelineError
from aviso_server.model.arrow import field_texts
from aviso_server.model.columns import TIME_NS, Column, ColumnKind, columns_of, merge
from aviso_server.pipeline.catalogue import AnyType

__all__ = ["Table", "spark_schema", "table_columns"]

_TYPES: Mapping[ColumnKind, DataType] = {
    "integer": LongType(),
    "number": DoubleType(),
    "text": StringType(),
    "instant": TimestampType(),
    "shape": BinaryType(),
}


def table_columns(event_types: Iterable[AnyType]) -> tuple[Column, ...]:
    """The columns of a table with the rows of all these event types."""
    return merge([columns_of(event_type) for event_type in event_types])


def spark_schema(columns: Iterable[Column]) -> StructType:
    """The columns as a Spark schema."""
    return StructType([StructField(column.name, _TYPES[column.kind], True) for column in columns])


class Table:
    """The shape that rows must have for Spark: all columns of the schema, of its types, in its order. Pickles."""

    def __init__(self, schema: StructType, columns: Sequence[Column]) -> None:
        known = {column.name.lower(): column for column in (*columns, TIME_NS)}
        unknown = [name for name in schema.fieldNames() if name.lower() not in known]
        if unknown:
            names = ", ".join(column.name for column in columns)
            raise PipelineError(f"the schema asks for a column '{unknown[0]}' that is not there; columns: {names}")
        self._names = schema.fieldNames()
        self._columns = [known[name.lower()] for name in self._names]
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def shape(self, batch: pa.RecordBatch, own: Sequence[Column]) -> pa.RecordBatch:
        """A batch of an event type with the columns `own` in this shape."""
        mine = {column.name.lower(): column for column in own}
        arrays = [
            self._array(batch, column, mine.get(column.name.lower()), field.type)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, batch: pa.RecordBatch, column: Column, own: Column | None, kind: pa.DataType) -> pa.Array:
        if own is None or own.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, kind)
        if own.kind != column.kind and own.field is not None:
            return field_texts(batch.column("identifier").to_pylist(), own.field).cast(kind)
        found = batch.column(own.name)
        return found if found.type == kind else found.cast(kind)
