"""The lake: rows into the archive, what a second worker adds, merging many small files, and opening a table of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from aviso_server.lake.files import FileWriter
from aviso_server.lake.table import Table
from aviso_server.spark.archiver import Archiver, ArchiveSettings
from bench import workload
from bench.machine import Bench, Target
from bench.replay import fill
from bench.table import Row, single
from tests.harness.objects import BUCKET, environment, store_running
from tests.lake.scene import SHAPE, stored
from tests.spark.daemons import SPARK, daemon, said

__all__ = ["run"]

FILES = 10_000
ROWS_IN_FILE = 20
OPEN = """
import resource, sys, time
from aviso_server.lake.table import Table
before, began = int(open("/proc/self/statm").read().split()[1]), time.perf_counter()
table = Table(sys.argv[1], "flood")
files = len(table.snapshot().files)
print(files, time.perf_counter() - began, (int(open("/proc/self/statm").read().split()[1]) - before) * 4096 / 1024**2)
"""


def run(bench: Bench, quick: bool) -> list[Row]:
    """Into the lake, on this machine and on a cluster; then its files."""
    count = 50_000 if quick else 1_000_000
    asyncio.run(fill(bench.home("sqlite") / "log", count))
    server = bench.server({**workload.configuration("sqlite"), "archive": {"enabled": False}}, "sqlite")
    rows = [_local(bench, server, count), *_cluster(bench, server, count)]
    bench.stop_all()
    return [*rows, *_files(bench, FILES // 10 if quick else FILES)]


def _local(bench: Bench, server: Target, count: int) -> Row:
    rates = []
    with _opened(bench, str(bench.directory / "first"), "local"):
        for number in range(4):
            root = str(bench.directory / f"archive-{number}")
            again = Archiver(root, bench.directory / "work", "local")
            again.open()  # Spark is there already
            rates.append(_rate(again, server, count))
    row = single("lake", f"{count:,} rows into the archive, local", "rows/s", rates[1:])  # the first one warms up
    return msgspec.structs.replace(row, aim=">= 150,000 rows/s", met=row.value >= 150_000)


def _cluster(bench: Bench, server: Target, count: int) -> list[Row]:
    """One worker of one core, then two, with the files in an object store."""
    found: dict[int, float] = {}
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    start = str(SPARK / "bin" / "spark-class")
    with ExitStack() as stack:
        store = stack.enter_context(store_running(bench.directory))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in {**environment(store.url), "SPARK_LOCAL_IP": "127.0.0.1"}.items():
            patch.setenv(name, value)
        head = stack.enter_context(
            daemon(bench.directory, "master", start, "org.apache.spark.deploy.master.Master", *place)
        )
        master = said(head, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for workers in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(bench.directory / f"worker-{workers}"))
            name = f"worker{workers}"
            hand = daemon(bench.directory, name, start, "org.apache.spark.deploy.worker.Worker", *place, *size, master)
            said(stack.enter_context(hand), r"(Successfully registered with master)")
            rates = []
            for number in range(3):
                with _opened(bench, f"s3://{BUCKET}/{workers}-{number}", master) as archiver:
                    rates.append(_rate(archiver, server, count, warm=True))
            found[workers] = max(rates)
    ratio = found[2] / found[1]
    rows = [
        single("lake", f"{count:,} rows into an object store, {workers} worker(s) of one core", "rows/s", [rate])
        for workers, rate in found.items()
    ]
    row = single("lake", "what a second worker adds", "times", [ratio])
    return [*rows, msgspec.structs.replace(row, aim=">= 1.4 times", met=ratio >= 1.4)]


def _files(bench: Bench, count: int) -> list[Row]:
    """Many small files: opened, then merged by Spark's tasks."""
    root = str(bench.directory / "many")
    table = Table(root, "flood")
    batch = SHAPE.batch(stored(list(range(1, ROWS_IN_FILE + 1))))
    files = []
    for number in range(count):
        first = number * ROWS_IN_FILE + 1
        own = batch.set_column(0, SHAPE.schema.field(0), pa.array(range(first, first + ROWS_IN_FILE)))
        writer = FileWriter(table.folder, first, first + ROWS_IN_FILE - 1, SHAPE.schema)
        files += [*writer.add(own), *writer.finish()]
    table.commit(files, watermark=files[-1].last, after=0)
    done = subprocess.run([sys.executable, "-c", OPEN, root], capture_output=True, text=True, check=True)
    found, seconds, grown = map(float, done.stdout.split())
    if found != count:
        raise RuntimeError(f"the table has {found} files")
    with _opened(bench, root, "local") as archiver:
        began = time.perf_counter()
        for _ in archiver.compactor().run(everything=True):
            pass
        merging = time.perf_counter() - began
    after = Table(root, "flood").snapshot().files
    left, rows = len(after), sum(each.rows for each in after)
    if rows != count * ROWS_IN_FILE:
        raise RuntimeError("merging has lost something")
    return [
        single("lake", f"a table of {count:,} files opens", "s", [seconds], below=1.0),
        single("lake", f"a table of {count:,} files, memory", "MB", [grown], below=200),
        single("lake", f"merging {count:,} small files into {left}", "s", [merging], below=60),
    ]


def _rate(archiver: Archiver, server: Target, count: int, warm: bool = False) -> float:
    # As many files, and so tasks, in a quick run as in a full one: two workers share nothing of a single task.
    settings = ArchiveSettings(url=f"http://127.0.0.1:{server.port}", rows_per_file=max(1, count // 4))
    if warm:  # executors start with the first task
        archiver.session.range(4, numPartitions=4).collect()
    began = time.perf_counter()
    archiver.run_once(settings)
    seconds = time.perf_counter() - began
    if archiver.status.watermark(workload.EVENT_TYPE) != count:
        raise RuntimeError("not everything was archived")
    return count / seconds


@contextmanager
def _opened(bench: Bench, root: str, master: str) -> Iterator[Archiver]:
    archiver = Archiver(root, Path(bench.directory) / "archiver", master)
    archiver.open()
    try:
        yield archiver
    finally:
        archiver.close()
