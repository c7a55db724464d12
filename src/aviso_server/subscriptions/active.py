"""Subscriptions while they are served, and the writer that makes durable how far each has come.

States are saved together, a few times a second, as far as nobody waits for them. After a crash a subscription goes on
from the state that was saved last: what was delivered since then is delivered again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, Protocol

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import Change, Records
from aviso_server.model.filter import Filter
from aviso_server.subscriptions.cursor import Cursor
from aviso_server.subscriptions.subscription import Definition, Gap, State, Status, Subscription

__all__ = ["Active", "StateWriter", "Tally", "state_key"]

logger = logging.getLogger(__name__)

_DELAY = 0.05  # seconds that a state may be ahead of what is saved, if nobody waits for it
_PAUSE = 1.0  # seconds before another try, when the log cannot be written
_AT_ONCE = 256  # states saved together: publishers share the commit
_DECODED = 256  # subscriptions that are kept decoded


def state_key(subscription: str) -> str:
    """Return the key of a subscription's state."""
    return f"state.{subscription}"


_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = lru_cache(_DECODED)(msgspec.msgpack.Decoder(Subscription).decode)


class Keeper(Protocol):
    """Whoever serves subscriptions."""

    def wake(self, active: Active) -> None:
        """Hear that there may be something to deliver."""

    def note_gap(self, active: Active, gap: Gap) -> None:
        """Hear that retention was faster."""


class Active:
    """A subscription that this server knows, at work or not.

    There may be many that are idle: what nobody looks at then is kept packed, in a third of the memory.
    """

    __slots__ = (
        "_packed",
        "_saved",
        "cursor",
        "delivery",
        "id",
        "keeper",
        "not_before",
        "problem",
        "queue",
        "resting",
        "revision",
        "state",
        "state_revision",
        "status",
        "task",
        "wanted",
    )

    def __init__(self, subscription: Subscription, revision: int, wanted: Filter | None, problem: str) -> None:
        self.id = subscription.id
        self.delivery: Literal["push", "pull"] = subscription.wanted.delivery  # does not change
        self.subscription = subscription
        self.revision = revision
        self.wanted = wanted  # None if the event type or its fields are not what they were
        self.problem = problem  # why nothing is delivered now; empty if nothing stands in the way
        self.state = State(next=1)
        self.state_revision = 0
        self.cursor: Cursor | None = None
        self.task: asyncio.Task[None] | None = None  # delivers, or tries to
        self.not_before = 0.0  # of the loop's clock: a limit of rates
        self.resting = False  # it is about to be stopped or changed: nothing new is sent
        self.queue: Any = None  # of a subscription that is pulled
        self.keeper: Keeper | None = None  # while it is served
        self._saved: asyncio.Future[None] | None = None

    @property
    def subscription(self) -> Subscription:
        """The subscription as it is now."""
        return _unpack(self._packed)

    @subscription.setter
    def subscription(self, changed: Subscription) -> None:
        self._packed = bytes(memoryview(_pack(changed)))  # a copy without the room that the encoder has left over
        self.status: Status = changed.status

    @property
    def definition(self) -> Definition:
        return self.subscription.wanted

    def tick(self, now: float) -> float | None:
        """Go on (called by the timers)."""
        self.ready()
        return None

    def ready(self) -> None:
        """Look whether there is something to deliver."""
        if self.keeper is not None:
            self.keeper.wake(self)

    def note_gap(self, gap: Gap) -> None:
        """Say that retention was faster."""
        if self.keeper is not None:
            self.keeper.note_gap(self, gap)

    def abort(self) -> None:
        """Do nothing: whoever woke it up will again."""

    async def rest(self, seconds: float) -> None:
        """Begin nothing new, and wait for the request that is under way: its answer need not be lost."""
        self.resting = True
        if self.task is not None and self.task is not asyncio.current_task():
            await asyncio.wait((self.task,), timeout=seconds)

    def close(self) -> None:
        """Stop reading and delivering."""
        self.resting = False
        if self.task is not None:
            self.task.cancel()
            self.task = None
        if self.cursor is not None:
            self.cursor.close()
            self.cursor = None


class Tally:
    """What subscriptions have done since the start."""

    def __init__(self) -> None:
        self.delivered = {"push": 0, "pull": 0}  # notifications that were acknowledged
        self.requests = {"ok": 0, "failed": 0}  # to sinks
        self.retries = 0  # requests that repeated an earlier one
        self.redelivered = 0  # pulled notifications whose lease ended
        self.parked = {"push": 0, "pull": 0}
        self.gaps = 0  # times that retention was faster
        self.fenced = 0  # states that another server had taken over
        self.refused = 0  # deliveries that the roles of the owner did not allow


class StateWriter:
    """Saves states. Whoever finds that another server has saved one lets go of the subscription."""

    def __init__(self, records: Records, server: str, on_fenced: Callable[[Active], None]) -> None:
        self._records = records
        self._server = server
        self._on_fenced = on_fenced
        self._dirty: dict[Active, None] = {}
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.failing = False

    def note(self, active: Active) -> None:
        """Save the state of a subscription soon."""
        self._dirty[active] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="subscription states")

    async def save(self, active: Active) -> None:
        """Save it now; LogUnavailable if that fails, or if another server serves the subscription."""
        if active._saved is None:
            active._saved = asyncio.get_running_loop().create_future()
        future = active._saved
        self.note(active)
        self._urgent.set()
        await asyncio.shield(future)

    def forget(self, active: Active) -> None:
        """Save nothing more of a subscription."""
        self._dirty.pop(active, None)
        self._answer(active, LogUnavailable("the subscription is gone, or is served by another server"))

    async def stop(self, seconds: float) -> bool:
        """Save what is left, for so many seconds; return whether that was enough."""
        self._stopping = True
        self._urgent.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=seconds)
        if self._task is not None:
            self._task.cancel()
        return not self._dirty

    async def _run(self) -> None:
        try:
            while self._dirty:
                if not self._stopping:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_DELAY):
                            await self._urgent.wait()
                    self._urgent.clear()
                try:
                    await self._save(list(self._dirty)[:_AT_ONCE])
                    self.failing = False
                except LogError as error:
                    if not self.failing:
                        logger.error(
                            "how far subscriptions have come cannot be saved: %s",
                            error,
                            extra={"event": "subscription.state.failed"},
                        )
                    self.failing = True
                    await asyncio.sleep(_PAUSE)
        finally:
            self._task = None

    async def _save(self, some: list[Active]) -> None:
        for active in some:
            del self._dirty[active]
            active.state.by = self._server
        changes = [Change(state_key(each.id), _encode(each.state), each.state_revision) for each in some]
        waiting = [(each, each._saved) for each in some]
        for each in some:
            each._saved = None
        try:
            revisions = await self._records.save(changes)
        except (Exception, asyncio.CancelledError) as error:
            for active, future in waiting:
                self._dirty[active] = None
                if future is not None and not future.done():
                    future.set_exception(LogUnavailable(str(error)))
                    future.exception()  # whoever waited may have left
            raise
        for (active, future), revision in zip(waiting, revisions, strict=True):
            if revision is None:
                self.forget(active)
                if future is not None and not future.done():
                    future.set_exception(LogUnavailable("another server serves this subscription"))
                    future.exception()
                self._on_fenced(active)
                continue
            active.state_revision = revision
            if future is not None and not future.done():
                future.set_result(None)

    @staticmethod
    def _answer(active: Active, error: LogError) -> None:
        future, active._saved = active._saved, None
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()
