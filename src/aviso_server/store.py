"""Log and archive behind one face: nobody above asks where a notification comes from.

Everything up to the newest sequence that retention has removed from the log comes from the archive, as far as that
reaches, and everything after it from the log. The boundary moves while somebody reads: a reader that it overtakes goes
on in the archive. What neither holds any more is an error (HistoryGone), never a silent gap.

All methods are called from the event loop's thread. Nothing here blocks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing
from time import perf_counter
from typing import Any, Protocol, TypeVar

import msgspec

from aviso_server.counters import Operations
from aviso_server.errors import HistoryGone, InvalidRequest
from aviso_server.log.base import Batch, Log, StreamState, ThreadedLog
from aviso_server.model.explain import Tally
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification, Run
from aviso_server.model.shapes import Polygon
from aviso_server.model.times import Span

__all__ = ["NOTHING", "Bounds", "Coverage", "PastStore", "Store", "Version"]

FIRST_BATCH = 100  # notifications: few, so that the first event is early
LARGEST_BATCH = 2048  # notifications: the cost of a batch is small beside them
_GROWTH = 4

_THREADS = 4
_SPATIAL_THREADS = 2
_LAST_TIME = 2**63 - 1

T = TypeVar("T")
Work = Callable[[Sequence[Notification]], T]
"""Turns notifications into something else; called in a thread, one batch after the other."""


class Coverage(msgspec.Struct, frozen=True):
    """The sequences of a stream that an archive answers for; deleted ones are among them."""

    first: int
    last: int  # lower than `first` if there are none

    def includes(self, start: int, end: int) -> bool:
        """Return whether every sequence of the range is covered."""
        return self.first <= start and end <= self.last


NOTHING = Coverage(1, 0)
"""The coverage of a stream that has never been archived."""


class Version(msgspec.Struct, frozen=True):
    """What an archive knew of a stream at a time."""

    number: int  # of its table
    last: int  # the newest sequence that it held


class Bounds(msgspec.Struct, frozen=True):
    """What a span means in a stream as it is now."""

    start: int  # the first sequence that may be in it
    end: int  # the last one
    first: int  # the oldest sequence still held
    last: int  # the newest sequence ever given out
    trimmed: int  # the newest sequence that retention has removed


class Deletion(Protocol):
    """A delete that was noted."""

    async def archived(self) -> bool:
        """Return whether the archive held the notification, or may have held it and cannot be asked."""


class ArchiveStore(Protocol):
    """Where history goes on when the log has let go of it.

    - Every notification of a coverage that was neither deleted nor wiped comes out of `read`, once and in order of
      sequences, byte for byte as it was in the log.
    - A notification whose delete or wipe was answered never comes out again, whatever crashes and whenever.
    - What it cannot read now is an error (LogUnavailable), never a gap.
    """

    def watermark(self, stream: str) -> int:
        """Return the newest sequence that is known to be archived, 0 if none is: what the log may let go of.

        The only method that is called from other threads too.
        """

    async def coverage(self, stream: str, through: int = 0) -> Coverage:
        """Return what is archived of a stream; looked up afresh if what is known ends before `through`."""

    async def streams(self) -> Sequence[str]:
        """Return the streams that are archived, sorted."""

    async def version_at(self, stream: str, time: int) -> Version:
        """Return what was known of a stream at a time; InvalidRequest if that is not kept.

        The methods that take a version answer as they would have then: also with what was deleted since.
        """

    def read(
        self, wanted: Filter, start: int, end: int, version: Version | None = None
    ) -> AsyncGenerator[Sequence[Notification], None]:
        """Yield what passes the filter with start <= sequence <= end, in runs of ascending sequence.

        Closing the generator ends the work behind it.
        """

    @property
    def reachable(self) -> bool:
        """True if it can be read at once; False if it is away, or has not started yet."""

    async def count(self, wanted: Filter, start: int, end: int, unit: int, version: Version | None = None) -> Tally:
        """Count what `read` would yield, by place and by interval of `unit` nanoseconds; start and end are covered.

        Cancelling it ends the work behind it.
        """

    async def first_since(self, stream: str, time: int, version: Version | None = None) -> int:
        """Return the lowest archived sequence stored at or after `time`; one more than the last if there is none."""

    async def last_until(self, stream: str, time: int, version: Version | None = None) -> int:
        """Return the highest archived sequence stored at or before `time`; one less than the first if none is."""

    def deleting(self, stream: str, sequence: int) -> AbstractAsyncContextManager[Deletion]:
        """Remove one notification from history for good.

        It is durably noted, and hidden, when the context is entered: then the log is to forget it. If that fails and
        the context is left by an error, the note is taken back.
        """

    def wiping(self, stream: str, through: int) -> AbstractAsyncContextManager[None]:
        """Remove everything up to a sequence from history for good; as with `deleting`."""

    async def describe(self) -> dict[str, Any]:
        """Return how it is doing, for people: ready for JSON."""


class Store:
    """Everything that was published: appended to the log, read from archive and log as one history."""

    def __init__(self, log: Log, archive: ArchiveStore | None = None, operations: Operations | None = None) -> None:
        self.log = log
        self.archive = archive
        self.append = log.append
        self.append_many = log.append_many
        self.append_keyed = log.append_keyed
        self.indivisible = log.indivisible
        self.follow = log.follow
        self.state = log.state  # of the log: what the archive holds besides is in `bounds`
        self._operations = operations or Operations()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="render")
        self.spatial: Executor = ThreadPoolExecutor(
            _SPATIAL_THREADS, thread_name_prefix="areas"
        )  # these tests are long

    def close(self) -> None:
        for executor in (self._threads, self.spatial):
            executor.shutdown(wait=False, cancel_futures=True)

    def without_archive(self) -> Store:
        """Return a store of what the log alone holds; it shares the threads."""
        alone = Store.__new__(Store)
        alone.__dict__.update(self.__dict__, archive=None)
        return alone

    async def as_of(self, stream: str, time: int) -> PastStore:
        """Return what the archive knew of a stream at a time; InvalidRequest if there is no archive, or not of then."""
        if self.archive is None:
            raise InvalidRequest(
                "as_of: this server has no archive, so that it only knows what is there now", field="as_of"
            )
        past = PastStore.__new__(PastStore)
        past.__dict__.update(self.__dict__, version=await self.archive.version_at(stream, time))
        past.state = past.state_then
        return past

    async def streams(self) -> Sequence[str]:
        streams = await self.log.streams()
        return streams if self.archive is None else sorted({*streams, *await self.archive.streams()})

    async def start_of(self, stream: str, span: Span) -> int:
        """Return the first sequence that a span means."""
        if span.from_time is None:
            return max(span.from_sequence or 0, 1)
        time = min(span.from_time, _LAST_TIME)
        start = await self.log.first_since(stream, time)
        if self.archive is None:
            return start
        state = await self.log.state(stream)
        # times never fall: if the log holds something older than the start, all that it let go of is older too
        if not state.trimmed or start > state.first > state.trimmed:
            return start
        boundary = min(state.trimmed, (await self.archive.coverage(stream, state.trimmed)).last)
        earlier = await self.archive.first_since(stream, time) if boundary else boundary + 1
        return earlier if earlier <= boundary else max(start, boundary + 1)

    async def end_of(self, stream: str, span: Span, last: int) -> int:
        """Return the last sequence that a span means in a stream that ends at `last`."""
        if span.to_time is None:
            return last if span.to_sequence is None else min(span.to_sequence, last)
        time = min(span.to_time, _LAST_TIME)
        end = await self.log.last_until(stream, time)
        if self.archive is not None:
            state = await self.log.state(stream)
            if state.trimmed and (end < state.first or end <= state.trimmed):
                boundary = min(state.trimmed, (await self.archive.coverage(stream, state.trimmed)).last)
                if boundary and (end < state.first or end <= boundary):
                    end = min(await self.archive.last_until(stream, time), boundary)
        return min(end, last)

    async def bounds(self, stream: str, span: Span) -> Bounds:
        """Return what a span means in the stream as it is now; a start further back than what is held moves there."""
        state = await self.log.state(stream)
        first, trimmed = state.first, state.trimmed
        if self.archive is not None and trimmed:
            covered = await self.archive.coverage(stream, trimmed)
            if covered.last >= covered.first:
                first = min(first, covered.first)
                trimmed = min(trimmed, covered.first - 1) if covered.last >= trimmed else trimmed
        start = max(await self.start_of(stream, span), first)
        end = await self.end_of(stream, span, state.last)
        return Bounds(start, end, first, state.last, trimmed)

    async def read(
        self,
        wanted: Filter,
        start: int,
        end: int,
        work: Work[T],
        *,
        topics: bool = True,
        unbroken: bool = False,
        batch: int | None = None,
    ) -> AsyncGenerator[tuple[T, int], None]:
        """Call `work` in a thread with what matches of each batch; yield its result and where the next batch starts.

        Batches from `start` to `end`, all in order. What the archive brings has passed the filter there, what the log
        brings is tested here: each notification once. Batches of the log grow, unless their size is given. Without
        `topics`, those may be empty. A reader that has begun gets HistoryGone if retention has removed everything up
        to where it is; with `unbroken`, if it has removed anything from `start` on.
        """
        stream, begun, limit = wanted.stream, unbroken, batch or FIRST_BATCH

        def choose(notifications: Sequence[Notification]) -> T:
            return work(wanted.choose(notifications))

        boundary = await self._boundary(stream, start, begun)
        while start <= end:
            if start <= boundary:
                assert self.archive is not None
                boundary = min(boundary, end)
                async with aclosing(self.archive.read(wanted, start, boundary)) as runs:
                    async for run in runs:
                        start = _last_of(run) + 1 if run else start
                        yield await self._call(wanted, work, run), start
                start, begun = boundary + 1, True
                yield await self._call(wanted, work, ()), start
                boundary = await self._boundary(stream, start, begun)
                continue
            found, trimmed, results = await self._read_log(wanted, start, end, limit, choose, topics)
            if trimmed >= start:
                boundary = await self._boundary(stream, start, begun)
                if start <= boundary:
                    continue
                if begun and (unbroken or (await self.log.state(stream)).first > start):
                    raise _gone(start)
            yield results[0] if results else await self._call(wanted, choose, found.notifications), found.next
            start, begun, limit = found.next, True, batch or min(limit * _GROWTH, LARGEST_BATCH)

    async def delete(self, stream: str, sequence: int) -> bool:
        """Remove one notification for good, wherever it is; False if it is nowhere."""
        if self.archive is None:
            return await self.log.delete(stream, sequence)
        if sequence > await self._last(stream):
            return False
        async with self.archive.deleting(stream, sequence) as deletion:
            removed = await self.log.delete(stream, sequence)
            return removed or await deletion.archived()

    async def wipe(self, stream: str) -> int | None:
        """Remove all notifications of a stream; return how many the log held, None if it has no such stream.

        Its numbering goes on.
        """
        if self.archive is None:
            return await self.log.wipe(stream)
        through = await self._last(stream)
        if not through:
            return await self.log.wipe(stream)
        in_log = stream in await self.log.streams()
        async with self.archive.wiping(stream, through):
            removed = await self.log.wipe(stream) if in_log else None
        if in_log:
            # what was published between the question and the wipe is gone from the log too
            reached = (await self.log.state(stream)).first - 1
            if reached > through:
                async with self.archive.wiping(stream, reached):
                    pass
        return removed

    async def _read_log(
        self, wanted: Filter, start: int, end: int, limit: int, work: Work[T], topics: bool
    ) -> tuple[Batch, int, list[T]]:
        """Read a batch, and see what retention had removed by then; call `work` too if the log can read in a thread.

        Tests of areas take long, and would keep the log's threads from others. Nor is `work` called with a batch of
        which retention may have removed something.
        """
        stream, results, began = wanted.stream, list[T](), perf_counter()
        seconds = 0.0

        def in_thread(found: Batch, trimmed: int) -> tuple[Batch, int]:
            nonlocal seconds
            seconds = perf_counter() - began
            if trimmed < start:
                results.append(work(found.notifications))
            return found, trimmed

        try:
            if wanted.area is None and isinstance(self.log, ThreadedLog):
                found, trimmed = await self.log.read_in_thread(stream, start, end, limit, topics, in_thread)
            else:
                box = wanted.area.box if isinstance(wanted.area, Polygon) else None
                found = await self.log.read(stream, start, end, limit, box)
                seconds = perf_counter() - began
                trimmed = (await self.log.state(stream)).trimmed  # asked after the read
        except Exception:
            self._operations.count("get_batch", seconds or perf_counter() - began, failed=not seconds)
            raise
        self._operations.count("get_batch", seconds)
        return found, trimmed, results

    async def _call(self, wanted: Filter, work: Work[T], notifications: Sequence[Notification]) -> T:
        executor = self._threads if wanted.area is None else self.spatial
        return await asyncio.get_running_loop().run_in_executor(executor, work, notifications)

    async def _boundary(self, stream: str, start: int, begun: bool) -> int:
        """Return the newest sequence that is to come from the archive; 0 if nothing from `start` on is."""
        if self.archive is None:
            return 0
        trimmed = (await self.log.state(stream)).trimmed
        if trimmed < start:
            return 0
        covered = await self.archive.coverage(stream, trimmed)
        if begun and covered.first > start:
            raise _gone(start)
        return min(trimmed, covered.last)

    async def _last(self, stream: str) -> int:
        """Return the newest sequence that was given out, as far as log and archive know."""
        last = 0
        if stream in await self.log.streams():  # asking a broker for others would make them
            last = (await self.log.state(stream)).last
        if self.archive is not None and stream in await self.archive.streams():
            last = max(last, (await self.archive.coverage(stream)).last)
        return last


class PastStore(Store):
    """One stream as the archive knew it at a time: nothing of the log, and all that was deleted since."""

    version: Version

    async def state_then(self, stream: str) -> StreamState:
        return StreamState(first=1, last=self.version.last, count=0, bytes=0)

    async def start_of(self, stream: str, span: Span) -> int:
        assert self.archive is not None
        if span.from_time is None:
            return max(span.from_sequence or 0, 1)
        return await self.archive.first_since(stream, min(span.from_time, _LAST_TIME), self.version)

    async def end_of(self, stream: str, span: Span, last: int) -> int:
        assert self.archive is not None
        if span.to_time is None:
            return last if span.to_sequence is None else min(span.to_sequence, last)
        return min(await self.archive.last_until(stream, min(span.to_time, _LAST_TIME), self.version), last)

    async def bounds(self, stream: str, span: Span) -> Bounds:
        start = await self.start_of(stream, span)
        return Bounds(start, await self.end_of(stream, span, self.version.last), 1, self.version.last, 0)

    async def read(
        self,
        wanted: Filter,
        start: int,
        end: int,
        work: Work[T],
        *,
        topics: bool = True,
        unbroken: bool = False,
        batch: int | None = None,
    ) -> AsyncGenerator[tuple[T, int], None]:
        """Call `work` in a thread with what matches; yield its result and where the next batch starts."""
        assert self.archive is not None
        async with aclosing(self.archive.read(wanted, start, end, self.version)) as runs:
            async for run in runs:
                start = _last_of(run) + 1 if run else start
                yield await self._call(wanted, work, run), start
        yield await self._call(wanted, work, ()), end + 1


def _last_of(run: Sequence[Notification]) -> int:
    return run.last if isinstance(run, Run) else run[-1].sequence


def _gone(sequence: int) -> HistoryGone:
    return HistoryGone(f"retention has removed notifications from sequence {sequence} on; ask again")
