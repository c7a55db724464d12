"""One client of a stream that ends with history."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from aviso_server.counters import Endpoint
from aviso_server.delivery import sse
from aviso_server.delivery.client_writer import ClientWriter, OpenStream
from aviso_server.delivery.formats import Format
from aviso_server.delivery.history import Chunks
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Rendered
from aviso_server.model.times import Span

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub
    from aviso_server.store import Store

__all__ = ["Replay"]


class Replay(OpenStream):
    """Sends history from one sequence to another, then says that it is complete and closes."""

    __slots__ = ("_chunks", "_closing", "_format", "_store", "_waiting_since", "_worker", "aborted", "deadline")

    endpoint: ClassVar[Endpoint] = "replay"

    def __init__(
        self, hub: Hub, wanted: Filter, format_: Format, writer: ClientWriter, request_id: str, store: Store
    ) -> None:
        super().__init__(hub, wanted, writer, request_id)
        self.aborted = asyncio.Event()  # set when it could not be completed and the transfer is to be aborted
        self.deadline = math.inf  # when the reader's time is over
        self._format = format_
        self._store = store
        self._waiting_since: float | None = None  # for the client to take something
        self._chunks: Chunks | None = None
        self._closing: sse.Reason | None = None
        self._worker: asyncio.Task[None] | None = None

    def begin(self, span: Span, end: int, cap: int | None) -> None:
        """Send history, after the opening frame."""
        self._worker = asyncio.create_task(self._work(span, end, cap))

    def close(self, reason: sse.Reason) -> None:
        """End the stream before it is complete."""
        self._closing = reason
        if self._chunks is not None:
            self._chunks.wake()

    def tick(self, now: float) -> float | None:
        """End the stream when the reader's time is over, or when it has not taken anything for long."""
        if now >= self.deadline:
            self.deadline = math.inf
            if self._closing is None:
                self.close("max_duration_reached")
        stalls_at = (now if self._waiting_since is None else self._waiting_since) + self._hub.pace.stall
        if now >= stalls_at:
            self.writer.hang_up()
            return None
        return min(self.deadline, stalls_at)

    def abort(self) -> None:
        """End the stream without a closing frame, because its connection does not work."""
        self.writer.hang_up()

    def abandon(self) -> None:
        """Release everything: the client is gone."""
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None  # the task's end refers to this replay, and to the chunk it was sending

    async def _work(self, span: Span, end: int, cap: int | None) -> None:
        try:
            ending, complete = await self._send_history(span, end, cap)
        except ConnectionError:
            return
        except Exception as error:
            self._log_failed_read(error)
            ending, complete = self._format.failed(str(error)), False
        ending += self._format.closing(self._hub.clock(), self._closing or "end_of_stream")
        aborts = self._format.aborts and not complete
        with suppress(ConnectionError):
            await self._deliver(ending, last=not aborts)
        if aborts:
            self.aborted.set()

    async def _send_history(self, span: Span, end: int, cap: int | None) -> tuple[bytes, bool]:
        """Send all that can be sent; return the format's ending, and whether it completes the answer."""
        found = self._chunks = self._hub.history(self.wanted, self._format, span, end, cap, self._store)
        if self._closing is not None:
            found.wake()
        try:
            async for chunk in found:
                self.flow.sent += chunk.count
                if chunk.data:
                    await self._deliver(chunk.data)
                if chunk.more:
                    assert cap is not None
                    return self._format.limit_reached(self._hub.clock(), cap), True
                if self._closing is not None:
                    return b"", False
        finally:
            found.close()
        return self._format.completed(self._hub.clock()), True

    async def _deliver(self, data: Rendered, last: bool = False) -> None:
        self._waiting_since = asyncio.get_running_loop().time()
        await self.writer.deliver(data, last)
        self._waiting_since = None
