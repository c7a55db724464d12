"""Publishes per second over 64 keep-alive connections, against a server that only decodes the body and answers."""

from __future__ import annotations

from functools import partial

from bench import workload
from bench.machine import Bench, Measured
from bench.table import Row, alternate, compare, single
from tests.harness.metrics import with_metrics

__all__ = ["run"]

CONNECTIONS = 64


def run(bench: Bench, quick: bool) -> list[Row]:
    """in_memory and sqlite (an answer means: on disk) against the bare handler."""
    bodies = workload.write(workload.bodies(), bench.directory / "bodies")
    targets = [
        bench.rival("bare_publish"),
        *[bench.server(workload.configuration(kind), kind) for kind in ("in_memory", "sqlite")],
        bench.server(with_metrics(workload.configuration("in_memory")), "metrics"),
    ]
    measures = {
        target.name: partial(bench.run, target, publishers=CONNECTIONS, bodies=bodies, seconds=1 if quick else 3)
        for target in targets
    }
    for measure in measures.values():
        measure()  # warm up
    results = alternate(2 if quick else 7, measures)
    bare = results["bare_publish"]
    rows = []
    for kind, aim in (("in_memory", None), ("sqlite", 0.45)):
        ours = results[kind]
        _check(ours)
        rows.append(
            compare(
                "publish",
                f"{kind}, {CONNECTIONS} connections",
                "publishes/s",
                [each.publishes_per_second for each in ours],
                "bare handler",
                [each.publishes_per_second for each in bare],
                at_least=aim,
                cpu=([_cost(each) for each in ours], [_cost(each) for each in bare]),
                load_cpu=max(each.load_cpu for each in ours + bare),
            )
        )
        rows.append(
            compare(
                "publish",
                f"{kind}, p99 of the answer",
                "ms",
                [each.ack_p99_us / 1000 for each in ours],
                "bare handler",
                [each.ack_p99_us / 1000 for each in bare],
                lower_is_better=True,
            )
        )
    watched, unwatched = results["metrics"], results["in_memory"]
    rows.append(
        compare(
            "publish",
            "in_memory, metrics on",
            "publishes/s",
            [each.publishes_per_second for each in watched],
            "metrics off",
            [each.publishes_per_second for each in unwatched],
            cpu=([_cost(each) for each in watched], [_cost(each) for each in unwatched]),
        )
    )
    alone = [bench.run(targets[2], publishers=1, bodies=bodies, seconds=1) for _ in range(1 if quick else 3)]
    rows.append(
        single("publish", "sqlite, one connection", "publishes/s", [each.publishes_per_second for each in alone])
    )
    return rows


def _cost(measured: Measured) -> float:
    return measured.server_seconds / measured.requests


def _check(results: list[Measured]) -> None:
    refused = sum(each.refused for each in results)
    if refused:
        raise RuntimeError(f"{refused} publishes were refused")
