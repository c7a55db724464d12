"""A short-lived consumer for reading a long piece of a stream, which costs the broker a third of direct gets.

A cursor waits a few seconds for the next read to go on where the last one ended, so that a whole replay needs one
consumer. Then, or at the end of the range, it is deleted; should this process die, the broker drops it by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence

import msgspec

from aviso_server.errors import LogError
from aviso_server.log.jetstream.columns import last_of, notifications_of
from aviso_server.log.jetstream.connection import Connection, Inbox, Unanswered
from aviso_server.log.jetstream.parser import Plain
from aviso_server.log.jetstream.wire import Identify
from aviso_server.model.notification import Notification

__all__ = ["Cursor", "Cursors"]

_SECOND = 1_000_000_000
_BATCH_BYTES = 8 * 1024 * 1024
_SILENCE = 5.0  # seconds
_IDLE = 5.0  # seconds a cursor waits to be used again


class Cursor:
    """Reads on from `next`."""

    def __init__(self, connection: Connection, stream: str, start: int, identify: Identify) -> None:
        self.stream = stream
        self.next = start
        self._connection = connection
        self._identify = identify
        self._consumer = f"aviso_replay_{uuid.uuid4().hex}"
        self._inbox: Inbox | None = None
        self._found: list[Plain | Notification] = []
        self._wanted = 0
        self._delivered = 0  # in all reads so far
        self._newest: bytes | int = 0  # delivery
        self._heard = True
        self._done: asyncio.Future[bytes] | None = None

    async def open(self) -> None:
        """Make the consumer."""
        self._inbox = await self._connection.subscribe(self._take, self._hear, self._identify, self._take)
        config = {
            "name": self._consumer,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30 * _SECOND,
        }
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        await self._connection.api(f"CONSUMER.CREATE.{self.stream}.{self._consumer}", request)

    async def read(self, count: int) -> tuple[Sequence[Notification], bool]:
        """Up to `count` notifications, and whether there may be more; LogError if the cursor is of no use now."""
        assert self._inbox is not None  # open
        self._found, self._wanted = [], count
        self._done = asyncio.get_running_loop().create_future()
        request = {"batch": count, "no_wait": True, "max_bytes": _BATCH_BYTES}
        name = f"{self.stream}.{self._consumer}"
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{name}", msgspec.json.encode(request), self._inbox.subject
        )
        self._heard = True
        while not self._done.done():
            if not self._heard:
                raise Unanswered(f"the broker stopped in the middle of a read for {_SILENCE:g} s")
            self._heard = False
            await asyncio.wait([self._done], timeout=_SILENCE)
        status = self._done.result()
        found = self._all_of(self._found)
        self._found = []
        if found:
            self.next = last_of(found) + 1
        if status not in (b"", b"404", b"408", b"409") or (status == b"409" and not found):
            raise Unanswered(f"the broker ended a read with {status.decode('ascii', 'replace')}")
        return found, status in (b"", b"409")

    async def close(self) -> None:
        """Delete the consumer; nobody waits for the answer."""
        if self._inbox is not None:
            await self._inbox.close()
            with contextlib.suppress(LogError):
                await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{self._consumer}", b"")

    def _take(self, delivery: bytes | int, one: Plain | Notification) -> None:
        self._heard = True
        self._newest = delivery
        found = self._found
        found.append(one)
        if len(found) == self._wanted:
            self._end(b"")

    def _all_of(self, found: Sequence[Plain | Notification]) -> Sequence[Notification]:
        """The notifications that were delivered; Unanswered if some were lost on the way."""
        if not found:
            return ()
        self._delivered += len(found)
        if int(self._newest) != self._delivered:  # they rise by one
            raise Unanswered("a delivery of the broker is missing")
        return notifications_of(found)

    def _hear(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        self._heard = True
        self._end(headers[9:12])

    def _end(self, status: bytes) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(status)


class Cursors:
    """The cursors that wait to be used again."""

    def __init__(self, connection: Connection, identify: Identify) -> None:
        self._connection = connection
        self._identify = identify
        self._waiting: dict[tuple[str, int], tuple[Cursor, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def read(self, stream: str, start: int, count: int, high: int) -> tuple[Sequence[Notification], bool]:
        """Up to `count` notifications from `start` on, and whether there may be more up to `high`."""
        waiting = self._waiting.pop((stream, start), None)
        if waiting is None:
            cursor = Cursor(self._connection, stream, start, self._identify)
        else:
            cursor, timer = waiting
            timer.cancel()
        more = False
        try:
            if waiting is None:
                await cursor.open()
            found, more = await cursor.read(count)
            more = more and cursor.next <= high
            return found, more
        finally:
            if more and (stream, cursor.next) not in self._waiting:
                timer = asyncio.get_running_loop().call_later(_IDLE, self._drop, (stream, cursor.next))
                self._waiting[stream, cursor.next] = (cursor, timer)
            else:
                await cursor.close()

    async def close(self) -> None:
        """Delete them all."""
        for key in list(self._waiting):
            self._waiting[key][1].cancel()
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, key: tuple[str, int]) -> None:
        cursor, _ = self._waiting.pop(key)
        task = asyncio.ensure_future(cursor.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
