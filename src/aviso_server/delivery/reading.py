"""One reader's way through a stream: out of the archive what only that has, then out of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from aviso_server.counts import Operations
from aviso_server.delivery.archive import Archive
from aviso_server.log.base import Batch, Log, Pouring
from aviso_server.model.filter import Filter
from aviso_server.model.geometry import Polygon
from aviso_server.model.notification import Notification

__all__ = ["Reading"]

_SIGN_OF_LIFE = 1.0  # seconds after which the reader hears that nothing was found yet


class Reading:
    """A position in a stream and, while it lies where only the archive has something, an open read of the archive.

    Everything up to the newest sequence that retention has removed comes from the archive, as far as that reaches, and
    everything after it from the log: there the log is complete. The boundary moves while somebody reads. A reader who
    was overtaken by it goes on in the archive.
    """

    def __init__(self, log: Log, archive: Archive | None, operations: Operations, wanted: Filter, start: int) -> None:
        self.wanted = wanted
        self.position = start  # the next sequence to read
        self._log = log
        self._archive = archive
        self._operations = operations
        self._box = wanted.area.box if isinstance(wanted.area, Polygon) else None
        self._cold: _ColdRead | None = None
        self._pours = wanted.area is None and isinstance(log, Pouring)
        self._in_log = archive is None  # nothing from the position on has left the log, as far as is known

    async def can_pour(self) -> bool:
        """True if the log can pour, and nothing from the position on has left it.

        Areas are left out: testing them takes long, and would keep the log's threads from others.
        """
        if self._cold is not None or not self._pours:
            return False
        return self._archive is None or await self._boundary() < self.position

    async def next(self, end: int, limit: int) -> Batch:
        """The next `limit` notifications up to `end`; some that cannot match may be missing already.

        None do not mean the end, nor that the next call will find some: a long search shows that it is alive.
        """
        while self._cold is None:
            if not self._in_log:
                boundary = min(await self._boundary(), end)
                if self.position <= boundary:
                    self._cold = self._open(self.position, boundary)
                    break
                self._in_log = True
            found = await self._from_log(end, limit)
            # asked after the read, because retention may have been at work during it
            if self._archive is None or await self._boundary() < self.position:
                self.position = found.next
                return found
            self._in_log = False
        return await self._from_archive(self._cold)

    def close(self) -> None:
        """Let go of the archive."""
        if self._cold is not None:
            self._cold.close()
            self._cold = None

    async def _boundary(self) -> int:
        """The newest sequence that is to come from the archive; 0 if nothing from the position on is."""
        assert self._archive is not None
        trimmed = (await self._log.state(self.wanted.stream)).trimmed
        if trimmed < self.position:
            return 0
        covered = await self._archive.coverage(self.wanted.stream, trimmed)
        return min(trimmed, covered.last)

    def _open(self, start: int, end: int) -> _ColdRead:
        assert self._archive is not None
        return _ColdRead(self._archive.read(self.wanted, start, end), end)

    async def _from_log(self, end: int, limit: int) -> Batch:
        with self._operations.timed("get_batch"):
            return await self._log.read(self.wanted.stream, self.position, end, limit, self._box)

    async def _from_archive(self, cold: _ColdRead) -> Batch:
        found = await cold.next(_SIGN_OF_LIFE)
        if found is None:
            self._cold, self._in_log = None, False
            self.position = cold.end + 1
            return Batch((), self.position)
        if found:
            self.position = found[-1].sequence + 1
        return Batch(found, self.position)


class _ColdRead:
    """A read of the archive that can be waited for a little while at a time."""

    def __init__(self, found: AsyncGenerator[Sequence[Notification], None], end: int) -> None:
        self.end = end
        self._found = found
        self._coming: asyncio.Task[Sequence[Notification] | None] | None = None

    async def next(self, seconds: float) -> Sequence[Notification] | None:
        """What was found next; nothing if that takes longer, None after the last."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._advance())
        await asyncio.wait([self._coming], timeout=seconds)
        if not self._coming.done():
            return ()
        coming, self._coming = self._coming, None
        return coming.result()

    def close(self) -> None:
        """End it now; what still has to be tidied up is tidied up beside."""
        task = asyncio.create_task(self._finish(self._coming))
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)

    async def _finish(self, coming: asyncio.Task[Sequence[Notification] | None] | None) -> None:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
            if not coming.cancelled():
                coming.exception()  # nobody is interested any longer, nor in why it failed
        await self._found.aclose()

    async def _advance(self) -> Sequence[Notification] | None:
        return await anext(self._found, None)


_CLOSING: set[asyncio.Task[None]] = set()  # a task that nobody holds may vanish before it is done
