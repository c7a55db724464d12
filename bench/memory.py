"""Memory of the server for each idle watcher."""

from __future__ import annotations

import time
from pathlib import Path

from bench import workload
from bench.machine import Bench, Target
from bench.table import Row, single

__all__ = ["run"]


def run(bench: Bench, quick: bool) -> list[Row]:
    """Resident memory with none, with 2,000 and with 5,000 watchers, whose filters all differ."""
    counts = (500, 1000) if quick else (2000, 5000)
    filters = workload.write(workload.others(max(counts)), bench.directory / "others")
    few = workload.write(workload.others(200, seed=2), bench.directory / "few")
    rows = []
    for count in counts:
        target = bench.server(workload.configuration("sqlite"), f"idle-{count}")
        with bench.hold(target, 200, few):
            time.sleep(0.5)  # what is made once for all is not counted
        time.sleep(0.5)
        before = resident(target)
        with bench.hold(target, count, filters):
            time.sleep(1.0)
            kilobytes = (resident(target) - before) / 1000 / count
        rows.append(single("memory", f"{count:,} idle watchers", "kB per watcher", [kilobytes], below=20))
    return rows


def resident(target: Target) -> int:
    """The resident memory of a process in bytes."""
    for line in Path(f"/proc/{target.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the memory of a process")
