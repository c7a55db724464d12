"""The clients of streams: watchers and replays, and the way to write to them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from aviso_server.counters import Endpoint
from aviso_server.delivery import sse
from aviso_server.delivery.formats import EventStream, Format
from aviso_server.delivery.history import Chunks
from aviso_server.errors import AvisoError, HistoryGone
from aviso_server.model.cloudevent import LIVE, REPLAY
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Rendered
from aviso_server.model.times import Span

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub
    from aviso_server.delivery.live import Frames, LiveFeed
    from aviso_server.store import Store

__all__ = ["ClientWriter", "OpenStream", "Replay", "Send", "Watcher"]

logger = logging.getLogger(__name__)

Send = Callable[[Any], Coroutine[Any, Any, None]]
"""The send callable of an ASGI server."""

HangUp = Callable[[], None]
"""Ends a connection at once, and drops what still waits to be sent."""


_SLICE = 256 * 1024  # bytes
_USUAL_LINE = 4096  # bytes, of which there is an end of a line nearly always


class ClientWriter:
    """Writes to one client, without a task and without waiting as long as the client keeps up.

    Whatever the transport raises comes out as ConnectionError: only this client is lost.
    """

    __slots__ = ("_hang_up", "_send")

    def __init__(self, send: Send, hang_up: HangUp | None = None) -> None:
        self._send = send
        self._hang_up = hang_up

    def write(self, chunk: bytes, last: bool = False) -> Awaitable[None] | None:
        """Hand over a chunk; return None if it is on its way, else what to await before the next write."""
        sending = self._send({"type": "http.response.body", "body": chunk, "more_body": not last})
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return None
        except Exception as error:
            raise _lost(error) from error
        return _Suspended(sending, waiting_for)

    async def deliver(self, chunk: Rendered, last: bool = False) -> None:
        """Hand over a chunk and wait until the client has room for another.

        A large one goes out in slices, which end with a line where there are lines: the server copies what it is
        given, and memory for a large copy would come from the system and go back to it each time.
        """
        try:
            if len(chunk) > _SLICE:
                chunk = memoryview(chunk)
                while len(chunk) > _SLICE:
                    end = _end_of_line(chunk[:_SLICE])
                    await self._send({"type": "http.response.body", "body": chunk[:end], "more_body": True})
                    chunk = chunk[end:]
            await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})
        except Exception as error:
            raise _lost(error) from error

    def hang_up(self) -> None:
        """End the connection of a client that has stopped reading."""
        if self._hang_up is not None:
            try:
                self._hang_up()
            except Exception as error:
                _lost(error)


def _lost(error: Exception) -> ConnectionError:
    """Return the error as ConnectionError; log one that a lost client does not explain."""
    if isinstance(error, ConnectionError):
        return error
    if not isinstance(error, OSError):
        logger.warning("a connection failed: %r", error, extra={"event": "stream.connection.failed"})
    return ConnectionResetError(f"the connection failed: {error!r}")


def _end_of_line(part: memoryview) -> int:
    """Return where the last whole line ends; the end of the part if none does."""
    size = _USUAL_LINE
    while True:
        start = max(0, len(part) - size)
        found = bytes(part[start:]).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        if start == 0:
            return len(part)
        size *= 8


class _Suspended:
    """A coroutine that was started outside of any task, to be finished inside of one."""

    __slots__ = ("_coroutine", "_waiting_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        self._coroutine = coroutine
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waiting_for
        except BaseException as error:
            with suppress(StopIteration):  # it took the error for a reason to finish
                self._coroutine.throw(error)
            raise
        try:
            yield from self._coroutine.__await__()
        except Exception as error:
            raise _lost(error) from error


class OpenStream:
    """What watches and replays have in common."""

    __slots__ = ("_hub", "caller", "flow", "request_id", "since", "user", "wanted", "writer")

    endpoint: ClassVar[Endpoint]

    def __init__(self, hub: Hub, wanted: Filter, writer: ClientWriter, request_id: str) -> None:
        self.wanted = wanted
        self.writer = writer
        self.request_id = request_id
        self.flow = hub.flow(self.endpoint, wanted.event_type)
        self.since = time.monotonic()
        self.user: str | None = None  # who opened it, if known
        self.caller = ("anonymous", "none")  # the same for log records: name and realm
        self._hub = hub

    def _log(self, level: int, event: str, message: str, error: Exception | None = None) -> None:
        logger.log(
            level,
            message,
            exc_info=None if isinstance(error, AvisoError) else error,
            extra={
                "event": event,
                "request_id": self.request_id,
                "username": self.caller[0],
                "auth_realm": self.caller[1],
                "topic": self.wanted.topic,
            },
        )

    def _log_failed_read(self, error: Exception) -> None:
        self.flow.failed += 1
        self._log(logging.ERROR, "stream.replay.batch.failed", f"history could not be read: {error}", error)


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
