"""Pull: a queue of work that several workers share, each notification with one of them at a time.

Everything that changes the queue is an operation on its state. Operations that arrive together are applied together
and saved once; when another server has changed the queue meanwhile, they are applied again to what it has become.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from aviso_server.delivery.hub import Hub
from aviso_server.errors import InvalidRequest, LogError, LogUnavailable
from aviso_server.log.base import Change, Records
from aviso_server.model.times import SECOND, Span
from aviso_server.subscriptions.active import Active, Tally, state_key
from aviso_server.subscriptions.cursor import Cursor, read_events
from aviso_server.subscriptions.dead_letters import DeadLetter, DeadLetters
from aviso_server.subscriptions.rates import OwnerRates
from aviso_server.subscriptions.receipts import close_overdue, collect, next_deadline
from aviso_server.subscriptions.subscription import Gap, Leased, State

__all__ = ["Puller", "Queue", "Work"]

T = TypeVar("T")
Operation = Callable[[State], T]

_ROUNDS = 50  # of applying operations that others get in the way of
_MAX_BYTES = 8 * 1024 * 1024  # of one answer
_NEVER = 2**62
_ALL = Span()
_SHORTEST_PAUSE = 0.005  # seconds
_FILL_SECONDS = 5.0  # that a worker waits for the log, even if it does not want to wait
_HEARING = 0.25  # seconds before we look again whether we have heard of a change
_READ_PAUSE = 1.0  # seconds before the log is read again after an error
_NEAR = 32  # sequences that lie between two others and are read along with them
_READ_AT_ONCE = 128  # sequences
_PARKED_AT_ONCE = 100


class Work(msgspec.Struct, frozen=True):
    """A notification that a worker has for a while."""

    lease: str
    attempt: int
    event: msgspec.Raw


class Queue:
    """What the workers of one subscription share: operations that wait to be applied, and the reading of the log."""

    def __init__(self) -> None:
        self.operations: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self.saving: asyncio.Task[None] | None = None
        self.filling: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()  # there may be something for a worker

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
        follow: Callable[[Active], Awaitable[None]],
        learn: Callable[[Active], Awaitable[None]],
        origin: str,
        server: str,
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
        self._follow = follow
        self._learn = learn
        self._origin = origin
        self._server = server
        self._closing = False

    def end_waits(self, actives: Iterable[Active]) -> None:
        """Answer all workers that wait, and let nobody wait any more: the server is about to stop."""
        self._closing = True
        for active in actives:
            self.wake(active)

    def wake(self, active: Active) -> None:
        """Tell workers that there may be something for them."""
        if active.queue is not None:
            active.queue.wake()

    async def pull(self, active: Active, most: int, wait: float, lease_seconds: int) -> list[Work]:
        """Lease up to `most` notifications, the oldest first; wait up to `wait` seconds for the first.

        LogError if the log cannot be read, InvalidRequest if the owner may not read it. An empty list if there is
        nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            changed = self._queue(active).changed
            await self._follow(active)
            reason = await self._guard(active)
            if reason is not None:
                active.problem = reason
                self._tally.refused += 1
                raise InvalidRequest(reason)
            unheard = active.state.edition > active.subscription.edition  # another server has changed what is wanted
            pause = self._rates.pause(active) or unheard * _HEARING
            found = [] if pause else await self._lease(active, most, lease_seconds)
            now = loop.time()
            if found or now >= deadline or active.cursor is None or self._closing:
                return found
            self._fill(active, most)
            pause = min(deadline - now, pause or self._until_due(active))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(pause, _SHORTEST_PAUSE)):
                    await changed.wait()

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
        if active.state.parked:
            await self._remove_letters(active, [_sequence(x) for x, ok in zip(leases, found, strict=True) if ok])
        self.wake(active)
        return found

    async def nack(self, active: Active, leases: Sequence[str], delay: float) -> list[bool]:
        """Hand these back: others may have them after `delay` seconds."""
        found = await self._put_off(active, leases, int(delay * SECOND), keep=False)
        self.wake(active)
        return found

    async def extend(self, active: Active, leases: Sequence[str], seconds: int) -> list[bool]:
        """Keep these for so many seconds from now on."""
        return await self._put_off(active, leases, seconds * SECOND, keep=True)

    async def _put_off(self, active: Active, leases: Sequence[str], delay: int, keep: bool) -> list[bool]:
        """Have leases end after a delay in nanoseconds; with `keep` the worker has them until then."""

        def put_off(state: State) -> list[bool]:
            until = self._clock() + delay
            found = []
            for lease in leases:
                known = _take(state, lease)
                if known is not None:
                    state.leased[_sequence(lease)] = Leased(known.attempts, until, known.token if keep else "")
                found.append(known is not None)
            return found

        return await self._apply(active, put_off)

    async def release(self, active: Active, sequences: Iterable[int]) -> None:
        """Give dead letters to the workers once more."""

        def again(state: State) -> None:
            for sequence in sequences:
                state.leased.setdefault(sequence, Leased(0, 0, ""))

        await self._apply(active, again)
        self.wake(active)

    async def change(self, active: Active, change: Operation[T]) -> T:
        """Change the state of a subscription and save it."""
        return await self._apply(active, change)

    def close(self, active: Active) -> None:
        """Stop reading for a subscription that is paused or gone; operations that were begun are saved all the same."""
        queue: Queue | None = active.queue
        if queue is not None:
            if queue.filling is not None:
                queue.filling.cancel()
                queue.filling = None  # one that has not begun yet never notes its end
            queue.wake()

    # Leases

    async def _lease(self, active: Active, most: int, seconds: int) -> list[Work]:
        await self._park_exhausted(active)
        again = await self._read_due(active, most)
        cursor = active.cursor
        if cursor is None:
            return []
        wish, name, edition = active.definition.complete, active.definition.name, active.subscription.edition
        if len(cursor.waiting) + len(again) < most or not active.state.has_learned(wish):
            await self._fill_now(active, most)
        if not active.state.has_learned(wish) or (wish is None and not again and not cursor.waiting):
            return []

        def lease(state: State) -> list[tuple[int, Leased, bytes]]:
            now, taken, size = self._clock(), list[tuple[int, Leased, bytes]](), 0
            if state.edition != edition:
                return taken
            until, token = now + seconds * SECOND, secrets.token_hex(8)

            def take(sequence: int, attempts: int, body: bytes) -> None:
                nonlocal size
                state.leased[sequence] = leased = Leased(attempts, until, token)
                taken.append((sequence, leased, body))
                size += len(body)

            def is_full() -> bool:
                return len(taken) >= most or size >= _MAX_BYTES

            for sequence, body in again.items():
                known = state.leased.get(sequence)
                if is_full():
                    return taken
                if known is None or known.until > now:
                    continue  # somebody else was faster
                if body is None:
                    del state.leased[sequence]  # it was deleted or wiped, or retention was faster
                else:
                    take(sequence, known.attempts + 1, body)
            waiting = [] if active.cursor is None else active.cursor.waiting_from(state.next)
            if wish is not None:
                if waiting:
                    collect(state, wish, waiting, self._origin, name)
                elif active.cursor is not None and active.cursor.live:
                    close_overdue(state, wish, now, self._origin, name)
                for number in sorted(state.outbox.keys() - state.leased.keys(), reverse=True):
                    if is_full():
                        break
                    take(number, 1, state.outbox[number].encode())
                return taken
            for event in waiting:
                if is_full() or len(state.leased) >= self._max_in_flight:
                    break
                take(event.sequence, 1, event.body)
                state.next = event.sequence + 1
            return taken

        taken: list[tuple[int, Leased, bytes]] = []
        reached = -1
        while not taken and active.state.next > reached:  # many events may make one receipt
            reached = active.state.next
            taken = await self._apply(active, lease)
            if active.cursor is not None:
                active.cursor.drop_before(active.state.next)
            if wish is None:
                break
        self._rates.charge(active, len(taken), sum([len(body) for _, _, body in taken]))
        self._tally.redelivered += sum([each.attempts > 1 for _, each, _ in taken])
        return [Work(f"{sequence}.{each.token}", each.attempts, msgspec.Raw(body)) for sequence, each, body in taken]

    async def _fill_now(self, active: Active, most: int) -> None:
        """Read on, but wait no longer than a moment for it."""
        task = self._fill(active, most)
        if task is not None:
            await asyncio.wait((task,), timeout=_FILL_SECONDS)

    def _fill(self, active: Active, most: int) -> asyncio.Task[None] | None:
        queue, cursor = self._queue(active), active.cursor
        learned = active.state.has_learned(active.definition.complete)
        if queue.filling is None and cursor is not None and not (cursor.live and learned):
            queue.filling = asyncio.create_task(self._read(active, queue, cursor, most))
        return queue.filling

    async def _read(self, active: Active, queue: Queue, cursor: Cursor, most: int) -> None:
        try:
            await self._learn(active)
            await cursor.fill(most)
            active.problem = ""
        except LogError as error:
            active.problem = f"the log cannot be used: {error}"
            await asyncio.sleep(_READ_PAUSE)
        finally:
            if queue.filling is asyncio.current_task():
                queue.filling = None
            queue.wake()

    def _until_due(self, active: Active) -> float:
        """Return the seconds until a lease ends."""
        now = self._clock()
        first = min((each.until for each in active.state.leased.values() if each.until > now), default=_NEVER)
        if active.definition.complete is not None:
            first = min(first, next_deadline(active.state, active.definition.complete) or _NEVER)
        return max(0.0, (first - now) / SECOND)

    async def _read_due(self, active: Active, most: int) -> dict[int, bytes | None]:
        """Read what others may have again, the oldest first; None for what was deleted or wiped."""
        now = self._clock()
        due = sorted([sequence for sequence, each in active.state.leased.items() if each.until <= now])
        return await self._read_bodies(active, due[:most]) if due else {}

    async def _read_bodies(self, active: Active, sequences: Sequence[int]) -> dict[int, bytes | None]:
        """Read the events of ascending sequences, about as many bytes as an answer may have."""
        found: dict[int, bytes | None] = {}
        size = 0
        for run in _runs(sequences):
            bodies: dict[int, bytes] = {}
            if run[-1] > 0 and active.wanted is not None:
                # whatever the filter is by now: they were leased under an earlier one, perhaps
                anything = msgspec.structs.replace(active.wanted, equals=(), tests=(), area=None)
                events = await read_events(self._hub, anything, max(run[0], 1), run[-1])
                bodies = {event.sequence: event.body for event in events}
            lost = 0  # up to here retention was faster
            if active.wanted is not None and any(each > 0 and each not in bodies for each in run):
                lost = (await self._hub.store.bounds(active.wanted.stream, _ALL)).trimmed
            for sequence in run:
                body = bodies.get(sequence)
                if sequence in active.state.outbox:
                    body = active.state.outbox[sequence].encode()
                elif active.state.parked and (letter := await self._letters.find(active.id, sequence)) is not None:
                    body = bytes(letter.event)
                if body is None and sequence <= lost:
                    active.note_gap(Gap(sequence, sequence))
                found[sequence] = body
                size += len(body or b"")
                if size >= _MAX_BYTES:
                    return found
        return found

    async def _park_exhausted(self, active: Active) -> None:
        """Keep what was tried too often as dead letters."""
        most, now = active.definition.attempts, self._clock()
        late = [
            sequence
            for sequence, each in active.state.leased.items()
            if most and each.attempts >= most and each.until <= now
        ]
        late = sorted(late)[:_PARKED_AT_ONCE]
        if not late or active.state.parked + len(late) > self._max_letters:
            return
        bodies = await self._read_bodies(active, late)
        new = 0
        for sequence, body in bodies.items():
            each = active.state.leased.get(sequence)
            if each is not None and body is not None:
                letter = DeadLetter(
                    sequence, msgspec.Raw(body), each.attempts, each.until, now, 0, "no worker has acknowledged it"
                )
                new += await self._letters.keep(active.id, letter)

        def park(state: State) -> int:
            parked = [state.leased.pop(sequence, None) for sequence in bodies]
            for sequence in bodies:
                state.outbox.pop(sequence, None)
            state.parked += new
            return sum(each is not None for each in parked)

        self._tally.parked["pull"] += await self._apply(active, park)

    async def _remove_letters(self, active: Active, sequences: Sequence[int]) -> None:
        removed = sum([await self._letters.remove(active.id, sequence) for sequence in sequences])
        if removed:

            def fewer(state: State) -> None:
                state.parked = max(0, state.parked - removed)

            await self._apply(active, fewer)

    # Operations

    def _queue(self, active: Active) -> Queue:
        if active.queue is None:
            active.queue = Queue()
        queue: Queue = active.queue
        return queue

    async def _apply(self, active: Active, operation: Operation[T]) -> T:
        """Apply an operation to the state; return its answer once the state is durable."""
        queue = self._queue(active)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        queue.operations.append((operation, future))
        if queue.saving is None:
            queue.saving = asyncio.create_task(self._save(active, queue))
        return await future

    async def _save(self, active: Active, queue: Queue) -> None:
        operations: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        try:
            await asyncio.sleep(0)  # what comes in this turn is saved together
            while queue.operations:
                operations, queue.operations = queue.operations, []
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
            queue.saving = None
            for _, future in (*operations, *queue.operations):
                future.cancel()  # none, unless the server ends

    async def _save_together(self, active: Active, operations: Sequence[Operation[Any]]) -> list[Any]:
        for _ in range(_ROUNDS):
            state = active.state.copy()
            state.by = self._server
            answers = [operation(state) for operation in operations]
            change = Change(state_key(active.id), msgspec.json.encode(state), active.state_revision)
            (revision,) = await self._records.save([change])
            if revision is not None:
                state.add_gaps_of(active.state)  # found meanwhile
                active.state, active.state_revision = state, revision
                return answers
            await self._reload(active)
        raise LogUnavailable("the subscription is used by too many servers at the same moment; try again")


def _runs(sequences: Sequence[int]) -> Iterator[list[int]]:
    """Split ascending sequences into runs that are read at once."""
    run: list[int] = []
    for sequence in sequences:
        if run and (sequence > run[-1] + _NEAR or len(run) >= _READ_AT_ONCE or run[-1] < 0 < sequence):
            yield run
            run = []
        run.append(sequence)
    if run:
        yield run


def _sequence(lease: str) -> int:
    digits, _, _ = lease.partition(".")
    try:
        return int(digits[:20])
    except ValueError:
        return 0


def _take(state: State, lease: str) -> Leased | None:
    """Take a lease out of the state; None if it is not the one that holds now."""
    sequence, token = _sequence(lease), lease.partition(".")[2]
    known = state.leased.get(sequence)
    if known is None or not token or known.token != token:
        return None
    return state.leased.pop(sequence)
