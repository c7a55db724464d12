"""All subscriptions of a server: made, changed and removed here, and served by whichever server holds them.

On a log that several servers share, each writes a sign of life every few seconds. A subscription names the server that
serves it in its state; when that server has given no sign of life for a while, another one takes over by writing its
own name there. The write names the revision that it replaces, so one of several wins, and whatever the former server
still writes is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from aviso_server.delivery.hub import Hub, Timers
from aviso_server.errors import InvalidRequest, LogError, LogUnavailable, RequestError
from aviso_server.log.base import Change, Record
from aviso_server.model.event_type import Catalogue, EventType, read_point
from aviso_server.model.filter import Filter
from aviso_server.model.times import SECOND, Span
from aviso_server.subscriptions.active import Active, StateWriter, Tally, state_key
from aviso_server.subscriptions.cursor import Cursor, event_chunks
from aviso_server.subscriptions.dead_letters import DeadLetter, DeadLetters
from aviso_server.subscriptions.lag import idle_place
from aviso_server.subscriptions.names import Names, NameTaken
from aviso_server.subscriptions.pull import Puller
from aviso_server.subscriptions.push import Attempt, Pusher, RetryPolicy
from aviso_server.subscriptions.rates import OwnerRates
from aviso_server.subscriptions.receipts import Sets, learn, learned
from aviso_server.subscriptions.signatures import Vault
from aviso_server.subscriptions.sinks import SinkClient, check_headers
from aviso_server.subscriptions.subscription import (
    Definition,
    Gap,
    Owner,
    State,
    Status,
    Subscription,
    check_definition,
)

__all__ = ["Limits", "NoSuchSubscription", "Subscriptions", "TooMany"]

logger = logging.getLogger(__name__)

_OVERLAP = 24 * 3600 * SECOND  # nanoseconds that a former secret signs beside the new one
_MAX_FORMER = 3  # of them at a time
_IDLE_SECONDS = 30.0  # how often the places of idle subscriptions are saved
_IDLE_STEP = 100  # sequences that an idle one has to be further for that
_LEARNED_AT_ONCE = 50_000  # sequences before the start of a subscription that are looked at first
_LEARNED_FROM = 5_000_000  # sequences that are looked at in all
_OF_AN_EDITION = ("identifier", "batch", "complete")  # which notifications come, and which of them together
_ROUNDS = 50  # of changing something that another server changes too
_HEARTBEAT = 1.0  # seconds between two signs of life
_DEAD_AFTER = 4 * _HEARTBEAT  # seconds without one
_FORGOTTEN_AFTER = 60.0  # seconds: then its record is removed
_AT_ONCE = 256  # subscriptions that are looked at in one turn
_GRACE = 2.0  # seconds that a request to a sink has to end before a subscription is stopped
_STOP_SECONDS = 5.0  # for saving how far everything has come
_STOP_ROUNDS = 3  # of it, as long as other servers change something at the same moment

Guard = Callable[[Subscription, Filter], Awaitable[str | None]]
"""Says why the owner of a subscription may not have what it wants; None if they may."""


class NoSuchSubscription(Exception):
    """There is none of that name, or it is somebody else's."""


class TooMany(Exception):
    """A limit is reached; the text says which."""


class Limits(msgspec.Struct, frozen=True):
    """How much subscriptions may take."""

    per_user: int = 100
    total: int = 100_000
    dead_letters: int = 1000
    in_flight: int = 1000
    notifications_per_second: int | None = None
    bytes_per_second: int | None = None
    retries: RetryPolicy = RetryPolicy()


class Subscriptions:
    """Keeps the subscriptions and serves those that are this server's."""

    def __init__(
        self,
        hub: Hub,
        catalogue: Catalogue,
        client: SinkClient,
        vault: Vault | None,
        limits: Limits,
        origin: str,
        guard: Guard,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._hub = hub
        self._records = hub.store.log.records
        self._catalogue = catalogue
        self._client = client
        self._vault = vault  # None: nothing can be pushed, because nobody has configured a key
        self._limits = limits
        self._clock = clock
        self._guard = guard
        self.server = secrets.token_hex(8)
        self.tally = Tally()
        self.letters = DeadLetters(self._records)
        self._actives: dict[str, Active] = {}
        self._names = Names(self._records, clock)
        self._timers = Timers()
        self._states = StateWriter(self._records, self.server if self._records.shared else "", self._fenced)
        rates = OwnerRates(limits.notifications_per_second, limits.bytes_per_second)
        self.pusher = Pusher(
            client,
            vault or Vault(secrets.token_bytes(32)),
            self._states,
            self.letters,
            self._timers,
            rates,
            self.tally,
            clock,
            limits.retries,
            origin,
            limits.dead_letters,
            self._allowed,
            self._sink_is_gone,
            self._learn,
        )
        self.puller = Puller(
            hub,
            self._records,
            self.letters,
            rates,
            self.tally,
            clock,
            limits.in_flight,
            limits.dead_letters,
            self._allowed,
            self._reload_state,
            self._follow,
            self._learn,
            origin,
            self.server if self._records.shared else "",
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = 0  # the newest revision that was looked at
        self._alive: dict[str, tuple[int, float]] = {}  # other servers: revision of their sign of life, and when seen
        self._sign_revision = 0
        self._fenced_off: set[Active] = set()  # others have changed their states, which are to be read
        self._started = False

    # Life

    async def start(self) -> None:
        """Load all subscriptions and begin to serve them; LogError if they cannot be loaded."""
        await self._take_in(await self._records.changed(0))
        self._started = True
        await self._give_sign()
        self._tasks = [
            asyncio.create_task(self._timers.run(), name="subscription timers"),
            asyncio.create_task(self._look_after(), name="subscriptions"),
        ]
        if self._records.shared:
            self._tasks.append(asyncio.create_task(self._stay_in_touch(), name="subscription leases"))

    async def stop(self) -> None:
        """Stop delivering, and save how far everything has come."""
        if not self._started:
            return
        self._started = False
        await asyncio.gather(*[active.rest(_GRACE) for active in self._actives.values() if active.task is not None])
        await self._save_places(0)
        for task in self._tasks:
            task.cancel()
        if not await self._hand_back():
            logger.warning(
                "how far subscriptions have come was not saved in time", extra={"event": "subscription.state.failed"}
            )
        self._client.close()

    async def _hand_back(self) -> bool:
        """Save all states, free for other servers to take; return whether there was time for it."""
        saved = False
        for _ in range(_STOP_ROUNDS):
            for active in list(self._actives.values()):
                self._release(active)
                if self._records.shared and active.state.server == self.server:
                    active.state.server = ""
                    if active.delivery == "push":
                        self._states.note(active)
            saved = await self._states.stop(_STOP_SECONDS)
            if not self._fenced_off:
                break
            for active in self._fenced_off:  # others have asked for something and not seen how far we are
                with suppress(LogError):
                    await self._reload_state(active)
            self._fenced_off = set()
        return saved

    # What there is

    def __len__(self) -> int:
        return len(self._actives)

    @property
    def all(self) -> Collection[Active]:
        """All subscriptions that this server knows."""
        return self._actives.values()

    def visible_to(self, owner: Owner, after: str = "") -> Iterator[Active]:
        """Yield what somebody may see, in order of names, behind `after`: their own, or all for administrators."""
        for identity in self._names.ids(None if owner.admin else owner.key, after):
            if (active := self._actives.get(identity)) is not None:  # one that is being made is not there yet
                yield active

    def find(self, owner: Owner, name: str) -> Active:
        """Find one by its name, or by its id; NoSuchSubscription if it is not there or somebody else's."""
        active = self._actives.get(self._names.of(owner.key).get(name, name))
        if active is None or not (owner.admin or active.subscription.owner.key == owner.key):
            raise NoSuchSubscription(name)
        return active

    def served(self) -> list[Active]:
        """Return the active ones that this server delivers, or that workers came to it for last."""
        alive = self._alive_now() if self._records.shared else set[str]()
        return [each for each in self._actives.values() if each.status == "active" and self._serves(each, alive)]

    def _serves(self, active: Active, alive: Collection[str]) -> bool:
        if not self._records.shared:
            return True
        state = active.state
        holder = state.server if active.delivery == "push" else state.by or state.server
        return holder == self.server if holder in alive else self._is_heir(active, alive)

    # Changes

    async def create(self, wanted: Definition, owner: Owner, span: Span, by: str) -> tuple[Active, str | None]:
        """Make a subscription; return it and its secret, None if it is pulled.

        InvalidRequest if it is not acceptable, NameTaken or TooMany if there is one, or are enough.
        """
        filter_, sealed = self._check(wanted)
        mine = self._names.of(owner.key)
        if wanted.name in mine:
            raise NameTaken(wanted.name)
        if len(mine) >= self._limits.per_user and not owner.admin:
            raise TooMany(f"one user may have {self._limits.per_user} subscriptions (subscriptions.max_per_user)")
        if len(self._actives) >= self._limits.total:
            raise TooMany(f"there may be {self._limits.total} subscriptions (subscriptions.max_total)")
        now, identity = self._clock(), secrets.token_hex(12)
        subscription = Subscription(
            id=identity,
            owner=owner,
            wanted=msgspec.structs.replace(wanted, headers={}),
            sealed_headers=b"" if not sealed else self._vaulted().seal(identity, sealed),
            header_count=len(wanted.headers),
            status="active" if wanted.delivery == "pull" else "unconfirmed",
            created=now,
            changed=now,
            changed_by=by,
        )
        active = Active(subscription, 0, filter_, "")
        subscription_key = f"subscription.{identity}"
        await self._names.take(owner.key, wanted.name, identity)
        try:
            start = await self._start_of(filter_, span)
            active.state = State(next=start, server=self.server if self._records.shared else "")
            if not self._sign_revision:
                await self._give_sign(first=True)
            (state_revision,) = await self._records.save([Change(state_key(identity), _encode(active.state))])
            (revision,) = await self._records.save([Change(subscription_key, _encode(subscription))])
        except BaseException:
            await self._names.free(owner.key, wanted.name, identity)
            raise
        assert revision is not None
        assert state_revision is not None
        active.revision, active.state_revision = revision, state_revision
        self._actives[identity] = active
        self._log("created", active, by)
        if wanted.delivery == "push":
            await self.confirm(active, by)
        self._serve(active)
        return active, self._secret(active.subscription)

    async def change(self, active: Active, wanted: Definition, span: Span, by: str, keep_headers: bool) -> str | None:
        """Change what a subscription wants; with a start in `span` it goes back or ahead to it.

        Return its secret if that is another one now, because the signature is.
        """
        before = active.subscription
        filter_, sealed = self._check(wanted)
        if wanted.event_type != before.wanted.event_type or wanted.delivery != before.wanted.delivery:
            raise InvalidRequest("event_type and delivery cannot be changed; make another subscription")
        start = await self._start_of(filter_, span) if span.has_start else None
        new_sink = wanted.sink != before.wanted.sink
        status: Status = "unconfirmed" if new_sink else before.status
        headers = before.sealed_headers if keep_headers else b""
        if sealed:
            headers = self._vaulted().seal(before.id, sealed)
        renamed = wanted.name != before.wanted.name
        if renamed:
            await self._names.take(before.owner.key, wanted.name, before.id)
        await active.rest(_GRACE)
        same = start is None and all(getattr(wanted, each) == getattr(before.wanted, each) for each in _OF_AN_EDITION)
        edition = before.edition + (not same)
        try:
            if active.delivery == "push" and active.cursor is not None:
                await self._states.save(active)  # what was delivered under the former filter is not judged by the new
            await self._store(
                active,
                by,
                wanted=msgspec.structs.replace(wanted, headers={}),
                edition=edition,
                start=before.start if start is None else (edition, start),
                sets_since=before.sets_since if wanted.complete == before.wanted.complete else edition,
                sealed_headers=headers,
                header_count=before.header_count if keep_headers else len(wanted.headers),
                status=status,
                reason="" if new_sink else before.reason,
            )
        except BaseException:
            active.resting = False
            active.ready()
            if renamed:
                await self._names.free(before.owner.key, wanted.name, before.id)
            raise
        if renamed:
            await self._names.free(before.owner.key, before.wanted.name, before.id)
        self._release(active)
        active.wanted, active.problem = filter_, ""
        await self._follow(active)
        self._log("changed", active, by)
        if new_sink:
            await self.confirm(active, by, "paused" if before.status == "paused" else "active")
        self._serve(active)
        return None if wanted.signature == before.wanted.signature else self._secret(active.subscription)

    async def pause(self, active: Active, by: str) -> None:
        """Stop delivering; nothing is lost meanwhile. What its sink has not agreed to stays as it is."""
        if active.status == "active":
            await self._set_status(active, "paused", f"paused by {by}", by)
            self._log("paused", active, by)

    async def resume(self, active: Active, by: str) -> None:
        """Deliver again, at once, what was paused, blocked or disabled; ask the sink if it has not agreed."""
        if active.status in ("unconfirmed", "disabled"):
            await self.confirm(active, by)
        else:
            await self._set_status(active, "active", "", by)

        def now(state: State) -> None:
            state.due = 0

        await self._change_state(active, now)
        self._log("resumed", active, by)
        self._serve(active)
        active.ready()

    async def confirm(self, active: Active, by: str, then: Status = "active") -> None:
        """Ask the sink whether it wants us; the subscription has the status `then` if it does."""
        asked = active.subscription
        agreed, reason, rate = await self.pusher.ask_for_consent(asked)
        if active.subscription.wanted.sink != asked.wanted.sink:
            return  # it has another sink by now, which is asked for its own consent
        await self._store(active, by, status=then if agreed else "unconfirmed", reason=reason, allowed_rate=rate)
        self._log("confirmed" if agreed else "unconfirmed", active, by)

    async def rotate(self, active: Active, by: str) -> str:
        """Give a subscription a new secret; those before it sign too, for a day each."""
        before, now = active.subscription, self._clock()
        former = (now + _OVERLAP, *[until for until in before.former_until if until > now])
        await self._store(active, by, secret=before.secret + 1, former_until=former[:_MAX_FORMER])
        self._log("rotated", active, by)
        secret = self._secret(active.subscription)
        assert secret is not None  # only what is pushed is rotated
        return secret

    async def delete(self, active: Active, by: str) -> None:
        """Remove a subscription and all that is kept for it."""
        subscription = active.subscription
        await self._remove_record(f"subscription.{subscription.id}", active.revision)
        self._forget(active)
        await self._remove_record(state_key(subscription.id), active.state_revision)
        await self.letters.remove_all(subscription.id)
        await self._names.free(subscription.owner.key, subscription.wanted.name, subscription.id)
        self._log("deleted", active, by)

    async def _remove_record(self, key: str, revision: int) -> None:
        """Remove a record, whoever has changed it meanwhile."""
        for _ in range(_ROUNDS):
            (removed,) = await self._records.save([Change(key, b"", revision)])
            found = [] if removed is not None else [each for each in await self._records.load(key) if each.key == key]
            if not found:
                return
            revision = found[0].revision
        raise LogUnavailable("the subscription is too busy; try again")

    async def test(self, active: Active) -> Attempt:
        """Send a test event to the sink; InvalidRequest if it has not agreed to get anything."""
        if active.status == "unconfirmed":
            raise InvalidRequest("the sink has not agreed yet: 'resume' asks it once more")
        return await self.pusher.test(active.subscription)

    async def retry(self, active: Active, sequences: Sequence[int] | None, by: str) -> int:
        """Deliver dead letters once more, all if none are named; return how many there are."""
        letters = await self._letters_of(active, sequences)
        self._log("retried", active, by)
        if active.delivery == "pull":
            await self.puller.release(active, [letter.sequence for letter in letters])
            return len(letters)

        def again(state: State) -> None:
            state.retries = tuple(sorted({*state.retries, *[each.sequence for each in letters if not each.blocking]}))
            state.due = 0

        await self._change_state(active, again)
        active.ready()
        return len(letters)

    async def skip(self, active: Active, sequences: Sequence[int] | None, by: str) -> int:
        """Give dead letters up, all if none are named; return how many there were."""
        letters = await self._letters_of(active, sequences)
        self._log("skipped", active, by)
        blocking = next((each.sequence for each in letters if each.blocking), None)
        if blocking is not None:
            self._release(active)
        removed = sum([await self.letters.remove(active.id, letter.sequence) for letter in letters])

        def forget(state: State) -> None:
            state.parked = max(0, state.parked - removed)
            if blocking is None or 0 < blocking < state.next or (blocking < 0 and blocking not in state.outbox):
                return
            if blocking < 0:
                del state.outbox[blocking]
            else:
                state.next = blocking + 1
            state.sending = ()
            state.attempts = state.failing_since = state.due = 0
            state.blocked = False

        await self._change_state(active, forget)
        self._serve(active)
        return len(letters)

    async def _letters_of(self, active: Active, sequences: Sequence[int] | None) -> list[DeadLetter]:
        letters = await self.letters.all(active.id)
        return letters if sequences is None else [each for each in letters if each.sequence in set(sequences)]

    # Serving

    def _serve(self, active: Active) -> None:
        """Begin to deliver, if this server is to and nothing stands in the way."""
        if not self._started or active.cursor is not None or active.wanted is None or not self._is_mine(active):
            return
        if active.delivery == "push" and active.state.edition < active.subscription.edition:
            active.state.follow(active.subscription)
            self._states.note(active)
        if active.status != "active":
            return
        active.keeper = self
        active.cursor = Cursor(self._hub, active.wanted, active.state.next, active.id, active)
        active.ready()

    def _is_mine(self, active: Active) -> bool:
        """Return whether this server serves a subscription; all serve workers."""
        return not self._records.shared or active.delivery == "pull" or active.state.server == self.server

    async def _follow(self, active: Active) -> None:
        """Have the state follow a change of its subscription: for workers at once, for a sink when it is served."""
        if active.delivery == "pull" and active.state.edition < active.subscription.edition:
            self._release(active)
            await self.puller.change(active, lambda state: state.follow(active.subscription))
            self._serve(active)

    def _release(self, active: Active) -> None:
        """Stop delivering."""
        active.state.next = max(active.state.next, idle_place(active))
        self._timers.discard(active)
        self.puller.close(active)
        active.close()
        self._client.forget(active.id)

    def _forget(self, active: Active) -> None:
        self._release(active)
        self._states.forget(active)
        self.pusher.attempts.forget(active.id)
        self._actives.pop(active.id, None)
        self._names.drop(active.subscription.owner.key, active.definition.name, active.id)

    async def _allowed(self, active: Active) -> str | None:
        assert active.wanted is not None  # it is served
        return await self._guard(active.subscription, active.wanted)

    async def _learn(self, active: Active) -> None:
        """Find out from history which values its sets have, if nobody has listed them and nobody has looked yet."""
        wish, state, wanted = active.definition.complete, active.state, active.wanted
        if wish is None or wanted is None or state.has_learned(wish):
            return
        end, least, step = state.next - 1, max(0, state.next - 1 - _LEARNED_FROM), _LEARNED_AT_ONCE
        sets: Sets = {}
        while end > least and len(sets) <= wish.learn_sets:
            start, earlier = max(least, end - step) + 1, Sets()
            async for events in event_chunks(self._hub, wanted, start, end):
                learn(earlier, wish, events)
            for key, values in sets.items():
                earlier.setdefault(key, {}).update(values)
            sets, end, step = earlier, start - 1, 2 * step
        values_of_last = learned(sets, wish)

        def remember(state: State) -> None:
            state.collecting().learned = values_of_last

        await self._change_state(active, remember)

    async def _sink_is_gone(self, active: Active, reason: str) -> None:
        self._states.note(active)
        await self._set_status(active, "disabled", reason, "the sink")
        self._log("disabled", active, "the sink")

    def wake(self, active: Active) -> None:
        """Deliver what there is, or have workers look again."""
        (self.pusher if active.delivery == "push" else self.puller).wake(active)

    def note_gap(self, active: Active, gap: Gap) -> None:
        """Note that retention was faster."""
        self.tally.gaps += 1
        active.state.add_gap(gap)
        logger.error(
            "retention has removed notifications before a subscription came to them: sequences %d to %d",
            gap.first,
            gap.last,
            extra={"event": "subscription.gap", **_about(active)},
        )

    async def _look_after(self) -> None:
        """Save the places of idle subscriptions, and close connections that nobody uses."""
        while True:
            await asyncio.sleep(_IDLE_SECONDS / 3)
            self._client.tidy()
            await self._save_places(_IDLE_STEP)

    async def _save_places(self, step: int) -> None:
        """Have the places of idle subscriptions saved that have come further, so that a restart need not look again."""
        actives = list(self._actives.values())
        for start in range(0, len(actives), _AT_ONCE):
            behind = [
                each
                for each in actives[start : start + _AT_ONCE]
                if each.id in self._actives and idle_place(each) > each.state.next + step
            ]
            await asyncio.gather(*[self._save_place(active) for active in behind])
            await asyncio.sleep(0)

    async def _save_place(self, active: Active) -> None:
        place, edition = idle_place(active), active.state.edition

        def advance(state: State) -> None:
            if state.edition == edition:
                state.next = max(state.next, place)

        if active.delivery == "push":
            advance(active.state)
            self._states.note(active)
            return
        with suppress(LogError):  # there is another time
            await self.puller.change(active, advance)

    # Storing

    def _check(self, wanted: Definition) -> tuple[Filter, bytes]:
        """Return the filter of a definition, and its headers as bytes; InvalidRequest if it is not acceptable."""
        check_definition(wanted)
        if wanted.delivery == "push":
            self._vaulted()
            self._client.rules.check(wanted.sink)
            check_headers(wanted.headers)
        event_type = self._catalogue.find(wanted.event_type)
        if wanted.complete is not None and isinstance(event_type, EventType):
            unknown = {wanted.complete.field, *wanted.complete.by} - event_type.fields.keys()
            if unknown:
                raise InvalidRequest(
                    f"complete names the field '{min(unknown)}'; fields of '{wanted.event_type}' are "
                    f"{', '.join(event_type.fields)}",
                    field="complete",
                )
            for value in wanted.complete.expected:
                canonical = event_type.compile({wanted.complete.field: value}, "watch", None, lenient=True)
                if dict(canonical.equals).get(wanted.complete.field) != value:
                    shown = dict(canonical.equals).get(wanted.complete.field)
                    raise InvalidRequest(f"complete.expected: write '{value}' as '{shown}'", field="complete")
        filter_ = event_type.compile(wanted.identifier, "watch", read_point(wanted.identifier))
        return filter_, _encode(wanted.headers) if wanted.headers else b""

    def _vaulted(self) -> Vault:
        if self._vault is None:
            raise InvalidRequest(
                "this server has no key to sign with: its operator has to set subscriptions.key_file", field="delivery"
            )
        return self._vault

    def _secret(self, subscription: Subscription) -> str | None:
        if subscription.wanted.delivery == "pull":
            return None
        asymmetric = subscription.wanted.signature == "v1a"
        return self._vaulted().signer(subscription.id, subscription.secret, asymmetric).secret

    def public_key(self, subscription: Subscription) -> str | None:
        """Return the public key that signatures are checked with, if it is one."""
        return self._secret(subscription) if subscription.wanted.signature == "v1a" else None

    async def _start_of(self, wanted: Filter, span: Span) -> int:
        store = self._hub.store
        if not span.has_start:
            return (await store.state(wanted.stream)).last + 1
        bounds = await store.bounds(wanted.stream, span)
        return min(max(bounds.start, 1), bounds.last + 1)

    async def _set_status(self, active: Active, status: Status, reason: str, by: str) -> None:
        if active.status != status or active.subscription.reason != reason:
            await self._store(active, by, status=status, reason=reason)
        if status != "active":
            await active.rest(_GRACE)
            self._release(active)

    async def _store(self, active: Active, by: str, **changes: Any) -> None:
        """Change and save a subscription; LogUnavailable if another server has changed it at the same moment."""
        before = active.subscription
        after = msgspec.structs.replace(before, changed=self._clock(), changed_by=by, **changes)
        (revision,) = await self._records.save([Change(f"subscription.{before.id}", _encode(after), active.revision)])
        if revision is None:
            raise LogUnavailable("the subscription was changed by somebody else at the same moment; try again")
        active.subscription, active.revision = after, revision

    async def refresh_owner(self, active: Active, owner: Owner) -> None:
        """Note the roles that the owner has now, if the caller is the owner."""
        known = active.subscription.owner
        if owner.key == known.key and owner != known:
            await self._store(active, owner.key, owner=owner)

    async def _change_state(self, active: Active, change: Callable[[State], None]) -> None:
        """Change a state and save it, whoever serves the subscription."""
        if active.delivery == "pull":
            await self.puller.change(active, change)
            return
        if self._records.shared and active.cursor is None:
            await self._change_remote_state(active, change)
            return
        change(active.state)
        await self._states.save(active)

    async def _change_remote_state(self, active: Active, change: Callable[[State], None]) -> None:
        """Change the state of a subscription that another server serves; that one finds out when it next saves it."""
        for _ in range(_ROUNDS):
            await self._reload_state(active)
            if active.cursor is not None:  # it is ours by now
                change(active.state)
                await self._states.save(active)
                return
            state = active.state.copy()
            state.by = self.server
            change(state)
            (revision,) = await self._records.save(
                [Change(state_key(active.id), _encode(state), active.state_revision)]
            )
            if revision is not None:
                self._take_in_state(active, revision, state)
                return
        raise LogUnavailable("the subscription is too busy on another server; try again")

    async def _reload_state(self, active: Active) -> None:
        """Read the state that another server has saved; LogUnavailable if there is none any more."""
        found = await self._records.load(state_key(active.id))
        if not found:
            raise LogUnavailable("the subscription is gone")
        for record in found:
            self._take_in_state(active, record.revision, msgspec.json.decode(record.value, type=State))

    def _log(self, event: str, active: Active, by: str) -> None:
        logger.info(
            "subscription %s",
            event,
            extra={
                "event": f"subscription.{event}",
                **_about(active),
                "owner": active.subscription.owner.key,
                "by": by,
                "reason": active.subscription.reason,
            },
        )

    # Several servers

    async def _take_in(self, records: Sequence[Record]) -> None:
        """Take in what was stored, by this server earlier or by another one."""
        states: dict[str, Record] = {}
        letters: Counter[str] = Counter()
        for number, record in enumerate(records):
            self._seen = max(self._seen, record.revision)
            kind, _, identity = record.key.partition(".")
            if kind == "subscription":
                self._take_in_subscription(identity, record)
            elif kind == "state":
                states[identity] = record
            elif kind == "dead" and record.value:
                letters[identity.partition(".")[0]] += 1
            elif kind == "server" and identity != self.server:
                if record.value:
                    self._alive[identity] = (record.revision, asyncio.get_running_loop().time())
                else:
                    self._alive.pop(identity, None)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        for number, (identity, record) in enumerate(states.items()):
            active = self._actives.get(identity)
            if active is not None and record.value and record.revision > active.state_revision:
                state = msgspec.json.decode(record.value, type=State)
                # what this server has saved itself and not heard of yet is no news
                if active.cursor is None or state.by != self.server:
                    self._take_in_state(active, record.revision, state)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        if not self._started:  # called by `start`
            self._started = True
            for number, active in enumerate(list(self._actives.values())):
                active.state.parked = letters[active.id]  # a crash may come between a letter and its count
                self._serve(active)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)

    def _take_in_subscription(self, identity: str, record: Record) -> None:
        active = self._actives.get(identity)
        if not record.value:
            if active is not None and record.revision > active.revision:
                self._forget(active)
            return
        if active is not None and record.revision <= active.revision:
            return
        subscription = msgspec.json.decode(record.value, type=Subscription)
        wanted, problem = None, ""
        try:
            event_type = self._catalogue.find(subscription.wanted.event_type)
            identifier = subscription.wanted.identifier
            wanted = event_type.compile(identifier, "watch", read_point(identifier))
        except RequestError as error:
            problem = f"what it wants is not possible any more: {error.message}"
            logger.error(
                "a subscription cannot be served: %s",
                error.message,
                extra={"event": "subscription.unusable", "subscription_id": identity},
            )
        if active is None:
            active = Active(subscription, record.revision, wanted, problem)
            self._actives[active.id] = active
        else:
            self._release(active)
            self._names.drop(active.subscription.owner.key, active.definition.name, identity)
            active.subscription, active.revision = subscription, record.revision
            active.wanted, active.problem = wanted, problem
        self._names.note(subscription.owner.key, subscription.wanted.name, active.id)
        if self._started:
            self._serve(active)

    def _take_in_state(self, active: Active, revision: int, state: State) -> None:
        """Go on from a newer state; whoever delivers from the one before stops."""
        if revision <= active.state_revision:
            return
        pulled, known = active.delivery == "pull", active.state
        behind = (state.edition, state.next) < (known.edition, known.next)
        if not pulled and state.server == self.server and behind:
            # somebody has asked for something and not seen how far we are, or the answer to our own write was lost
            known.retries, known.due = tuple(sorted({*known.retries, *state.retries})), state.due
            known.server, state = self.server, known
            self._states.note(active)
        if pulled:
            state.add_gaps_of(known)  # this server may have come to them first
        # workers go on from the new state; a sink is served from it, if by this server at all
        if active.cursor is not None and (not pulled or state.next < active.state.next):
            self._release(active)
        active.state, active.state_revision = state, revision
        if self._started:
            self._serve(active)
        if pulled:
            self.puller.wake(active)

    def _fenced(self, active: Active) -> None:
        """Let go of a subscription whose state another server has changed."""
        self.tally.fenced += 1
        logger.warning(
            "another server has taken over a subscription", extra={"event": "subscription.fenced", **_about(active)}
        )
        self._release(active)
        self._fenced_off.add(active)

    async def _stay_in_touch(self) -> None:
        """Give signs of life, see what other servers do, and take over from those that are gone."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            try:
                await self._give_sign()
                await self._take_in(await self._records.changed(self._seen))
                for active in list(self._fenced_off):  # it may still be ours, or have been seen before it was fenced
                    if active.id in self._actives:
                        await self._reload_state(active)
                        self._serve(active)
                    self._fenced_off.discard(active)
                await self._take_over()
            except LogError as error:
                logger.warning(
                    "the other servers cannot be reached: %s", error, extra={"event": "subscription.lease.failed"}
                )

    async def _give_sign(self, first: bool = False) -> None:
        """Say that this server is there, once there are subscriptions; nothing is made on the broker before."""
        if not self._records.shared or not (first or self._actives or self._sign_revision):
            return
        key = f"server.{self.server}"
        for _ in range(_ROUNDS):
            began = asyncio.get_running_loop().time()
            (revision,) = await self._records.save([Change(key, b"%d" % self._clock(), self._sign_revision)])
            if revision is not None:
                self._sign_revision = revision
                # others wait longer than this for our next sign of life, and have seen this one later than it was begun
                self.pusher.lease_until = began + _DEAD_AFTER - _HEARTBEAT
                return
            # the answer to the last one was lost, or another server has removed it
            self._sign_revision = max([each.revision for each in await self._records.load(key)], default=0)

    async def _take_over(self) -> None:
        now = asyncio.get_running_loop().time()
        for name, (revision, seen) in list(self._alive.items()):
            if now - seen > _FORGOTTEN_AFTER:
                await self._records.save([Change(f"server.{name}", b"", revision)])
                del self._alive[name]
        alive = self._alive_now()
        for number, active in enumerate(list(self._actives.values())):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if active.delivery == "pull":
                self._serve(active)
                continue
            holder = active.state.server
            if holder in alive or not active.state_revision:
                continue
            if not self._is_heir(active, alive):
                continue
            state = active.state.copy()
            state.server = state.by = self.server
            change = Change(state_key(active.id), _encode(state), active.state_revision)
            (taken,) = await self._records.save([change])
            if taken is None:
                continue  # somebody was faster, or the former server has written once more
            self._take_in_state(active, taken, state)
            logger.warning(
                "a subscription was taken over from another server",
                extra={"event": "subscription.taken_over", **_about(active), "from": holder},
            )
            self._serve(active)

    def _alive_now(self) -> set[str]:
        now = asyncio.get_running_loop().time()
        return {name for name, (_, seen) in self._alive.items() if now - seen < _DEAD_AFTER} | {self.server}

    def _is_heir(self, active: Active, alive: Collection[str]) -> bool:
        """Return whether this server is the one of all that takes over what nobody serves."""
        return max(alive, key=lambda name: _weight(name, active.id)) == self.server


def _weight(server: str, subscription: str) -> bytes:
    """Spread subscriptions over servers, so that every server comes to the same result."""
    return hashlib.blake2b(f"{server}/{subscription}".encode(), digest_size=8).digest()


def _about(active: Active) -> dict[str, str]:
    return {"subscription": active.definition.name, "subscription_id": active.id}


_encode = msgspec.json.Encoder().encode
