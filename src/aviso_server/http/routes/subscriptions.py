"""/api/v1/subscriptions: a filter with a name, a cursor, and somewhere to go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aviso_server.errors import InvalidRequest, LogError, MalformedRequest, RequestError
from aviso_server.http.auth import unauthorized
from aviso_server.http.ecpds import EcpdsPlugin
from aviso_server.http.request import Request, aside
from aviso_server.http.response import SUBSCRIPTION, Answer, Count, HttpError, RequestId, Response, http_error
from aviso_server.model.event_type import read_point
from aviso_server.model.json_text import loads, quoted
from aviso_server.model.times import Instant, event_time, read_start
from aviso_server.subscriptions.active import Active
from aviso_server.subscriptions.dead_letters import DeadLetter
from aviso_server.subscriptions.lag import lag, lag_seconds, place
from aviso_server.subscriptions.names import NameTaken
from aviso_server.subscriptions.push import Attempt
from aviso_server.subscriptions.receipts import COMPLETE, INCOMPLETE
from aviso_server.subscriptions.registry import NoSuchSubscription, Subscriptions, TooMany
from aviso_server.subscriptions.subscription import (
    ANYBODY,
    MAX_BATCH,
    NAME,
    RETRY_SECONDS,
    Definition,
    Owner,
    ReceiptWish,
)

__all__ = [
    "MAX_PAGE",
    "PAGE",
    "Acknowledged",
    "AttemptList",
    "ChangedSubscription",
    "DeadLetterList",
    "Extension",
    "HandBack",
    "Leases",
    "Letters",
    "LettersMoved",
    "NewSubscription",
    "OneAttempt",
    "PullRequest",
    "Pulled",
    "Rotated",
    "SubscriptionAnswer",
    "SubscriptionList",
    "acknowledge",
    "change_subscription",
    "create_subscription",
    "delete_subscription",
    "extend_leases",
    "hand_back",
    "list_attempts",
    "list_dead_letters",
    "list_subscriptions",
    "pause_subscription",
    "pull",
    "read_subscription",
    "replace_subscription",
    "resume_subscription",
    "retry_dead_letters",
    "rotate_secret",
    "skip_dead_letters",
    "test_subscription",
]

T = TypeVar("T")

PAGE = 100
"""Subscriptions in one answer, unless asked otherwise."""

MAX_PAGE = 1000
"""Most subscriptions in one answer."""

_MAX_WAIT = 60
_MAX_LEASE = 12 * 3600
_MAX_LEASES = 10_000
_SHOWN_AT_ONCE = 64
_PAGE_SIZE = re.compile(r"[0-9]{1,4}", re.ASCII)

Name = Annotated[str, Meta(pattern=NAME, description="Of your own choice; yours alone.", examples=["my-steps"])]
Start = Annotated[str | None, Meta(description="Start here, as in a watch; with what is published next without it.")]
Mode = Annotated[
    Literal["structured", "binary"], Meta(description="How CloudEvents are sent: as one JSON document, or in headers.")
]
Batch = Annotated[
    int, Meta(ge=1, le=MAX_BATCH, description="Notifications in one request, when several wait; an array then.")
]
OnFailure = Annotated[
    Literal["block", "park"],
    Meta(description="What to do with one that cannot be delivered: wait, or keep it as a dead letter and go on."),
]
Identifier = Annotated[dict[str, Any], Meta(description="What a watch has: values, constraints, an area.")]
Sink = Annotated[
    str | None, Meta(description="Where to send to, over https; with delivery `push`.", examples=["https://a.example/"])
]
Headers = Annotated[dict[str, str], Meta(description="Sent along with every request, and never shown again.")]


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new subscription wants and where it goes."""

    name: Name
    event_type: str
    identifier: Identifier
    from_id: Start = None
    from_date: Start = None
    delivery: Literal["push", "pull"] = "pull"
    sink: Sink = None
    headers: Headers = {}
    mode: Mode = "structured"
    batch: Batch = 1
    signature: Literal["v1", "v1a"] = "v1"
    on_failure: OnFailure = "block"
    max_attempts: int | None = None
    retry_for_seconds: int = RETRY_SECONDS
    complete: ReceiptWish | None = None


class ChangedSubscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to change; what is left out stays as it is. A start moves the cursor."""

    name: Name | UnsetType = UNSET
    event_type: str | UnsetType = UNSET
    identifier: Identifier | UnsetType = UNSET
    from_id: Start = None
    from_date: Start = None
    delivery: Literal["push", "pull"] | UnsetType = UNSET
    sink: Sink | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    batch: Batch | UnsetType = UNSET
    signature: Literal["v1", "v1a"] | UnsetType = UNSET
    on_failure: OnFailure | UnsetType = UNSET
    max_attempts: int | UnsetType | None = UNSET
    retry_for_seconds: int | UnsetType = UNSET
    complete: ReceiptWish | UnsetType | None = UNSET


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a worker wants, how long it waits, and how long it may keep it."""

    max: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=_MAX_WAIT)] = 0
    lease_seconds: Annotated[int, Meta(ge=1, le=_MAX_LEASE)] = 60


_Leases = Annotated[list[str], Meta(min_length=1, max_length=_MAX_LEASES)]


class Leases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Notifications that a worker has, by their leases."""

    leases: _Leases


class HandBack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Notifications that a worker hands back."""

    leases: _Leases
    delay_seconds: Annotated[float, Meta(ge=0, le=_MAX_LEASE)] = 0


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Notifications that a worker keeps for longer."""

    leases: _Leases
    lease_seconds: Annotated[int, Meta(ge=1, le=_MAX_LEASE)] = 60


class Letters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters by their sequences; all of them without."""

    sequences: Annotated[list[int], Meta(max_length=_MAX_LEASES)] | None = None


class GapAnswer(Answer, frozen=True):
    """Sequences of which retention had removed some."""

    first: Count
    last: Count


class SubscriptionAnswer(Answer, frozen=True, kw_only=True):
    """A subscription: what it wants, where it goes, and how it is doing."""

    id: str
    name: str
    owner: str
    types: Annotated[list[str], Meta(description="The CloudEvents types that it brings.")]
    event_type: str
    identifier: dict[str, Any]
    delivery: Literal["push", "pull"]
    protocol: Literal["HTTP"] = "HTTP"
    sink: str | None
    headers: Annotated[int, Meta(description="How many headers are sent along; they are not shown.")]
    mode: Mode
    batch: int
    signature: Literal["v1", "v1a"]
    public_key: Annotated[str | None, Meta(description="Checks signatures `v1a`.")]
    secret: Annotated[str | None, Meta(description="Checks signatures `v1`; shown once, to whoever made it.")] = None
    on_failure: OnFailure
    max_attempts: int
    retry_for_seconds: int
    complete: ReceiptWish | None
    status: Literal["active", "paused", "unconfirmed", "disabled"]
    reason: Annotated[str, Meta(description="Why it is not active.")]
    health: Annotated[
        Literal["ok", "failing", "blocked", "stopped"], Meta(description="Whether what it wants arrives.")
    ]
    problem: Annotated[str, Meta(description="What stands in the way now.")]
    next_sequence: Annotated[Count, Meta(description="Everything before it is done.")]
    lag: Annotated[Count | None, Meta(description="Sequences of the stream that it has not come to; null if secret.")]
    lag_seconds: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Age of the oldest that it has not delivered, or not come to; null if secret."),
    ]
    in_flight: Annotated[Count, Meta(description="Notifications that workers have.")]
    delivered: Count
    dead_letters: Count
    attempts: Annotated[Count, Meta(description="Failed ones, of what is to be delivered next.")]
    next_attempt: Instant | None
    gaps: Annotated[list[GapAnswer], Meta(description="Where retention was faster than the subscription.")]
    created: Instant
    changed: Instant
    changed_by: str
    request_id: RequestId


class SubscriptionList(Answer, frozen=True, kw_only=True):
    """The subscriptions of the caller; of everybody, for administrators."""

    subscriptions: list[SubscriptionAnswer]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null if this one is the last.")]
    request_id: RequestId


class WorkAnswer(Answer, frozen=True):
    """A notification that the worker has until its lease ends."""

    lease: str
    attempt: Count
    event: Annotated[Any, Meta(description="The CloudEvent.")]


class Pulled(Answer, frozen=True, kw_only=True):
    """What the worker has now; nothing if nothing came in time."""

    notifications: list[WorkAnswer]
    request_id: RequestId


class Acknowledged(Answer, frozen=True, kw_only=True):
    """What became of the leases; those that ended before are unknown."""

    done: Count
    unknown: Annotated[list[str], Meta(description="Leases that ended: somebody else may have the notification.")]
    request_id: RequestId


class DeadLetterAnswer(Answer, frozen=True):
    """A notification that could not be delivered."""

    sequence: int
    event: Any
    attempts: Count
    first_failed: Instant
    last_failed: Instant
    status: Annotated[int, Meta(description="Of the last answer; 0 if there was none.")]
    answer: str
    blocking: Annotated[bool, Meta(description="Deliveries wait behind it.")]


class DeadLetterList(Answer, frozen=True, kw_only=True):
    """What could not be delivered, in order of sequences."""

    dead_letters: list[DeadLetterAnswer]
    request_id: RequestId


class LettersMoved(Answer, frozen=True, kw_only=True):
    """How many dead letters there were."""

    count: Count
    request_id: RequestId


class AttemptAnswer(Answer, frozen=True):
    """A request to the sink, and its answer."""

    time: Instant
    webhook_id: str
    count: Count
    request_headers: dict[str, str]
    request: Annotated[str, Meta(description="The beginning of its body.")]
    status: Annotated[int, Meta(description="0 if no answer came.")]
    answer: str
    seconds: float


class AttemptList(Answer, frozen=True, kw_only=True):
    """The last requests to the sink, the newest first, as this server remembers them."""

    deliveries: list[AttemptAnswer]
    request_id: RequestId


class OneAttempt(Answer, frozen=True, kw_only=True):
    """What the sink answered to a test event."""

    delivery: AttemptAnswer
    request_id: RequestId


class Rotated(Answer, frozen=True, kw_only=True):
    """The new secret, or public key; it is shown once. Those before it sign too, for a day each."""

    secret: str
    request_id: RequestId


_OfOne = Callable[[Request, Active], Awaitable[Response]]
_Handler = Callable[[Request], Awaitable[Response]]


def _of_one(delivery: Literal["push", "pull"] | None = None) -> Callable[[_OfOne], _Handler]:
    """Make a handler of a function about one subscription: it is found first, and what goes wrong is an HTTP error."""

    def decorated(handle: _OfOne) -> _Handler:
        async def handler(request: Request) -> Response:
            with _errors():
                return await handle(request, await _found(request, delivery))

        handler.__name__, handler.__doc__ = handle.__name__, handle.__doc__  # the table of routes documents by them
        return handler

    return decorated


async def create_subscription(request: Request) -> Response:
    """Make a subscription.

    It keeps what matches from now on, or from `from_id` or `from_date` on, and delivers it at least once and in order.
    With delivery `push` the sink is asked first whether it wants this: by the handshake of CloudEvents webhooks, or by
    a challenge that it repeats. The answer holds the secret of the signatures; it is not shown again.
    """
    subscriptions, owner = _subscriptions(request), _owner(request)
    with _errors():
        asked, size = await _body(request, NewSubscription)
        wanted, span = _definition(asked), read_start(asked.from_id, asked.from_date)
        await _check_reader(request, wanted, size)
        active, secret = await subscriptions.create(wanted, owner, span, _by(request))
        return await _answer(request, active, 201, secret)


async def list_subscriptions(request: Request) -> Response:
    """List subscriptions in order of names, with how each is doing."""
    subscriptions, owner = _subscriptions(request), _owner(request)
    found = []
    with _errors():
        limit, after = _page(request)
        page = list(islice(subscriptions.visible_to(owner, after), limit + 1))
        for number, active in enumerate(page[:limit], 1):
            found.append(await _shown(request, active))
            if number % _SHOWN_AT_ONCE == 0:
                await asyncio.sleep(0)  # others wait too
    last = page[limit - 1] if len(page) > limit else None
    following = None if last is None else f"{last.subscription.owner.key}/{last.definition.name}"
    return Response.json(SubscriptionList(subscriptions=found, next=following, request_id=request.id))


def _page(request: Request) -> tuple[int, str]:
    """Read `limit` and `after`; InvalidRequest names what is wrong."""
    given = request.parameters(("limit", "after"))
    limit, after = given.get("limit", str(PAGE)), given.get("after")
    if _PAGE_SIZE.fullmatch(limit) is None or not 1 <= int(limit) <= MAX_PAGE:
        raise InvalidRequest(f"Parameter 'limit' must be from 1 to {MAX_PAGE}; got {quoted(limit)}", field="limit")
    if after is not None and "/" not in after:
        raise InvalidRequest(
            f"Parameter 'after' must be what 'next' says in the page before; got {quoted(after)}", field="after"
        )
    return int(limit), after or ""


@_of_one()
async def read_subscription(request: Request, active: Active) -> Response:
    """Show a subscription."""
    return await _answer(request, active)


@_of_one()
async def change_subscription(request: Request, active: Active) -> Response:
    """Change parts of a subscription.

    A new filter holds from where the cursor is. With `from_id` or `from_date` the cursor moves there, so history is
    delivered again or skipped. A new sink is asked for its consent first. Another kind of signature has another secret,
    which the answer holds.
    """
    asked, size = await _body(request, ChangedSubscription)
    changes = {
        name: value
        for name in asked.__struct_fields__
        if name in Definition.__struct_fields__ and (value := getattr(asked, name)) is not UNSET
    }
    if "sink" in changes:
        changes["sink"] = changes["sink"] or ""
    wanted = msgspec.structs.replace(active.definition, **changes)
    return await _change(request, active, wanted, asked, size, keep_headers="headers" not in changes)


@_of_one()
async def replace_subscription(request: Request, active: Active) -> Response:
    """Change all of a subscription: what is left out gets its default."""
    asked, size = await _body(request, NewSubscription)
    return await _change(request, active, _definition(asked), asked, size, keep_headers=False)


@_of_one()
async def delete_subscription(request: Request, active: Active) -> Response:
    """Delete a subscription and its dead letters."""
    await _subscriptions(request).delete(active, _by(request))
    return Response(204)


@_of_one()
async def pause_subscription(request: Request, active: Active) -> Response:
    """Pause a subscription; nothing is lost meanwhile."""
    await _subscriptions(request).pause(active, _by(request))
    return await _answer(request, active)


@_of_one()
async def resume_subscription(request: Request, active: Active) -> Response:
    """Resume a subscription.

    Deliver from where it was paused, retry at once what failed, and ask the sink again if it has not agreed.
    """
    await _subscriptions(request).resume(active, _by(request))
    return await _answer(request, active)


@_of_one("push")
async def rotate_secret(request: Request, active: Active) -> Response:
    """Make a new secret."""
    secret = await _subscriptions(request).rotate(active, _by(request))
    return Response.json(Rotated(secret=secret, request_id=request.id))


@_of_one("push")
async def test_subscription(request: Request, active: Active) -> Response:
    """Send a test event to the sink and show its answer."""
    attempt = await _subscriptions(request).test(active)
    return Response.json(OneAttempt(delivery=_attempt(attempt), request_id=request.id))


@_of_one()
async def list_attempts(request: Request, active: Active) -> Response:
    """Show the last requests to the sink and its answers."""
    _check_content(request, active)
    attempts = _subscriptions(request).pusher.attempts.of(active.id)
    return Response.json(AttemptList(deliveries=[_attempt(each) for each in attempts], request_id=request.id))


@_of_one()
async def list_dead_letters(request: Request, active: Active) -> Response:
    """List what could not be delivered."""
    _check_content(request, active)
    letters = await _subscriptions(request).letters.all(active.id)
    return Response.json(DeadLetterList(dead_letters=[_letter(each) for each in letters], request_id=request.id))


@_of_one()
async def retry_dead_letters(request: Request, active: Active) -> Response:
    """Deliver dead letters once more."""
    asked, _ = await _body(request, Letters, b"{}")
    count = await _subscriptions(request).retry(active, asked.sequences, _by(request))
    return Response.json(LettersMoved(count=count, request_id=request.id))


@_of_one()
async def skip_dead_letters(request: Request, active: Active) -> Response:
    """Give dead letters up; a subscription that one of them blocks goes on behind it."""
    asked, _ = await _body(request, Letters, b"{}")
    count = await _subscriptions(request).skip(active, asked.sequences, _by(request))
    return Response.json(LettersMoved(count=count, request_id=request.id))


@_of_one("pull")
async def pull(request: Request, active: Active) -> Response:
    """Take notifications to work on.

    Each is with one worker at a time. What is not acknowledged before its lease ends goes to another worker, and after
    `max_attempts` it is a dead letter.
    """
    asked, _ = await _body(request, PullRequest, b"{}")
    if active.status != "active":
        raise InvalidRequest(f"the subscription is {active.status}; resume it first")
    if active.wanted is None:
        raise InvalidRequest(active.problem)
    found = await _subscriptions(request).puller.pull(active, asked.max, asked.wait_seconds, asked.lease_seconds)
    works = [WorkAnswer(each.lease, each.attempt, each.event) for each in found]
    return Response.json(Pulled(notifications=works, request_id=request.id))


@_of_one("pull")
async def acknowledge(request: Request, active: Active) -> Response:
    """Acknowledge notifications: they are done."""
    asked, _ = await _body(request, Leases)
    return _acknowledged(request, asked.leases, await _subscriptions(request).puller.ack(active, asked.leases))


@_of_one("pull")
async def hand_back(request: Request, active: Active) -> Response:
    """Hand notifications back: another worker gets them, after a delay if one is given."""
    asked, _ = await _body(request, HandBack)
    found = await _subscriptions(request).puller.nack(active, asked.leases, asked.delay_seconds)
    return _acknowledged(request, asked.leases, found)


@_of_one("pull")
async def extend_leases(request: Request, active: Active) -> Response:
    """Keep notifications for longer."""
    asked, _ = await _body(request, Extension)
    found = await _subscriptions(request).puller.extend(active, asked.leases, asked.lease_seconds)
    return _acknowledged(request, asked.leases, found)


# Who asks, and for what


def _subscriptions(request: Request) -> Subscriptions:
    found = request.service.subscriptions
    if found is None:
        raise HttpError(404, "")
    return found


def _owner(request: Request) -> Owner:
    user, gate = request.user, request.service.gate
    if gate is None:
        return ANYBODY
    if user is None:
        raise unauthorized("Credentials are needed: a subscription belongs to somebody", gate.mode)
    return Owner(user.name, user.realm, user.roles, dict(user.attributes), user.admin)


def _by(request: Request) -> str:
    return ANYBODY.name if request.user is None else _owner(request).key


async def _found(request: Request, delivery: Literal["push", "pull"] | None = None) -> Active:
    subscriptions, owner, name = _subscriptions(request), _owner(request), request.params["name"]
    try:
        active = subscriptions.find(owner, name)
    except NoSuchSubscription:
        raise HttpError.of("SUBSCRIPTION_NOT_FOUND", "There is no such subscription, or it is not yours") from None
    if delivery is not None and active.delivery != delivery:
        raise HttpError.of(
            "INVALID_SUBSCRIPTION_REQUEST",
            f"This is for subscriptions with delivery '{delivery}'; it has '{active.delivery}'",
            SUBSCRIPTION.label,
        )
    await subscriptions.refresh_owner(active, owner)
    return active


def _check_content(request: Request, active: Active) -> None:
    """Check that the caller may still read the notifications that a subscription keeps."""
    if active.wanted is not None and request.service.gate is not None:
        event_type = request.service.catalogue.find(active.definition.event_type)
        request.service.gate.allow(event_type, request.user, "read", request.id)


async def _check_reader(request: Request, wanted: Definition, size: int) -> None:
    """Check that the caller may read what they want, as for a watch."""
    service = request.service
    event_type = service.catalogue.find(wanted.event_type)
    if service.gate is not None:
        service.gate.allow(event_type, request.user, "read", request.id)
    service.limits.check_identifier(wanted.identifier, size)
    ecpds: EcpdsPlugin | None = service.ecpds
    if ecpds is not None:
        point = read_point(wanted.identifier)
        await ecpds.check(event_type.compile(wanted.identifier, "watch", point), request.user, request.id)


async def _change(
    request: Request,
    active: Active,
    wanted: Definition,
    asked: NewSubscription | ChangedSubscription,
    size: int,
    keep_headers: bool,
) -> Response:
    span = read_start(asked.from_id, asked.from_date)
    await _check_reader(request, wanted, size)
    secret = await _subscriptions(request).change(active, wanted, span, _by(request), keep_headers)
    return await _answer(request, active, secret=secret)


def _definition(asked: NewSubscription) -> Definition:
    members = {name: getattr(asked, name) for name in Definition.__struct_fields__}
    return Definition(**{**members, "sink": asked.sink or ""})


async def _body(request: Request, kind: type[T], empty: bytes = b"") -> tuple[T, int]:
    """Read the body of a request, `empty` if it has none; return it and its size in bytes."""
    body = await request.body() or empty
    return await aside(body, _read, body, kind), len(body)


def _read(body: bytes, kind: type[T]) -> T:
    """Read a body of one kind; MalformedRequest says what is wrong with its form."""
    members = loads(body)
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if "unknown field" in text:
            allowed = ", ".join(getattr(kind, "__struct_fields__", ()))
            message = f"Unknown field in request body: {text}; allowed fields: {allowed}"
            raise MalformedRequest("UNKNOWN_FIELD", message) from None
        raise MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid request body: {text}") from None


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise http_error(error, SUBSCRIPTION) from None
    except NameTaken as error:
        raise HttpError.of("SUBSCRIPTION_EXISTS", f"You have a subscription of the name '{error}' already") from None
    except TooMany as error:
        raise HttpError.of("TOO_MANY_SUBSCRIPTIONS", str(error)) from None
    except LogError as error:
        raise HttpError.of("SERVICE_UNAVAILABLE", f"The log is away: {error}") from None


# Answers


async def _answer(request: Request, active: Active, status: int = 200, secret: str | None = None) -> Response:
    return Response.json(await _shown(request, active, secret), status)


async def _shown(request: Request, active: Active, secret: str | None = None) -> SubscriptionAnswer:
    subscriptions, service = _subscriptions(request), request.service
    subscription, wanted, state = active.subscription, active.definition, active.state
    knows = active.wanted is not None and service.may_know(active.wanted.stream, request.user)
    health: Literal["ok", "failing", "blocked", "stopped"] = "ok"
    problem = active.problem
    if state.attempts and not problem and (tried := subscriptions.pusher.attempts.of(active.id)):
        problem = f"the sink answered {tried[0].status}" if tried[0].status else tried[0].answer
    if subscription.status != "active" or active.wanted is None:
        health = "stopped"
    elif state.blocked:
        health = "blocked"
    elif state.attempts or active.problem:
        health = "failing"
    return SubscriptionAnswer(
        id=subscription.id,
        name=wanted.name,
        owner=subscription.owner.key.strip("/"),
        types=[f"int.ecmwf.aviso.{wanted.event_type}"] if wanted.complete is None else [COMPLETE, INCOMPLETE],
        event_type=wanted.event_type,
        identifier=wanted.identifier,
        delivery=wanted.delivery,
        sink=wanted.sink or None,
        headers=subscription.header_count,
        mode=wanted.mode,
        batch=wanted.batch,
        signature=wanted.signature,
        public_key=subscriptions.public_key(subscription) if wanted.delivery == "push" else None,
        secret=secret,
        on_failure=wanted.on_failure,
        max_attempts=wanted.attempts,
        retry_for_seconds=wanted.retry_for_seconds,
        complete=wanted.complete,
        status=subscription.status,
        reason=subscription.reason,
        health=health,
        problem=problem,
        next_sequence=place(active),
        lag=await lag(service.hub.store, active) if knows else None,
        lag_seconds=await lag_seconds(service.hub.store, active, service.clock()) if knows else None,
        in_flight=len(state.leased),
        delivered=state.delivered,
        dead_letters=state.parked,
        attempts=state.attempts,
        next_attempt=event_time(state.due) if state.attempts else None,
        gaps=[GapAnswer(each.first, each.last) for each in state.gaps],
        created=event_time(subscription.created),
        changed=event_time(subscription.changed),
        changed_by=subscription.changed_by,
        request_id=request.id,
    )


def _acknowledged(request: Request, leases: Sequence[str], found: Sequence[bool]) -> Response:
    unknown = [lease for lease, known in zip(leases, found, strict=True) if not known]
    return Response.json(Acknowledged(done=sum(found), unknown=unknown, request_id=request.id))


def _letter(letter: DeadLetter) -> DeadLetterAnswer:
    return DeadLetterAnswer(
        letter.sequence,
        letter.event,
        letter.attempts,
        event_time(letter.first),
        event_time(letter.last),
        letter.status,
        letter.answer,
        letter.blocking,
    )


def _attempt(attempt: Attempt) -> AttemptAnswer:
    return AttemptAnswer(
        event_time(attempt.time),
        attempt.webhook_id,
        attempt.count,
        attempt.request_headers,
        attempt.request,
        attempt.status,
        attempt.answer,
        attempt.seconds,
    )
