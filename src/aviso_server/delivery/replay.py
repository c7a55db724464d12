"""One client of a stream that ends with history."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, ClassVar

from aviso_server.counts import Endpoint
from aviso_server.delivery import frames
from aviso_server.delivery.attention import Bell, attended
from aviso_server.delivery.forms import Form
from aviso_server.delivery.outlet import Outlet
from aviso_server.errors import AvisoError, LogUnavailable
from aviso_server.model.filter import Filter
from aviso_server.model.run import Rendered
from aviso_server.model.span import Span

if TYPE_CHECKING:
    from aviso_server.delivery.history import History
    from aviso_server.delivery.hub import Hub

__all__ = ["Replay"]

logger = logging.getLogger(__name__)


class Replay:
    """Sends history from one sequence to another, then says that it is complete and closes."""

    __slots__ = (
        "_bell",
        "_closing",
        "_form",
        "_history",
        "_hub",
        "_waiting_since",
        "_worker",
        "broken",
        "deadline",
        "flow",
        "outlet",
        "request_id",
        "since",
        "user",
        "wanted",
    )

    endpoint: ClassVar[Endpoint] = "replay"

    def __init__(self, hub: Hub, wanted: Filter, form: Form, outlet: Outlet, request_id: str, history: History) -> None:
        self.wanted = wanted
        self.broken = asyncio.Event()  # set when it could not be completed and the transfer is to be broken off
        self._form = form
        self._history = history
        self.outlet = outlet
        self.request_id = request_id
        self.flow = hub.flow(self.endpoint, wanted.event_type)
        self.since = time.monotonic()
        self.user: str | None = None  # who opened it, if known
        self.deadline = math.inf  # when the reader's time is over
        self._hub = hub
        self._waiting_since: float | None = None  # for the client to take something
        self._bell = Bell()
        self._closing: frames.Reason | None = None
        self._worker: asyncio.Task[None] | None = None

    def begin(self, span: Span, end: int, cap: int | None) -> None:
        """The opening frame is out: send the rest."""
        self._worker = asyncio.create_task(self._work(span, end, cap))

    def close(self, reason: frames.Reason) -> None:
        """End the stream before it is complete."""
        self._closing = reason
        self._bell.ring()

    def tick(self, now: float) -> float | None:
        """End the stream when the reader's time is over, or when it has not taken anything for long."""
        if now >= self.deadline:
            self.deadline = math.inf
            if self._closing is None:
                self.close("max_duration_reached")
        stalls_at = (now if self._waiting_since is None else self._waiting_since) + self._hub.pace.stall
        if now >= stalls_at:
            self.outlet.hang_up()
            return None
        return min(self.deadline, stalls_at)

    def abandon(self) -> None:
        """The client is gone: let go of everything."""
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None  # the task's end refers to this replay, and to the piece it was sending

    async def _work(self, span: Span, end: int, cap: int | None) -> None:
        try:
            last_words, complete = await self._send_history(span, end, cap)
        except ConnectionError:
            return
        except Exception as error:
            last_words, complete = self._failure(error), False
        farewell = self._form.closing(self._hub.clock(), self._closing or "end_of_stream")
        breaks_off = self._form.breaks_off and not complete
        with suppress(ConnectionError):
            await self._deliver(last_words + farewell, last=not breaks_off)
        if breaks_off:
            self.broken.set()

    async def _send_history(self, span: Span, end: int, cap: int | None) -> tuple[bytes, bool]:
        """The last words after all that could be sent, and whether they complete the answer."""
        history, stream = self._history, self.wanted.stream
        start = position = await history.start_of(stream, span)
        form = self._form
        found = self._hub.pieces(history, self.wanted, form.render, start, end, cap, form.plain)
        async with aclosing(attended(found, self._bell)) as pieces:
            async for piece in pieces:
                if piece is None:  # the only thing that can be due is the end
                    return b"", False
                # from the second piece on: what had gone before the replay began is no loss
                if self._form.watchful and position > start and await history.overtaken(stream, position):
                    raise LogUnavailable(f"retention has removed notifications from sequence {position} on; ask again")
                position = piece.next
                self.flow.sent += piece.count
                if piece.data:
                    await self._deliver(piece.data)
                if piece.more:
                    assert cap is not None
                    return self._form.limit_reached(self._hub.clock(), cap), True
                if self._closing is not None:
                    return b"", False
        return self._form.completed(self._hub.clock()), True

    async def _deliver(self, chunk: Rendered, last: bool = False) -> None:
        self._waiting_since = asyncio.get_running_loop().time()
        await self.outlet.deliver(chunk, last)
        self._waiting_since = None

    def _failure(self, error: Exception) -> bytes:
        """The log could not be read: say so, so that nobody believes to have everything."""
        logger.error(
            "history could not be read: %s",
            error,
            exc_info=not isinstance(error, AvisoError),
            extra={"event": "stream.replay.batch.failed", "request_id": self.request_id, "topic": self.wanted.topic},
        )
        self.flow.failed += 1
        return self._form.failed(str(error))
