"""Counters and histograms: plain numbers without locks, bumped by busy code and read by a scrape of the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

__all__ = [
    "LAGS",
    "OPERATIONS",
    "UNKNOWN",
    "Endpoint",
    "Flow",
    "Histogram",
    "NotificationStatus",
    "Operations",
    "RequestTally",
]


DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of durations, in seconds."""

UNKNOWN = "unknown"
"""The event type of a publish request that names none, or none that is accepted."""

NotificationStatus = Literal["success", "error", "rejected"]

LAGS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds of how late the event loop may come."""

BATCH_SIZES = (1, 10, 100, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of how many notifications come together."""

Operation = Literal["publish", "get_batch", "wipe_stream", "wipe_all", "delete_message"]
Outcome = Literal["ok", "error"]
Endpoint = Literal["watch", "replay"]

OPERATIONS: tuple[Operation, ...] = ("publish", "get_batch", "wipe_stream", "wipe_all", "delete_message")
_OUTCOMES: tuple[Outcome, ...] = ("ok", "error")


class Histogram:
    """Counts values by upper bound, and sums them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        return sum(self.counts)


class Flow:
    """Counts what went through the streams of one endpoint and event type."""

    __slots__ = ("examined", "failed", "fell_behind", "matched", "opened", "restarts", "sent")

    def __init__(self) -> None:
        self.opened = 0  # streams
        self.sent = 0  # notifications on their way to clients
        self.failed = 0  # streams that ended with an error frame
        self.examined = 0  # live notifications looked up in the index
        self.matched = 0  # pairs of a live notification and a filter that it passes
        self.fell_behind = 0  # times that a watcher's backlog was full
        self.restarts = 0  # times that a live feed failed and was restarted


class Operations:
    """Durations of the operations of the log, by outcome."""

    def __init__(self) -> None:
        self.durations = {
            (operation, outcome): Histogram(DURATIONS) for operation in OPERATIONS for outcome in _OUTCOMES
        }
        self._pairs = {
            operation: (self.durations[operation, "ok"], self.durations[operation, "error"]) for operation in OPERATIONS
        }

    @contextmanager
    def timed(self, operation: Operation) -> Iterator[None]:
        """Time the body of a `with` statement; it counts as an error if it raises."""
        began, failed = perf_counter(), True
        try:
            yield
            failed = False
        finally:
            self.count(operation, perf_counter() - began, failed)

    def count(self, operation: Operation, seconds: float, failed: bool = False) -> None:
        """Count an operation and the seconds it took."""
        self._pairs[operation][failed].observe(seconds)


class RequestTally:
    """Counts requests and publishes on the main port since the start."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)  # by route, method, status
        self.durations: dict[tuple[str, str], Histogram] = {}  # by route, method
        self.in_flight: defaultdict[str, int] = defaultdict(int)  # by method
        self.notifications: defaultdict[tuple[str, NotificationStatus], int] = defaultdict(int)  # by event type
        self.replayed: defaultdict[str, int] = defaultdict(int)  # publishes answered from their keys, by event type
        self.batch_sizes = Histogram(BATCH_SIZES)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer whose headers are ready."""
        self.requests[route, method, status] += 1
        histogram = self.durations.get((route, method))
        if histogram is None:
            histogram = self.durations[route, method] = Histogram(DURATIONS)
        histogram.observe(seconds)
