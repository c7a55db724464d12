"""A lease on the broker: of all servers that share it, one at a time holds a task.

The lease is the last message of a subject. Whoever holds it replaces it again and again, naming the message that it
replaces; of several that try to do so at once, the broker lets one. A server that sees the same message for longer than
the lease lasts, by its own clock, takes it over. A holder that could not renew it gives it up before that. So at most
one holds it as a rule, and what must never be done twice does not rest on it: commits to the archive check for
themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable

from aviso_server.errors import LogError
from aviso_server.log.jetstream.client import BrokerOptions, Connection
from aviso_server.log.jetstream.subject_table import SubjectTable

__all__ = ["BrokerLease"]

logger = logging.getLogger(__name__)

_SECONDS = 4.0  # that a lease lasts unless it is renewed


class BrokerLease:
    """A server's part in the election for one task; `changed` is called with True when it begins to hold the lease."""

    def __init__(
        self,
        connection: Connection,
        options: BrokerOptions,
        task: str,
        changed: Callable[[bool], None],
        seconds: float = _SECONDS,
    ) -> None:
        # no topic base begins like the name of this stream
        self._table = SubjectTable(connection, options, "_AVISO_LEASES", "_aviso.leases", "leases", {})
        self._task = task
        self._changed = changed
        self._seconds = seconds
        self._name = uuid.uuid4().hex.encode()
        self._number = 0  # of the last message that was seen
        self._since = 0.0  # when it was seen first, or renewed
        self._running: asyncio.Task[None] | None = None
        self.held = False

    def start(self) -> None:
        """Take part in the election."""
        self._running = asyncio.create_task(self._run(), name="lease")

    async def stop(self) -> None:
        """Leave the election and give up the lease."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        if self.held:
            self.held = False
            with contextlib.suppress(LogError, TimeoutError):
                await self._put(b"")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._seconds / 2):
                    await self._step(loop.time())
            except (LogError, TimeoutError) as error:
                logger.debug("the lease cannot be asked for: %s", error, extra={"event": "archive.lease.unknown"})
            if self.held and loop.time() - self._since > self._seconds * 2 / 3:
                self._become(False)
            await asyncio.sleep(self._seconds / 4)

    async def _step(self, now: float) -> None:
        if self.held and await self._put(self._name):
            self._since = now
            return
        await self._table.ensure()
        found = await self._table.get(self._task)
        number, holder = (0, b"") if found is None else (found.number, found.body)
        if holder == self._name:  # an answer of the broker was lost
            self._number, self._since = number, now
            self._become(True)
            return
        self._become(False)
        if number != self._number:
            self._number, self._since = number, now
        free = not holder or now - self._since > self._seconds
        if free and await self._put(self._name):
            self._since = now
            self._become(True)

    def _become(self, held: bool) -> None:
        if held != self.held:
            self.held = held
            if held:
                logger.info("this server has the lease to archive", extra={"event": "archive.lease.taken"})
            else:
                logger.info("this server has lost the lease to archive", extra={"event": "archive.lease.lost"})
            self._changed(held)

    async def _put(self, body: bytes) -> bool:
        """Replace the message that was seen last; False if it is not the last one any more."""
        (number,) = await self._table.write([(self._task, self._number, body)])
        self._number = number or self._number
        return number is not None
