"""What every route works with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from aviso_server.archive.quarantined import Quarantined
from aviso_server.archive.slots import Slots
from aviso_server.config.settings import Settings
from aviso_server.counts import Operations
from aviso_server.delivery.hub import GENERIC, Hub, Pace
from aviso_server.http.archiving import Archiving
from aviso_server.http.auth.layer import Gate
from aviso_server.http.ecpds import EcpdsPlugin
from aviso_server.http.limits.checks import Limits
from aviso_server.http.metrics.tally import Tally
from aviso_server.http.openapi.asyncapi import asyncapi_document
from aviso_server.http.openapi.document import document
from aviso_server.http.traces import Traces
from aviso_server.http.watching import make_watch
from aviso_server.log.base import Log
from aviso_server.model.quarantine import FOLDER
from aviso_server.model.schema import Catalogue

if TYPE_CHECKING:
    from aviso_server.insight.reading import Reader

__all__ = ["Service"]

_SHORTEST_STALL = 60  # seconds
_INSIGHTS = 2  # answers about the archive that are put together at a time
_COUNTS = 2  # explanations at a time; the others wait in order


class Service:
    """The settings, the event types, the log and the open streams of a running server."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        clock: Callable[[], int] = time.time_ns,
        archiving: Archiving | None = None,
    ) -> None:
        watch = settings.watch_endpoint
        self.settings = settings
        self.log = log
        self.archive = None if archiving is None else archiving.lake
        self.archive_job = None if archiving is None else archiving.token  # how to tell it from other callers
        self.clock = clock
        self.catalogue = Catalogue({each.name: each for each in settings.event_types}, settings.strict)
        self.tally = Tally()
        self.operations = Operations()
        self.limits = Limits(settings.limits)
        self.counts = Slots(_COUNTS)  # the right to count in the past
        self._by_stream = {each.base.lower(): each.name for each in settings.event_types}
        self.hub = Hub(
            log,
            settings.application.base_url,
            Pace(
                heartbeat_interval=watch.sse_heartbeat_interval_sec,
                max_duration=watch.connection_max_duration_sec,
                batch_size=watch.replay_batch_size,
                batch_delay=watch.replay_batch_delay_ms / 1000,
                buffer_bytes=watch.buffer_bytes,
                stall=max(watch.connection_max_duration_sec, _SHORTEST_STALL),
            ),
            clock,
            self.catalogue.event_types.keys(),
            self.operations,
            self.archive,
        )
        self.lateness = make_watch(settings, log, self.hub.history, clock)
        self.quarantined = Quarantined(settings.archive.work_path.absolute() / FOLDER)
        self.traces: Traces | None = None
        self.insight: Reader | None = None  # made when it is asked for first
        self.insight_turns = asyncio.Semaphore(_INSIGHTS)
        auth, streams = settings.auth, settings.stream_auth
        self.gate = Gate(auth, streams, self.catalogue) if auth.enabled else None
        has_plugin = auth.enabled and any("ecpds" in stream.plugins for stream in streams.values())
        self.ecpds = EcpdsPlugin(settings.ecpds, streams) if has_plugin else None
        self.connections: Callable[[], int] = lambda: 0  # how many clients are connected; the server knows

    def trace(self, traces: Traces) -> None:
        """From now on follow notifications from publish to delivery."""
        self.traces = traces
        self.hub.on_passed = traces.passed_on

    def label(self, event_type: str) -> str:
        """What an event type is called in metrics: names that nobody configured are all one."""
        return event_type if event_type in self.catalogue.event_types else GENERIC

    def label_of_stream(self, stream: str) -> str:
        """What the event type of a stream is called in metrics."""
        return self._by_stream.get(stream.lower(), GENERIC)

    async def close(self) -> None:
        """Let go of the connections to other services, and of the pipeline process."""
        if self.lateness is not None:
            await self.lateness.stop()
        if self.archive is not None:
            await self.archive.close()
        for each in (self.gate, self.ecpds):
            if each is not None:
                await each.close()

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document, made when it is asked for the first time."""
        return msgspec.json.encode(document(self.catalogue, self.settings))

    @cached_property
    def asyncapi(self) -> bytes:
        """The AsyncAPI document, made when it is asked for the first time."""
        return msgspec.json.encode(asyncapi_document(self.catalogue, self.settings))
