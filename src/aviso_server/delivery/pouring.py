"""History that threads of the log read, filter and render, a few pieces ahead of who takes them.

Waking a thread, and being woken by one, costs as much as a hundred notifications. So a thread that has begun goes on
by itself, and what it has made is taken over while it makes more.
"""

from __future__ import annotations

import asyncio
import threading
from time import perf_counter

from aviso_server.counts import Operations
from aviso_server.delivery.forms import Render
from aviso_server.delivery.piece import FIRST_BATCH, Piece, next_batch, select_and_render
from aviso_server.log.base import Pouring, Read
from aviso_server.model.filter import Filter

__all__ = ["Pour"]

_LARGEST_BATCH = 2048  # notifications: fewer, and what each batch costs in any case shows; more leave the cache
_THREADS = 2  # for one reader, where that is possible
_AHEAD = 2  # pieces for each thread that may wait to be taken, or are being made
_TURN = 16  # pieces that a thread makes before others have their turn


class Pour:
    """The pieces from `start` to `end`, one after the other; at most `room` notifications of them.

    Two threads share the work if the stream has no gaps, so that each knows beforehand where the other will be, and if
    what a notification is rendered to does not depend on others.
    """

    def __init__(
        self,
        log: Pouring,
        operations: Operations,
        wanted: Filter,
        render: Render,
        start: int,
        end: int,
        room: int | None,
        plain: bool,
        gapless: bool,
    ) -> None:
        self._log = log
        self._operations = operations
        self._wanted = wanted
        self._render = render
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._shared = plain and gapless and room is None
        self._topics = wanted.positional or not plain
        self._threads = _THREADS if self._shared else 1
        self._largest = min(log.handy_batch(wanted.stream), _LARGEST_BATCH)
        self._ready: dict[int, Piece] = {}  # by their number
        self._news = asyncio.Event()  # a piece is ready, or a thread has stopped
        self._working: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._taken = 0
        # what follows is written by the threads, one at a time
        self._lock = threading.Lock()
        self._position = start
        self._room = room
        self._limit = min(FIRST_BATCH, self._largest)
        self._begun = 0  # pieces
        self._over = False  # nobody wants more

    async def next(self) -> Piece | None:
        """The next piece; None after the last, and the log's error if the rest cannot be read."""
        while (piece := self._ready.pop(self._taken, None)) is None:
            self._go_on()
            if not self._working:
                if self._failure is not None:
                    raise self._failure
                return None
            self._news.clear()
            await self._news.wait()
        self._taken += 1
        self._go_on()
        return piece

    def close(self) -> None:
        """Nobody takes any more of it."""
        self._over = True

    def _go_on(self) -> None:
        """Set threads to work if there is work."""
        while len(self._working) < self._threads and self._has_work():
            work = asyncio.create_task(self._log.in_thread(self._wanted.stream, self._make_pieces, self._topics))
            self._working.add(work)
            work.add_done_callback(self._stopped)

    def _has_work(self) -> bool:
        return not self._over and self._position <= self._end and self._begun - self._taken < _AHEAD * self._threads

    def _stopped(self, work: asyncio.Task[None]) -> None:
        self._working.discard(work)
        failure = asyncio.CancelledError() if work.cancelled() else work.exception()
        if failure is not None:
            self._over = True
            self._failure = self._failure or failure
        self._go_on()  # something may have been taken just after the thread had decided to stop
        self._news.set()

    def _make_pieces(self, read: Read) -> None:
        """What a thread does: one piece after the other, until there is no more work or others have their turn."""
        for _ in range(_TURN):
            with self._lock:
                if not self._has_work():
                    return
                number, start, limit = self._begun, self._position, self._limit
                self._begun += 1
                self._limit = next_batch(limit, self._largest)
                end = self._end
                if self._shared:
                    end = min(end, start + limit - 1)
                    self._position = end + 1
            piece, seconds = self._make(read, start, end, limit)
            if not self._shared:
                self._position = piece.next
                self._room = None if self._room is None else self._room - piece.count
                self._over = self._over or piece.more
            self._loop.call_soon_threadsafe(self._arrived, number, piece, seconds)

    def _make(self, read: Read, start: int, end: int, limit: int) -> tuple[Piece, float]:
        """A piece, and how long it took to read what is in it."""
        began = perf_counter()
        try:
            found = read(start, end, limit)
        except Exception:
            self._loop.call_soon_threadsafe(self._operations.count, "get_batch", perf_counter() - began, True)
            raise
        seconds = perf_counter() - began
        data, count, more = select_and_render(found.notifications, self._wanted, self._render, self._room)
        piece = Piece(data, count, found.next, more)
        while self._shared and piece.next <= end:  # notifications have become larger, so that fewer are read at once
            found = read(piece.next, end, limit)
            data, count, _ = select_and_render(found.notifications, self._wanted, self._render, None)
            piece = Piece(b"".join((piece.data, data)), piece.count + count, found.next)
        return piece, seconds

    def _arrived(self, number: int, piece: Piece, seconds: float) -> None:
        self._operations.count("get_batch", seconds)
        self._ready[number] = piece
        self._news.set()
