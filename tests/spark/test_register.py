"""The data source in plain scripts, whose virtual environment nobody has activated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aviso_server.spark.java import java_home
from tests.harness import Server
from tests.java import OPTIONS
from tests.spark.scene import CONFIGURATION, publish_tides

BARE = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
"""A Python without our packages."""

SESSION = """
import os, sys
from pyspark.sql import SparkSession

settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
"""

REGISTERED = """
from pyspark_aviso import register
from pyspark_aviso.errors import PipelineError

register(spark)
tides = spark.read.format("aviso").options(url=sys.argv[1], event_type="tide").load()
print("rows:", tides.where("port = 'port 2'").count())
os.environ["PYSPARK_PYTHON"] = sys.argv[2]
try:
    register(spark)
except PipelineError as error:
    print("refused:", error)
"""

FOUND = """
spark.sql(f"CREATE TEMPORARY VIEW tides USING aviso OPTIONS (url '{sys.argv[1]}', event_type 'tide')")
print("rows:", spark.sql("SELECT count(*) FROM tides WHERE port = 'port 2'").first()[0])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        publish_tides(running, 1, 20)
        yield running


def run(script: str, server: Server, folder: Path, **environment: str) -> str:
    """What a script prints, with an environment that knows nothing of ours and another `python3` on the PATH."""
    (folder / "python3").symlink_to(BARE)
    (folder / "script.py").write_text(script)
    clean = {
        "PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "JAVA_HOME": str(java_home(folder, os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        OPTIONS: os.environ.get(OPTIONS, ""),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # of `make test-spark-oldest`
        **environment,
    }
    done = subprocess.run(
        [sys.executable, folder / "script.py", server.url, str(BARE)],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_register_sees_to_the_python_of_the_workers(server: Server, tmp_path: Path) -> None:
    printed = run(SESSION + REGISTERED, server, tmp_path)
    assert "rows: 4\n" in printed
    assert f"refused: Spark's workers run {BARE} (PYSPARK_PYTHON or spark.pyspark.python), which has no pack" in printed
    assert f"or let them run {sys.executable}" in printed


def test_spark_finds_the_source_by_itself(server: Server, tmp_path: Path) -> None:
    assert "rows: 4\n" in run(SESSION + FOUND, server, tmp_path, PYSPARK_PYTHON=sys.executable)
