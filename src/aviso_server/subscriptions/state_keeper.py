"""Subscriptions while they are served, and the keeper that makes durable how far each has come.

States are saved together, a few times a second, as far as nobody waits for them. After a crash a subscription goes on
from the state that was saved last: what was delivered since then is delivered again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.records import Change, Records
from aviso_server.model.filter import Filter
from aviso_server.subscriptions.cursor import Cursor
from aviso_server.subscriptions.subscription import Definition, State, Subscription

__all__ = ["Active", "Attempt", "Attempts", "DeadLetter", "DeadLetters", "StateKeeper", "Tally", "state_key"]

logger = logging.getLogger(__name__)

_DELAY = 0.05  # seconds that a state may be ahead of what is saved, if nobody waits for it
_PAUSE = 1.0  # seconds before another try, when the log cannot be written
_AT_ONCE = 256  # states saved together: publishers share the commit
_SHOWN_FOR = 512  # subscriptions whose last attempts are remembered
_ATTEMPTS = 10  # of each


def state_key(subscription: str) -> str:
    """Return the key of a subscription's state."""
    return f"state.{subscription}"


class Active:
    """A subscription that this server knows, at work or not."""

    __slots__ = (
        "_keeper_future",
        "cursor",
        "not_before",
        "on_tick",
        "problem",
        "retries",
        "revision",
        "state",
        "state_revision",
        "subscription",
        "task",
        "wanted",
        "worker",
    )

    def __init__(self, subscription: Subscription, revision: int, wanted: Filter | None, problem: str) -> None:
        self.subscription = subscription
        self.revision = revision
        self.wanted = wanted  # None if the event type or its fields are not what they were
        self.problem = problem  # why nothing is delivered now; empty if nothing stands in the way
        self.state = State(next=1)
        self.state_revision = 0
        self.cursor: Cursor | None = None
        self.task: asyncio.Task[None] | None = None  # delivers, or tries to
        self.not_before = 0.0  # of the loop's clock: a limit of rates
        self.retries: set[int] | None = None  # dead letters that are to be sent again
        self.worker: Any = None  # of a subscription that is pulled
        self.on_tick: Callable[[Active], None] | None = None
        self._keeper_future: asyncio.Future[None] | None = None

    @property
    def id(self) -> str:
        return self.subscription.id

    @property
    def definition(self) -> Definition:
        return self.subscription.wanted

    def tick(self, now: float) -> float | None:
        """Go on (called by the timers)."""
        if self.on_tick is not None:
            self.on_tick(self)
        return None

    def abort(self) -> None:
        """Do nothing: whoever woke it up will again."""

    def close(self) -> None:
        """Stop reading and delivering."""
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


class Attempt(msgspec.Struct, frozen=True):
    """A request to a sink and its answer, for people."""

    time: int
    webhook_id: str
    count: int
    request_headers: dict[str, str]
    request: str  # its beginning
    status: int  # 0: no answer came
    answer: str  # its beginning, or why there was none
    seconds: float


class Attempts:
    """The last attempts of the subscriptions that were busy last."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[str, deque[Attempt]] = OrderedDict()

    def add(self, subscription: str, attempt: Attempt) -> None:
        found = self._attempts.get(subscription)
        if found is None:
            found = self._attempts[subscription] = deque(maxlen=_ATTEMPTS)
            if len(self._attempts) > _SHOWN_FOR:
                self._attempts.popitem(last=False)
        found.appendleft(attempt)
        self._attempts.move_to_end(subscription)

    def of(self, subscription: str) -> list[Attempt]:
        """Return the attempts of a subscription, the newest first."""
        return list(self._attempts.get(subscription, ()))

    def forget(self, subscription: str) -> None:
        self._attempts.pop(subscription, None)


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification that could not be delivered, kept with why."""

    sequence: int
    event: msgspec.Raw
    attempts: int
    first: int  # when the first attempt failed, nanoseconds since 1970
    last: int
    status: int  # of the last answer; 0: there was none
    answer: str
    blocking: bool = False  # deliveries wait behind it


class DeadLetters:
    """The dead letters of all subscriptions, a record each."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def keep(self, subscription: str, letter: DeadLetter) -> bool:
        """Keep a letter, in place of an earlier one about the same; True if it is the first."""
        known = await self._find(subscription, letter.sequence)
        key = _letter_key(subscription, letter.sequence)
        await self._records.save([Change(key, msgspec.json.encode(letter), 0 if known is None else known[1])])
        return known is None

    async def find(self, subscription: str, sequence: int) -> DeadLetter | None:
        """Return the letter about a notification."""
        found = await self._find(subscription, sequence)
        return None if found is None else found[0]

    async def remove(self, subscription: str, sequence: int) -> bool:
        """Forget a letter; False if there is none."""
        found = await self._find(subscription, sequence)
        if found is None:
            return False
        (removed,) = await self._records.save([Change(_letter_key(subscription, sequence), b"", found[1])])
        return removed is not None

    async def all(self, subscription: str) -> list[DeadLetter]:
        """Return the letters of a subscription in order of sequences."""
        records = await self._records.load(f"dead.{subscription}.")
        letters = [msgspec.json.decode(each.value, type=DeadLetter) for each in records]
        return sorted(letters, key=lambda letter: letter.sequence)

    async def remove_all(self, subscription: str) -> None:
        """Forget the letters of a subscription."""
        records = await self._records.load(f"dead.{subscription}.")
        await self._records.save([Change(each.key, b"", each.revision) for each in records])

    async def _find(self, subscription: str, sequence: int) -> tuple[DeadLetter, int] | None:
        key = _letter_key(subscription, sequence)
        for record in await self._records.load(key):
            if record.key == key:
                return msgspec.json.decode(record.value, type=DeadLetter), record.revision
        return None


def _letter_key(subscription: str, sequence: int) -> str:
    return f"dead.{subscription}.{sequence}"


class StateKeeper:
    """Saves states. Whoever finds that another server has saved one lets go of the subscription."""

    def __init__(self, records: Records, on_fenced: Callable[[Active], None]) -> None:
        self._records = records
        self._on_fenced = on_fenced
        self._dirty: dict[Active, None] = {}
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failing = False

    def note(self, active: Active) -> None:
        """Save the state of a subscription soon."""
        self._dirty[active] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="subscription states")

    async def save(self, active: Active) -> None:
        """Save it now; LogUnavailable if that fails, or if another server serves the subscription."""
        if active._keeper_future is None:
            active._keeper_future = asyncio.get_running_loop().create_future()
        future = active._keeper_future
        self.note(active)
        self._urgent.set()
        await asyncio.shield(future)

    async def flush(self) -> None:
        """Save everything that is to be saved, once."""
        while self._dirty:
            await self._save(list(self._dirty)[:_AT_ONCE])

    def forget(self, active: Active) -> None:
        """Save nothing more of a subscription."""
        self._dirty.pop(active, None)
        self._answer(active, LogUnavailable("the subscription is gone, or is served by another server"))

    async def stop(self) -> None:
        """Stop saving."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while self._dirty:
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
        changes = [Change(state_key(each.id), _encode(each.state), each.state_revision) for each in some]
        waiting = [(each, each._keeper_future) for each in some]
        for each in some:
            each._keeper_future = None
        try:
            revisions = await self._records.save(changes)
        except LogError as error:
            for active, future in waiting:
                self._dirty[active] = None
                if future is not None and not future.done():
                    future.set_exception(type(error)(*error.args))
                    future.exception()  # whoever waited may have left
            raise
        for (active, future), revision in zip(waiting, revisions, strict=True):
            if revision is None:
                self._dirty.pop(active, None)
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
        future, active._keeper_future = active._keeper_future, None
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()


_encode = msgspec.json.Encoder().encode
