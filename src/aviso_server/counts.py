"""Plain numbers that busy code bumps and a scrape reads; nothing here locks, allocates or knows of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Literal

__all__ = ["DURATIONS", "OPERATIONS", "Endpoint", "Flow", "Histogram", "Operation", "Operations", "Outcome", "Timing"]

DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of everything that should be quick."""

Operation = Literal["publish", "get_batch", "wipe_stream", "wipe_all", "delete_message"]
Outcome = Literal["ok", "error"]
Endpoint = Literal["watch", "replay"]

OPERATIONS: tuple[Operation, ...] = ("publish", "get_batch", "wipe_stream", "wipe_all", "delete_message")
_OUTCOMES: tuple[Outcome, ...] = ("ok", "error")


class Histogram:
    """How many values fell under which bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Flow:
    """What went through the streams of one endpoint and event type since the start."""

    __slots__ = ("examined", "failed", "fell_behind", "matched", "opened", "sent")

    def __init__(self) -> None:
        self.opened = 0  # streams
        self.sent = 0  # notifications on their way to clients
        self.failed = 0  # streams that ended with an error frame
        self.examined = 0  # live notifications looked up in the index
        self.matched = 0  # pairs of a live notification and a filter that it passes
        self.fell_behind = 0  # times that a watcher's backlog was full


class Operations:
    """What the log was asked to do, what came of it and how long it took."""

    def __init__(self) -> None:
        self.durations = {
            (operation, outcome): Histogram(DURATIONS) for operation in OPERATIONS for outcome in _OUTCOMES
        }

        self._pairs = {
            operation: (self.durations[operation, "ok"], self.durations[operation, "error"]) for operation in OPERATIONS
        }

    def timed(self, operation: Operation) -> Timing:
        """A context: leaving it counts the operation, as an error if it is left by one."""
        return Timing(*self._pairs[operation])

    def count(self, operation: Operation, seconds: float, failed: bool = False) -> None:
        """Count an operation that took so long."""
        self._pairs[operation][failed].observe(seconds)


class Timing:
    """One operation under way."""

    __slots__ = ("_error", "_ok", "_started")

    def __init__(self, ok: Histogram, error: Histogram) -> None:
        self._ok = ok
        self._error = error

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._ok if kind is None else self._error).observe(perf_counter() - self._started)
