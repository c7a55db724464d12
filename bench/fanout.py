"""Deliveries per second when every watcher wants every event."""

from __future__ import annotations

from functools import partial

from bench import workload
from bench.machine import Bench, Measured
from bench.table import Row, alternate, compare

__all__ = ["run"]

RIVALS = {"queue_per_watcher": "queue and task per watcher", "one_dispatcher": "one send per event and watcher"}


def run(bench: Bench, quick: bool) -> list[Row]:
    """1,000 and 5,000 watchers, 1 and 16 publishers."""
    bodies = workload.write(workload.bodies(), bench.directory / "bodies")
    filters = workload.write(workload.everything(), bench.directory / "filters")
    targets = [
        *[bench.rival(name) for name in RIVALS],
        *[bench.server(workload.configuration(kind), kind) for kind in ("in_memory", "sqlite")],
    ]
    rows = []
    for watchers in (1000,) if quick else (1000, 5000):
        for publishers in (1, 16):
            measures = {
                target.name: partial(
                    bench.run,
                    target,
                    publishers=publishers,
                    bodies=bodies,
                    watchers=watchers,
                    filters=filters,
                    seconds=1 if quick else 2,
                    deliveries=watchers,
                    drain=1 if target.name in RIVALS else 20,
                )
                for target in targets
            }
            results = alternate(1 if quick else 3, measures)
            for kind in ("in_memory", "sqlite"):
                _check(results[kind])
                rows += [
                    compare(
                        "fan-out",
                        f"{watchers:,} watchers, {publishers} publishers, {kind}",
                        "deliveries/s",
                        [each.deliveries_per_second for each in results[kind]],
                        description,
                        [each.deliveries_per_second for each in results[rival]],
                        at_least=4 if watchers == 1000 and rival == "one_dispatcher" else None,
                        cpu=([_cost(each) for each in results[kind]], [_cost(each) for each in results[rival]]),
                        load_cpu=max(each.load_cpu for each in results[kind] + results[rival]),
                    )
                    for rival, description in RIVALS.items()
                ]
    return rows


def _cost(measured: Measured) -> float:
    return measured.server_seconds / max(measured.deliveries, 1)


def _check(results: list[Measured]) -> None:
    """Fast but incomplete would not count."""
    for each in results:
        if each.missing or each.refused or each.lost:
            raise RuntimeError(f"not every event reached every watcher: {each}")
