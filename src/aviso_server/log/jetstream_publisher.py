"""Publishes to one stream: what arrives while the broker is busy goes out together as the next group.

A group of several is one atomic batch where the broker knows them, so one commit at the broker acknowledges all of it.
The first message of a group carries a `Nats-Msg-Id`. When a connection breaks before the acknowledgement, the group is
sent again under the same id: the broker then stores it, or says that it has it already and where.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.jetstream_connection import Connection, NotReached, Refused, Unanswered
from aviso_server.log.jetstream_follower import StreamFollower
from aviso_server.log.jetstream_options import BrokerOptions
from aviso_server.log.jetstream_streams import Streams
from aviso_server.log.jetstream_wire import message_of
from aviso_server.model.notification import Draft, Notification

__all__ = ["Append", "Publisher", "Removal"]

logger = logging.getLogger(__name__)

_GROUP = 1000  # messages: the most a broker takes as one batch
_GROUP_BYTES = 4 * 1024 * 1024
_DUPLICATE_IN_BATCH = 10201
_IN_PROGRESS = 10158  # a message with this id is being stored right now
_PASSING = frozenset({_IN_PROGRESS, 10008, 10118, 10077, 10167, 10189})  # a second try may succeed


class Append:
    """Drafts to be stored next to each other, and the promise to say how they were stored."""

    __slots__ = ("_left", "drafts", "future", "messages", "stored")

    def __init__(self, drafts: Sequence[Draft], future: asyncio.Future[Sequence[Notification]]) -> None:
        self.drafts = drafts
        self.messages = [(*message_of(draft), draft.payload) for draft in drafts]
        self.future = future
        self.stored: list[Notification | None] = [None] * len(drafts)
        self._left = len(drafts)

    def seen(self, place: int, notification: Notification) -> None:
        """One of the drafts was stored and handed on."""
        self.stored[place] = notification
        self._left -= 1
        if not self._left and not self.future.done():
            self.future.set_result([one for one in self.stored if one is not None])

    def fail(self, error: LogError) -> None:
        """It was not stored, as far as anybody knows."""
        if not self.future.done():
            self.future.set_exception(error)


class Removal:
    """Something else that has its place among the appends."""

    __slots__ = ("act", "future")

    def __init__(self, act: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        self.act = act
        self.future = future


_Message = tuple[str, dict[str, str], bytes]
_Place = tuple[Append, int]  # which draft of which append


class Publisher:
    """Does the work on one stream in the order it came."""

    def __init__(
        self, connection: Connection, streams: Streams, base: str, follower: StreamFollower, options: BrokerOptions
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._base = base
        self._follower = follower
        self._options = options
        self._work: deque[Append | Removal] = deque()
        self._worker: asyncio.Task[None] | None = None

    def put(self, work: Append | Removal) -> None:
        """Hand over work."""
        self._work.append(work)
        if self._worker is None:
            self._worker = asyncio.create_task(self._run(), name=f"publisher of {self._base}")

    async def finish(self) -> None:
        """Wait until everything handed over is done."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _run(self) -> None:
        try:
            while self._work:
                if isinstance(self._work[0], Removal):
                    await self._remove(self._work[0])
                    self._work.popleft()
                    continue
                group: list[Append] = []
                size = count = 0
                while self._work and isinstance(one := self._work[0], Append):
                    size += sum(len(body) + len(headers["aviso_identifier"]) for _, headers, body in one.messages)
                    count += len(one.drafts)
                    if group and (count > _GROUP or size > _GROUP_BYTES):
                        break
                    group.append(one)
                    self._work.popleft()
                await self._store(group)
        finally:
            self._worker = None

    async def _remove(self, removal: Removal) -> None:
        try:
            # what was acknowledged before must reach the followers before it can be taken away
            await self._follower.level()
            result = await removal.act()
        except Exception as error:  # whoever asked must get an answer
            if not removal.future.done():
                removal.future.set_exception(error)
        else:
            if not removal.future.done():
                removal.future.set_result(result)

    async def _store(self, group: Sequence[Append]) -> None:
        try:
            # without a follower there is nobody who could miss it
            with contextlib.suppress(LogUnavailable):
                await self._follower.start()
            places = [(one, place) for one in group for place in range(len(one.drafts))]
            for start in range(0, len(places), _GROUP):
                await self._publish(places[start : start + _GROUP])
        except Refused as error:
            if len(group) > 1:
                # One of them cannot be stored: find it, and let the others through.
                for one in group:
                    await self._store([one])
                return
            group[0].fail(LogError(f"the broker did not store it: {error.description}"))
        except LogError as error:
            for one in group:
                one.fail(type(error)(*error.args))
        except Exception as error:  # publishers must get an answer
            logger.exception("publishing failed")
            for one in group:
                one.fail(LogError(f"this cannot be stored: {error}"))

    async def _publish(self, places: Sequence[_Place]) -> None:
        """Have the broker store these next to each other; Refused if it will not, LogUnavailable if it cannot."""
        name = uuid.uuid4().hex
        messages = [one.messages[place] for one, place in places]
        self._follower.publishing()
        try:
            first = await self._insist(messages, name)
        except BaseException:
            self._follower.withdraw()
            raise
        self._follower.settle(
            [
                (sequence, one.drafts[place], partial(one.seen, place))
                for sequence, (one, place) in zip(first, places, strict=True)
            ]
        )

    async def _insist(self, messages: Sequence[_Message], name: str) -> Sequence[int]:
        """The sequences of the messages, after as many attempts as the options allow."""
        attempts = self._options.publish_retry_attempts
        for attempt in range(1, attempts + 1):
            try:
                info = await self._streams.ensure(self._base)
                if len(messages) == 1:
                    return [await self._send(messages[0], name)]
                if info.atomic:
                    return await self._send_batch(messages, name)
                return await self._send_each(messages, name)
            except (NotReached, Unanswered, Refused) as error:
                if isinstance(error, Refused) and error.code not in _PASSING:
                    raise
                if attempt == attempts:
                    raise LogUnavailable(f"not stored after {attempts} attempts: {error}") from error
                delay = self._options.publish_retry_base_delay_ms / 1000 * 2 ** (attempt - 1)
                logger.warning(
                    "publishing again in %g s: %s",
                    delay,
                    error,
                    extra={"event": "backend.jetstream.publish.retry", "attempt": attempt, "stream": self._base},
                )
                if isinstance(error, NotReached) and self._connection.connected:
                    await self._look_after_stream()
                await asyncio.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _look_after_stream(self) -> None:
        """Nobody takes the subject: its stream has no leader for the moment, or it is gone."""
        try:
            if await self._streams.find(self._base) is None:
                self._streams.forget(self._base, "the stream is gone from the broker")
        except LogError:
            return

    async def _send(self, message: _Message, name: str) -> int:
        subject, headers, body = message
        _, answer = await self._connection.request(subject, body, {**headers, "Nats-Msg-Id": name})
        return _sequence(answer)

    async def _send_batch(self, messages: Sequence[_Message], name: str) -> Sequence[int]:
        batch = uuid.uuid4().hex[:16]  # of this attempt
        reply, future = self._connection.expect()
        try:
            for number, (subject, headers, body) in enumerate(messages, 1):
                more = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
                if number == 1:
                    more["Nats-Msg-Id"] = name
                last = number == len(messages)
                if last:
                    more["Nats-Batch-Commit"] = "1"
                await self._connection.publish(subject, body, reply if last else "", {**headers, **more})
            _, answer = await self._connection.wait(future)
        finally:
            future.cancel()
        try:
            last_sequence = _sequence(answer)
        except Refused as error:
            if error.code != _DUPLICATE_IN_BATCH:
                raise
            # an earlier attempt did it: the broker tells where its first message is
            first = await self._send(messages[0], name)
            return range(first, first + len(messages))
        return range(last_sequence - len(messages) + 1, last_sequence + 1)

    async def _send_each(self, messages: Sequence[_Message], name: str) -> Sequence[int]:
        """For brokers that know no batches: all on their way at once, each with its own id."""
        answers = []
        try:
            for number, (subject, headers, body) in enumerate(messages):
                reply, future = self._connection.expect()
                answers.append(future)
                await self._connection.publish(subject, body, reply, {**headers, "Nats-Msg-Id": f"{name}-{number}"})
            return [_sequence((await self._connection.wait(future))[1]) for future in answers]
        finally:
            for future in answers:
                future.cancel()


def _sequence(answer: bytes) -> int:
    """The sequence in an acknowledgement; Refused if it is an error instead."""
    decoded = msgspec.json.decode(answer)
    error = decoded.get("error")
    if error is not None:
        raise Refused(error.get("err_code", error.get("code", 0)), error.get("description", "no reason given"))
    if "seq" not in decoded:
        raise Refused(0, f"an acknowledgement without a sequence: {answer!r}")
    sequence: int = decoded["seq"]
    return sequence
