"""The parts of a running server, for handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aviso_server.archive.flight_client import Slots
from aviso_server.archive.lake import Lake
from aviso_server.archive.reports import Quarantined
from aviso_server.config.settings import Settings
from aviso_server.counters import LAGS, Histogram, Operations, RequestTally
from aviso_server.delivery.hub import GENERIC, Hub
from aviso_server.diagnostics.traces import Traces
from aviso_server.http.auth import ArchiveJobToken, Gate, User
from aviso_server.http.browsers import Browsers
from aviso_server.http.ecpds import EcpdsPlugin
from aviso_server.http.limits import RequestLimits
from aviso_server.lateness.watch import Watch
from aviso_server.log.base import Log
from aviso_server.model.event_type import Catalogue
from aviso_server.store import Store
from aviso_server.subscriptions.registry import Subscriptions

if TYPE_CHECKING:
    from aviso_server.insight.counts import Reader

__all__ = ["Insights", "Service"]

_MAX_INSIGHTS = 2  # answers about the archive that are put together at a time
_MAX_COUNTS = 2  # explanations at a time; the others wait in order


class Insights:
    """The insight tables of an archive on this machine, read in threads."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = settings.archive.enabled and settings.insight.enabled
        self.available = self.enabled and urlsplit(settings.archive.path).scheme in ("", "file")
        self._path = settings.archive.path
        self._turns = asyncio.Semaphore(_MAX_INSIGHTS)
        self._reader: Reader | None = None

    async def overviews(self) -> list[dict[str, Any]]:
        """Return what there is of every event type."""
        if not self.available:
            return []

        def read() -> list[dict[str, Any]]:
            from aviso_server.insight.answers import overview  # pyarrow is large: only who needs it waits for it

            return [overview(state) for state in self._open().states() if state.days]

        async with self._turns:
            return await asyncio.to_thread(read)

    async def answer(
        self, stream: str, name: str, start: int | None, end: int | None, field: str | None
    ) -> dict[str, Any] | None:
        """Return what a table says of a stream; None if there is nothing."""

        def read() -> dict[str, Any] | None:
            from aviso_server.insight.answers import answer

            return answer(self._open(), stream, name, start, end, field)

        async with self._turns:
            return await asyncio.to_thread(read)

    def _open(self) -> Reader:
        from aviso_server.insight.counts import Reader

        if self._reader is None:
            self._reader = Reader(self._path)
        return self._reader


@dataclass(kw_only=True, slots=True)
class Service:
    """The parts of a running server, put together by `server.wiring`."""

    settings: Settings
    catalogue: Catalogue
    log: Log
    store: Store
    hub: Hub
    clock: Callable[[], int]
    operations: Operations
    limits: RequestLimits
    browsers: Browsers
    quarantined: Quarantined
    insights: Insights
    gate: Gate | None = None
    ecpds: EcpdsPlugin | None = None
    archive: Lake | None = None
    archive_job: ArchiveJobToken | None = None
    lateness: Watch | None = None
    subscriptions: Subscriptions | None = None
    traces: Traces | None = None
    tally: RequestTally = field(default_factory=RequestTally)
    loop_lag: Histogram = field(default_factory=lambda: Histogram(LAGS))
    counts: Slots = field(default_factory=lambda: Slots(_MAX_COUNTS))  # the right to count in the past
    connections: Callable[[], int] = lambda: 0  # how many clients are connected

    def may_know(self, stream: str, user: User | None) -> bool:
        """Return whether the user, None for anybody, may know that a stream exists and what it holds.

        Whatever lists or counts streams asks here.
        """
        return self.gate is None or self.gate.rules.may_know(stream, user)

    def label(self, event_type: str) -> str:
        """Return the label of an event type in metrics; those that nobody configured share one."""
        return event_type if event_type in self.catalogue.event_types else GENERIC

    def label_of_stream(self, stream: str) -> str:
        """Return the label of a stream's event type in metrics."""
        folded = stream.lower()
        return next((each.name for each in self.catalogue.event_types.values() if each.base.lower() == folded), GENERIC)

    async def close(self) -> None:
        """Close the connections to other services and stop the pipeline process."""
        if self.lateness is not None:
            await self.lateness.stop()
        if self.archive is not None:
            await self.archive.close()
        for each in (self.gate, self.ecpds):
            if each is not None:
                await each.close()
