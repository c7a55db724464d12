"""Publishes to one stream: what arrives while the broker is busy goes out together as the next group.

When a connection breaks before the acknowledgement, the group is sent again under the same ids: the broker then stores
it, or says that it has it already and where.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.jetstream.connection import Connection, NotReached, Refused, Unanswered
from aviso_server.log.jetstream.follower import StreamFollower
from aviso_server.log.jetstream.group import Group, Pace
from aviso_server.log.jetstream.options import BrokerOptions
from aviso_server.log.jetstream.streams import Streams
from aviso_server.log.jetstream.wire import Message, message_of
from aviso_server.model.notification import Draft, Notification

__all__ = ["GROUP", "Append", "AppendOne", "Backlog", "NotStored", "Publisher", "Removal"]

logger = logging.getLogger(__name__)

GROUP = 1000  # messages: the most a broker takes as one batch
_GROUP_BYTES = 4 * 1024 * 1024


class NotStored(LogError):
    """The broker has not stored any of it and will not."""


class Backlog:
    """How many drafts wait to be stored."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Append:
    """Drafts to be stored next to each other, and the promise to say how they were stored; all have ids or none."""

    __slots__ = ("_backlog", "_left", "_stored", "drafts", "future", "keyed", "largest", "messages", "size")

    def __init__(
        self, drafts: Sequence[Draft], future: asyncio.Future[Any], backlog: Backlog, ids: Sequence[bytes] = ()
    ) -> None:
        self.drafts = drafts
        self.keyed = bool(ids)
        if ids:
            messages = [message_of(draft, each) for draft, each in zip(drafts, ids, strict=True)]
        else:
            messages = [message_of(draft) for draft in drafts]
        self.messages: Sequence[Message] = messages
        sizes = [message.size for message in messages]
        self.size = sum(sizes)
        self.largest = max(sizes, default=0)
        self.future = future
        self._stored: list[Notification | None] = [None] * len(drafts)
        self._left = len(drafts)
        self._backlog = backlog
        backlog.size += len(drafts)

    def seen(self, place: int, notification: Notification) -> None:
        """One of the drafts was stored and handed on."""
        self._stored[place] = notification
        self._left -= 1
        if not self._left:
            self._backlog.size -= len(self.drafts)
            if not self.future.done():
                self.future.set_result(self._stored)

    def fail(self, error: LogError) -> None:
        """It was not stored, as far as anybody knows."""
        if self._left > 0:
            self._left = -1  # whatever is seen of it now comes too late
            self._backlog.size -= len(self.drafts)
            if not self.future.done():
                self.future.set_exception(error)


class AppendOne(Append):
    """A single draft, the usual case: its promise is about one notification."""

    __slots__ = ()

    def __init__(self, draft: Draft, future: asyncio.Future[Notification], backlog: Backlog) -> None:
        message = message_of(draft)
        self.drafts = (draft,)
        self.keyed = False
        self.messages = (message,)
        self.size = self.largest = len(message.headers) + len(message.body)
        self.future = future
        self._left = 1
        self._backlog = backlog
        backlog.size += 1

    def seen(self, place: int, notification: Notification) -> None:
        """It was stored and handed on."""
        if self._left > 0:
            self._left = 0
            self._backlog.size -= 1
            if not self.future.done():
                self.future.set_result(notification)


class Removal:
    """Something else that has its place among the appends."""

    __slots__ = ("act", "future")

    def __init__(self, act: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        self.act = act
        self.future = future


_Place = tuple[Append, int]  # which draft of which append


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
        self._work: deque[Append | Removal] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._pace = Pace()
        self._expected = 0  # how many had something to publish while the last group was on its way
        self._all_back = asyncio.Event()

    def put(self, work: Append | Removal) -> None:
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
                if isinstance(removal := self._work[0], Removal):
                    await self._remove(removal)
                    self._work.popleft()
                    continue
                if (pause := self._pace.pause(len(self._work))) > 0:
                    await self._wait_for_more(pause)
                group, batch = await self._gather()
                await self._store(group, batch)
                self._expected = len(group) + len(self._work)
        finally:
            self._worker = None

    async def _wait_for_more(self, seconds: float) -> None:
        """Wait so long for more work, or until all who were just answered are back with some."""
        self._all_back.clear()
        if len(self._work) < self._expected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_back.wait()

    async def _gather(self) -> tuple[list[Append], bool]:
        """What goes out together, and whether as an atomic batch: always if drafts have to stay together."""
        group: list[Append] = []
        size = count = 0
        together = False
        while self._work and isinstance(one := self._work[0], Append):
            size += one.size
            count += len(one.drafts)
            if group and (count > GROUP or size > _GROUP_BYTES or one.keyed != group[0].keyed):
                break
            together = together or len(one.drafts) > 1
            group.append(one)
            self._work.popleft()
        try:
            atomic = (await self._streams.ensure(self._base)).atomic
        except LogError:
            atomic = False  # it will fail, and say why
        if together or not atomic:
            return group, together and atomic
        batch, count = self._pace.choose(len(group))
        self._work.extendleft(reversed(group[count:]))
        return group[:count], batch

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

    async def _store(self, group: Sequence[Append], batch: bool) -> None:
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
        except Exception as error:  # publishers must get an answer
            logger.exception("publishing failed")
            for one in group:
                one.fail(LogError(f"this cannot be stored: {error}"))

    async def _publish(self, places: Sequence[_Place], batch: bool) -> None:
        """Have the broker store these; each gets its answer. LogUnavailable if some of them could not be settled."""
        group = Group(self._connection, [one.messages[place] for one, place in places], batch)
        self._follower.publishing()
        self._observe(len(places))
        refused: list[Append] = []
        try:
            await self._insist(group)
        finally:
            sequences: list[int] = []
            stored: list[_Place] = []
            for result, owner in zip(group.results, places, strict=True):
                if isinstance(result, int):
                    sequences.append(result)
                    stored.append(owner)
                elif isinstance(result, Refused):
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

    def _refused(self, places: Sequence[_Place], batch: bool) -> list[Append]:
        """The appends of a batch of which one cannot be stored, to find it and let the others through."""
        appends = list(dict.fromkeys([one for one, _ in places]))
        return appends if batch and len(appends) > 1 else []

    async def _insist(self, group: Group) -> None:
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
        """Nobody takes the subject: its stream has no leader for the moment, or it is gone."""
        try:
            if await self._streams.find(self._base) is None:
                self._streams.forget(self._base, "the stream is gone from the broker")
        except LogError:
            return
