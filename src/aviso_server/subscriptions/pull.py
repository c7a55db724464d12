"""Pull: a queue of work that several workers share, each notification with one of them at a time.

Everything that changes the queue is an operation on its state. Operations that arrive together are applied together
and saved once; when another server has changed the queue meanwhile, they are applied again to what it has become.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from aviso_server.delivery.hub import Hub
from aviso_server.errors import InvalidRequest, LogError, LogUnavailable
from aviso_server.log.records import Change, Records
from aviso_server.model.times import SECOND
from aviso_server.subscriptions.active import Active, Tally, state_key
from aviso_server.subscriptions.cursor import read_events
from aviso_server.subscriptions.dead_letters import DeadLetter, DeadLetters
from aviso_server.subscriptions.rates import OwnerRates
from aviso_server.subscriptions.receipts import close_overdue, collect, next_deadline
from aviso_server.subscriptions.subscription import Leased, State

__all__ = ["Puller", "Work", "Worker"]

T = TypeVar("T")
Operation = Callable[[State], T]

_ROUNDS = 50  # of applying operations that others get in the way of
_MAX_BYTES = 8 * 1024 * 1024  # of one answer
_NEVER = 2**62
_FILL_SECONDS = 5.0  # that a worker waits for the log, even if it does not want to wait
_READ_PAUSE = 1.0  # seconds before the log is read again after an error


class Work(msgspec.Struct, frozen=True):
    """A notification that a worker has for a while."""

    lease: str
    attempt: int
    event: msgspec.Raw


class Worker:
    """What serves the workers of one subscription: its operations, and the events that it has read."""

    def __init__(self) -> None:
        self.operations: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self.task: asyncio.Task[None] | None = None
        self.filling: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()  # there may be something for a worker
        self.bodies: dict[int, bytes] = {}  # of what is leased
        self.waiting = 0  # workers

    def wake(self) -> None:
        """Have everybody who waits look again."""
        self.changed.set()
        self.changed = asyncio.Event()


class Puller:
    """Serves the pull subscriptions of this server."""

    def __init__(
        self,
        hub: Hub,
        records: Records,
        letters: DeadLetters,
        rates: OwnerRates,
        tally: Tally,
        clock: Callable[[], int],
        max_in_flight: int,
        max_letters: int,
        guard: Callable[[Active], Awaitable[str | None]],
        reload: Callable[[Active], Awaitable[None]],
        learn: Callable[[Active], Awaitable[None]],
        origin: str,
    ) -> None:
        self._hub = hub
        self._records = records
        self._letters = letters
        self._rates = rates
        self._tally = tally
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._max_letters = max_letters
        self._guard = guard
        self._reload = reload
        self._learn = learn
        self._origin = origin

    def wake(self, active: Active) -> None:
        """Tell workers that there may be something for them."""
        if active.worker is not None:
            active.worker.wake()

    async def pull(self, active: Active, most: int, wait: float, lease_seconds: int) -> list[Work]:
        """Lease up to `most` notifications, the oldest first; wait up to `wait` seconds for the first.

        LogError if the log cannot be read. An empty list if there is nothing, or if the owner may not read it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        worker = self._worker(active)
        worker.waiting += 1
        try:
            while True:
                changed = worker.changed
                reason = await self._guard(active)
                if reason is not None:
                    active.problem = reason
                    self._tally.refused += 1
                    raise InvalidRequest(reason)
                found = await self._lease(active, most, lease_seconds)
                if found or loop.time() >= deadline or active.cursor is None:
                    return found
                pause = min(deadline, loop.time() + self._until_due(active)) - loop.time()
                self._fill(active, most)
                try:
                    async with asyncio.timeout(max(pause, 0.005)):
                        await changed.wait()
                except TimeoutError:
                    pass
        finally:
            worker.waiting -= 1

    async def ack(self, active: Active, leases: Sequence[str]) -> list[bool]:
        """Note that these are done; False for a lease that is not known any more."""

        def done(state: State) -> list[bool]:
            found = [_take(state, lease) is not None for lease in leases]
            for lease, known in zip(leases, found, strict=True):
                if known:
                    state.outbox.pop(_sequence(lease), None)
            state.delivered += sum(found)
            return found

        found = await self._apply(active, done)
        self._tally.delivered["pull"] += sum(found)
        worker = self._worker(active)
        for lease, known in zip(leases, found, strict=True):
            if known:
                worker.bodies.pop(_sequence(lease), None)
        if active.state.parked:
            await self._remove_letters(active, [_sequence(x) for x, ok in zip(leases, found, strict=True) if ok])
        worker.wake()
        return found

    async def nack(self, active: Active, leases: Sequence[str], delay: float) -> list[bool]:
        """Hand these back: others may have them after `delay` seconds."""

        def back(state: State) -> list[bool]:
            until = self._clock() + int(delay * SECOND)
            found = []
            for lease in leases:
                known = _take(state, lease)
                if known is not None:
                    state.leased[_sequence(lease)] = Leased(known.attempts, until, "")
                found.append(known is not None)
            return found

        found = await self._apply(active, back)
        self._worker(active).wake()
        return found

    async def extend(self, active: Active, leases: Sequence[str], seconds: int) -> list[bool]:
        """Keep these for so many seconds from now on."""

        def longer(state: State) -> list[bool]:
            until = self._clock() + seconds * SECOND
            found = []
            for lease in leases:
                known = _take(state, lease)
                if known is not None:
                    state.leased[_sequence(lease)] = Leased(known.attempts, until, known.token)
                found.append(known is not None)
            return found

        return await self._apply(active, longer)

    async def release(self, active: Active, sequences: Iterable[int]) -> None:
        """Give dead letters to the workers once more."""

        def again(state: State) -> None:
            for sequence in sequences:
                state.leased.setdefault(sequence, Leased(0, 0, ""))

        await self._apply(active, again)
        self._worker(active).wake()

    async def change(self, active: Active, change: Operation[T]) -> T:
        """Change the state of a subscription and save it."""
        return await self._apply(active, change)

    def close(self, active: Active) -> None:
        """Let go of a subscription that is paused or gone."""
        worker: Worker | None = active.worker
        if worker is not None:
            for task in (worker.filling, worker.task):
                if task is not None:
                    task.cancel()
            for _, future in worker.operations:
                future.cancel()
            worker.wake()
            active.worker = None

    # Leases

    async def _lease(self, active: Active, most: int, seconds: int) -> list[Work]:
        await self._park_exhausted(active)
        worker, cursor = self._worker(active), active.cursor
        if cursor is None:
            return []
        asked = self._clock()
        due = [sequence for sequence, each in active.state.leased.items() if each.until <= asked]
        missing = [sequence for sequence in sorted(due)[:most] if sequence not in worker.bodies]
        gone = await self._read_bodies(active, missing) if missing else set()
        if len(cursor.waiting) + len(due) < most:
            await self._fill_now(active, most)
        wish, name = active.definition.complete, active.definition.name
        if wish is not None:
            await self._learn(active)
        elif not due and not cursor.waiting:
            return []

        def lease(state: State) -> list[tuple[int, Leased]]:
            now, taken = self._clock(), list[tuple[int, Leased]]()
            until, token = now + seconds * SECOND, secrets.token_hex(8)
            size = 0
            for sequence in gone:
                state.leased.pop(sequence, None)
            for sequence in sorted([number for number, each in state.leased.items() if each.until <= now]):
                each = state.leased[sequence]
                if len(taken) >= most:
                    break
                if (body := worker.bodies.get(sequence)) is not None:
                    state.leased[sequence] = Leased(each.attempts + 1, until, token)
                    taken.append((sequence, state.leased[sequence]))
                    size += len(body)
            if active.cursor is None:
                return taken
            if wish is not None:
                fresh = [event for event in active.cursor.waiting if event.sequence >= state.next]
                if fresh:
                    collect(state, wish, fresh, self._origin, name)
                elif active.cursor.live:
                    close_overdue(state, wish, now, self._origin, name)
                for number in sorted(state.outbox.keys() - state.leased.keys(), reverse=True)[: most - len(taken)]:
                    worker.bodies[number] = state.outbox[number].encode()
                    state.leased[number] = Leased(1, until, token)
                    taken.append((number, state.leased[number]))
                return taken
            for event in active.cursor.waiting:
                if len(taken) >= most or len(state.leased) >= self._max_in_flight or (taken and size > _MAX_BYTES):
                    break
                if event.sequence < state.next:
                    continue
                worker.bodies[event.sequence] = event.body
                state.leased[event.sequence] = Leased(1, until, token)
                taken.append((event.sequence, state.leased[event.sequence]))
                state.next = event.sequence + 1
                size += len(event.body)
            return taken

        taken = await self._apply(active, lease)
        self._drop_taken(active)
        found = []
        for sequence, each in taken:
            body = worker.bodies.get(sequence)
            if body is not None:
                self._tally.redelivered += each.attempts > 1
                found.append(Work(f"{sequence}.{each.token}", each.attempts, msgspec.Raw(body)))
        return found

    def _drop_taken(self, active: Active) -> None:
        """Drop what was handed out, here or by another server."""
        cursor, reached = active.cursor, active.state.next
        if cursor is not None and cursor.waiting:
            cursor.drop(sum(1 for event in cursor.waiting if event.sequence < reached))

    async def _fill_now(self, active: Active, most: int) -> None:
        """Read on, but wait no longer than a moment for it."""
        task = self._fill(active, most)
        if task is not None:
            await asyncio.wait((task,), timeout=_FILL_SECONDS)

    def _fill(self, active: Active, most: int) -> asyncio.Task[None] | None:
        worker = self._worker(active)
        if worker.filling is None and active.cursor is not None and not active.cursor.live:
            worker.filling = asyncio.create_task(self._read(active, worker, most))
        return worker.filling

    async def _read(self, active: Active, worker: Worker, most: int) -> None:
        try:
            if active.cursor is not None:
                await active.cursor.fill(most)
            active.problem = ""
        except LogError as error:
            active.problem = f"the log cannot be used: {error}"
            await asyncio.sleep(_READ_PAUSE)
        finally:
            worker.filling = None
            worker.wake()

    def _until_due(self, active: Active) -> float:
        """Return the seconds until a lease ends."""
        now = self._clock()
        first = min((each.until for each in active.state.leased.values() if each.until > now), default=_NEVER)
        if active.definition.complete is not None:
            first = min(first, next_deadline(active.state, active.definition.complete) or _NEVER)
        return max(0.0, (first - now) / SECOND)

    async def _read_bodies(self, active: Active, sequences: Sequence[int]) -> set[int]:
        """Read events that were leased before a restart or by another server; return those that are gone."""
        gone: set[int] = set()
        worker = self._worker(active)
        assert active.wanted is not None  # it has a cursor
        for sequence in sequences:
            if sequence in active.state.outbox:
                worker.bodies[sequence] = active.state.outbox[sequence].encode()
                continue
            if active.state.parked and (letter := await self._letters.find(active.id, sequence)) is not None:
                worker.bodies[sequence] = bytes(letter.event)
                continue
            found = await read_events(self._hub, active.wanted, sequence, sequence)
            if found:
                worker.bodies[sequence] = found[0].body
            else:
                gone.add(sequence)  # deleted or wiped
        return gone

    async def _park_exhausted(self, active: Active) -> None:
        """Keep what was tried too often as dead letters."""
        most, now = active.definition.attempts, self._clock()
        if not most:
            return
        late = [
            sequence for sequence, each in active.state.leased.items() if each.attempts >= most and each.until <= now
        ]
        if not late or active.state.parked + len(late) > self._max_letters:
            return
        worker = self._worker(active)
        await self._read_bodies(active, [sequence for sequence in late if sequence not in worker.bodies])
        for sequence in late:
            each, body = active.state.leased.get(sequence), worker.bodies.get(sequence)
            if each is None or body is None:
                continue
            letter = DeadLetter(
                sequence, msgspec.Raw(body), each.attempts, each.until, now, 0, "no worker has acknowledged it"
            )
            await self._letters.keep(active.id, letter)

        def park(state: State) -> int:
            parked = [state.leased.pop(sequence, None) for sequence in late]
            for sequence in late:
                state.outbox.pop(sequence, None)
            count = sum(each is not None for each in parked)
            state.parked += count
            return count

        self._tally.parked["pull"] += await self._apply(active, park)
        for sequence in late:
            worker.bodies.pop(sequence, None)

    async def _remove_letters(self, active: Active, sequences: Sequence[int]) -> None:
        removed = sum([await self._letters.remove(active.id, sequence) for sequence in sequences])
        if removed:

            def fewer(state: State) -> None:
                state.parked = max(0, state.parked - removed)

            await self._apply(active, fewer)

    # Operations

    def _worker(self, active: Active) -> Worker:
        if active.worker is None:
            active.worker = Worker()
        worker: Worker = active.worker
        return worker

    async def _apply(self, active: Active, operation: Operation[T]) -> T:
        """Apply an operation to the state; return its answer once the state is durable."""
        worker = self._worker(active)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        worker.operations.append((operation, future))
        if worker.task is None:
            worker.task = asyncio.create_task(self._save(active, worker))
        return await future

    async def _save(self, active: Active, worker: Worker) -> None:
        try:
            await asyncio.sleep(0)  # what comes in this turn is saved together
            while worker.operations:
                operations, worker.operations = worker.operations, []
                try:
                    answers = await self._save_together(active, [each for each, _ in operations])
                except Exception as error:
                    for _, future in operations:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), answer in zip(operations, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            worker.task = None

    async def _save_together(self, active: Active, operations: Sequence[Operation[Any]]) -> list[Any]:
        for _ in range(_ROUNDS):
            state = active.state.copy()
            answers = [operation(state) for operation in operations]
            change = Change(state_key(active.id), msgspec.json.encode(state), active.state_revision)
            (revision,) = await self._records.save([change])
            if revision is not None:
                active.state, active.state_revision = state, revision
                return answers
            await self._reload(active)
        raise LogUnavailable("the subscription is used by too many servers at the same moment; try again")


def _sequence(lease: str) -> int:
    digits, _, _ = lease.partition(".")
    try:
        return int(digits[:20])
    except ValueError:
        return 0


def _take(state: State, lease: str) -> Leased | None:
    """Take a lease out of the state; None if it is not the one that holds now."""
    sequence, _, token = lease.partition(".")
    known = state.leased.get(_sequence(sequence))
    if known is None or not token or known.token != token:
        return None
    return state.leased.pop(_sequence(lease))
