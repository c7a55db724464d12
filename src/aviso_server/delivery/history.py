"""History as chunks: read from the store, filtered and rendered in threads, a few chunks ahead of the reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from aviso_server.errors import LogUnavailable
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification, Rendered
from aviso_server.model.times import Span
from aviso_server.store import Store

__all__ = ["PREFETCH", "Chunk", "Chunks", "Render", "chunks"]

PREFETCH = 2  # chunks that are made before the reader asks for them

Render = Callable[[Sequence[Notification]], Rendered]
"""Makes the bytes that a client gets of notifications; called in a thread, one batch after the other."""


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive notifications as their reader gets them; an empty one does not mean the end."""

    data: Rendered
    count: int  # notifications in it
    next: int  # the sequence to go on from
    more: bool = False  # at least one more matches than the reader may have


def chunks(
    store: Store,
    wanted: Filter,
    render: Render,
    start: int | Span,
    end: int | None,
    *,
    most: int | None = None,
    topics: bool = True,
    unbroken: bool = False,
    batch: int | None = None,
    pause: float = 0.0,
    prefetch: int = PREFETCH,
) -> Chunks:
    """Return what matches from `start` to `end`, at most `most` notifications of it; whoever opens it closes it.

    The start of a span is looked up first, and so is the newest sequence if there is no `end`. With `batch`, that many
    notifications are read at a time, and with `pause` there are so many seconds in between. The other options are those
    of `Store.read`.
    """

    async def make() -> AsyncGenerator[Chunk, None]:
        stream, left = wanted.stream, most
        first = await store.start_of(stream, start) if isinstance(start, Span) else start
        last = (await store.state(stream)).last if end is None else end

        def rendered(notifications: Sequence[Notification]) -> tuple[Rendered, int, bool]:
            return _rendered(notifications, wanted, render, left)

        batches = store.read(wanted, first, last, rendered, topics=topics, unbroken=unbroken, batch=batch)
        async with aclosing(batches):
            async for (data, count, more), following in batches:
                left = None if left is None else left - count
                yield Chunk(data, count, following, more)
                if more:
                    return
                if pause and following <= last:
                    await asyncio.sleep(pause)

    return Chunks(make(), 0 if isinstance(start, Span) else start, prefetch)


class Chunks:
    """An async iterator of chunks that a task makes, at most `prefetch` before they are asked for.

    All chunks that could be made come before the error, if there is one.
    """

    __slots__ = ("_asked", "_changed", "_error", "_maker", "_permits", "_position", "_ready", "_source", "_woken")

    def __init__(self, source: AsyncGenerator[Chunk, None], start: int, prefetch: int) -> None:
        self._source = source
        self._position = start
        self._permits = asyncio.Semaphore(prefetch)  # chunks that may be made
        self._ready: deque[Chunk] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._asked = False  # the reader waits for a chunk already
        self._woken = False
        self._maker: asyncio.Task[None] | None = asyncio.create_task(self._make())

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> Chunk:
        """Return the next chunk; an empty one if `wake` was called before it was there."""
        if not self._asked:
            self._asked = True
            self._permits.release()
        while not self._ready:
            if self._maker is None:
                if self._error is None:
                    raise StopAsyncIteration
                error, self._error = self._error, None
                raise error
            if self._woken:
                self._woken = False
                return Chunk(b"", 0, self._position)
            self._changed.clear()
            await self._changed.wait()
        self._asked = self._woken = False
        chunk = self._ready.popleft()
        self._position = chunk.next
        return chunk

    def wake(self) -> None:
        """Interrupt the wait for a chunk: a heartbeat is due, or the end."""
        self._woken = True
        self._changed.set()

    def close(self) -> None:
        """Stop making chunks; the task ends the reads behind it."""
        self._ready.clear()
        if self._maker is not None:
            self._maker.cancel()

    async def _make(self) -> None:
        try:
            await self._permits.acquire()
            async with aclosing(self._source):
                async for chunk in self._source:
                    self._ready.append(chunk)
                    self._changed.set()
                    await self._permits.acquire()
        except asyncio.CancelledError:
            self._error = LogUnavailable("reading history was interrupted")
            raise
        except Exception as error:
            self._error = error
        finally:
            self._maker = None  # a circle would keep the chunks until the next full collection
            self._changed.set()


def _rendered(
    matching: Sequence[Notification], wanted: Filter, render: Render, room: int | None
) -> tuple[Rendered, int, bool]:
    """Return the bytes of notifications, how many, and whether there were more than there was room for."""
    malformed = wanted.malformed(matching)  # told as errors, which need no room
    count = len(matching) - len(malformed)
    more = room is not None and count > room
    if more:
        count = room or 0
        matching = matching[: _place_of(count, malformed)]
    return render(matching), count, more


def _place_of(number: int, left_out: Sequence[int]) -> int:
    """Return the place of an item, counted without those in places that are left out."""
    for place in left_out:
        if place > number:
            break
        number += 1
    return number
