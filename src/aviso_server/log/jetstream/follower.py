"""Follows one stream on the broker for this whole process: one consumer, however many want to hear of it.

A consumer here is a throw-away. Whenever something is odd (connection lost, silence, a delivery missing), a new one is
made that starts right after the last notification handed on, so the broker's own sequence is the only bookmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aviso_server.errors import LogError, LogUnavailable, StreamUnusable
from aviso_server.log.jetstream.broker_streams import StreamInfo, Streams
from aviso_server.log.jetstream.client import Connection, Consumer
from aviso_server.log.jetstream.wire import Identify, readable
from aviso_server.model.notification import Draft, Notification

if TYPE_CHECKING:
    from aviso_server.log.jetstream.publisher import PendingAppend

__all__ = ["StreamFollower"]

logger = logging.getLogger(__name__)

_SECOND = 1_000_000_000
_CREDIT = 512  # messages asked for at a time
_HEARTBEAT = 2  # seconds
_SILENCE = 3 * _HEARTBEAT
_EXPIRES = 60  # seconds
_GIVE_UP = 5.0  # seconds an acknowledged notification may take to come back
_PAUSE = 0.25  # seconds before the next attempt


_Own = tuple["PendingAppend", int]  # which draft of it


class _Again(Exception):
    """The consumer cannot be relied on: make a new one."""


class _Lost(Exception):
    """Notifications were removed before they were seen."""


class StreamFollower:
    """The notifications of one stream in order, each once, from the moment of `start` on."""

    def __init__(
        self,
        connection: Connection,
        streams: Streams,
        base: str,
        identify: Identify,
        tell: Callable[[Sequence[Notification]], None],
        lose: Callable[[str], None],
    ) -> None:
        self.position = 0  # the newest sequence handed on
        self._connection = connection
        self._streams = streams
        self._base = base
        self._identify = identify
        self._tell = tell
        self._lose = lose
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._created = ""  # which stream it is, should another one take its name
        self._consumer: Consumer | None = None
        self._arrived: list[Notification] = []
        self._wake = asyncio.Event()
        self._odd = ""  # why the consumer cannot be relied on
        self._delivered = 0  # by this consumer
        self._credit = 0
        self._own: dict[int, _Own] = {}  # acknowledged, not yet handed on
        self._doubles: dict[int, list[_Own]] = {}  # two publishes under one id have one sequence
        self._draining: list[tuple[int, asyncio.Future[None]]] = []  # who waits until a sequence was handed on
        self._unsettled = 0  # publishes on their way whose sequences are not known yet
        self._settled = asyncio.Event()
        self._recent: dict[int, Notification] = {}  # handed on while publishes were unsettled

    async def start(self) -> None:
        """Return once nothing stored from now on can be missed; LogUnavailable if the broker cannot be reached."""
        if self._started is None or (self._started.done() and self._started.exception() is not None):
            self._started = asyncio.get_running_loop().create_future()
            self._started.add_done_callback(lambda future: future.exception())
            self._task = asyncio.create_task(self._run(self._started), name=f"follower of {self._base}")
        await asyncio.shield(self._started)

    @property
    def _running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Delete the consumer."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._started is not None and not self._started.done():
            self._started.set_exception(LogUnavailable("the log is closed"))
        await self._drop_consumer()

    def disturbed(self) -> None:
        """Start anew: the connection was lost or is back, and deliveries may be missing."""
        self._odd = "the connection was lost"
        self._wake.set()

    # PendingAppend

    def publishing(self) -> None:
        """Note that a publish is on its way; `settle` follows."""
        self._unsettled += 1
        self._settled.clear()

    def settle(self, sequences: Sequence[int], owners: Sequence[_Own]) -> None:
        """Note the sequences of our own drafts; each publisher hears of it once followers have it."""
        recent, own, position = self._recent, self._own, self.position
        late: list[int] = []
        for sequence, owner in zip(sequences, owners, strict=True):
            found = recent.get(sequence)
            if found is not None:
                owner[0].seen(owner[1], found)
            elif sequence <= position or not self._running:
                # handed on before this process knew that it was its own, removed by then, or never to come
                self._answer(owner, sequence, time.time_ns())
            elif sequence in own:
                self._doubles.setdefault(sequence, []).append(owner)
            else:
                own[sequence] = owner
                late.append(sequence)
        if sequences:
            self._streams.note(self._base, max(sequences))
        if late:
            asyncio.get_running_loop().call_later(_GIVE_UP, self._give_up, late)
        self._unsettled -= 1
        if not self._unsettled:
            self._recent.clear()
            self._settled.set()

    async def drain(self) -> None:
        """Wait until everything acknowledged so far was handed on; not forever."""
        if self._own:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append((max(self._own), done))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_UP):
                    await done

    def _give_up(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            owner = self._own.pop(sequence, None)
            if owner is not None:
                self._answer(owner, sequence, time.time_ns())

    def _answer(self, owner: _Own, sequence: int, when: int) -> None:
        """Answer the publisher, though the notification has not come back."""
        publishing, place = owner
        self._seen(owner, _as_stored(sequence, when, publishing.drafts[place]))

    def _seen(self, owner: _Own, notification: Notification) -> None:
        owner[0].seen(owner[1], notification)
        if self._doubles:
            for publishing, place in self._doubles.pop(notification.sequence, ()):
                publishing.seen(place, notification)
        if self._draining:
            for entry in [entry for entry in self._draining if entry[0] <= notification.sequence]:
                self._draining.remove(entry)
                if not entry[1].done():
                    entry[1].set_result(None)

    # Following

    async def _run(self, started: asyncio.Future[None]) -> None:
        while True:
            try:
                if self._connection.closed_for_good:
                    raise _Lost("the broker cannot be reached")
                await self._make_consumer(first=not started.done())
                if not started.done():
                    started.set_result(None)
                await self._receive()
            except _Lost as error:
                logger.error(
                    "stream %s: %s",
                    self._base,
                    error,
                    extra={"event": "backend.jetstream.subscription.failed", "stream": self._base},
                )
                self._lose(str(error))
                if self._connection.closed_for_good:
                    if not started.done():
                        started.set_exception(LogUnavailable(str(error)))
                    self._started = None
                    return
            except _Again as error:
                logger.info("stream %s: new consumer: %s", self._base, error)
            except LogError as error:
                if not started.done():
                    away = LogUnavailable(f"stream '{self._base}' cannot be followed: {error}")
                    started.set_exception(error if isinstance(error, StreamUnusable) else away)
                    return
                logger.warning("stream %s cannot be followed now: %s", self._base, error)
                await asyncio.sleep(_PAUSE)
            except Exception as error:  # whatever it is, nobody may wait for it in vain
                if not started.done():
                    started.set_exception(LogUnavailable(f"stream '{self._base}' cannot be followed: {error}"))
                    raise
                logger.exception("stream %s: following failed", self._base)
                await asyncio.sleep(_PAUSE)

    async def _make_consumer(self, first: bool) -> None:
        await self._drop_consumer()
        info = await self._streams.look(self._base)
        if first:
            self.position, self._created = info.last, info.created
        else:
            self._compare(info)
        self._arrived, self._odd, self._delivered, self._credit = [], "", 0, 0
        self._wake.clear()
        name = f"aviso_follower_{info.name}_{uuid.uuid4().hex}"
        self._consumer = await self._connection.consume(
            info.name, name, self.position + 1, 2 * _EXPIRES, self._take, self._hear, self._identify
        )
        await self._ask()

    def _compare(self, info: StreamInfo) -> None:
        """Find out whether anything happened to the stream, while nobody looked, that watchers must know of."""
        before, position = self._created, self.position
        if info.created == before and info.last >= position:
            if info.first <= position + 1 or info.latest_only:
                return
            self.position = info.first - 1
            raise _Lost(f"notifications {position + 1} to {info.first - 1} were removed before they were seen")
        self._created, self.position = info.created, info.last
        raise _Lost("the stream was deleted and created again")

    async def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _ask(self) -> None:
        assert self._consumer is not None  # only followed streams are asked for
        self._credit += _CREDIT
        await self._consumer.ask(batch=_CREDIT, expires=_EXPIRES * _SECOND, idle_heartbeat=_HEARTBEAT * _SECOND)

    def _take(self, delivery: int, notification: Notification) -> None:
        self._delivered += 1
        self._credit -= 1
        if delivery != self._delivered:
            self._odd = "a delivery is missing"
        if not self._odd:
            self._arrived.append(notification)
        if not self._wake.is_set():
            self._wake.set()

    def _hear(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        if headers.startswith(b"NATS/1.0 408"):
            self._credit = 0
        elif not headers.startswith(b"NATS/1.0 100"):
            self._odd = headers[9:].partition(b"\r\n")[0].decode("ascii", "replace")
        self._wake.set()

    async def _receive(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._wake.wait()
            except TimeoutError:
                raise _Again("the broker is silent") from None
            self._wake.clear()
            arrived, self._arrived = self._arrived, []
            await self._hand_on(arrived)
            if self._odd:
                raise _Again(self._odd)
            if self._credit <= _CREDIT // 2:
                await self._ask()

    async def _hand_on(self, arrived: Sequence[Notification]) -> None:
        if not arrived:
            return
        position = self.position
        if arrived[0].sequence == position + 1 and arrived[-1].sequence == position + len(arrived):
            self._pass(arrived)  # sequences rise, so none is missing
            return
        ready: list[Notification] = []
        for one in arrived:
            if one.sequence <= self.position + len(ready):
                continue
            if one.sequence > self.position + len(ready) + 1:
                self._pass(ready)
                ready = []
                await self._explain(one.sequence - 1, one.time)
            ready.append(one)
        self._pass(ready)

    def _pass(self, ready: Sequence[Notification]) -> None:
        if not ready:
            return
        self.position = ready[-1].sequence
        self._tell(readable(ready))
        self._streams.note(self._base, self.position)
        if self._unsettled:
            self._recent.update([(one.sequence, one) for one in ready])
        if self._own:
            for one in ready:
                owner = self._own.pop(one.sequence, None)
                if owner is not None:
                    self._seen(owner, one)

    async def _explain(self, last: int, when: int) -> None:
        """Find out why the broker skips everything after the position up to `last`, and whether it matters.

        What this process has published itself it still knows, though a newer notification of the same topic may have
        replaced it at the broker. Single ones are missing because an administrator deleted them. But if all are gone
        up to here, a purge or a limit was faster than this follower, and whoever listens must be told.
        """
        if self._unsettled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_UP):
                    await self._settled.wait()
        first = self.position + 1
        known = [
            _as_stored(number, when, publishing.drafts[place])
            for number in range(first, last + 1)
            if number in self._own
            for publishing, place in [self._own[number]]
        ]
        self._pass(known)
        info = None if len(known) == last + 1 - first else await self._streams.look(self._base)
        self.position = last
        if info is None or info.latest_only:
            return
        if info.first > last:
            raise _Lost(f"notifications {first} to {last} were removed before they were seen")
        logger.info("stream %s: notifications %d to %d were deleted", self._base, first, last)


def _as_stored(sequence: int, when: int, draft: Draft) -> Notification:
    return Notification(sequence, when, draft.topic, draft.identifier, draft.payload, draft.box)
