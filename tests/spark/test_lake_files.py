"""Workers read files of the lake themselves: the columns that matter, as Spark wants them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import DoubleType, FloatType, LongType, StringType, StructField, StructType

from aviso_server.lake.files import ROW_GROUP_ROWS, FileWriter
from aviso_server.spark.lake_files import LakeSource, _File, _LakeReader
from tests.lake.scene import SHAPE, stored

WANTED = StructType(
    [
        StructField("sequence", LongType()),
        StructField("payload", StringType()),
        StructField("depth", DoubleType()),
        StructField("box_min_lat", FloatType()),
        StructField("never_there", StringType()),
    ]
)


def test_rows_and_columns(tmp_path: Path) -> None:
    count = 2 * ROW_GROUP_ROWS + 1000
    thousand = pa.Table.from_batches([SHAPE.batch(stored(list(range(1, 1001))))])
    table = pa.concat_tables([thousand] * (count // 1000))
    table = table.set_column(0, SHAPE.schema.field(0), pa.array(range(1, count + 1)))
    writer = FileWriter(str(tmp_path), 1, count, SHAPE.schema)
    made = [file for batch in table.to_batches() for file in writer.add(batch)]
    (file,) = [*made, *writer.finish()]

    def read() -> pa.Table:
        reader = _LakeReader([file.path], WANTED)
        (partition,) = reader.partitions()
        assert isinstance(partition, _File)
        return pa.Table.from_batches(reader.read(partition), pa.schema([
            ("sequence", pa.int64()), ("payload", pa.string()), ("depth", pa.float64()), ("box_min_lat", pa.float32()),
            ("never_there", pa.string()),
        ]))  # fmt: skip

    everything = read()
    assert everything["sequence"].to_pylist() == list(range(1, count + 1))
    assert everything["payload"].to_pylist() == table["payload"].to_pylist()
    assert everything["never_there"].null_count == count
    assert LakeSource.name() == "aviso-lake"
