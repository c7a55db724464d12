"""One client of a stream that ends with history."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from aviso_server.counts import Endpoint
from aviso_server.delivery import frames
from aviso_server.delivery.outlet import Outlet
from aviso_server.errors import AvisoError
from aviso_server.model.cloudevent import REPLAY
from aviso_server.model.filter import Filter
from aviso_server.model.span import Span

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub

__all__ = ["Replay"]

logger = logging.getLogger(__name__)


class Replay:
    """Sends history from one sequence to another, then says that it is complete and closes."""

    __slots__ = ("_closing", "_hub", "_worker", "flow", "outlet", "request_id", "since", "user", "wanted")

    endpoint: ClassVar[Endpoint] = "replay"

    def __init__(self, hub: Hub, wanted: Filter, outlet: Outlet, request_id: str) -> None:
        self.wanted = wanted
        self.outlet = outlet
        self.request_id = request_id
        self.flow = hub.flow(self.endpoint, wanted.event_type)
        self.since = time.monotonic()
        self.user: str | None = None  # who opened it, if known
        self._hub = hub
        self._closing: frames.Reason | None = None
        self._worker: asyncio.Task[None] | None = None

    def begin(self, span: Span, end: int, cap: int | None) -> None:
        """The opening frame is out: send the rest."""
        self._worker = asyncio.create_task(self._work(span, end, cap))

    def close(self, reason: frames.Reason) -> None:
        """End the stream before it is complete."""
        self._closing = reason

    def tick(self, now: float) -> None:
        """The time that the reader may have is over."""
        if self._closing is None:
            self.close("max_duration_reached")

    def abandon(self) -> None:
        """The client is gone: let go of everything."""
        if self._worker is not None:
            self._worker.cancel()

    async def _work(self, span: Span, end: int, cap: int | None) -> None:
        try:
            last_words = await self._send_history(span, end, cap)
        except ConnectionError:
            return
        except Exception as error:
            last_words = self._failure(error)
        reason = self._closing or "end_of_stream"
        farewell = frames.closing(self.wanted.topic, self._hub.clock(), reason, self.request_id)
        with suppress(ConnectionError):
            await self.outlet.deliver(last_words + farewell, last=True)

    async def _send_history(self, span: Span, end: int, cap: int | None) -> bytes:
        start = await self._hub.history.start_of(self.wanted.stream, span)
        async for piece in self._hub.pieces(self.wanted, REPLAY, start, end, cap):
            self.flow.sent += piece.count
            if piece.data:
                await self.outlet.deliver(piece.data)
            if piece.more:
                assert cap is not None
                return frames.limit_reached(self.wanted.topic, self._hub.clock(), cap)
            if self._closing is not None:
                return b""
        return frames.completed(self.wanted.topic, self._hub.clock())

    def _failure(self, error: Exception) -> bytes:
        """The log could not be read: say so, so that nobody believes to have everything."""
        logger.error(
            "history could not be read: %s",
            error,
            exc_info=not isinstance(error, AvisoError),
            extra={"event": "stream.replay.batch.failed", "request_id": self.request_id, "topic": self.wanted.topic},
        )
        self.flow.failed += 1
        return frames.stream_failed(self.wanted.topic, str(error), self.request_id)
