"""From publish to delivery, at half of the rate that the server can take, beside 1,000 watchers of other things."""

from __future__ import annotations

import statistics

from bench import workload
from bench.machine import Bench, Measured
from bench.table import Row, alternate, single

__all__ = ["run"]

WATCHERS = 1000
CONNECTIONS = 64


def run(bench: Bench, quick: bool) -> list[Row]:
    """One watcher gets everything; a publish that could not be sent in time counts from when it was due."""
    bodies = workload.write(workload.bodies(stamped=True), bench.directory / "stamped")
    mixed = workload.write(workload.everything() + workload.others(WATCHERS), bench.directory / "mixed")
    rows = []
    for kind in ("in_memory", "sqlite"):
        target = bench.server(workload.configuration(kind), f"latency-{kind}")

        def measure(rate: float = 0) -> Measured:
            return bench.run(
                target,  # noqa: B023  # called in this turn of the loop only
                publishers=CONNECTIONS,
                bodies=bodies,
                watchers=WATCHERS + 1,
                filters=mixed,
                seconds=2 if quick else 4,
                rate=rate,
                deliveries=1,
                stamped=True,
            )

        full = statistics.median(measure().publishes_per_second for _ in range(1 if quick else 3))
        results = alternate(1 if quick else 5, {"half": lambda: measure(full / 2)})["half"]  # noqa: B023  # as above
        for each in results:
            if each.missing or each.refused or each.lost:
                raise RuntimeError(f"not every event was delivered: {each}")
        at = f"{kind}, {full / 2:,.0f} publishes/s"
        rows.append(single("latency", f"p50, {at}", "ms", [each.delivery_p50_us / 1000 for each in results]))
        rows.append(single("latency", f"p99, {at}", "ms", [each.delivery_p99_us / 1000 for each in results], below=10))
    return rows
