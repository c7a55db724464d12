"""How long tests wait for what must happen, and how much processor time they allow."""

from __future__ import annotations

from statistics import median
from time import thread_time

__all__ = ["PATIENCE", "slowness"]

PATIENCE = 60.0
"""Seconds. Only a failing test waits that long, so the figure suits a crowded machine."""

_USUAL = 0.0019  # seconds of processor time that `_work` takes on the machine that limits are meant for


def slowness() -> float:
    """Measure how many times slower this machine is than the one limits of processor time are meant for; at least 1."""
    taken = []
    for _ in range(9):
        begun = thread_time()
        _work()
        taken.append(thread_time() - begun)
    return max(1.0, median(taken) / _USUAL)


def _work() -> None:
    found: dict[int, str] = {}
    for number in range(20_000):
        found[number % 997] = str(number)
