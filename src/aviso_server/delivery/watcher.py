"""One client of a stream without end: history if asked for, then live, each notification once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from aviso_server.counters import Endpoint
from aviso_server.delivery import sse
from aviso_server.delivery.client_writer import ClientWriter, OpenStream
from aviso_server.delivery.formats import EventStream
from aviso_server.delivery.history import Chunks
from aviso_server.errors import HistoryGone
from aviso_server.model.cloudevent import LIVE, REPLAY
from aviso_server.model.filter import Filter
from aviso_server.model.times import Span

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub
    from aviso_server.delivery.live import Frames, LiveFeed

__all__ = ["Watcher"]

Step = Callable[[], Awaitable[None]]


class Watcher(OpenStream):
    """A cursor into a stream, a bounded backlog, and catching up from the log when the backlog is full.

    While the client keeps up, everything is written at once. When it does not, one task (the worker) waits for it, and
    everything else goes to the backlog.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_begun",
        "_behind",
        "_chunks",
        "_closing",
        "_ended",
        "_heartbeat_due",
        "_worker",
        "deadline",
        "feed",
        "next_heartbeat",
        "position",
    )

    endpoint: ClassVar[Endpoint] = "watch"

    def __init__(
        self, hub: Hub, feed: LiveFeed, wanted: Filter, writer: ClientWriter, request_id: str, position: int
    ) -> None:
        super().__init__(hub, wanted, writer, request_id)
        self.feed = feed
        self.position = position  # the next sequence it has not been handed yet
        self.next_heartbeat = 0.0
        self.deadline = 0.0
        self._backlog: list[tuple[Frames, bytes]] = []
        self._backlog_bytes = 0
        self._behind = True
        self._begun = False
        self._heartbeat_due = False
        self._closing: sse.Reason | None = None
        self._ended = False
        self._worker: asyncio.Task[None] | None = None
        self._chunks: Chunks | None = None  # while it reads history

    def go_live(self) -> None:
        """Deliver everything from the position on."""
        if not self.feed.join(self) or (self._behind and self._worker is None):
            self._start(self._catch_up)

    def go_back(self, span: Span, cap: int | None) -> None:
        """Deliver history from the start of the span up to the position, then everything after it."""
        end = self.position - 1
        self._start(lambda: self._replay(span, end, cap))

    def begin(self, next_heartbeat: float, deadline: float) -> None:
        """Start heartbeats and the duration, after the opening frame."""
        self.next_heartbeat, self.deadline = next_heartbeat, deadline
        self._begun = True
        if self._closing is not None and self._worker is None and not self._ended:
            self._write(self._closing_frame(self._closing), last=True)

    def remember(self, remembered: Frames, position: int, live: bool) -> None:
        """Take what the live feed remembers; with `live`, it offers everything from `position` on."""
        self._behind = not live
        self.position = position
        if remembered:
            # Taken in whatever its size: the feed has limited it, and one large frame must get through.
            self._add(remembered, b"".join([frame for _, frame in remembered]))

    def offer(self, offered: Frames, chunk: bytes) -> None:
        """Take what the live feed has for this watcher; leave out what it has seen already."""
        if self._behind or self._ended or self._closing is not None:
            return
        if offered[0][0] < self.position:
            offered = [each for each in offered if each[0] >= self.position]
            if not offered:
                return
            chunk = b"".join([frame for _, frame in offered])
        self.position = offered[-1][0] + 1
        self._add(offered, chunk)
        if self._backlog_bytes > self._hub.pace.buffer_bytes:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Drop the backlog and catch up from the log."""
        self.flow.fell_behind += 1
        if self._backlog:
            self.position = self._backlog[0][0][0][0]
            self._backlog.clear()
            self._backlog_bytes = 0
        self._behind = True
        self.feed.leave(self)
        if self._worker is None and not self._ended:
            self._start(self._catch_up)

    def tick(self, now: float) -> float | None:
        """Send a heartbeat, or end the stream when its time is over."""
        if now >= self.deadline:
            self.close("max_duration_reached")
            last_call = self.deadline + self._hub.pace.patience
            if now >= last_call:
                self.writer.hang_up()  # it has stopped reading: nothing else would ever end it
                return None
            return last_call
        if self._ended:
            return self.deadline
        if now >= self.next_heartbeat:
            self.next_heartbeat += self._hub.pace.heartbeat_interval
            if self._worker is None:
                self._write(sse.heartbeat(self.wanted.topic, self._hub.clock()))
            else:
                self._heartbeat_due = True
                self._wake()
        return min(self.next_heartbeat, self.deadline)

    def close(self, reason: sse.Reason) -> None:
        """End the stream in order, after what is already in the backlog."""
        if self._ended or (self._closing is not None and sse.weight(reason) <= sse.weight(self._closing)):
            return
        self._closing = reason
        self._wake()
        if self._worker is None and self._begun:
            self._write(self._closing_frame(reason), last=True)

    def abort(self) -> None:
        """End the stream without a closing frame, because its connection does not work."""
        self._end()
        self.writer.hang_up()

    def abandon(self) -> None:
        """Release everything: the client is gone."""
        self._ended = True
        self._behind = True
        self._backlog.clear()
        self.feed.leave(self)
        if self._worker is not None:
            self._worker.cancel()

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._backlog_bytes

    @property
    def catching_up(self) -> bool:
        """True while the watcher reads from the log instead of being live."""
        return self._behind and not self._ended

    def _wake(self) -> None:
        if self._chunks is not None:
            self._chunks.wake()

    def _add(self, added: Frames, chunk: bytes) -> None:
        if self._worker is None:
            self.flow.sent += len(added)
            self._write(chunk)
            return
        self._backlog.append((added, chunk))
        self._backlog_bytes += len(chunk)

    def _write(self, chunk: bytes, last: bool = False) -> None:
        if last:
            self._end()
        try:
            blocked = self.writer.write(chunk, last)
        except ConnectionError:  # the client has gone; whoever called must not suffer
            self.abort()
            return
        if blocked is not None:
            self._start(lambda: blocked)

    def _start(self, first: Step) -> None:
        self._worker = asyncio.create_task(self._work(first))

    async def _work(self, first: Step) -> None:
        """Take the first step, then whatever has become due; there is no await between the last check and the end."""
        try:
            await first()
            while not self._ended and (step := self._due()) is not None:
                await step()
        except ConnectionError:
            self.abort()
        except Exception as error:
            try:
                await self._fail(error)
            except ConnectionError:
                self.abort()
        finally:
            self._stop_reading()
            self._worker = None

    def _due(self) -> Step | None:
        if self._backlog:
            return self._send_backlog
        if self._closing is not None:
            return self._send_closing_frame
        if self._heartbeat_due:
            return self._send_heartbeat
        if self._behind:
            return self._catch_up
        return None

    async def _send_backlog(self) -> None:
        backlog, self._backlog = self._backlog, []
        self._backlog_bytes = 0
        self.flow.sent += sum(len(added) for added, _ in backlog)
        await self.writer.deliver(b"".join([chunk for _, chunk in backlog]))

    async def _send_heartbeat(self) -> None:
        self._heartbeat_due = False
        await self.writer.deliver(sse.heartbeat(self.wanted.topic, self._hub.clock()))

    async def _send_closing_frame(self) -> None:
        assert self._closing is not None
        self._end()
        await self.writer.deliver(self._closing_frame(self._closing), last=True)

    async def _replay(self, span: Span, end: int, cap: int | None) -> None:
        """Send history as it was when the stream was opened."""
        self._chunks = self._hub.history(self.wanted, self._format(REPLAY), span, end, cap)
        async for chunk in self._chunks:
            self.flow.sent += chunk.count
            if chunk.data:
                await self.writer.deliver(chunk.data)
            if self._heartbeat_due:
                await self._send_heartbeat()
            if chunk.more:
                assert cap is not None
                await self.writer.deliver(sse.limit_reached(self.wanted.topic, self._hub.clock(), cap))
                self._closing = self._closing or "end_of_stream"
            if self._closing is not None:
                return
        self._stop_reading()
        await self.writer.deliver(sse.completed(self.wanted.topic, self._hub.clock()))

    async def _catch_up(self) -> None:
        """Read history until the live feed can take over; one chunk per step, so that other things get their turn."""
        if self.feed.join(self):
            self._stop_reading()
            if self._behind:
                await asyncio.sleep(0)  # there is more to look at, but others wait too
            return
        if self._chunks is None:
            self._chunks = self._hub.catch_up(self.wanted, self._format(LIVE), self.position)
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._stop_reading()
            await asyncio.sleep(0)
            return
        except HistoryGone:
            self._log(logging.WARNING, "stream.watcher.lagged", "a watcher fell behind what the log keeps")
            self._closing = self._closing or "end_of_stream"
            return
        self.position = chunk.next
        self.flow.sent += chunk.count
        if chunk.data:
            await self.writer.deliver(chunk.data)

    def _stop_reading(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def _format(self, name: bytes) -> EventStream:
        return EventStream(self.wanted.topic, self._hub.renderer(self.wanted.event_type), self.request_id, name)

    async def _fail(self, error: Exception) -> None:
        """Say that history could not be read, and end the stream."""
        self._log_failed_read(error)
        self._end()
        failed = sse.stream_failed(self.wanted.topic, str(error), self.request_id)
        await self.writer.deliver(failed + self._closing_frame("end_of_stream"), last=True)

    def _end(self) -> None:
        self._ended = True
        self.feed.leave(self)

    def _closing_frame(self, reason: sse.Reason) -> bytes:
        return sse.closing(self.wanted.topic, self._hub.clock(), reason, self.request_id)
