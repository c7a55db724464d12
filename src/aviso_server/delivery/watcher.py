"""One client of a stream that goes on: history if asked for, then live, each notification once and in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from aviso_server.counts import Endpoint
from aviso_server.delivery import frames
from aviso_server.delivery.attention import Bell, attended
from aviso_server.delivery.forms import Render
from aviso_server.delivery.outlet import Outlet
from aviso_server.errors import AvisoError
from aviso_server.model.cloudevent import LIVE, REPLAY
from aviso_server.model.filter import Filter
from aviso_server.model.span import Span

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub
    from aviso_server.delivery.reading import Reading
    from aviso_server.delivery.tail import Frames, Tail

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[None]]


class Watcher:
    """A cursor into a stream, a bounded backlog, and catching up from the log when the backlog is full.

    Whoever wants to write does it at once while the client keeps up. When the client does not, one task (the worker)
    waits for it, and everything else lands in the backlog until the worker gets there.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_begun",
        "_behind",
        "_bell",
        "_closing",
        "_ended",
        "_heartbeat_due",
        "_hub",
        "_reading",
        "_worker",
        "deadline",
        "flow",
        "next_heartbeat",
        "outlet",
        "position",
        "request_id",
        "since",
        "tail",
        "user",
        "wanted",
    )

    endpoint: ClassVar[Endpoint] = "watch"

    def __init__(self, hub: Hub, tail: Tail, wanted: Filter, outlet: Outlet, request_id: str, position: int) -> None:
        self.wanted = wanted
        self.outlet = outlet
        self.request_id = request_id
        self.tail = tail
        self.position = position  # the next sequence it has not been handed yet
        self.flow = hub.flow(self.endpoint, wanted.event_type)
        self.since = time.monotonic()
        self.user: str | None = None  # who opened it, if known
        self.next_heartbeat = 0.0
        self.deadline = 0.0
        self._hub = hub
        self._backlog: list[tuple[Frames, bytes]] = []
        self._backlog_bytes = 0
        self._behind = True
        self._begun = False
        self._heartbeat_due = False
        self._closing: frames.Reason | None = None
        self._ended = False
        self._worker: asyncio.Task[None] | None = None
        self._bell: Bell | None = None  # while it waits for the history that was asked for
        self._reading: Reading | None = None  # while it catches up

    def go_live(self) -> None:
        """Deliver what comes from the position on."""
        if not self.tail.join(self) or (self._behind and self._worker is None):
            self._employ(self._catch_up)

    def go_back(self, span: Span, cap: int | None) -> None:
        """Deliver history from the start of the span up to the position first, then what comes after."""
        end = self.position - 1
        self._employ(lambda: self._replay(span, end, cap))

    def begin(self, next_heartbeat: float, deadline: float) -> None:
        """The opening frame is out: from now on there are heartbeats, and an end."""
        self.next_heartbeat, self.deadline = next_heartbeat, deadline
        self._begun = True
        if self._closing is not None and self._worker is None and not self._ended:
            self._write(self._farewell(self._closing), last=True)

    def remember(self, remembered: Frames, position: int, live: bool) -> None:
        """The tail knew these already; if it took the watcher in, the rest from `position` on will be offered."""
        self._behind = not live
        self.position = position
        if remembered:
            # Taken in whatever its size: the tail has limited it, and one large frame must get through.
            self._add(remembered, b"".join([frame for _, frame in remembered]))

    def offer(self, offered: Frames, chunk: bytes) -> None:
        """The tail has something that the watcher wants; what it has seen already is left out."""
        if self._behind or self._ended or self._closing is not None:
            return
        if offered[0][0] < self.position:
            offered = [each for each in offered if each[0] >= self.position]
            if not offered:
                return
            chunk = b"".join([frame for _, frame in offered])
        self.position = offered[-1][0] + 1
        self._add(offered, chunk)
        if self._backlog_bytes > self._hub.buffer_bytes:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Give up what waits and being live: go on from the log, which has it all."""
        self.flow.fell_behind += 1
        if self._backlog:
            self.position = self._backlog[0][0][0][0]
            self._backlog.clear()
            self._backlog_bytes = 0
        self._behind = True
        self.tail.leave(self)
        if self._worker is None and not self._ended:
            self._employ(self._catch_up)

    def tick(self, now: float) -> float | None:
        """Show that the connection is alive, or end it when its time has come."""
        if now >= self.deadline:
            self.close("max_duration_reached")
            last_call = self.deadline + self._hub.pace.patience
            if now >= last_call:
                self.outlet.hang_up()  # it has stopped reading: nothing else would ever end it
                return None
            return last_call
        if self._ended:
            return self.deadline
        if now >= self.next_heartbeat:
            self.next_heartbeat += self._hub.pace.heartbeat_interval
            if self._worker is None:
                self._write(frames.heartbeat(self.wanted.topic, self._hub.clock()))
            else:
                self._heartbeat_due = True
                self._ring()
        return min(self.next_heartbeat, self.deadline)

    def close(self, reason: frames.Reason) -> None:
        """End the stream in order, after what is already in the backlog."""
        if self._ended or (self._closing is not None and frames.weight(reason) <= frames.weight(self._closing)):
            return
        self._closing = reason
        self._ring()
        if self._worker is None and self._begun:
            self._write(self._farewell(reason), last=True)

    def abandon(self) -> None:
        """The client is gone: let go of everything."""
        self._ended = True
        self._behind = True
        self._backlog.clear()
        self.tail.leave(self)
        if self._worker is not None:
            self._worker.cancel()

    @property
    def backlog_bytes(self) -> int:
        """How much is waiting for the client."""
        return self._backlog_bytes

    @property
    def catching_up(self) -> bool:
        """True while the watcher reads from the log instead of being live."""
        return self._behind and not self._ended

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _add(self, added: Frames, chunk: bytes) -> None:
        if self._worker is None:
            self.flow.sent += len(added)
            self._write(chunk)
            return
        self._backlog.append((added, chunk))
        self._backlog_bytes += len(chunk)

    def _write(self, chunk: bytes, last: bool = False) -> None:
        if last:
            self._ended = True
            self.tail.leave(self)
        try:
            blocked = self.outlet.write(chunk, last)
        except OSError:  # the client has gone; whoever called must not suffer
            self._ended = True
            self.tail.leave(self)
            return
        if blocked is not None:
            self._employ(lambda: blocked)

    def _employ(self, first: Step) -> None:
        self._worker = asyncio.create_task(self._work(first))

    async def _work(self, first: Step) -> None:
        """Do the first thing, then whatever has become due meanwhile; without an await between check and rest."""
        try:
            await first()
            while not self._ended and (step := self._due()) is not None:
                await step()
        except ConnectionError:
            self._ended = True
        except Exception as error:
            with suppress(ConnectionError):
                await self._fail(error)
        finally:
            self._stop_reading()
            self._worker = None

    def _due(self) -> Step | None:
        if self._backlog:
            return self._empty_backlog
        if self._closing is not None:
            return self._say_farewell
        if self._heartbeat_due:
            return self._show_life
        if self._behind:
            return self._catch_up
        return None

    async def _empty_backlog(self) -> None:
        backlog, self._backlog = self._backlog, []
        self._backlog_bytes = 0
        self.flow.sent += sum(len(added) for added, _ in backlog)
        await self.outlet.deliver(b"".join([chunk for _, chunk in backlog]))

    async def _show_life(self) -> None:
        self._heartbeat_due = False
        await self.outlet.deliver(frames.heartbeat(self.wanted.topic, self._hub.clock()))

    async def _say_farewell(self) -> None:
        assert self._closing is not None
        self._ended = True
        self.tail.leave(self)
        await self.outlet.deliver(self._farewell(self._closing), last=True)

    async def _replay(self, span: Span, end: int, cap: int | None) -> None:
        """History as it was when the stream was opened."""
        history, self._bell = self._hub.history, Bell()
        start = await history.start_of(self.wanted.stream, span)
        found = self._hub.pieces(history, self.wanted, self._frames(REPLAY), start, end, cap, plain=True)
        async with aclosing(attended(found, self._bell)) as pieces:
            async for piece in pieces:
                if piece is not None:
                    self.flow.sent += piece.count
                    if piece.data:
                        await self.outlet.deliver(piece.data)
                if self._heartbeat_due:
                    await self._show_life()
                if piece is not None and piece.more:
                    assert cap is not None
                    await self.outlet.deliver(frames.limit_reached(self.wanted.topic, self._hub.clock(), cap))
                    self._closing = self._closing or "end_of_stream"
                if self._closing is not None:
                    return
        self._bell = None
        await self.outlet.deliver(frames.completed(self.wanted.topic, self._hub.clock()))

    async def _catch_up(self) -> None:
        """Read history until the tail can take over; one piece per step, so that other things get their turn."""
        if self.tail.join(self):
            self._stop_reading()
            if self._behind:
                await asyncio.sleep(0)  # there is more to look at, but others wait too
            return
        if self._reading is None:
            self._reading = self._hub.history.reading(self.wanted, self.position)
        piece = await self._hub.next_piece(self._reading, self._frames(LIVE))
        # asked after the read, because retention may have been at work during it
        if await self._hub.history.lost(self.wanted.stream, self.position):
            logger.warning(
                "a watcher fell behind what the log keeps",
                extra={"event": "stream.watcher.lagged", "request_id": self.request_id, "topic": self.wanted.topic},
            )
            self._closing = self._closing or "end_of_stream"
            return
        self.position = piece.next
        self.flow.sent += piece.count
        if piece.data:
            await self.outlet.deliver(piece.data)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _frames(self, name: bytes) -> Render:
        return partial(self._hub.renderer(self.wanted.event_type).frames, name)

    async def _fail(self, error: Exception) -> None:
        """The log could not be read: say so and end, so that nobody believes to have everything."""
        logger.error(
            "history could not be read: %s",
            error,
            exc_info=not isinstance(error, AvisoError),
            extra={"event": "stream.replay.batch.failed", "request_id": self.request_id, "topic": self.wanted.topic},
        )
        self._ended = True
        self.tail.leave(self)
        self.flow.failed += 1
        await self.outlet.deliver(
            frames.stream_failed(self.wanted.topic, str(error), self.request_id) + self._farewell("end_of_stream"),
            last=True,
        )

    def _farewell(self, reason: frames.Reason) -> bytes:
        return frames.closing(self.wanted.topic, self._hub.clock(), reason, self.request_id)
