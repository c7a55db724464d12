"""The log on a NATS JetStream broker, for more than one server: history and live feed are the cluster's.

`append` returns after the broker's acknowledgement and after the notification has come back to this process, so that
its own followers have it. What an acknowledgement is worth depends on the broker: see docs/jetstream.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from aviso_server.counters import Histogram
from aviso_server.errors import KeyRefused, LogError, LogUnavailable
from aviso_server.log.base import (
    COMMIT_SIZES,
    PATIENCE,
    Appended,
    Archived,
    Batch,
    BatchKey,
    Follower,
    Followers,
    Keyed,
    KeyPolicy,
    Lost,
    Records,
    StoragePolicy,
    StreamState,
    Subscription,
    with_own_keys,
)
from aviso_server.log.jetstream.broker_streams import BrokerRetention, Streams, weaknesses
from aviso_server.log.jetstream.broker_tables import BrokerLease, BrokerRecords, Keys, OncePublisher
from aviso_server.log.jetstream.client import NO_STREAM, BrokerOptions, BrokerRefusal, Connection
from aviso_server.log.jetstream.follower import StreamFollower
from aviso_server.log.jetstream.publisher import (
    GROUP,
    Backlog,
    NotStored,
    PendingAppend,
    PendingRemoval,
    Publisher,
)
from aviso_server.log.jetstream.reader import BrokerReader
from aviso_server.log.jetstream.wire import identify_by
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["JetStreamLog"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_POLICIES: Mapping[str, StoragePolicy] = MappingProxyType({})
NO_KEY_ORDERS: Mapping[str, Sequence[str]] = MappingProxyType({})

_HEADROOM = 512  # bytes of a message for the headers that publishing adds


class JetStreamLog:
    """A log on a broker. `key_orders` are the layouts of topics by base, for messages that others have written."""

    kind = "jetstream"

    def __init__(
        self,
        options: BrokerOptions,
        policies: Mapping[str, StoragePolicy] = NO_POLICIES,
        key_orders: Mapping[str, Sequence[str]] = NO_KEY_ORDERS,
        max_waiting: int = 65_536,
        keys: KeyPolicy = KeyPolicy(),  # noqa: B008  # frozen
        archived: Archived | None = None,
        patience: int = PATIENCE,
    ) -> None:
        self._options = options
        self._connection = Connection(options)
        self.records: Records = BrokerRecords(self._connection, options)
        bases = frozenset(key_orders) | frozenset(policies)
        self._streams = Streams(self._connection, options, policies, bases, archived)
        self._identify = identify_by(key_orders)
        self._reader = BrokerReader(self._connection, self._streams, self._identify)
        self._once = OncePublisher(self._connection, self._streams, Keys(self._connection, options, keys), self._append)
        self._retention: BrokerRetention | None = None
        if archived is not None:
            self._retention = BrokerRetention(
                self._connection, self._streams, self._reader, archived, patience, self._handed_on
            )
        self._followers = Followers()
        self._following: dict[str, StreamFollower] = {}
        self._publishers: dict[str, Publisher] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._max_waiting = max_waiting
        self._backlog = Backlog()
        self.commit_sizes = Histogram(COMMIT_SIZES)
        self._accepting = False
        self._opened = False

    async def open(self) -> None:
        """Connect to the broker, or raise LogUnavailable."""
        if self._opened:
            raise LogUnavailable("the log on the broker is open already")
        await self._connection.open()
        self._connection.on_change.append(self._disturbed)
        self._opened = self._accepting = True
        if self._retention is not None:
            self._retention.start()
        for warning in weaknesses(self._options):
            logger.warning(warning, extra={"event": "backend.jetstream.durability.weak"})
        for problem in await self._streams.unusable():
            logger.error(problem, extra={"event": "backend.jetstream.stream.unusable"})

    async def close(self) -> None:
        self._accepting = False
        if not self._opened:
            return
        self._opened = False
        if self._retention is not None:
            await self._retention.stop()
        for publisher in list(self._publishers.values()):
            await publisher.finish()
        for follower in list(self._following.values()):
            await follower.drain()
            await follower.stop()
        for task in list(self._starting):
            task.cancel()
        await self._reader.close()
        await self._connection.close()

    def lease(self, task: str, changed: Callable[[bool], None]) -> BrokerLease:
        return BrokerLease(self._connection, self._options, task, changed)

    @property
    def connected(self) -> bool:
        """True while the log is open and the broker can be reached."""
        return self._accepting and self._connection.connected

    @property
    def waiting(self) -> int:
        return self._backlog.size

    @property
    def held_back(self) -> frozenset[str]:
        return frozenset() if self._retention is None else self._retention.held_back

    async def append(self, draft: Draft) -> Notification:
        return (await self._append(draft.stream, [draft]))[0]

    async def append_many(self, drafts: Sequence[Draft]) -> Sequence[Notification]:
        """Store several: those of one stream, up to 1000, all or none and next to each other."""
        by_stream: dict[str, list[int]] = {}
        for place, draft in enumerate(drafts):
            by_stream.setdefault(draft.stream, []).append(place)
        calls = [self._append(stream, [drafts[place] for place in places]) for stream, places in by_stream.items()]
        stored: dict[int, Notification] = {}
        for places, notifications in zip(by_stream.values(), await asyncio.gather(*calls), strict=True):
            stored.update(zip(places, notifications, strict=True))
        return [stored[place] for place in range(len(drafts))]

    async def append_keyed(
        self, entries: Sequence[Keyed], whole: bool, batch: BatchKey | None = None
    ) -> Sequence[Appended | KeyRefused]:
        """Store what was not stored under its key before, by any server; all or none as in `append_many`."""
        self._check_open()
        return await self._once.append(entries if batch is None else with_own_keys(entries, batch), whole)

    async def indivisible(self, drafts: Sequence[Draft]) -> bool:
        """Return True for up to 1000 of one stream, where the broker knows atomic batches."""
        streams = {draft.stream for draft in drafts}
        if len(drafts) <= 1:
            return True
        return len(streams) == 1 and len(drafts) <= GROUP and (await self._streams.ensure(streams.pop())).atomic

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        subscription = self._followers.add(stream, follower, lost)
        if self._accepting:
            task = asyncio.create_task(self._start(stream))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        return subscription

    async def state(self, stream: str) -> StreamState:
        """Return what the stream holds now, cluster-wide; it is made if nobody has used it."""
        self._check_open()
        if self._followers.any(stream):
            await self._follower(stream).start()
        return self._streams.state(stream, await self._streams.look(stream))

    async def streams(self) -> Sequence[str]:
        self._check_open()
        return sorted(await self._streams.all())

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        self._check_open()
        return await self._again_if_gone(stream, lambda: self._reader.read(stream, start, end, limit))

    async def first_since(self, stream: str, time: int) -> int:
        self._check_open()
        return (await self._again_if_gone(stream, lambda: self._reader.around(stream, time)))[1]

    async def last_until(self, stream: str, time: int) -> int:
        self._check_open()
        return (await self._again_if_gone(stream, lambda: self._reader.around(stream, time + 1)))[0]

    async def delete(self, stream: str, sequence: int) -> bool:
        self._check_open()
        if not 0 < sequence < 2**63:
            return False

        async def act() -> bool:
            try:
                await self._connection.api(f"STREAM.MSG.DELETE.{stream.upper()}", {"seq": sequence})
            except BrokerRefusal as error:
                # the broker has several ways to say that it is not there
                if error.code == NO_STREAM or await self._connection.message(stream.upper(), seq=sequence) is None:
                    return False
                raise
            return True

        return bool(await self._remove(stream, act))

    async def wipe(self, stream: str) -> int | None:
        self._check_open()

        async def act() -> int | None:
            try:
                answer = await self._connection.api(f"STREAM.PURGE.{stream.upper()}")
                info = await self._streams.find(stream)
            except BrokerRefusal as error:
                if error.code == NO_STREAM:
                    return None
                raise
            if info is not None:
                self._streams.wiped(stream, info.first - 1)
            return int(answer["purged"])

        removed: int | None = await self._remove(stream, act)
        return removed

    async def _append(self, stream: str, drafts: Sequence[Draft], ids: Sequence[str] = ()) -> Sequence[Notification]:
        self._check_open()
        waiting, limit = self._backlog.size, self._connection.max_payload
        if waiting and waiting + len(drafts) > self._max_waiting:
            raise LogUnavailable(
                f"{waiting} notifications wait to be stored and {self._max_waiting} may; publish again later"
            )
        future: asyncio.Future[Sequence[Notification]] = asyncio.get_running_loop().create_future()
        try:
            append = PendingAppend(drafts, future, self._backlog, ids)
        except LogError as error:
            raise NotStored(str(error)) from error
        if limit and append.largest > limit - _HEADROOM:
            needed = f"the notification needs {append.largest} bytes"
            append.fail(NotStored(f"{needed}; the broker takes up to {limit - _HEADROOM} of one"))
        else:
            self._publisher(stream).put(append)
        return await future

    async def _remove(self, stream: str, act: Callable[[], Awaitable[Any]]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._publisher(stream).put(PendingRemoval(act, future))
        return await future

    async def _again_if_gone(self, stream: str, call: Callable[[], Awaitable[T]]) -> T:
        """Try again once if somebody has deleted the stream, which is made anew, empty."""
        try:
            return await call()
        except (BrokerRefusal, LogUnavailable):
            if await self._streams.find(stream) is not None:
                raise
        self._streams.forget(stream, "the stream is gone from the broker")
        return await call()

    async def _start(self, stream: str) -> None:
        try:
            await self._follower(stream).start()
        except LogError as error:
            logger.warning("stream %s cannot be followed yet: %s", stream, error)

    def _follower(self, stream: str) -> StreamFollower:
        found = self._following.get(stream)
        if found is None:
            found = self._following[stream] = StreamFollower(
                self._connection,
                self._streams,
                stream,
                self._identify,
                lambda notifications: self._followers.tell(stream, notifications),
                lambda reason: self._followers.lose(stream, reason),
            )
        return found

    def _handed_on(self, stream: str) -> int:
        found = self._following.get(stream)
        return 0 if found is None else found.position

    def _publisher(self, stream: str) -> Publisher:
        found = self._publishers.get(stream)
        if found is None:
            follower = self._follower(stream)
            observe = self.commit_sizes.observe
            found = Publisher(self._connection, self._streams, stream, follower, self._options, observe)
            self._publishers[stream] = found
        return found

    def _disturbed(self) -> None:
        for follower in self._following.values():
            follower.disturbed()

    def _check_open(self) -> None:
        if not self._accepting:
            raise LogUnavailable("the log on the broker is closed")
