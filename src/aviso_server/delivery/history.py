"""The past of a stream as one read, filtered and rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from aviso_server.counts import Operations
from aviso_server.delivery.archive import Archive
from aviso_server.delivery.forms import Bounds, Render
from aviso_server.delivery.piece import Piece, select_and_render
from aviso_server.delivery.pouring import Pour
from aviso_server.delivery.reading import Reading
from aviso_server.log.base import Batch, Log, Pouring
from aviso_server.model.filter import Filter
from aviso_server.model.span import Span

__all__ = ["History"]

_LAST_TIME = 2**63 - 1


class History:
    """Reads what a stream holds, piece by piece, as fast as the reader takes it: archive and log as one."""

    def __init__(
        self,
        log: Log,
        executor: Executor,
        spatial: Executor,
        operations: Operations,
        archive: Archive | None = None,
    ) -> None:
        self.archive = archive
        self._log = log
        self._operations = operations
        self._executor = executor
        self._spatial = spatial  # tests of areas may take long: they do not hold up the others

    async def start_of(self, stream: str, span: Span) -> int:
        """The first sequence that a span means."""
        if span.from_time is None:
            return max(span.from_sequence or 0, 1)
        time = min(span.from_time, _LAST_TIME)
        start = await self._log.first_since(stream, time)
        if self.archive is None:
            return start
        state = await self._log.state(stream)
        # times never fall: if the log holds something older than the start, all that it let go of is older too
        if not state.trimmed or start > state.first > state.trimmed:
            return start
        boundary = min(state.trimmed, (await self.archive.coverage(stream, state.trimmed)).last)
        earlier = await self.archive.first_since(stream, time) if boundary else boundary + 1
        return earlier if earlier <= boundary else max(start, boundary + 1)

    async def end_of(self, stream: str, span: Span, last: int) -> int:
        """The last sequence that a span means in a stream that ends at `last`."""
        if span.to_time is None:
            return last if span.to_sequence is None else min(span.to_sequence, last)
        time = min(span.to_time, _LAST_TIME)
        end = await self._log.last_until(stream, time)
        if self.archive is not None:
            state = await self._log.state(stream)
            if state.trimmed and (end < state.first or end <= state.trimmed):
                boundary = min(state.trimmed, (await self.archive.coverage(stream, state.trimmed)).last)
                if boundary and (end < state.first or end <= boundary):
                    end = min(await self.archive.last_until(stream, time), boundary)
        return min(end, last)

    async def bounds(self, stream: str, span: Span) -> Bounds:
        """What a span means in the stream as it is now; a start further back than what is held is moved there."""
        state = await self._log.state(stream)
        first, trimmed = state.first, state.trimmed
        if self.archive is not None and trimmed:
            covered = await self.archive.coverage(stream, trimmed)
            if covered.last >= covered.first:
                first = min(first, covered.first)
                trimmed = min(trimmed, covered.first - 1) if covered.last >= trimmed else trimmed
        start = max(await self.start_of(stream, span), first)
        end = await self.end_of(stream, span, state.last)
        return Bounds(start, end, first, state.last, trimmed)

    def reading(self, wanted: Filter, start: int) -> Reading:
        """A way through the stream from `start` on; whoever opens it closes it."""
        return Reading(self._log, self.archive, self._operations, wanted, start)

    async def pour(self, reading: Reading, render: Render, end: int, room: int | None, plain: bool) -> Pour:
        """The pieces from where a reading is up to `end`, made by threads of the log, if that can pour."""
        assert isinstance(self._log, Pouring)
        state = await self._log.state(reading.wanted.stream)
        gapless = state.count == state.last - state.first + 1
        return Pour(self._log, self._operations, reading.wanted, render, reading.position, end, room, plain, gapless)

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
        """True if retention has removed everything up to the position and something at or after it, for good."""
        state = await self._log.state(stream)
        gone = state.first > position and state.trimmed >= position
        return gone and not await self._archived(stream, position, state.trimmed)

    async def lost(self, stream: str, position: int) -> bool:
        """True if retention has removed something at or after the position, so that a reader there missed it."""
        trimmed = (await self._log.state(stream)).trimmed
        return trimmed >= position and not await self._archived(stream, position, trimmed)

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one notification for good, wherever it is; False if it is nowhere."""
        if self.archive is None:
            return await self._log.delete(stream, sequence)
        if sequence > await self._last(stream):
            return False
        async with self.archive.deleting(stream, sequence) as deletion:
            removed = await self._log.delete(stream, sequence)
            return removed or await deletion.archived()

    async def wipe(self, stream: str) -> int | None:
        """Remove all notifications of a stream wherever they are; how many the log held, None if it has no such stream.

        Its numbering goes on.
        """
        if self.archive is None:
            return await self._log.wipe(stream)
        through = await self._last(stream)
        if not through:
            return await self._log.wipe(stream)
        in_log = stream in await self._log.streams()
        async with self.archive.wiping(stream, through):
            removed = await self._log.wipe(stream) if in_log else None
        if in_log:
            # what was published between the question and the wipe is gone from the log too
            reached = (await self._log.state(stream)).first - 1
            if reached > through:
                async with self.archive.wiping(stream, reached):
                    pass
        return removed

    async def streams(self) -> Sequence[str]:
        """The streams that ever held a notification, sorted."""
        streams = await self._log.streams()
        return streams if self.archive is None else sorted({*streams, *await self.archive.streams()})

    async def _last(self, stream: str) -> int:
        """The newest sequence that was given out, as far as log and archive know."""
        last = 0
        if stream in await self._log.streams():  # asking a broker for others would make them
            last = (await self._log.state(stream)).last
        if self.archive is not None and stream in await self.archive.streams():
            last = max(last, (await self.archive.coverage(stream)).last)
        return last

    async def _archived(self, stream: str, start: int, end: int) -> bool:
        return self.archive is not None and (await self.archive.coverage(stream, end)).includes(start, end)
