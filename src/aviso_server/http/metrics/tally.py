"""Counts of requests, answers and published notifications, bumped as they pass and read by a scrape."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter
from typing import Any, Literal

from aviso_server.counts import DURATIONS, Histogram
from aviso_server.delivery.outlet import Send

__all__ = ["UNKNOWN", "UNMATCHED", "Measured", "NotificationStatus", "Tally", "unmeasured"]

UNKNOWN = "unknown"
"""The event type of a publish request that names none, or none that is accepted."""

UNMATCHED = "unmatched"
"""The route of a request that no route answers."""

NotificationStatus = Literal["success", "error", "rejected"]

BATCH_SIZES = (1, 10, 100, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of how many notifications come together."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})


class Tally:
    """What happened on the main port since the start."""

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


class Measured:
    """The way of one answer to its client, timed until the headers are out."""

    __slots__ = ("_begun", "_method", "_open", "_scope", "_tally", "send")

    def __init__(self, tally: Tally, scope: Any, send: Send) -> None:
        self.send = send
        self._tally = tally
        self._scope = scope
        self._method = scope["method"] if scope["method"] in _METHODS else "other"
        self._open = True
        tally.in_flight[self._method] += 1
        self._begun = perf_counter()

    async def __call__(self, message: Any) -> None:
        """Pass a message on."""
        if self._open and message["type"] == "http.response.start":
            self.finish()
            route = self._scope.get("route", UNMATCHED)
            self._tally.answered(route, self._method, message["status"], perf_counter() - self._begun)
        await self.send(message)

    def finish(self) -> None:
        """The request is no longer in flight; it may be over without an answer."""
        if self._open:
            self._open = False
            self._tally.in_flight[self._method] -= 1


def unmeasured(send: Send) -> Send:
    """The way to the client itself: once the headers are out there is nothing left to time."""
    return send.send if isinstance(send, Measured) else send
