"""Push: each notification to the sink in order, signed, again and again until the sink takes it.

One task delivers for a subscription while there is something to deliver, one request at a time. What fails waits for
its next try without a task. Sinks that fail share a few places, so that they take nothing away from the others.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import random
import re
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec

from aviso_server.delivery.hub import Timers
from aviso_server.errors import InvalidRequest, LogError
from aviso_server.model.times import SECOND, event_time
from aviso_server.subscriptions.active import Active, StateWriter, Tally
from aviso_server.subscriptions.cursor import Event
from aviso_server.subscriptions.dead_letters import DeadLetter, DeadLetters
from aviso_server.subscriptions.rates import OwnerRates
from aviso_server.subscriptions.receipts import close_overdue, collect, next_deadline
from aviso_server.subscriptions.signatures import Vault
from aviso_server.subscriptions.sinks import Answer, NotSent, Sink, SinkClient
from aviso_server.subscriptions.subscription import Subscription

__all__ = ["TEST_TYPE", "Attempt", "Pusher", "RetryPolicy", "webhook_id"]

logger = logging.getLogger(__name__)

TEST_TYPE = "int.ecmwf.aviso.test"
"""The type of the event that a test delivery sends."""

CHALLENGE_TYPE = "int.ecmwf.aviso.challenge"
_STRUCTURED = b"application/cloudevents+json; charset=utf-8"
_BATCH = b"application/cloudevents-batch+json; charset=utf-8"
_MAX_BATCH_BYTES = 1024 * 1024
_BATCHES = 16  # that are decided on and written down together
_AT_ONCE = 1024  # requests to sinks that work
_FAILING_AT_ONCE = 64  # requests to sinks that failed the last time
_SHOWN = 1024  # bytes of a request that people are shown
_LONGEST_WISH = 86_400  # seconds that a sink may ask us to wait
_REFUSED_PAUSE = 30.0  # seconds before we look again whether the owner may read
_LEASE_PAUSE = 1.0  # seconds before we look again whether we are the server that serves
_LOG_PAUSE = 2.0  # seconds before we try again to read the log
_PAYLOAD_TOO_LARGE = 413
_GONE = 410
_SHOWN_FOR = 512  # subscriptions whose last attempts are remembered
_ATTEMPTS = 10  # of each
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long to wait before the next try, in seconds: doubled after each, up to the longest."""

    first: float = 5.0
    longest: float = 3600.0

    def delay(self, attempts: int, wish: float | None) -> float:
        """Return the pause after so many failures, with jitter, and no shorter than the sink wishes."""
        usual = min(self.longest, self.first * 2.0 ** min(attempts - 1, 40))
        return max(usual * random.uniform(0.5, 1.0), min(wish or 0.0, _LONGEST_WISH))  # spreads load only


class _Outcome(msgspec.Struct, frozen=True):
    status: int  # 0: no answer
    text: str
    wish: float | None = None  # seconds that the sink asks us to wait

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def webhook_id(active: Active, events: Sequence[Event]) -> str:
    """Return the id of the next request: the same whenever these events are sent again.

    That of a batch is made of where it begins and ends, whatever was deleted from it meanwhile, and of the edition:
    another filter finds other events between the same ends.
    """
    state = active.state
    first, last = (state.next, state.sending[0]) if state.sending else (events[0].sequence, events[-1].sequence)
    if first == last or events[0].sequence < 0:
        return f"msg_{active.id}_{events[0].sequence}"
    return f"msg_{active.id}_{first}-{last}" + (f"_{state.edition}" if state.edition else "")


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


class Pusher:
    """Delivers the push subscriptions of this server."""

    def __init__(
        self,
        client: SinkClient,
        vault: Vault,
        states: StateWriter,
        letters: DeadLetters,
        timers: Timers,
        rates: OwnerRates,
        tally: Tally,
        clock: Callable[[], int],
        policy: RetryPolicy,
        origin: str,
        max_letters: int,
        guard: Callable[[Active], Awaitable[str | None]],
        on_gone: Callable[[Active, str], Awaitable[None]],
        learn: Callable[[Active], Awaitable[None]],
    ) -> None:
        self.attempts = Attempts()
        self.client = client
        self._vault = vault
        self._states = states
        self._letters = letters
        self._timers = timers
        self._rates = rates
        self._tally = tally
        self._clock = clock
        self._policy = policy
        self._source = origin
        self._origin = urlsplit(origin).hostname or "aviso-server"
        self._max_letters = max_letters
        self._guard = guard
        self._on_gone = on_gone
        self._learn = learn
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._failing_places = asyncio.Semaphore(_FAILING_AT_ONCE)
        self._singly: dict[str, int] = {}  # batches that the sink did not take, up to a sequence
        self.lease_until = math.inf  # of the loop's clock: from then on others may have taken over what we serve

    def wake(self, active: Active) -> None:
        """Deliver what there is, unless that is under way."""
        if active.task is None and active.cursor is not None and not active.resting:
            active.task = asyncio.create_task(self._run(active))

    async def _run(self, active: Active) -> None:
        again: float | None = None
        try:
            while (again := await self._step(active)) == 0.0:
                if active.resting:
                    return
        except LogError as error:
            active.problem = f"the log cannot be used: {error}"
            again = _LOG_PAUSE
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception(
                "delivering a subscription failed", extra={"event": "subscription.push.failed", **_about(active)}
            )
            again = _REFUSED_PAUSE
        finally:
            if active.task is asyncio.current_task():
                active.task = None
        # there was no await since the last look: what comes from now on wakes it up
        if again is not None and active.cursor is not None:
            self._timers.discard(active)
            self._timers.add(active, asyncio.get_running_loop().time() + again)

    async def _step(self, active: Active) -> float | None:
        """Deliver once; return the seconds until the next step, None if there is nothing to do."""
        state, cursor, wanted = active.state, active.cursor, active.definition
        if cursor is None or active.status != "active":
            return None
        now = self._clock()
        if state.retries:
            return await self._retry_letter(active)
        if state.due > now:
            return (state.due - now) / SECOND
        if wanted.complete is not None and not state.outbox:
            return await self._collect(active)
        if state.sending:
            await cursor.fill_to(state.sending[0])
        elif not state.outbox and not await cursor.fill():
            active.problem = ""
            return None
        if pause := await self._obstacle(active):
            return pause
        if wanted.batch > 1 and not state.sending and not state.outbox:
            # after a crash the same ones have to go together again, under the same id: so it is written down first
            state.next, state.sending = cursor.next, self._ends(active)
            try:
                await self._states.save(active)
            except LogError:
                state.sending = ()  # nothing is sent before it is durable
                raise
        events = self._next_events(active)
        if not events:
            state.next, state.sending = state.sending[0] + 1, state.sending[1:]
            return 0.0
        if events[0].sequence > 0 and not state.sending:  # a batch begins where it began, for the sake of its id
            state.next = events[0].sequence
        try:
            outcome = await self._post(active, events, webhook_id(active, events))
        except BaseException:
            if events[0].sequence > 0:
                cursor.put_back(events)
            raise
        if active.cursor is not cursor:  # paused, changed or deleted meanwhile
            return None
        if outcome is not None and outcome.ok:
            self._settle(active, events)
            return 0.0
        if events[0].sequence > 0:
            cursor.put_back(events)
        return _LEASE_PAUSE if outcome is None else await self._note_failure(active, events, outcome)

    async def _collect(self, active: Active) -> float | None:
        """Take what is there into sets; return the seconds until the next deadline."""
        wish, cursor, state = active.definition.complete, active.cursor, active.state
        assert wish is not None  # the callers have looked
        assert cursor is not None
        await self._learn(active)
        if pause := await self._obstacle(active):
            return pause
        waits = await cursor.fill()  # the last wait: what comes later wakes us up
        active.problem = ""
        if waits:
            cursor.drop(collect(state, wish, cursor.waiting, self._source, active.definition.name))
        else:
            close_overdue(state, wish, self._clock(), self._source, active.definition.name)
        if state.outbox:
            await self._states.save(active)  # a receipt is made once
            return 0.0
        self._states.note(active)
        if waits:
            await asyncio.sleep(0)  # others wait too
            return 0.0
        due = next_deadline(state, wish)
        return None if due is None else max(0.05, (due - self._clock()) / SECOND)

    async def _obstacle(self, active: Active) -> float:
        """Return the seconds to wait before anything may be sent; 0 if nothing stands in the way."""
        reason = await self._guard(active)
        if reason is not None:
            active.problem = reason
            self._tally.refused += 1
            return _REFUSED_PAUSE
        active.problem = ""
        return self._rates.pause(active)

    def _next_events(self, active: Active) -> list[Event]:
        cursor, state = active.cursor, active.state
        if cursor is None:
            return []
        if state.outbox:
            number = max(state.outbox)
            return [Event(number, state.outbox[number].encode())]
        return cursor.take_to(state.sending[0]) if state.sending else cursor.take(1, _MAX_BATCH_BYTES)

    def _ends(self, active: Active) -> tuple[int, ...]:
        """Return where the batches end that what waits is sent in."""
        cursor = active.cursor
        assert cursor is not None  # _step has looked
        most = 1 if cursor.next <= self._singly.get(active.id, 0) else active.definition.batch
        ends: list[int] = []
        count = size = last = 0
        for event in cursor.waiting:
            if count and (count >= most or size + len(event.body) > _MAX_BATCH_BYTES):
                ends.append(last)
                count = size = 0
                if len(ends) >= _BATCHES:
                    return tuple(ends)
            count, size, last = count + 1, size + len(event.body), event.sequence
        return tuple(ends or [last])  # one that is not full is left for the next look, if there are others

    def _settle(self, active: Active, events: Sequence[Event]) -> None:
        """Note that the sink has taken these."""
        state = active.state
        if state.attempts:
            logger.info(
                "the sink of a subscription works again",
                extra={"event": "subscription.push.recovered", **_about(active), "attempts": state.attempts},
            )
        if state.blocked:
            self._spawn_removal(active, events[0].sequence)
        if events[0].sequence > 0:
            state.next = max([events[-1].sequence, *state.sending[:1]]) + 1
        else:
            del state.outbox[events[0].sequence]
        state.sending = state.sending[1:]
        state.attempts = state.failing_since = state.due = 0
        state.blocked = False
        state.delivered += len(events)
        self._tally.delivered["push"] += len(events)
        if self._singly.get(active.id, state.next) < state.next:
            del self._singly[active.id]
        self._states.note(active)

    async def _note_failure(self, active: Active, events: Sequence[Event], outcome: _Outcome) -> float | None:
        """Decide what becomes of events that the sink did not take."""
        state, definition, now = active.state, active.definition, self._clock()
        if outcome.status == _GONE:
            await self._on_gone(active, "the sink answered 410: it is gone")
            return None
        state.attempts += 1
        state.failing_since = state.failing_since or now
        if state.attempts == 1:
            logger.warning(
                "the sink of a subscription fails: %s",
                outcome.text or outcome.status,
                extra={"event": "subscription.push.failing", **_about(active), "status": outcome.status},
            )
        exhausted = (definition.attempts and state.attempts >= definition.attempts) or (
            now - state.failing_since >= definition.retry_for_seconds * SECOND
        )
        if len(events) > 1 and (
            outcome.status == _PAYLOAD_TOO_LARGE or (exhausted and definition.on_failure == "park")
        ):
            # one of them may be the reason: send them one by one
            self._singly[active.id] = events[-1].sequence
            state.sending = ()
            state.attempts = state.failing_since = 0
            self._states.note(active)
            return 0.0
        delay = self._policy.delay(state.attempts, outcome.wish)
        if exhausted:
            full = state.parked >= self._max_letters
            if definition.on_failure == "park" and not full:
                await self._park(active, events[0], outcome)
                return 0.0
            delay = max(delay, self._policy.longest / 2)
            if not state.blocked:
                await self._keep_letter(active, events[0], outcome, blocking=True)
                state.blocked = True
                logger.error(
                    "a subscription is blocked by a notification that its sink does not take",
                    extra={"event": "subscription.push.blocked", **_about(active), "sequence": events[0].sequence},
                )
        state.due = now + int(delay * SECOND)
        self._states.note(active)
        return delay

    async def _park(self, active: Active, event: Event, outcome: _Outcome) -> None:
        """Keep one as a dead letter and go on behind it."""
        cursor, state = active.cursor, active.state
        await self._keep_letter(active, event, outcome)
        if cursor is None or active.cursor is not cursor:  # paused or changed meanwhile; it comes here again if wanted
            return
        if event.sequence > 0:
            cursor.drop(1)
            state.next = event.sequence + 1
        else:
            del state.outbox[event.sequence]
        state.sending = state.sending[1:]
        state.attempts = state.failing_since = state.due = 0
        self._tally.parked["push"] += 1
        self._states.note(active)
        logger.warning(
            "a notification was parked as a dead letter",
            extra={"event": "subscription.letter.parked", **_about(active), "sequence": event.sequence},
        )

    async def _keep_letter(self, active: Active, event: Event, outcome: _Outcome, blocking: bool = False) -> None:
        state, now = active.state, self._clock()
        letter = DeadLetter(
            event.sequence,
            msgspec.Raw(event.body),
            state.attempts,
            state.failing_since or now,
            now,
            outcome.status,
            outcome.text,
            blocking,
        )
        if await self._letters.keep(active.id, letter):
            state.parked += 1

    def _spawn_removal(self, active: Active, sequence: int) -> None:
        async def remove() -> None:
            if await self._letters.remove(active.id, sequence):
                active.state.parked -= 1
                self._states.note(active)

        _background(remove())

    async def _retry_letter(self, active: Active) -> float:
        """Send a dead letter that somebody wants to be sent again; return the seconds until the next step."""
        sequence = min(active.state.retries)
        letter = await self._letters.find(active.id, sequence)
        outcome: _Outcome | None = None
        if letter is not None:
            if pause := await self._obstacle(active):
                return pause
            outcome = await self._post(active, [Event(sequence, bytes(letter.event))], f"msg_{active.id}_{sequence}")
            if outcome is None:
                return _LEASE_PAUSE
        # first: who sees what came of it may ask for it once more, and must not see a letter counted that is gone
        parked = active.state.parked
        active.state.retries = tuple([each for each in active.state.retries if each != sequence])
        try:
            if letter is not None and outcome is not None and outcome.ok:
                active.state.parked = max(0, active.state.parked - 1)
                await self._letters.remove(active.id, sequence)
                active.state.delivered += 1
                self._tally.delivered["push"] += 1
            elif letter is not None and outcome is not None:
                changed = msgspec.structs.replace(
                    letter, attempts=letter.attempts + 1, last=self._clock(), status=outcome.status, answer=outcome.text
                )
                await self._letters.keep(active.id, changed)
        except BaseException:
            active.state.retries, active.state.parked = tuple(sorted({sequence, *active.state.retries})), parked
            raise
        self._states.note(active)
        return 0.0

    # Requests

    async def _post(self, active: Active, events: Sequence[Event], message_id: str) -> _Outcome | None:
        """Send events when there is a place for it; None if by then another server may have taken over."""
        async with self._place(active):
            if asyncio.get_running_loop().time() > self.lease_until:
                return None
            if active.state.attempts:
                self._tally.retries += 1
            self._rates.charge(active, len(events), sum([len(event.body) for event in events]))
            return await self.send(active.subscription, message_id, events)

    def _place(self, active: Active) -> AbstractAsyncContextManager[None]:
        return self._failing_places if active.state.attempts else self._places

    async def send(self, subscription: Subscription, message_id: str, events: Sequence[Event]) -> _Outcome:
        """Send events to the sink of a subscription, signed."""
        wanted = subscription.wanted
        if wanted.mode == "binary":
            headers, body = _binary(events[0])
        elif len(events) == 1:
            headers, body = [(b"content-type", _STRUCTURED)], events[0].body
        else:
            headers, body = [(b"content-type", _BATCH)], b"[" + b",".join([event.body for event in events]) + b"]"
        headers += self._signed(subscription, message_id, body)
        headers += self._own_headers(subscription)
        outcome, answer = await self._exchange(subscription, b"POST", headers, body)
        self._tally.requests["ok" if outcome.ok else "failed"] += 1
        shown = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name.startswith((b"webhook-", b"ce-", b"content-"))
        }
        self.attempts.add(
            subscription.id,
            Attempt(
                self._clock(),
                message_id,
                len(events),
                shown,
                body[:_SHOWN].decode("utf-8", "replace"),
                outcome.status,
                outcome.text,
                0.0 if answer is None else answer.seconds,
            ),
        )
        return outcome

    async def test(self, subscription: Subscription) -> Attempt:
        """Send a test event, whatever the state of the subscription, and return what came of it."""
        now = self._clock()
        event = {
            "specversion": "1.0",
            "type": TEST_TYPE,
            "source": self._source,
            "id": f"test-{now}",
            "time": event_time(now),
            "datacontenttype": "application/json",
            "data": {"subscription": subscription.wanted.name},
        }
        await self.send(subscription, f"msg_{subscription.id}_test{now}", [Event(0, msgspec.json.encode(event))])
        return self.attempts.of(subscription.id)[0]

    async def ask_for_consent(self, subscription: Subscription) -> tuple[bool, str, int]:
        """Ask the sink whether it wants us; return whether, why not, and how many requests per minute it takes.

        First the handshake of CloudEvents webhooks, then a challenge that the sink repeats in its answer.
        """
        own = self._own_headers(subscription)
        origin = self._origin.encode()
        asked = [(b"webhook-request-origin", origin), *own]
        outcome, answer = await self._exchange(subscription, b"OPTIONS", asked, b"")
        if answer is not None:
            allowed = [each.strip() for each in answer.headers.get("webhook-allowed-origin", "").split(",")]
            if outcome.ok and ("*" in allowed or self._origin in allowed):
                rate = answer.headers.get("webhook-allowed-rate", "*").strip()
                return True, "", int(rate) if _NUMBER.fullmatch(rate) and int(rate) else 0
        challenge = base64.urlsafe_b64encode(random.SystemRandom().randbytes(24)).decode()
        now = self._clock()
        body = msgspec.json.encode(
            {
                "specversion": "1.0",
                "type": CHALLENGE_TYPE,
                "source": self._source,
                "id": f"challenge-{now}",
                "time": event_time(now),
                "datacontenttype": "application/json",
                "data": {"challenge": challenge},
            }
        )
        headers = [(b"content-type", _STRUCTURED), *self._signed(subscription, f"msg_{subscription.id}_c{now}", body)]
        outcome, answer = await self._exchange(subscription, b"POST", [*headers, *own], body)
        if answer is not None and outcome.ok and _repeats(answer.body, challenge):
            return True, "", 0
        if answer is None:
            return False, f"the sink did not answer: {outcome.text}", 0
        reason = (
            "the sink has not agreed: neither did it answer OPTIONS with "
            f"'WebHook-Allowed-Origin: {self._origin}', nor did it repeat the challenge (it answered {outcome.status})"
        )
        return False, reason, 0

    async def _exchange(
        self, subscription: Subscription, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> tuple[_Outcome, Answer | None]:
        try:
            sink = self._sink(subscription)
            answer = await self.client.send(subscription.id, sink, method, headers, body)
        except InvalidRequest as error:  # what may be called has changed since it was made
            return _Outcome(0, error.message), None
        except NotSent as error:
            return _Outcome(0, str(error)), None
        wish = _retry_after(answer.headers.get("retry-after"), self._clock())
        return _Outcome(answer.status, answer.text, wish), answer

    def _sink(self, subscription: Subscription) -> Sink:
        return self.client.rules.check(subscription.wanted.sink)

    def _signed(self, subscription: Subscription, message_id: str, body: bytes) -> list[tuple[bytes, bytes]]:
        now = self._clock()
        stamp = b"%d" % (now // SECOND)
        content = b"%b.%b.%b" % (message_id.encode(), stamp, body)
        former = enumerate(subscription.former_until, 1)
        numbers = [subscription.secret, *[subscription.secret - back for back, until in former if until > now]]
        asymmetric = subscription.wanted.signature == "v1a"
        signatures = [self._vault.signer(subscription.id, number, asymmetric).sign(content) for number in numbers]
        return [
            (b"webhook-id", message_id.encode()),
            (b"webhook-timestamp", stamp),
            (b"webhook-signature", b" ".join(signatures)),
        ]

    def _own_headers(self, subscription: Subscription) -> list[tuple[bytes, bytes]]:
        if not subscription.sealed_headers:
            return []
        found = msgspec.json.decode(
            self._vault.unseal(subscription.id, subscription.sealed_headers), type=dict[str, str]
        )
        return [(name.lower().encode(), value.encode()) for name, value in found.items()]


def _repeats(body: bytes, challenge: str) -> bool:
    """Return whether an answer is the challenge, alone or as JSON; to send everything back is no consent."""
    text = body.decode("utf-8", "replace").strip()
    if text == challenge:
        return True
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return challenge in (found, found.get("challenge") if isinstance(found, dict) else None)


def _binary(event: Event) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return headers and body of an event in binary mode."""
    members = msgspec.json.decode(event.body, type=dict[str, msgspec.Raw])
    data = bytes(members.pop("data", msgspec.Raw(b"null")))
    headers = [(b"content-type", b"application/json")]
    members.pop("datacontenttype", None)
    for name, raw in members.items():
        value = msgspec.json.decode(raw)
        headers.append((f"ce-{name}".encode(), _header_text(str(value))))
    return headers, data


def _header_text(text: str) -> bytes:
    """Encode a value as the HTTP binding of CloudEvents has it: percent signs for what a header cannot hold."""
    return "".join(
        each if "!" <= each <= "~" and each not in '"%' else "".join(f"%{byte:02X}" for byte in each.encode())
        for each in text
    ).encode()


def _retry_after(text: str | None, now: int) -> float | None:
    if text is None:
        return None
    if _NUMBER.fullmatch(text.strip()):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now / SECOND)
    except (ValueError, TypeError, OverflowError):
        return None


def _about(active: Active) -> dict[str, str]:
    return {"subscription": active.definition.name, "subscription_id": active.id}


_tasks: set[asyncio.Task[None]] = set()


def _background(work: Awaitable[None]) -> None:
    async def run() -> None:
        with suppress(LogError):  # the letter stays; a person can remove it
            await work

    task = asyncio.create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
