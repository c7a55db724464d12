"""What a subscription is: what it wants, where it goes, whose it is, and how far it has come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model.json_text import quoted

__all__ = [
    "ANYBODY",
    "MAX_BATCH",
    "NAME",
    "RETRY_SECONDS",
    "Definition",
    "Gap",
    "Leased",
    "OpenSet",
    "Owner",
    "ReceiptWish",
    "State",
    "Status",
    "Subscription",
    "check_definition",
]

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
"""What the name of a subscription looks like."""

MAX_BATCH = 1000
"""Notifications in one request to a sink."""

_NAME = re.compile(NAME, re.ASCII)
_DAY = 86_400

RETRY_SECONDS = 3 * _DAY
"""How long a sink is tried before what it does not take is a dead letter, unless said otherwise."""

_MAX_RETRY_FOR = 30 * _DAY
_MAX_ATTEMPTS = 1000
_MAX_EXPECTED = 1000
_PULL_ATTEMPTS = 10
_MAX_GAPS = 20  # that are remembered

Status = Literal["active", "paused", "unconfirmed", "disabled"]
"""What became of it: delivering; paused by its owner; the sink has not agreed yet; the sink said that it is gone."""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user who made a subscription, as their credentials said when they last used it."""

    name: str
    realm: str | None = None
    roles: tuple[str, ...] = ()
    attributes: Mapping[str, str] = {}
    admin: bool = False

    @property
    def key(self) -> str:
        """Tells owners apart; one person may be known in several realms."""
        return f"{self.realm or ''}/{self.name}"


ANYBODY = Owner("anybody")
"""Who owns subscriptions on a server without authentication."""


class ReceiptWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A set that a subscription waits for: one notification when it is complete, or at the deadline.

    `field` has to take every value of `expected`; without these they are learned from what was there before.
    Notifications that agree in the fields `by` belong to one set.
    """

    field: str
    by: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    learn_sets: int = 7  # earlier sets that are looked at if nothing is listed
    deadline_seconds: int = 6 * 3600  # after the first of a set


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the owner of a subscription decides."""

    name: str
    event_type: str
    identifier: dict[str, Any]
    delivery: Literal["push", "pull"] = "pull"
    sink: str = ""
    headers: dict[str, str] = {}  # sent along with every request to the sink
    mode: Literal["structured", "binary"] = "structured"
    batch: int = 1  # notifications in one request, when there are several
    signature: Literal["v1", "v1a"] = "v1"
    on_failure: Literal["block", "park"] = "block"
    max_attempts: int | None = None  # before a notification is a dead letter; 0: any number
    retry_for_seconds: int = RETRY_SECONDS  # of a pushed notification before it is a dead letter
    complete: ReceiptWish | None = None

    @property
    def attempts(self) -> int:
        """How often a notification is tried before it is a dead letter; 0: until its time is over."""
        if self.max_attempts is None:
            return 0 if self.delivery == "push" else _PULL_ATTEMPTS
        return self.max_attempts


def check_definition(wanted: Definition) -> None:
    """Raise InvalidRequest unless the parts of a definition are acceptable, all but filter and sink."""
    if _NAME.fullmatch(wanted.name) is None:
        raise InvalidRequest(
            f"name must have 1 to 64 letters, digits, - or _, and begin with a letter or digit; got "
            f"{quoted(wanted.name)}",
            field="name",
        )
    if wanted.delivery == "push" and not wanted.sink:
        raise InvalidRequest("sink is required with delivery 'push': the https address to send to", field="sink")
    if wanted.delivery == "pull" and (wanted.sink or wanted.headers):
        raise InvalidRequest("sink and headers are for delivery 'push' only", field="sink")
    for name, value, least, most in (
        ("batch", wanted.batch, 1, MAX_BATCH),
        ("max_attempts", wanted.max_attempts or 0, 0, _MAX_ATTEMPTS),
        ("retry_for_seconds", wanted.retry_for_seconds, 0, _MAX_RETRY_FOR),
    ):
        if not least <= value <= most:
            raise InvalidRequest(f"{name} must be from {least} to {most}; got {value}", field=name)
    if wanted.batch > 1 and wanted.mode == "binary":
        raise InvalidRequest("batch needs mode 'structured': binary mode has one event per request", field="batch")
    if wanted.complete is not None:
        _check_receipt(wanted.complete)


def _check_receipt(wish: ReceiptWish) -> None:
    if not wish.field or wish.field in wish.by:
        raise InvalidRequest("complete.field must name a field that is not in complete.by", field="complete")
    if len(wish.expected) > _MAX_EXPECTED or len(set(wish.expected)) != len(wish.expected):
        raise InvalidRequest(f"complete.expected must list up to {_MAX_EXPECTED} different values", field="complete")
    if not 1 <= wish.learn_sets <= 100 or not 1 <= wish.deadline_seconds <= 7 * _DAY:
        raise InvalidRequest(
            "complete.learn_sets must be from 1 to 100, complete.deadline_seconds from 1 to 604800", field="complete"
        )


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription as it is stored."""

    id: str
    owner: Owner
    wanted: Definition  # its headers are sealed
    sealed_headers: bytes = b""
    header_count: int = 0
    secret: int = 1  # which of its secrets signs
    former_until: tuple[int, ...] = ()  # nanoseconds since 1970: how long the secrets before it sign too, newest first
    status: Status = "unconfirmed"
    reason: str = ""  # of a status other than active
    allowed_rate: int = 0  # requests per minute that the sink takes; 0: any
    edition: int = 0  # how often it was changed
    start: tuple[int, int] | None = None  # the last edition that moved the cursor, and where to
    sets_since: int = 0  # the edition in which it began to collect these sets
    created: int = 0  # nanoseconds since 1970
    changed: int = 0
    changed_by: str = ""


class Leased(msgspec.Struct, array_like=True, gc=False):
    """A notification that a worker has, or has handed back."""

    attempts: int
    until: int  # nanoseconds since 1970: from then on another worker may have it
    token: str


class Gap(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sequences of which retention has removed some, before this subscription came to them."""

    first: int
    last: int


class OpenSet(msgspec.Struct, array_like=True):
    """A set that is not complete yet."""

    fields: dict[str, str]  # what its notifications have in common
    began: int  # nanoseconds since 1970
    first: int
    last: int
    values: dict[str, int]  # that have come, and the sequence of the first of each
    digest: str
    count: int  # notifications
    told: bool = False  # it was told as incomplete
    late: list[str] = []  # what has come since then

    def copy(self) -> OpenSet:
        """Return a copy that can be changed without this one."""
        return msgspec.structs.replace(self, values=dict(self.values), late=list(self.late))


class Collected(msgspec.Struct, omit_defaults=True):
    """What a subscription to sets has collected, and the receipts that it has made."""

    sets: dict[str, OpenSet] = {}  # those that are not complete yet
    learned: list[list[str]] | None = None  # the values of the last sets, if nobody has listed what is expected
    receipts: int = 0  # that were made
    outbox: dict[int, str] = {}  # receipts that are to be delivered, under negative numbers

    def copy(self) -> Collected:
        """Return a copy that can be changed without this one."""
        sets = {key: each.copy() for key, each in self.sets.items()}
        return msgspec.structs.replace(self, sets=sets, outbox=dict(self.outbox))


class State(msgspec.Struct, omit_defaults=True, gc=False):
    """How far a subscription has come."""

    next: int  # everything before it was delivered, is leased, or is a dead letter
    edition: int = 0  # of the subscription, from `next` on
    server: str = ""  # which one serves it, where there are several
    by: str = ""  # which one has saved it
    sending: tuple[int, ...] = ()  # where the next batches end, so that they are sent again as they were
    attempts: int = 0  # that have failed, of what begins at `next`
    failing_since: int = 0  # nanoseconds since 1970
    due: int = 0  # when to try again
    blocked: bool = False  # it has failed for so long that somebody should look
    delivered: int = 0  # notifications
    parked: int = 0  # dead letters that are kept
    retries: tuple[int, ...] = ()  # dead letters that are to be sent again
    gaps: tuple[Gap, ...] = ()
    leased: dict[int, Leased] = {}
    collected: Collected | None = None

    def add_gap(self, gap: Gap) -> None:
        """Remember that retention was faster; gaps that touch are one."""
        touching = [each for each in self.gaps if each.first <= gap.last + 1 and gap.first <= each.last + 1]
        apart = [each for each in self.gaps if each not in touching]
        whole = Gap(min(each.first for each in (gap, *touching)), max(each.last for each in (gap, *touching)))
        self.gaps = tuple(sorted([*apart, whole], key=lambda each: each.first)[-_MAX_GAPS:])

    def add_gaps_of(self, other: State) -> None:
        """Remember the gaps of another state of the same edition."""
        for gap in other.gaps if other.edition == self.edition else ():
            self.add_gap(gap)

    def follow(self, subscription: Subscription) -> None:
        """Go on as the newest edition of a subscription says; nothing is left of batches of an earlier one."""
        if self.edition >= subscription.edition:
            return
        moved = subscription.start is not None and self.edition < subscription.start[0]
        if subscription.start is not None and moved:
            self.next, self.leased = subscription.start[1], {}
            self.gaps, self.attempts, self.failing_since, self.due = (), 0, 0, 0
        if self.collected is not None and (moved or self.edition < subscription.sets_since):
            self.collected.sets, self.collected.outbox = {}, {}
            if self.edition < subscription.sets_since:
                self.collected.learned = None
        self.edition, self.sending, self.blocked = subscription.edition, (), False

    @property
    def outbox(self) -> dict[int, str]:
        """The receipts that are to be delivered."""
        return {} if self.collected is None else self.collected.outbox

    def has_learned(self, wish: ReceiptWish | None) -> bool:
        """Return whether it is known what sets have to hold."""
        learned = None if self.collected is None else self.collected.learned
        return wish is None or bool(wish.expected) or learned is not None

    def collecting(self) -> Collected:
        """Return what was collected, to be added to."""
        if self.collected is None:
            self.collected = Collected()
        return self.collected

    def copy(self) -> State:
        """Return a copy that can be changed without this one."""
        collected = None if self.collected is None else self.collected.copy()
        return msgspec.structs.replace(self, leased=dict(self.leased), collected=collected)
