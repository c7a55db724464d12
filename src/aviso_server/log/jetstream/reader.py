"""Reading from a broker: long stretches through a consumer, short ones by direct gets."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence

import msgspec

from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch
from aviso_server.log.jetstream.broker_streams import StreamInfo, Streams
from aviso_server.log.jetstream.client import Connection, Consumer, NotReached, Unanswered
from aviso_server.log.jetstream.wire import Identify, notification_of, readable, time_of
from aviso_server.model.notification import Notification

__all__ = ["BrokerReader"]


_BATCH_BYTES = 8 * 1024 * 1024  # of one answer
_SILENCE = 5.0  # seconds without a message after which a read has failed
_IDLE = 5.0  # seconds a cursor waits to be used again
_UNUSED = 30  # seconds after which the broker deletes it, should this process be gone
_LONG = 512  # notifications from which on a consumer is worth it
_CATCH_UP_ATTEMPTS = 5
_CATCH_UP_PAUSE = 0.1  # seconds
_LARGEST = 2**63 - 1

# The broker appends these to the headers of the message itself.
_STORED = re.compile(
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r]*)\r\n"
)
_PENDING = re.compile(rb"\r\nNats-Num-Pending: (\d+)\r\n")


class BrokerCursor:
    """Reads on from `next`."""

    def __init__(self, connection: Connection, stream: str, start: int, identify: Identify) -> None:
        self.stream = stream
        self.next = start
        self._connection = connection
        self._identify = identify
        self._consumer: Consumer | None = None
        self._found: list[Notification] = []
        self._wanted = 0
        self._delivered = 0  # in all reads so far
        self._newest = 0  # delivery
        self._heard = True
        self._done: asyncio.Future[bytes] | None = None

    async def open(self) -> None:
        name = f"aviso_replay_{uuid.uuid4().hex}"
        self._consumer = await self._connection.consume(
            self.stream, name, self.next, _UNUSED, self._take, self._hear, self._identify
        )

    async def read(self, count: int) -> tuple[Sequence[Notification], bool]:
        """Return up to `count` notifications, and whether there may be more; LogError if the cursor is of no use."""
        assert self._consumer is not None  # open
        self._found, self._wanted = [], count
        self._done = asyncio.get_running_loop().create_future()
        await self._consumer.ask(batch=count, no_wait=True, max_bytes=_BATCH_BYTES)
        self._heard = True
        while not self._done.done():
            if not self._heard:
                raise Unanswered(f"the broker stopped in the middle of a read for {_SILENCE:g} s")
            self._heard = False
            await asyncio.wait([self._done], timeout=_SILENCE)
        status = self._done.result()
        found, self._found = self._found, []
        if found:
            self._delivered += len(found)
            if self._newest != self._delivered:  # they rise by one
                raise Unanswered("a delivery of the broker is missing")
            self.next = found[-1].sequence + 1
        if status not in (b"", b"404", b"408", b"409") or (status == b"409" and not found):
            raise Unanswered(f"the broker ended a read with {status.decode('ascii', 'replace')}")
        return found, status in (b"", b"409")

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()

    def _take(self, delivery: int, one: Notification) -> None:
        self._heard = True
        self._newest = delivery
        found = self._found
        found.append(one)
        if len(found) == self._wanted:
            self._end(b"")

    def _hear(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        self._heard = True
        self._end(headers[9:12])

    def _end(self, status: bytes) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(status)


class BrokerCursors:
    """The cursors that wait to be used again."""

    def __init__(self, connection: Connection, identify: Identify) -> None:
        self._connection = connection
        self._identify = identify
        self._waiting: dict[tuple[str, int], tuple[BrokerCursor, asyncio.TimerHandle]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def read(self, stream: str, start: int, count: int, high: int) -> tuple[Sequence[Notification], bool]:
        """Return up to `count` notifications from `start` on, and whether there may be more up to `high`."""
        waiting = self._waiting.pop((stream, start), None)
        if waiting is None:
            cursor = BrokerCursor(self._connection, stream, start, self._identify)
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


class BrokerReader:
    """Reads any stream; many reads may be on their way at once."""

    def __init__(self, connection: Connection, streams: Streams, identify: Identify) -> None:
        self._connection = connection
        self._streams = streams
        self._identify = identify
        self._cursors = BrokerCursors(connection, identify)

    async def read(self, base: str, start: int, end: int, limit: int) -> Batch:
        low, high = max(start, 1), min(end, _LARGEST)
        if low > high:
            return Batch((), max(start, end + 1))
        info = await self._streams.ensure(base)
        count = min(max(limit, 1), high - low + 1)
        if count >= _LONG or not info.direct:
            try:
                found, more = await self._cursors.read(info.name, low, count, high)
            except LogUnavailable:
                if not info.direct:
                    raise
            else:
                reached = found[-1].sequence if found else low - 1
                if not more and reached < high and info.replicas > 1:
                    # the broker that keeps the consumer may lag behind the leader
                    more = await self._more(info, reached + 1, high)
                if found or not more:
                    return _batch(found, end, high, reached + 1 if more else end + 1)
        return await self._connection.patiently(lambda: self._read_direct(info, low, high, end, count))

    async def close(self) -> None:
        """Leave nothing on the broker."""
        await self._cursors.close()

    async def _read_direct(self, info: StreamInfo, low: int, high: int, end: int, count: int) -> Batch:
        for _ in range(_CATCH_UP_ATTEMPTS):
            found, pending = await self._get(info, low, count)
            reached = found[-1].sequence if found else low - 1
            if len(found) == count or reached >= high:
                return _batch(found, end, high, reached + 1)
            # a single replica knows what there is; of several the one that answered may lag behind the leader
            if not pending and (info.replicas == 1 or not await self._more(info, reached + 1, high)):
                return _batch(found, end, high, end + 1)
            if found:
                return _batch(found, end, high, reached + 1)
            await asyncio.sleep(_CATCH_UP_PAUSE)
        raise NotReached("the broker that answers lags behind the others")

    async def around(self, base: str, time: int) -> tuple[int, int]:
        """Return the last sequence stored before `time`, and the first one stored then or later."""
        info = await self._streams.look(base)
        before, following = info.first - 1, info.last + 1
        low, high = info.first, info.last
        while low <= high:
            middle = (low + high) // 2
            found = await self._connection.message(info.name, seq=max(middle, 1), next_by_subj=">")
            if found is not None and time_of(found["time"].encode()) < time:
                before = found["seq"]
                low = before + 1
            else:
                following = following if found is None else found["seq"]
                high = middle - 1
        return before, following

    async def _more(self, info: StreamInfo, low: int, high: int) -> bool:
        found = await self._connection.message(info.name, seq=max(low, 1), next_by_subj=">")
        return found is not None and found["seq"] <= high

    async def _get(self, info: StreamInfo, start: int, count: int) -> tuple[Sequence[Notification], int]:
        """Send one batched direct get and return how many messages follow; any replica may answer it."""
        found: list[Notification] = []
        identify, add = self._identify, found.append
        heard = True

        def take(subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
            nonlocal heard
            heard = True
            stored = _STORED.match(headers, headers.rfind(b"Nats-Stream: "))
            if stored is not None:
                topic, sequence, time = stored.groups()
                add(notification_of(int(sequence), time_of(time), topic, headers, body, identify))
            elif not future.done():
                status = headers[9:12]
                if status in (b"204", b"404"):
                    pending = _PENDING.search(headers)
                    future.set_result(0 if pending is None else int(pending[1]))
                elif status == b"503":
                    future.set_exception(NotReached("the broker does not answer for this stream now"))
                else:
                    text = headers[9:].partition(b"\r\n")[0].decode("ascii", "replace")
                    future.set_exception(LogUnavailable(f"the broker cannot read this stream: {text}"))

        reply, future = self._connection.expect(take)
        try:
            request = {"seq": start, "next_by_subj": ">", "batch": count, "max_bytes": _BATCH_BYTES}
            await self._connection.publish(f"$JS.API.DIRECT.GET.{info.name}", msgspec.json.encode(request), reply)
            while not future.done():
                if not heard:
                    raise Unanswered(f"the broker stopped in the middle of a read for {_SILENCE:g} s")
                heard = False
                await asyncio.wait([future], timeout=_SILENCE)
            return found, future.result()
        finally:
            future.cancel()


def _batch(found: Sequence[Notification], end: int, high: int, following: int) -> Batch:
    if found and found[-1].sequence > high:
        found = [one for one in found if one.sequence <= high]
    return Batch(readable(found), end + 1 if following > high else following)
