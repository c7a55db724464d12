"""The past of a stream as one read, filtered and rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import msgspec

from aviso_server.counts import Operations
from aviso_server.delivery.forms import Bounds, Render
from aviso_server.log.base import Batch, Log
from aviso_server.model.filter import Filter
from aviso_server.model.geometry import Polygon
from aviso_server.model.notification import Notification
from aviso_server.model.span import Span

__all__ = ["History", "Piece"]

_LAST_TIME = 2**63 - 1


class Piece(msgspec.Struct, frozen=True):
    """A part of history, ready to be sent."""

    data: bytes
    count: int  # notifications in it
    next: int  # the sequence to go on from
    more: bool = False  # there was at least one more than there was room for


class History:
    """Reads what a stream holds, piece by piece, as fast as the reader takes it."""

    def __init__(self, log: Log, executor: Executor, spatial: Executor, operations: Operations) -> None:
        self._log = log
        self._operations = operations
        self._executor = executor
        self._spatial = spatial  # tests of areas may take long: they do not hold up the others

    async def start_of(self, stream: str, span: Span) -> int:
        """The first sequence that a span means."""
        if span.from_time is not None:
            return await self._log.first_since(stream, min(span.from_time, _LAST_TIME))
        return max(span.from_sequence or 0, 1)

    async def end_of(self, stream: str, span: Span, last: int) -> int:
        """The last sequence that a span means in a stream that ends at `last`."""
        if span.to_time is not None:
            return min(await self._log.last_until(stream, min(span.to_time, _LAST_TIME)), last)
        return last if span.to_sequence is None else min(span.to_sequence, last)

    async def bounds(self, stream: str, span: Span) -> Bounds:
        """What a span means in the stream as it is now; a start further back than what is held is moved there."""
        state = await self._log.state(stream)
        start = max(await self.start_of(stream, span), state.first)
        end = await self.end_of(stream, span, state.last)
        return Bounds(start, end, state.first, state.last, state.trimmed)

    async def read(self, wanted: Filter, start: int, end: int, batch: int) -> Batch:
        """The next `batch` notifications from `start` on; some that cannot match may be missing already."""
        box = wanted.area.box if isinstance(wanted.area, Polygon) else None
        with self._operations.timed("get_batch"):
            return await self._log.read(wanted.stream, start, end, batch, box)

    async def piece(self, wanted: Filter, render: Render, found: Batch, room: int | None = None) -> Piece:
        """The matching ones out of a batch, ready to be sent, at most `room` of them."""
        if not found.notifications:
            return Piece(b"", 0, found.next)
        loop = asyncio.get_running_loop()
        executor = self._executor if wanted.area is None else self._spatial
        data, count, more = await loop.run_in_executor(
            executor, select_and_render, found.notifications, wanted, render, room
        )
        return Piece(data, count, found.next, more)

    async def overtaken(self, stream: str, position: int) -> bool:
        """True if retention has removed everything up to the position and something at or after it."""
        state = await self._log.state(stream)
        return state.first > position and state.trimmed >= position

    async def lost(self, stream: str, position: int) -> bool:
        """True if retention has removed something at or after the position, so that a reader there missed it."""
        return (await self._log.state(stream)).trimmed >= position


def select_and_render(
    notifications: Sequence[Notification], wanted: Filter, render: Render, room: int | None
) -> tuple[bytes, int, bool]:
    """The bytes of those that match, how many, and whether there were more than there was room for."""
    matching = notifications if wanted.is_open else [each for each in notifications if wanted.matches(each)]
    more = room is not None and len(matching) > room
    if more:
        matching = matching[:room]
    return render(matching), len(matching), more
