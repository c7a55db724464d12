"""Checking millions of rows for a load: Spark with the model, against plain Python on all cores and DuckDB.

Every kind of bad row is among them, and every count and every refused row is compared with what must come out.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from aviso_server.spark.command_jobs import SETTINGS
from aviso_server.spark.load.inputs import find_inputs
from aviso_server.spark.load.loading import Loading
from aviso_server.spark.session import open_session
from bench.bulk_rivals import duck, plain
from bench.machine import Bench
from bench.table import Row, alternate, compare, single
from tests.spark.load.bad_rows import KINDS, MARS, kind_of, write_rows

__all__ = ["run"]

ROWS = 5_000_000
RIVAL_ROWS = 2_000_000
QUICK_ROWS = 40_000
FILES = 4
AIM = 3.0
MOST_MEMORY = 2500.0  # MB of all processes together
UNSEEN_BY_DUCK = ("half a character", "deep payload")

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Checked(msgspec.Struct, frozen=True):
    """One check of all rows."""

    rows_per_second: float
    cpu_seconds: float


class Data(msgspec.Struct, frozen=True):
    """Files with rows, and how many of these are bad."""

    files: list[Path]
    rows: int
    sparse: bool

    @property
    def bad(self) -> int:
        """Rows that must be refused."""
        return self.rows // 100 * (1 if self.sparse else len(KINDS))

    @property
    def unseen(self) -> int:
        """Bad rows that DuckDB takes for good ones."""
        kinds = [kind_of(number, self.sparse) for number in range(0, self.rows, 100 if self.sparse else 1)]
        return sum(kind is not None and kind.name in UNSEEN_BY_DUCK for kind in kinds)


def run(bench: Bench, quick: bool) -> list[Row]:
    """The check of a dry run with a quarantine: against rivals, and of many rows with its memory."""
    began = time.monotonic()
    session = open_session(bench.directory / "spark", "local", "bench", SETTINGS["load"])
    table = [single("load", "start of Spark, once", "s", [time.monotonic() - began])]
    try:
        for sparse in (True, False):
            table += _against_rivals(bench, session, _data(bench, QUICK_ROWS if quick else RIVAL_ROWS, sparse), quick)
        data = _data(bench, QUICK_ROWS if quick else ROWS, sparse=False)
        with Memory() as memory:
            checked = _ours(bench, session, data)
    finally:
        session.stop()
    table.append(single("load", f"check {_words(data)}", "rows/s", [checked.rows_per_second]))
    table.append(single("load", f"peak memory, {data.rows:,} rows", "MB", [memory.peak], below=MOST_MEMORY))
    return table


def _data(bench: Bench, rows: int, sparse: bool) -> Data:
    folder = bench.directory / f"rows-{rows}-{sparse}"
    folder.mkdir(exist_ok=True)
    files = [folder / f"rows-{number}.ndjson" for number in range(FILES)]
    for number, file in enumerate(files):
        if not file.exists():
            write_rows(file, rows // FILES * number, rows // FILES * (number + 1) - 1, sparse)
    return Data(files, rows, sparse)


def _words(data: Data) -> str:
    return f"{data.rows:,} rows, {100 * data.bad // data.rows} % bad"


def _against_rivals(bench: Bench, session: SparkSession, data: Data, quick: bool) -> list[Row]:
    folder, files = bench.directory, data.files
    ours = partial(_ours, bench, session, data)
    ours()  # warm up
    measures: dict[str, Callable[[], Checked]] = {
        "ours": ours,
        "plain": partial(_rival, data, data.bad, partial(plain, files, folder / "plain", "json")),
        "orjson": partial(_rival, data, data.bad, partial(plain, files, folder / "orjson", "orjson")),
        "duck": partial(_rival, data, data.bad - data.unseen, partial(duck, files, folder / "duck")),
    }
    results = alternate(1 if quick else 3, measures)
    words = {
        "plain": ("plain Python, all cores", AIM, ""),
        "orjson": ("the same with orjson", None, ""),
        "duck": ("DuckDB, rules as SQL", None, f"DuckDB misses: {', '.join(UNSEEN_BY_DUCK)}"),
    }
    return [
        compare(
            "load",
            f"check {_words(data)}",
            "rows/s",
            [each.rows_per_second for each in results["ours"]],
            rival,
            [each.rows_per_second for each in results[name]],
            at_least=aim,
            cpu=([each.cpu_seconds for each in results["ours"]], [each.cpu_seconds for each in results[name]]),
            note=note,
        )
        for name, (rival, aim, note) in words.items()
    ]


def _ours(bench: Bench, session: SparkSession, data: Data) -> Checked:
    inputs = find_inputs([str(file) for file in data.files], BytesIO(), bench.directory / "stdin")
    cpu, began = _cpu_seconds(), time.monotonic()
    loading = Loading(session, inputs, MARS, bench.directory / "work", bench.directory / "quarantine")
    summary = loading.check(time.time_ns())
    seconds, cpu = time.monotonic() - began, _cpu_seconds() - cpu
    if (summary.rows, summary.refused) != (data.rows, data.bad) or loading.quarantined is None:
        raise RuntimeError(f"{summary.refused} of {summary.rows} rows were refused, not {data.bad} of {data.rows}")
    _compare(loading.quarantined, data)
    loading.close()
    return Checked(data.rows / seconds, cpu)


def _compare(quarantine: Path, data: Data) -> None:
    """Every row that must be refused is there, in order, with its field and code, and no other."""
    per_file = data.rows // FILES
    expected = (
        (f"rows-{number // per_file}.ndjson", number % per_file + 1, kind.field, kind.code)
        for number in range(data.rows)
        if (kind := kind_of(number, data.sparse)) is not None
    )
    place = 0
    with pq.ParquetFile(quarantine) as file:
        for batch in file.iter_batches(100_000, columns=["file", "line", "field", "code"]):
            for name, line, field, code in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if (Path(name).name, line, field, code) != next(expected, None):
                    raise RuntimeError(f"row {place} of the quarantine is {(name, line, field, code)}")
                place += 1
    if next(expected, None) is not None:
        raise RuntimeError(f"the quarantine has only {place} rows")


def _rival(data: Data, refused: int, check: Callable[[], tuple[int, int]]) -> Checked:
    cpu, began = _cpu_seconds(), time.monotonic()
    found = check()
    seconds, cpu = time.monotonic() - began, _cpu_seconds() - cpu
    if found != (data.rows, refused):
        raise RuntimeError(f"the rival counts {found}, not {(data.rows, refused)}")
    return Checked(data.rows / seconds, cpu)


class Memory:
    """The highest memory of this process and all below it together, looked at often."""

    def __init__(self) -> None:
        self.peak = 0.0  # MB
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            total = 0
            for pid in _family():
                try:
                    total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
                except OSError:
                    continue
            self.peak = max(self.peak, total / 1e6)


def _family() -> list[int]:
    """This process and all that it has started, directly or not."""
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, ahead = [os.getpid()], [os.getpid()]
    while ahead:
        parent = ahead.pop()
        below = [pid for pid, owner in parents.items() if owner == parent]
        found += below
        ahead += below
    return found


def _cpu_seconds() -> float:
    """CPU time of this process and all below it, those that have ended too."""
    total = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = total.ru_utime + total.ru_stime + ended.ru_utime + ended.ru_stime
    for pid in _family()[1:]:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds += sum(int(word) for word in words[11:15]) / _TICK
    return seconds
