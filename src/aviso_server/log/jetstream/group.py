"""How several messages reach the broker together: one by one with all answers on their way, or as one atomic batch.

An atomic batch is one commit at the broker, but preparing it costs the broker some milliseconds. One by one is quicker
on a broker that syncs its disk now and then, a batch is quicker by far on one that syncs it for every message. Nobody
can ask a broker what it does, so the times of earlier groups decide.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from time import perf_counter

import msgspec

from aviso_server.log.jetstream.connection import Connection, NotReached, Refused, Unanswered
from aviso_server.log.jetstream.wire import Message

__all__ = ["Group", "Pace"]

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


class Pace:
    """What groups have cost so far, in seconds."""

    def __init__(self) -> None:
        self._each = 0.0001  # per message
        self._batch: dict[int, float] = {}  # by the size of the group, in powers of two
        self._batches = 0

    def pause(self, size: int) -> float:
        """How long to wait for more before a group of this size is sent.

        A batch costs much the same whatever its size. Whoever has just got an answer may be back in a moment, so a
        small part of its time is well spent on waiting for them.
        """
        if self._each * size <= self._expected(size):
            return 0.0
        return min(_LONGEST_PAUSE, _PAUSE * self._expected(size))

    def choose(self, size: int) -> tuple[bool, int]:
        """Whether to send a group of this size as a batch, and how many messages of it."""
        if size == 1 or self._each * size <= self._expected(size):
            return False, size
        self._batches += 1
        if self._batches % _PROBE_EVERY == 0:
            return False, min(size, _PROBE_SIZE)
        return True, size

    def _expected(self, size: int) -> float:
        return self._batch.get(min(size, _LARGEST).bit_length(), _GUESS)

    def learn(self, size: int, batch: bool, seconds: float) -> None:
        """A group has taken this long."""
        if batch:
            place = size.bit_length()
            before = self._batch.get(place, seconds)
            self._batch[place] = before + _WEIGHT * (seconds - before)
        elif size >= _TELLING:
            self._each += _WEIGHT * (seconds / size - self._each)


class Group:
    """Messages that are sent until the broker has said about each whether it is stored.

    Sending again is safe: every message, or the first of a batch, carries an id, and the broker stores an id once.
    """

    def __init__(self, connection: Connection, messages: Sequence[Message], batch: bool) -> None:
        self.results: list[int | Refused | None] = [None] * len(messages)  # sequences, or why not
        self._connection = connection
        self._messages = messages
        self._batch = batch
        self._name = uuid.uuid4().hex.encode()

    async def send(self, pace: Pace) -> None:
        """Send what has no result yet; NotReached or Unanswered if some of it still has none."""
        began = perf_counter()
        if self._batch:
            await self._send_batch()
        else:
            await self._send_each([place for place, result in enumerate(self.results) if result is None])
        pace.learn(len(self._messages), self._batch, perf_counter() - began)

    async def _send_each(self, places: Sequence[int]) -> None:
        replies, answers, future = self._connection.expect_many(len(places))
        commands = [
            self._messages[place].command(reply, b"Nats-Msg-Id: %b\r\n" % self._id(place))
            for place, reply in zip(places, replies, strict=True)
        ]
        failure: Exception | None = None
        try:
            await self._connection.send(b"".join(commands))
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
            except Refused as error:
                self.results[place] = error
        if failure is not None:
            raise failure

    def _id(self, place: int) -> bytes:
        return self._messages[place].id or b"%b-%d" % (self._name, place)

    async def _send_batch(self) -> None:
        batch = uuid.uuid4().hex[:16].encode()  # of this attempt
        (reply,), answers, future = self._connection.expect_many(1)
        count = len(self._messages)
        start = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % batch
        commands = []
        for number, message in enumerate(self._messages, 1):
            more = b"%b%d\r\n" % (start, number)
            if number == 1 or message.id:
                more += b"Nats-Msg-Id: %b\r\n" % self._id(number - 1)
            if number < count:
                commands.append(message.command(b"", more))
            else:
                commands.append(message.command(reply, more + b"Nats-Batch-Commit: 1\r\n"))
        try:
            await self._connection.send(b"".join(commands))
            await self._connection.wait(future)
        finally:
            future.cancel()
        assert answers[0] is not None  # the future is done
        try:
            first = _sequence(*answers[0]) - count + 1
        except Refused as error:
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
    """The sequence in an acknowledgement; Refused or NotReached if it is none."""
    if headers.startswith(b"NATS/1.0 503"):
        raise NotReached("nobody at the broker takes this subject now")
    decoded = msgspec.json.decode(answer)
    error = decoded.get("error")
    if error is not None:
        code, text = error.get("err_code", error.get("code", 0)), error.get("description", "no reason given")
        raise NotReached(f"the broker cannot store now: {text}") if code in _PASSING else Refused(code, text)
    sequence: int = decoded["seq"]
    return sequence
