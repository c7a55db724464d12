"""Reads history straight from a stream: many messages per request, and no consumer left behind.

Short pieces come by batched direct get, from any replica and without a consumer; long ones through a cursor.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec

from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch
from aviso_server.log.jetstream.columns import last_of
from aviso_server.log.jetstream.connection import Connection, NotReached, Refused, Unanswered
from aviso_server.log.jetstream.cursor import Cursors
from aviso_server.log.jetstream.streams import NO_MESSAGE, NO_STREAM, StreamInfo, Streams
from aviso_server.log.jetstream.wire import Identify, notification_of, readable, time_of
from aviso_server.model.notification import Notification
from aviso_server.model.run import Run

__all__ = ["Reader"]

_SECOND = 1_000_000_000
_BATCH_BYTES = 8 * 1024 * 1024
_SILENCE = 5.0  # seconds
_LONG = 512  # notifications from which on a consumer is worth it
_CATCH_UP_ATTEMPTS = 5
_CATCH_UP_PAUSE = 0.1  # seconds
_LARGEST = 2**63 - 1

# The broker appends these to the headers of the message itself.
_STORED = re.compile(
    rb"Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r]*)\r\n"
)
_PENDING = re.compile(rb"\r\nNats-Num-Pending: (\d+)\r\n")


class Reader:
    """Reads any stream; many reads may be on their way at once."""

    def __init__(self, connection: Connection, streams: Streams, identify: Identify) -> None:
        self._connection = connection
        self._streams = streams
        self._identify = identify
        self._cursors = Cursors(connection, identify)

    async def read(self, base: str, start: int, end: int, limit: int) -> Batch:
        """Up to `limit` notifications with start <= sequence <= end, ascending."""
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
                reached = last_of(found) if found else low - 1
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

    async def last_until(self, base: str, time: int) -> int:
        """The highest held sequence stored at or before `time`; first - 1 if there is none."""
        info = await self._streams.look(base)
        low, high, best = info.first, info.last, info.first - 1
        while low <= high:
            middle = (low + high) // 2
            found = await self._next(info, middle)
            if found is not None and found[1] <= time:
                best, low = found[0], found[0] + 1
            else:
                high = middle - 1
        return best

    async def first_since(self, base: str, time: int) -> int:
        """The lowest held sequence stored at or after `time`; last + 1 if there is none."""
        info = await self._streams.look(base)
        low, high, best = info.first, info.last, info.last + 1
        while low <= high:
            middle = (low + high) // 2
            found = await self._next(info, middle)
            if found is None or found[1] >= time:
                best = best if found is None else found[0]
                high = middle - 1
            else:
                low = found[0] + 1
        return best

    async def holds(self, base: str, sequence: int) -> bool:
        """True if there is a notification of that sequence."""
        try:
            await self._connection.api(f"STREAM.MSG.GET.{base.upper()}", {"seq": sequence})
        except Refused as error:
            if error.code in (NO_MESSAGE, NO_STREAM):
                return False
            raise
        return True

    async def _next(self, info: StreamInfo, sequence: int) -> tuple[int, int] | None:
        """Sequence and time of the first message from a sequence on, as the leader has it."""
        try:
            answer = await self._connection.api(
                f"STREAM.MSG.GET.{info.name}", {"seq": max(sequence, 1), "next_by_subj": ">"}
            )
        except Refused as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        return message["seq"], time_of(message["time"].encode())

    async def _more(self, info: StreamInfo, low: int, high: int) -> bool:
        found = await self._next(info, low)
        return found is not None and found[0] <= high

    async def _get(self, info: StreamInfo, start: int, count: int) -> tuple[Sequence[Notification], int]:
        """One batched direct get, and how many messages follow; any replica may answer it."""
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
                    future.set_exception(NotReached("nobody at the broker answers for this stream now"))
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
    if found and last_of(found) > high:
        found = [one for one in found if one.sequence <= high]
    if not isinstance(found, Run):  # what others have written is in none
        found = readable(found)
    return Batch(found, end + 1 if following > high else following)
