"""Cold replay: how fast archived notifications come out, beside DuckDB and pyarrow on the same files."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
import shapely

from aviso_server.lake.table import Tables
from aviso_server.model.filter import Filter
from aviso_server.model.shapes import parse_polygon
from aviso_server.spark.cold_replay import ColdReplay
from aviso_server.spark.flight import Selection
from bench import archived, workload
from bench.machine import Bench, Target
from bench.table import Row, alternate, compare, single
from tests.harness.objects import BUCKET, FaultyWay, environment, store_running

__all__ = ["run"]

RECENT = 100_000
AREA = (
    "(55,8,54.8,10,54.2,13.5,53,14.3,51,15,50.3,12.2,48.8,13.8,47.5,13,"
    "47.3,10,47.6,7.6,49,8.2,49.4,6.4,51,6,53.4,7.1,55,8)"
)
STEP = 77
WIDE = ["sequence", "time_ns", "topic", "identifier", "payload"]
TOGETHER = 4
IN_STORE = 500_000
STORE_DELAY = 0.02  # seconds


class Asked(msgspec.Struct, frozen=True):
    """A replay that is measured, and how the rivals are asked for the same."""

    name: str
    identifier: dict[str, Any]
    condition: str = "true"  # of SQL
    expression: Any = None  # of pyarrow
    area: str | None = None
    from_time: int | None = None


class Read(msgspec.Struct, frozen=True):
    """What a replay brought."""

    rows: int
    seconds: float
    first: float
    cpu: float  # seconds of this process and its children


def run(bench: Bench, quick: bool) -> list[Row]:
    """Out of an archive of ten million notifications, in the pipeline process and over HTTP."""
    rows = 1_000_000 if quick else 10_000_000
    lake = Path(os.environ.get("AVISO_BENCH_LAKE") or bench.directory / "lake")  # one that was made before
    if not lake.exists():
        archived.make(str(lake), rows)
    found = _replaying(lake, rows, 2 if quick else 5)
    with store_running(bench.directory) as store, pytest.MonkeyPatch.context() as patch:
        way = FaultyWay(store.port)
        for name, value in environment(way.url).items():
            patch.setenv(name, value)
        try:
            found += _from_a_store(way)
        finally:
            way.close()
    return found + _over_http(bench, lake, rows)


def _replaying(root: Path, rows: int, rounds: int) -> list[Row]:
    cold = ColdReplay(Tables(str(root)))
    files = [Path(each.path) for each in Tables(str(root)).of(archived.NAME).snapshot().files]
    near_the_end = archived.FIRST_TIME + (rows - RECENT + 1) * archived.SPACING
    box = parse_polygon(AREA).box
    sides = {"box_min_lat": ("<=", box.max_lat), "box_max_lat": (">=", box.min_lat)}
    sides |= {"box_min_lon": ("<=", box.max_lon), "box_max_lon": (">=", box.min_lon)}
    asked = [
        Asked("0.01 % of it", {"step": {"eq": STEP}}, f"step = {STEP}", pc.field("step") == STEP),
        Asked(
            "what is in a polygon",
            {"polygon": AREA},
            " and ".join(f"{name} {sign} {limit}" for name, (sign, limit) in sides.items()),
            (pc.field("box_min_lat") <= box.max_lat)
            & (pc.field("box_max_lat") >= box.min_lat)
            & (pc.field("box_min_lon") <= box.max_lon)
            & (pc.field("box_max_lon") >= box.min_lon),
            area=AREA,
        ),
        Asked(
            f"{RECENT:,} from a date on",
            {},
            f"time_ns >= {near_the_end}",
            pc.field("time_ns") >= near_the_end,
            from_time=near_the_end,
        ),
    ]
    found = [
        single(
            "cold replay",
            f"{each.name}, first event, first time",
            "s",
            [_ours(cold, each, rows).first],
            below=1.5,
        )
        for each in asked
    ]
    limits = {0: 1 / 1.5, 1: 1 / 1.5}  # of DuckDB's speed
    for number, each in enumerate(asked):
        results = _side_by_side(cold, files, each, rows, rounds)
        ours = results["ours"]
        counts = {name: {read.rows for read in reads} for name, reads in results.items()}
        if len(set().union(*counts.values())) != 1:
            raise RuntimeError(f"{each.name}: not the same rows everywhere: {counts}")
        what = f"{ours[0].rows:,} of {rows:,}: {each.name}"
        seconds = [read.seconds for read in ours]
        for rival in ("DuckDB", "pyarrow"):
            theirs = [read.seconds for read in results[rival]]
            limit = limits.get(number) if rival == "DuckDB" else None
            found.append(
                compare(
                    "cold replay",
                    what,
                    "s",
                    seconds,
                    rival,
                    theirs,
                    lower_is_better=True,
                    at_least=limit,
                    cpu=([read.cpu for read in ours], [read.cpu for read in results[rival]]),
                )
            )
        if each.from_time is not None:
            found.append(single("cold replay", f"{what}, all", "s", seconds, below=0.6))
        found.append(single("cold replay", f"{each.name}, first event", "s", [read.first for read in ours], below=0.3))
    return [*found, *_together(cold, rows), *_memory(cold, rows)]


def _side_by_side(cold: ColdReplay, files: list[Path], asked: Asked, rows: int, rounds: int) -> dict[str, list[Read]]:
    measures: dict[str, Callable[[], Read]] = {
        "ours": lambda: _ours(cold, asked, rows),
        "DuckDB": lambda: _rival(asked, lambda: _duckdb(files, asked)),
        "pyarrow": lambda: _rival(asked, lambda: _pyarrow(files, asked)),
    }
    measures["DuckDB"]()  # the files are in memory then
    return alternate(rounds, measures)


def _ours(cold: ColdReplay, asked: Asked, rows: int) -> Read:
    began, spent = time.perf_counter(), _cpu()
    start = 1 if asked.from_time is None else cold.first_since(archived.NAME, asked.from_time)
    count, first = 0, 0.0
    for batch in cold.read(Selection(_filter(asked.identifier), start, rows), lambda: False):
        first = first or time.perf_counter() - began
        count += batch.num_rows
    return Read(count, time.perf_counter() - began, first, _cpu() - spent)


def _filter(identifier: dict[str, Any]) -> Filter:
    return archived.EVENT_TYPE.compile(identifier, "replay")


def _rival(asked: Asked, query: Callable[[], pa.Table]) -> Read:
    began, spent = time.perf_counter(), _cpu()
    table = query()
    if asked.area is not None:
        shape = shapely.Polygon([(lon, lat) for lat, lon in _pairs(asked.area)])
        shapely.prepare(shape)
        shapes = shapely.from_wkb(table.column("polygon").to_numpy())
        table = table.filter(pa.array(shapely.intersects(shape, shapes)))
    if not bool(np.all(np.diff(table.column("sequence").to_numpy()) > 0)):
        raise RuntimeError(f"{asked.name}: the rows are not in order")
    return Read(table.num_rows, time.perf_counter() - began, 0.0, _cpu() - spent)


def _duckdb(files: list[Path], asked: Asked) -> pa.Table:
    names = ", ".join(f"'{file}'" for file in files)
    columns = ", ".join(_columns(asked))
    with duckdb.connect() as connection:
        query = f"select {columns} from read_parquet([{names}]) where {asked.condition}"  # rows stay in order
        return connection.sql(query).to_arrow_table()


def _pyarrow(files: list[Path], asked: Asked) -> pa.Table:
    return ds.dataset([str(file) for file in files]).to_table(columns=_columns(asked), filter=asked.expression)


def _columns(asked: Asked) -> list[str]:
    return [*WIDE, *([] if asked.area is None else ["polygon"])]


def _pairs(text: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in text.strip("()").split(",")]
    return list(zip(numbers[0::2], numbers[1::2], strict=True))


def _together(cold: ColdReplay, rows: int) -> list[Row]:
    """Several big replays at a time: how long the last of them waits for its first event, and how even they are."""
    firsts: list[float] = []
    shares: list[int] = []
    stop = threading.Event()
    began = time.perf_counter()

    def read() -> None:
        count = 0
        for batch in cold.read(Selection(_filter({}), 1, rows), stop.is_set):
            if not count:
                firsts.append(time.perf_counter() - began)
            count += batch.num_rows
        shares.append(count)

    threads = [threading.Thread(target=read) for _ in range(TOGETHER)]
    for thread in threads:
        thread.start()
    time.sleep(5)
    stop.set()
    for thread in threads:
        thread.join()
    evenness = min(shares) / max(1, max(shares))
    return [
        single("cold replay", f"{TOGETHER} at once, first event of the last", "s", [max(firsts)]),
        single("cold replay", f"{TOGETHER} at once, slowest beside fastest", "of its rows", [evenness]),
        single("cold replay", f"{TOGETHER} at once, all together", "events/s", [sum(shares) / 5]),
    ]


def _memory(cold: ColdReplay, rows: int) -> list[Row]:
    """Everything to one client: how fast, and whether the memory of this process grows on the way."""
    began = time.perf_counter()
    batches = cold.read(Selection(_filter({}), 1, rows), lambda: False)
    seen = [(batch.column("sequence")[-1].as_py(), _resident()) for batch in batches]
    early = max(size for last, size in seen if last <= rows / 2)
    late = max(size for last, size in seen if last > rows / 2)
    grown = max(0.0, late - early)
    return [
        single(
            "cold replay", f"all {rows:,}, in the pipeline process", "events/s", [rows / (time.perf_counter() - began)]
        ),
        single(
            "cold replay", f"all {rows:,}, memory of the second half beyond that of the first", "MB", [grown], below=64
        ),
    ]


def _from_a_store(way: FaultyWay) -> list[Row]:
    """Two files in an object store that takes its time for every request."""
    root = f"s3://{BUCKET}/archive"
    archived.make(root, IN_STORE)
    cold = ColdReplay(Tables(root))
    way.delay = STORE_DELAY
    found = []
    for name, identifier in (("all", {}), ("0.01 %", {"step": {"eq": STEP}}), ("polygon", {"polygon": AREA})):
        firsts = []
        for _ in range(4):
            began = time.perf_counter()
            batches = cold.read(Selection(_filter(identifier), 1, IN_STORE), lambda: False)
            next(iter(batches))
            firsts.append(time.perf_counter() - began)
            batches.close()  # type: ignore[attr-defined]  # it is a generator
        what = f"{name} out of a store with {1000 * STORE_DELAY:g} ms per request, first event"
        found.append(single("cold replay", what, "s", firsts, below=1.0))
    return found


def _over_http(bench: Bench, lake: Path, rows: int) -> list[Row]:
    """The same as a client has it: out of the archive, over Flight, rendered, to a socket."""
    configuration = {
        **workload.configuration("sqlite", max_historical_notifications=2 * rows),
        "archive": {"enabled": True, "path": str(lake), "work_path": "work", "interval": "1s"},
        "notification_schema": {archived.NAME: archived.DEFINITION},
    }
    server = bench.server(configuration, "archived")
    while (state := _archive_state(server)) != "running":
        if state == "unavailable":
            raise RuntimeError("the server has no archive")
        time.sleep(0.2)
    found = []
    for name, identifier in (("0.01 % of it", {"step": {"eq": STEP}}), ("all", {})):
        request = json.dumps({"event_type": archived.NAME, "identifier": identifier, "from_id": "1"})
        replays = [bench.replay(server, workload.write([request], bench.directory / "asked")) for _ in range(3)]
        firsts = [each.first_us / 1e6 for each in replays]
        found += [
            single("cold replay", f"{name} over HTTP, first event, first time", "s", firsts[:1], below=1.5),
            single("cold replay", f"{name} over HTTP, first event", "s", firsts[1:], below=0.3),
        ]
        if not identifier:
            if any(each.deliveries != rows for each in replays):
                raise RuntimeError(f"a replay did not bring {rows:,} events: {replays}")
            rates = [each.events_per_second for each in replays]
            row = single("cold replay", f"all {rows:,} over HTTP", "events/s", rates)
            found.append(msgspec.structs.replace(row, aim=">= 600,000 events/s", met=row.value >= 600_000))
    return found


def _archive_state(server: Target) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/ready") as answer:
        state: str = json.loads(answer.read())["archive"]["state"]
        return state


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1024 / 1024


def _cpu() -> float:
    """Seconds of CPU that this process and those below it have taken."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(status.parent.name)
        parents[number], ticks[number] = int(words[1]), int(words[11]) + int(words[12])
    family = {os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks.get(number, 0) for number in family) / os.sysconf("SC_CLK_TCK")
