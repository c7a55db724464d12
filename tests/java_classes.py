"""`python -m tests.java_classes FILE`: keep the classes that Spark loads, so that Java starts in half the time.

It is worth its half minute where Spark is started dozens of times, as the tests do.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from aviso_server.spark.session import open_session
from tests.java import OPTIONS, QUICK


def doubled(numbers: pa.Array) -> pa.Array:
    """Something for a Python worker to do."""
    return pyarrow.compute.multiply(numbers, 2)


def make_classes(file: Path) -> None:
    """Run a little of everything once; Java writes down what that took when it ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    os.environ[OPTIONS] = f"{QUICK} -XX:ArchiveClassesAtExit={draft}"
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(Path(folder) / "spark", "local[2]", settings={"spark.sql.shuffle.partitions": "2"})
        _exercise(session, f"{folder}/table")
        gateway = SparkContext._gateway
        assert gateway is not None  # the session has opened it
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # Java ends with its input
        gateway.proc.wait(600)
    if draft.exists():
        draft.replace(file)


def _exercise(session: SparkSession, table: str) -> None:
    session.range(1000).selectExpr("id", "id % 7 AS part", "CAST(id AS STRING) AS text").write.parquet(table)
    read = session.read.parquet(table)
    read.groupBy("part").count().orderBy("part").toArrow()
    twice = arrow_udf(doubled, "long")  # type: ignore[call-overload]  # Spark sees its kind by the annotations
    read.where("part = 3 AND text > '5'").select(twice("id")).toArrow()


if __name__ == "__main__":
    make_classes(Path(sys.argv[1]))
