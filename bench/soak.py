"""`python -m bench.soak --minutes 10`: does the server keep anything of clients that have gone?

Clients of every kind come and go. Now and then all of them leave, and what the server holds then is measured: memory,
file descriptors, tasks, streams. None of it may grow from one such pause to the next.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import linear_regression
from typing import Any

import click
import msgspec

from bench.churn import Churn
from tests.harness import Server
from tests.harness.metrics import scrape, with_metrics

__all__ = ["Sample", "Soak", "growth", "memory_growth"]

_REST = 8.0  # seconds after which free memory has been given back to the system
_SETTLE = 60.0  # seconds for the server to notice that everybody has left, on a busy machine
_POOLS = 10  # descriptors and tasks that bounded pools may still add; hundreds of clients come between two samples
_MOST_MEMORY_GROWTH = 0.10  # of what it was, and
_MEMORY_NOISE = 12 * 2**20  # bytes that allocators take and give back


class Sample(msgspec.Struct, frozen=True):
    """What the server holds while nobody is connected."""

    at: float  # seconds since the start
    memory: int
    files: int
    tasks: int
    streams: int
    connections: int


class Soak:
    """A server of its own and the clients that come and go."""

    def __init__(self, directory: Path) -> None:
        config = with_metrics(_config())
        self.server = Server(config, directory)
        self._port: int = config["metrics"]["port"]
        self.samples: list[Sample] = []

    def run(self, seconds: float, rounds: int) -> Churn:
        """So many rounds of load, each followed by a rest and a sample; the server must be running."""
        began = time.monotonic()
        churn = Churn(self.server.host, self.server.port)
        for _ in range(rounds):
            asyncio.run(churn.run(seconds / rounds))
            self.samples.append(self._rested(began))
        return churn

    def _rested(self, began: float) -> Sample:
        """Sample once free memory has been given back: at the latest after a rest, or when it is no more than ever."""
        least = min([each.memory for each in self.samples], default=0)
        found, deadline = self._sample(began), time.monotonic() + _REST
        while found.memory > least and time.monotonic() < deadline:
            time.sleep(0.5)
            found = min(found, self._sample(began), key=lambda each: each.memory)
        return found

    def _sample(self, began: float) -> Sample:
        deadline = time.monotonic() + _SETTLE
        while True:
            now = scrape(self.server, self._port)
            found = Sample(
                round(time.monotonic() - began, 1),
                int(now.value("process_resident_memory_bytes")),
                int(now.value("process_open_fds")),
                int(now.value("aviso_tasks")),
                int(now.total("aviso_sse_connections_active")),
                int(now.value("aviso_connections_active")),
            )
            if (found.streams, found.connections) == (0, 0) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def growth(samples: list[Sample]) -> list[str]:
    """Say what grew from pause to pause, but for memory; empty if nothing did."""
    # the first half fills caches, buffers and pools that are bounded
    settled, last = samples[: max(1, len(samples) // 2)], samples[-1]
    grown = [
        f"{name} are left over: {value}"
        for each in samples
        for name, value in (("streams", each.streams), ("connections", each.connections))
        if value
    ]
    files, tasks = max(each.files for each in settled), max(each.tasks for each in settled)
    if last.files > files + _POOLS:
        grown.append(f"file descriptors grew from {files} to {last.files}")
    if last.tasks > tasks + _POOLS:
        grown.append(f"tasks grew from {tasks} to {last.tasks}")
    return grown


def memory_growth(samples: list[Sample]) -> list[str]:
    """Say whether memory grew; empty if it did not.

    Look at the trend: freed memory goes back to the system only now and then, so one sample says little. It takes
    minutes to show; the tests trace what each connection leaves behind instead.
    """
    later = samples[len(samples) // 4 :]
    slope, start = linear_regression([each.at for each in later], [each.memory for each in later])
    first, final = start + slope * later[0].at, start + slope * later[-1].at
    if final > first * (1 + _MOST_MEMORY_GROWTH) + _MEMORY_NOISE:
        return [f"memory grew from {first / 2**20:.0f} MiB to {final / 2**20:.0f} MiB"]
    return []


def _config() -> dict[str, Any]:
    identifier = {
        "port": {"type": "StringHandler", "required": False},
        "level": {"type": "IntHandler", "required": False},
    }
    return {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "watch_endpoint": {"sse_heartbeat_interval_sec": 1, "buffer_bytes": 65_536},
        "limits": {"header_timeout_seconds": 10, "body_timeout_seconds": 10, "idle_timeout_seconds": 10},
        "notification_schema": {
            "tide": {
                "topic": {"base": "tides", "key_order": ["port", "level"]},
                "identifier": identifier,
                "storage_policy": {"max_messages": 5_000},
            }
        },
    }


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long the load lasts.")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=2), help="How often to measure.")
def main(minutes: float, rounds: int) -> None:
    """Soak the server in clients that come and go, and see whether it keeps anything of them."""
    with tempfile.TemporaryDirectory(prefix="aviso-soak-") as directory:
        soak = Soak(Path(directory))
        with soak.server:
            churn = soak.run(minutes * 60, rounds)
        print(f"{'seconds':>8} {'memory MiB':>11} {'files':>6} {'tasks':>6} {'streams':>8}")
        for each in soak.samples:
            print(f"{each.at:8.0f} {each.memory / 2**20:11.1f} {each.files:6} {each.tasks:6} {each.streams:8}")
        print(", ".join(f"{name} {count}" for name, count in sorted(churn.counts.items())))
        problems = [*churn.surprises, *growth(soak.samples), *memory_growth(soak.samples)]
        print("\n".join(problems) or "nothing grew")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
