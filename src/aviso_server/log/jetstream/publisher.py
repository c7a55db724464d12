"""Publishing to a broker: several messages one by one with all answers on their way, or as one atomic batch.

An atomic batch is one commit at the broker, but preparing it costs the broker some milliseconds. One by one is quicker
on a broker that syncs its disk now and then, a batch is quicker by far on one that syncs it for every message. Nobody
can ask a broker what it does, so the times of earlier groups decide."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.jetstream.broker_streams import Streams
from aviso_server.log.jetstream.client import BrokerOptions, BrokerRefusal, Connection, NotReached, Unanswered, refusal
from aviso_server.log.jetstream.follower import StreamFollower
from aviso_server.log.jetstream.wire import Message, message_of
from aviso_server.model.notification import Draft, Notification

__all__ = ["GROUP", "Backlog", "NotStored", "PendingAppend", "PendingRemoval", "Publisher"]

logger = logging.getLogger(__name__)


_DUPLICATE_IN_BATCH = 10201
_PASSING = frozenset({10158, 10008, 10009, 10118, 10167, 10189})  # busy, without a leader: a second try may succeed

_PROBE_SIZE = 64
_TELLING = 32  # messages: fewer take as long as the way to a broker and back, whatever each of them costs
_PROBE_EVERY = 200  # groups
_WEIGHT = 0.2  # of the newest measurement
_PAUSE = 0.12  # of the time that a batch takes
_LONGEST_PAUSE = 0.005  # seconds
_LARGEST = 1000  # messages in a batch
_GUESS = 0.01  # seconds, for a batch of a size that was never sent


class PublishPace:
    """Learns the cost of groups, in seconds, and chooses how to send the next one."""

    def __init__(self) -> None:
        self._each = 0.0001  # per message
        self._batch: dict[int, float] = {}  # by the size of the group, in powers of two
        self._batches = 0

    def pause(self, size: int) -> float:
        """Return how long to wait for more before a group of this size is sent.

        A batch costs much the same whatever its size. Whoever has just got an answer may be back in a moment, so a
        small part of its time is well spent on waiting for them.
        """
        if self._each * size <= self._expected(size):
            return 0.0
        return min(_LONGEST_PAUSE, _PAUSE * self._expected(size))

    def choose(self, size: int) -> tuple[bool, int]:
        """Decide whether to send a group of this size as a batch, and how many messages of it."""
        if size == 1 or self._each * size <= self._expected(size):
            return False, size
        self._batches += 1
        if self._batches % _PROBE_EVERY == 0:
            return False, min(size, _PROBE_SIZE)
        return True, size

    def _expected(self, size: int) -> float:
        return self._batch.get(min(size, _LARGEST).bit_length(), _GUESS)

    def learn(self, size: int, batch: bool, seconds: float) -> None:
        """Note how long a group has taken."""
        if batch:
            place = size.bit_length()
            before = self._batch.get(place, seconds)
            self._batch[place] = before + _WEIGHT * (seconds - before)
        elif size >= _TELLING:
            self._each += _WEIGHT * (seconds / size - self._each)


class MessageGroup:
    """Messages that are sent until the broker has said about each whether it is stored.

    Sending again is safe: every message, or the first of a batch, carries an id, and the broker stores an id once.
    """

    def __init__(self, connection: Connection, messages: Sequence[Message], batch: bool) -> None:
        self.results: list[int | BrokerRefusal | None] = [None] * len(messages)  # sequences, or why not
        self._connection = connection
        self._messages = messages
        self._batch = batch
        self._name = uuid.uuid4().hex

    async def send(self, pace: PublishPace) -> None:
        """Send what has no result yet; NotReached or Unanswered if some of it still has none."""
        began = perf_counter()
        if self._batch:
            await self._send_batch()
        else:
            await self._send_each([place for place, result in enumerate(self.results) if result is None])
        pace.learn(len(self._messages), self._batch, perf_counter() - began)

    async def _send_each(self, places: Sequence[int]) -> None:
        replies, answers, future = self._connection.expect_many(len(places))
        failure: Exception | None = None
        try:
            for place, reply in zip(places, replies, strict=True):
                await self._send(place, reply, {"Nats-Msg-Id": self._id(place)})
            await self._connection.wait(future)
        except (NotReached, Unanswered) as error:
            failure = error
        finally:
            future.cancel()
        for place, answer in zip(places, answers, strict=True):
            if answer is None:
                continue
            try:
                self.results[place] = _sequence(*answer)
            except NotReached as error:
                failure = error
            except BrokerRefusal as error:
                self.results[place] = error
        if failure is not None:
            raise failure

    def _id(self, place: int) -> str:
        return self._messages[place].id or f"{self._name}-{place}"

    async def _send(self, place: int, reply: str, more: Mapping[str, str]) -> None:
        message = self._messages[place]
        await self._connection.publish(message.subject, message.body, reply, {**message.headers, **more})

    async def _send_batch(self) -> None:
        batch = uuid.uuid4().hex[:16]  # of this attempt
        (reply,), answers, future = self._connection.expect_many(1)
        count = len(self._messages)
        try:
            for place, message in enumerate(self._messages):
                more = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place + 1)}
                if place == 0 or message.id:
                    more["Nats-Msg-Id"] = self._id(place)
                if place == count - 1:
                    more["Nats-Batch-Commit"] = "1"
                await self._send(place, reply if place == count - 1 else "", more)
            await self._connection.wait(future)
        finally:
            future.cancel()
        assert answers[0] is not None  # the future is done
        try:
            first = _sequence(*answers[0]) - count + 1
        except BrokerRefusal as error:
            if error.code != _DUPLICATE_IN_BATCH:
                self.results = [error] * count
                return
            if self._messages[0].id:
                # another attempt, of this server or another, has stored some or all of them
                await self._send_each(range(count))
                return
            # an earlier attempt did it: the broker tells where its first message is
            await self._send_each([0])
            found = self.results[0]
            assert isinstance(found, int)  # the id is known, so it cannot be refused
            first = found
        self.results = list(range(first, first + count))


def _sequence(headers: bytes, answer: bytes) -> int:
    """Read the sequence in an acknowledgement; BrokerRefusal or NotReached if it is none."""
    if headers.startswith(b"NATS/1.0 503"):
        raise NotReached("the broker does not take this subject now")
    decoded = msgspec.json.decode(answer)
    error = decoded.get("error")
    if error is not None:
        raise refusal(error, _PASSING)
    sequence: int = decoded["seq"]
    return sequence


GROUP = 1000  # messages: the most a broker takes as one batch
_GROUP_BYTES = 4 * 1024 * 1024


class NotStored(LogError):
    """The broker has not stored any of it and will not."""


class Backlog:
    """Counts the drafts that wait to be stored."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class PendingAppend:
    """Drafts to be stored next to each other, and the promise to say how they were stored; all have ids or none."""

    __slots__ = ("_backlog", "_left", "_stored", "drafts", "future", "keyed", "largest", "messages", "size")

    def __init__(
        self, drafts: Sequence[Draft], future: asyncio.Future[Any], backlog: Backlog, ids: Sequence[str] = ()
    ) -> None:
        self.drafts = drafts
        self.keyed = bool(ids)
        self.messages = [message_of(draft, each) for draft, each in zip(drafts, ids or [""] * len(drafts), strict=True)]
        sizes = [message.size for message in self.messages]
        self.size = sum(sizes)
        self.largest = max(sizes, default=0)
        self.future = future
        self._stored: list[Notification | None] = [None] * len(drafts)
        self._left = len(drafts)
        self._backlog = backlog
        backlog.size += len(drafts)

    def seen(self, place: int, notification: Notification) -> None:
        """Note that one of the drafts was stored and handed on."""
        self._stored[place] = notification
        self._left -= 1
        if not self._left:
            self._backlog.size -= len(self.drafts)
            if not self.future.done():
                self.future.set_result(self._stored)

    def fail(self, error: LogError) -> None:
        """Answer that it was not stored, as far as anybody knows."""
        if self._left > 0:
            self._left = -1  # whatever is seen of it now comes too late
            self._backlog.size -= len(self.drafts)
            if not self.future.done():
                self.future.set_exception(error)


class PendingRemoval:
    """Something else that has its place among the appends."""

    __slots__ = ("act", "future")

    def __init__(self, act: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        self.act = act
        self.future = future


_Place = tuple[PendingAppend, int]  # which draft of which append


class Publisher:
    """Does the work on one stream in the order it came."""

    def __init__(
        self,
        connection: Connection,
        streams: Streams,
        base: str,
        follower: StreamFollower,
        options: BrokerOptions,
        observe: Callable[[float], None],
    ) -> None:
        self._observe = observe  # called with the size of each group
        self._connection = connection
        self._streams = streams
        self._base = base
        self._follower = follower
        self._options = options
        self._work: deque[PendingAppend | PendingRemoval] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._pace = PublishPace()
        self._expected = 0  # how many had something to publish while the last group was on its way
        self._all_back = asyncio.Event()

    def put(self, work: PendingAppend | PendingRemoval) -> None:
        """Hand over work."""
        self._work.append(work)
        if len(self._work) == self._expected:
            self._all_back.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._run(), name=f"publisher of {self._base}")

    async def finish(self) -> None:
        """Wait until everything handed over is done."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _run(self) -> None:
        try:
            while self._work:
                if isinstance(removal := self._work[0], PendingRemoval):
                    await self._remove(removal)
                    self._work.popleft()
                    continue
                if (pause := self._pace.pause(len(self._work))) > 0:
                    await self._wait_for_more(pause)
                group = self._gather()
                count = await self._store_some(group)
                self._expected = count + len(self._work)
        finally:
            self._worker = None

    async def _wait_for_more(self, seconds: float) -> None:
        """Wait so long for more work, or until all who were just answered are back with some."""
        self._all_back.clear()
        if len(self._work) < self._expected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_back.wait()

    def _gather(self) -> list[PendingAppend]:
        """Take what can go out together."""
        group: list[PendingAppend] = []
        size = count = 0
        while self._work and isinstance(one := self._work[0], PendingAppend):
            size += one.size
            count += len(one.drafts)
            if group and (count > GROUP or size > _GROUP_BYTES or one.keyed != group[0].keyed):
                break
            group.append(one)
            self._work.popleft()
        return group

    async def _store_some(self, group: list[PendingAppend]) -> int:
        """Store the group, or put a part of it back; return how many got an answer, as every publisher must."""
        together = any(len(one.drafts) > 1 for one in group)
        try:
            try:
                atomic = (await self._streams.ensure(self._base)).atomic
            except (NotReached, Unanswered) as error:  # it has asked as long as there was hope
                for one in group:
                    one.fail(LogUnavailable(f"not stored: {error}"))
                return len(group)
            except LogError:
                atomic = False  # storing tries again, and says why it fails
            if together or not atomic:
                batch, count = together and atomic, len(group)
            else:
                batch, count = self._pace.choose(len(group))
            self._work.extendleft(reversed(group[count:]))
            del group[count:]
            await self._store(group, batch)
        except BaseException as error:
            logger.error("publishing failed", exc_info=error)
            for one in group:
                one.fail(LogError(f"this cannot be stored: {str(error) or type(error).__name__}"))
            if not isinstance(error, Exception):
                raise
        return len(group)

    async def _remove(self, removal: PendingRemoval) -> None:
        try:
            # what was acknowledged before must reach the followers before it can be taken away
            await self._follower.drain()
            result = await removal.act()
        except Exception as error:  # whoever asked must get an answer
            if not removal.future.done():
                removal.future.set_exception(error)
        else:
            if not removal.future.done():
                removal.future.set_result(result)

    async def _store(self, group: Sequence[PendingAppend], batch: bool) -> None:
        places = [(one, place) for one in group for place in range(len(one.drafts))]
        try:
            # without a follower there is nobody who could miss it
            with contextlib.suppress(LogUnavailable):
                await self._follower.start()
            for start in range(0, len(places), GROUP):
                await self._publish(places[start : start + GROUP], batch)
        except LogError as error:
            for one in group:
                one.fail(type(error)(*error.args))

    async def _publish(self, places: Sequence[_Place], batch: bool) -> None:
        """Have the broker store these; each gets its answer. LogUnavailable if some of them could not be settled."""
        group = MessageGroup(self._connection, [one.messages[place] for one, place in places], batch)
        self._follower.publishing()
        self._observe(len(places))
        refused: list[PendingAppend] = []
        try:
            await self._insist(group)
        finally:
            sequences: list[int] = []
            stored: list[_Place] = []
            for result, owner in zip(group.results, places, strict=True):
                if isinstance(result, int):
                    sequences.append(result)
                    stored.append(owner)
                elif isinstance(result, BrokerRefusal):
                    refused = refused or self._refused(places, batch)
                    if not refused:
                        one = owner[0]
                        # of several sent one by one, others may be stored
                        alone = len(one.drafts) == 1 or (batch and len(one.drafts) <= GROUP)
                        kind = NotStored if alone else LogError
                        one.fail(kind(f"the broker did not store it: {result.description}"))
            self._follower.settle(sequences, stored)
        for one in refused:
            await self._store([one], len(one.drafts) > 1)

    def _refused(self, places: Sequence[_Place], batch: bool) -> list[PendingAppend]:
        """Take a batch apart of which one cannot be stored, to find that one and let the others through."""
        appends = list(dict.fromkeys([one for one, _ in places]))
        return appends if batch and len(appends) > 1 else []

    async def _insist(self, group: MessageGroup) -> None:
        """Send the group as often as the options allow."""
        attempts = self._options.publish_retry_attempts
        for attempt in range(1, attempts + 1):
            try:
                await self._streams.ensure(self._base)
                return await group.send(self._pace)
            except (NotReached, Unanswered) as error:
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

    async def _look_after_stream(self) -> None:
        """See to a stream whose subject nobody takes: it has no leader for the moment, or it is gone."""
        try:
            if await self._streams.find(self._base) is None:
                self._streams.forget(self._base, "the stream is gone from the broker")
        except LogError:
            return
