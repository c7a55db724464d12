"""GET /metrics, on a port of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from aviso_server.delivery.hub import GENERIC
from aviso_server.delivery.outlet import Send
from aviso_server.errors import LogError
from aviso_server.http.answers import empty, respond
from aviso_server.http.body import Receive
from aviso_server.http.metrics.families import families
from aviso_server.http.request_id import new_request_id
from aviso_server.http.service import Service
from aviso_server.log.base import StreamState

__all__ = ["MetricsApp"]

logger = logging.getLogger(__name__)

_CONTENT_TYPE = (b"content-type", b"text/plain; version=0.0.4")
_PATIENCE = 2.0  # seconds for a log that lives elsewhere to say what it holds
_MOST_GENERIC = 256  # streams of generic event types that are asked for their size
_NOTHING = StreamState(first=1, last=0, count=0, bytes=0)


class MetricsApp:
    """The ASGI application of the metrics port."""

    def __init__(self, service: Service) -> None:
        self._numbers = _Numbers(service)
        self._registry = CollectorRegistry()
        self._registry.register(self._numbers)
        ProcessCollector(registry=self._registry)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = new_request_id()
        if (scope["method"], scope["path"]) != ("GET", "/metrics"):
            await empty(send, 404, request_id)
            return
        await self._numbers.refresh()
        await respond(send, 200, _CONTENT_TYPE, generate_latest(self._registry), request_id, [])


class _Numbers(Collector):
    """Reads the numbers at the time of a scrape; what the log has to be asked for is fetched before."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: dict[str, StreamState] = {}

    async def refresh(self) -> None:
        """Ask the log what it holds; a log that cannot say leaves the last answer standing."""
        try:
            async with asyncio.timeout(_PATIENCE):
                self._streams = await self._held()
        except (LogError, TimeoutError) as error:
            logger.debug("the log does not say what it holds: %s", error, extra={"event": "metrics.log.unavailable"})

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read anything."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Every series."""
        return families(self._service, self._streams)

    async def _held(self) -> dict[str, StreamState]:
        service = self._service
        held = dict.fromkeys([*service.catalogue.event_types, GENERIC], _NOTHING)
        generic = 0
        # only those that exist: asking a broker for others would make them
        for stream in await service.log.streams():
            label = service.label_of_stream(stream)
            if label == GENERIC:
                generic += 1
                if generic > _MOST_GENERIC:
                    continue
            state = await service.log.state(stream)
            if label == GENERIC:
                state = StreamState(1, 0, held[label].count + state.count, held[label].bytes + state.bytes)
            held[label] = state
        return held
