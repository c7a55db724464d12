"""Events per second of one big replay, against a chunked answer of bytes that were ready before."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Draft
from bench import workload
from bench.machine import Bench, Replayed
from bench.table import Row, alternate, compare

__all__ = ["run"]

AIM = 500_000 / 3_000_000  # events per second, where ready bytes do so many


def run(bench: Bench, quick: bool) -> list[Row]:
    """All of a stream to one client, from sqlite and from memory."""
    count = 50_000 if quick else 300_000
    asyncio.run(fill(bench.home("sqlite") / "log", count))
    sqlite = bench.server(workload.configuration("sqlite"), "sqlite")
    memory = bench.server(workload.configuration("in_memory"), "in_memory")
    bodies = workload.write(workload.bodies(), bench.directory / "bodies")
    held = 0
    while held < count:
        held += bench.run(memory, publishers=64, bodies=bodies, seconds=5).requests
    everything = workload.write(workload.everything(from_id="1"), bench.directory / "everything")
    ready = workload.write(workload.everything(from_id=str(count)), bench.directory / "ready")
    bare = bench.rival("ready_bytes")
    replays = {
        "bare": partial(bench.replay, bare, ready),
        "in_memory": partial(bench.replay, memory, everything),
        "sqlite": partial(bench.replay, sqlite, everything),
    }
    alternate(1, replays)  # whoever is asked for the first time opens files and imports modules
    results = alternate(2 if quick else 9, replays)
    expected = {"bare": count, "in_memory": held, "sqlite": count}
    for name, replays in results.items():
        if any(each.deliveries != expected[name] for each in replays):
            raise RuntimeError(f"{name}: a replay did not bring {expected[name]:,} events: {replays}")
    return [
        compare(
            "replay",
            f"{expected[kind]:,} events, {kind}",
            "events/s",
            [each.events_per_second for each in results[kind]],
            "ready bytes",
            [each.events_per_second for each in results["bare"]],
            at_least=AIM if kind == "sqlite" else None,
            cpu=([_cost(each) for each in results[kind]], [_cost(each) for each in results["bare"]]),
            load_cpu=max(each.load_cpu for each in results[kind]),
        )
        for kind in ("in_memory", "sqlite")
    ]


def _cost(replayed: Replayed) -> float:
    return replayed.server_seconds / replayed.deliveries


async def fill(path: Path, count: int) -> None:
    """A log with so many notifications, without a server."""
    shutil.rmtree(path, ignore_errors=True)
    log = SqliteLog(path)
    await log.open()
    payload = compact({"location": "s3://products/od/0001/20250706/1200/enfo/" + "x" * 160, "size": 1, "t": "0" * 19})
    for start in range(0, count, 5000):
        drafts = []
        for number in range(start, min(start + 5000, count)):
            identifier = workload.identifier(number % 64)
            topic = ".".join([workload.EVENT_TYPE, *[identifier[key] for key in workload.KEYS]])
            drafts.append(Draft(workload.EVENT_TYPE, topic, compact(identifier), payload))
        await log.append_many(drafts)
    await log.close()
