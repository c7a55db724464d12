"""POST /api/v1/notification and /api/v1/notifications: from the request to the acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b
from operator import itemgetter
from time import perf_counter
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aviso_server.counters import UNKNOWN, NotificationStatus
from aviso_server.delivery.hub import GENERIC
from aviso_server.diagnostics.log_records import Allowance
from aviso_server.errors import InvalidRequest, KeyRefused, LogError, RequestError, UnknownEventType
from aviso_server.http.app import Service
from aviso_server.http.request import Request, aside, check_publishable, decode_one, read_batch, read_request
from aviso_server.http.response import (
    NOTIFY,
    Answer,
    BatchFault,
    Count,
    HttpError,
    Processed,
    RequestId,
    Response,
    http_error,
)
from aviso_server.log.base import Appended, BatchKey, Key, Keyed
from aviso_server.model import topic as topics
from aviso_server.model.event_type import MAX_PAYLOAD_DEPTH, EventType, GenericType
from aviso_server.model.json_text import quoted
from aviso_server.model.notification import Draft, Notification
from aviso_server.model.times import SECOND, seconds_text
from aviso_server.store import Store

__all__ = ["MAX_KEY", "BatchPublished", "Published", "notify", "notify_many"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Sequenced = Annotated[int, Meta(ge=1, description="The place in its stream.")]
NotificationId = Annotated[str, Meta(description="As watchers get it: `<event type>@<sequence>`.")]


class Published(Answer, frozen=True, kw_only=True):
    """The notification is stored; with an idempotency key the answer says where."""

    status: Literal["success"] = "success"
    request_id: RequestId
    processed_at: Processed
    sequence: Sequenced | UnsetType = UNSET
    id: NotificationId | UnsetType = UNSET


class StoredItem(Answer, frozen=True, tag_field="status", tag="success"):
    """A notification of a batch that is stored; `replayed` if it was stored before, under the same key."""

    sequence: Sequenced
    id: NotificationId
    replayed: bool | UnsetType = UNSET


class AcceptableItem(Answer, frozen=True, tag_field="status", tag="acceptable"):
    """A notification of a dry run that would be stored."""


class RefusedItem(Answer, frozen=True, tag_field="status", tag="error"):
    """A notification of a batch that is not stored, or would not be."""

    code: Annotated[str, Meta(description="As in the answer to a notification that comes alone.")]
    field: str | None
    message: str


class BatchPublished(Answer, frozen=True):
    """What became of each notification, or would have in a dry run."""

    status: Annotated[
        Literal["success", "partial", "error"], Meta(description="All, some or none of them are, or would be, stored.")
    ]
    request_id: RequestId
    processed_at: Processed
    stored: Count
    replayed: Annotated[Count, Meta(description="Stored before, under the same keys.")]
    refused: Count
    outcomes: Annotated[list[StoredItem | AcceptableItem | RefusedItem], Meta(description="In the order of the batch.")]


_Published = tuple["_Checked | RefusedItem", "_Outcome | None"]
"""A notification, and what became of it; None if it was not stored."""

_KEY_HEADER = b"idempotency-key"
_REPLAYED = (b"idempotency-replayed", b"true")
_AT_ONCE = 500  # notifications of a batch that are worked on before other requests get their turn
_PROCESSED = Allowance()  # asked before a record is built, which takes longer than the rest of an answer


async def notify(request: Request) -> Response:
    """Publish a notification.

    It is stored before the answer is sent.
    """
    body = await request.body()
    key = request.header(_KEY_HEADER)
    runs = [[await aside(body, decode_one, body)]]
    [(checked, stored)] = await publish(request, runs, key, whole=True, alone=len(body))
    assert isinstance(checked, _Checked)  # a refusal is raised
    assert isinstance(stored, Appended)
    if key is None:
        return Response.json(Published(request_id=request.id, processed_at=_now(request)))
    name = f"{checked.event_type.name}@{stored.sequence}"
    answer = Published(request_id=request.id, processed_at=_now(request), sequence=stored.sequence, id=name)
    return Response.json(answer, headers=[_REPLAYED] if stored.repeated else ())


async def notify_many(request: Request) -> Response:
    """Publish many notifications.

    They are stored together before the answer is sent, which says what became of each.
    """
    service, limits = request.service, request.service.settings.limits
    try:
        body = await request.body(limits.max_batch_bytes)
    except HttpError as error:
        raise service.limits.note_batch(error) from None
    try:
        given = request.parameters(("all_or_nothing", "dry_run"))
        asked = {name: _switch(name, value) for name, value in given.items()}
        content_type = request.header(b"content-type") or b""
        batch = await read_batch(content_type, body, limits.max_batch_items, limits.max_body_bytes)
    except RequestError as error:
        raise http_error(error, NOTIFY) from None
    service.limits.check_batch(batch.size)
    service.tally.batch_sizes.observe(batch.size)
    key, whole = request.header(_KEY_HEADER), asked.get("all_or_nothing", False)
    outcomes: list[StoredItem | AcceptableItem | RefusedItem] = []
    published = await publish(request, batch.runs(), key, whole, dry_run=asked.get("dry_run", False))
    async for some in _slices(published):
        outcomes += [one if isinstance(one, RefusedItem) else _item(one, stored) for one, stored in some]
    replayed = sum(isinstance(one, StoredItem) and one.replayed is True for one in outcomes)
    refused = sum(isinstance(one, RefusedItem) for one in outcomes)
    answer = BatchPublished(
        "success" if not refused else "partial" if refused < len(outcomes) else "error",
        request.id,
        _now(request),
        sum(isinstance(one, StoredItem) for one in outcomes) - replayed,
        replayed,
        refused,
        outcomes,
    )
    return Response.json(answer, headers=[_REPLAYED] if replayed and replayed == len(outcomes) else ())


async def _slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield some at a time, with a turn for others between them."""
    for start in range(0, len(items), _AT_ONCE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + _AT_ONCE]


async def publish(
    request: Request,
    runs: Iterable[Sequence[Any]],
    key: bytes | None,
    whole: bool,
    alone: int | None = None,
    dry_run: bool = False,
) -> Sequence[_Published]:
    """Check notifications, store them and return what became of each, once it is safe.

    `runs` are decoded notifications, or errors in their place. `whole` is all or nothing. A notification that comes
    alone, in a body of so many bytes, has its refusal raised instead of returned. A dry run stores and counts nothing.
    """
    traces = request.service.traces
    try:
        if traces is None:
            return await _publish(request, runs, key, whole, alone, dry_run)
        with traces.publish(request.scope, request.id):
            return await _publish(request, runs, key, whole, alone, dry_run)
    except RequestError as error:
        raise http_error(error, NOTIFY) from None
    except LogError as error:
        raise _storage_failed(error, request.id) from None


async def _publish(
    request: Request, runs: Iterable[Sequence[Any]], key: bytes | None, whole: bool, alone: int | None, dry_run: bool
) -> Sequence[_Published]:
    checker, tally = _Checker(request, alone, dry_run), request.service.tally
    checked: list[_Checked | RefusedItem] = []
    for run in runs:
        if checked:
            await asyncio.sleep(0)  # other requests get their turn
        checked += checker.check_run(run)
    accepted = [one for one in checked if type(one) is _Checked]
    if whole and len(accepted) < len(checked):
        raise _batch_refused(checked)
    if dry_run:
        if key is not None:
            _header_key(key)  # refused in earnest too
        return [(one, None) for one in checked]
    try:
        keys = await _keys(request, key, checked, alone is not None) if checker.keyed or key is not None else None
        stored = await _store(request.service, [one.draft for one in accepted], keys, whole)
    except (RequestError, LogError):
        for one in accepted:
            tally.notifications[one.label, "error"] += 1
        raise
    for place, (one, outcome) in enumerate(zip(accepted, stored, strict=True), 1):
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        label = one.label
        if not isinstance(outcome, Appended):
            tally.notifications[label, "error"] += 1
            continue
        tally.notifications[label, "success"] += 1
        if outcome.repeated:
            tally.replayed[label] += 1
    if alone is not None:
        _log_processed(accepted[0], request.id)
    if len(accepted) == len(checked):
        return list(zip(checked, stored, strict=True))
    left = iter(stored)
    return [(one, next(left) if type(one) is _Checked else None) for one in checked]


# Checking


_Outcome = Appended | KeyRefused | LogError


class _Checked(msgspec.Struct, frozen=True, gc=False):
    """A notification that can be stored."""

    draft: Draft
    event_type: EventType | GenericType
    key: str | None

    @property
    def label(self) -> str:
        """The event type in metrics."""
        return _label(self.event_type)


def _label(event_type: EventType | GenericType) -> str:
    return GENERIC if event_type.generic else event_type.name


_MAX_EVENT_TYPES = 1024  # event types that are remembered while a batch is checked
_KEY_MEMBER = "idempotency_key"
_event_type, _identifier, _payload = itemgetter("event_type"), itemgetter("identifier"), itemgetter("payload")


class _Checker:
    """Checks the notifications of one request and counts those that it refuses."""

    __slots__ = ("_alone", "_denied", "_dry_run", "_event_types", "_limits", "_request", "keyed", "service")

    def __init__(self, request: Request, alone: int | None, dry_run: bool) -> None:
        self.service = request.service
        self.keyed = False  # a notification has a key of its own
        self._request = request
        self._alone = alone
        self._dry_run = dry_run
        self._event_types: dict[str, EventType | GenericType] = {}
        self._denied: dict[str, HttpError] = {}  # why the caller may not publish an event type
        self._limits = request.service.settings.limits

    def check_run(self, run: Sequence[Any]) -> Sequence[_Checked | RefusedItem]:
        """Check some notifications: together if they are alike and all acceptable, else one by one."""
        return (self._alone is None and self._alike(run)) or [self._check(members) for members in run]

    def _alike(self, run: Sequence[Any]) -> list[_Checked] | None:
        if set(map(type, run)) != {dict} or set(map(len, run)) != {3}:
            return None
        try:
            names = set(map(_event_type, run))
            identifiers, payloads = list(map(_identifier, run)), list(map(_payload, run))
            if len(names) != 1 or set(map(type, identifiers)) != {dict} or "point" in identifiers[0]:
                return None
            name = names.pop()
            if type(name) is not str:
                return None
            event_type = self._find(name)
            drafts = None if name in self._denied else event_type.check_all(identifiers, payloads)
        except (KeyError, TypeError, RequestError):  # a member is not there, or its value is no text
            return None
        if drafts is None:
            return None
        largest = max([len(draft.identifier) + len(draft.payload) for draft in drafts])
        if largest > min(self._limits.max_body_bytes, self._limits.max_identifier_bytes):
            return None
        return [_Checked(draft, event_type, None) for draft in drafts]

    def _check(self, members: Any) -> _Checked | RefusedItem:
        """Check one notification in the contract's order."""
        label, key, alone = UNKNOWN, None, self._alone
        try:
            if isinstance(members, RequestError):
                raise members
            if alone is None and type(members) is dict and _KEY_MEMBER in members:
                key = _key_text(members.pop(_KEY_MEMBER))
                self.keyed = True
            request = read_request(members)
            event_type = self._find(request.event_type)
            label = _label(event_type)
            check_publishable(request)
            if request.event_type in self._denied:
                raise self._denied[request.event_type]
            if alone is not None:
                self.service.limits.check_identifier(request.identifier, alone)
            draft = event_type.check(request.identifier, request.payload)
            if alone is None:
                self._check_size(draft)
        except RequestError as error:
            self._count(label, "rejected" if isinstance(error, UnknownEventType) else "error")
            self.service.limits.note_invalid(error)
            if alone is None:
                return _refused(error)
            if not isinstance(error, InvalidRequest) or label == UNKNOWN:
                raise
            faults = event_type.publishing_faults(request.identifier, request.payload)
            raise http_error(error, NOTIFY, faults) from None
        except HttpError as error:
            self._count(label, "rejected" if error.status in (401, 403) else "error")
            if alone is not None or error.status != 403:
                raise
            return RefusedItem(error.code or "", "event_type", error.message)
        except RecursionError:
            if alone is not None:
                raise
            self._count(label, "error")
            message = f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels"
            return _refused(InvalidRequest(message, field="payload"))
        return _Checked(draft, event_type, key)

    def _count(self, label: str, status: NotificationStatus) -> None:
        if not self._dry_run:
            self.service.tally.notifications[label, status] += 1

    def _find(self, name: str) -> EventType | GenericType:
        """Return an event type; note in `_denied` if the caller may not publish it."""
        known = self._event_types.get(name)
        if known is not None:
            return known
        event_type = self.service.catalogue.find(name)
        if len(self._event_types) >= _MAX_EVENT_TYPES:
            self._event_types.clear()
            self._denied.clear()
        self._event_types[name] = event_type
        if self.service.gate is not None:
            try:
                self.service.gate.allow(event_type, self._request.user, "write", self._request.id)
            except HttpError as error:
                self._denied[name] = error
        return event_type

    def _check_size(self, draft: Draft) -> None:
        size = len(draft.identifier) + len(draft.payload)
        if size > self._limits.max_body_bytes:
            raise InvalidRequest(f"The notification holds {size} bytes; the limit is {self._limits.max_body_bytes}")
        if len(draft.identifier) > self._limits.max_identifier_bytes:
            message = f"The identifier exceeds the size limit of {self._limits.max_identifier_bytes} bytes"
            raise InvalidRequest(message, field="identifier")


def _refused(error: RequestError | LogError) -> RefusedItem:
    if isinstance(error, LogError):
        return RefusedItem("NOTIFICATION_STORAGE_FAILED", None, f"The notification could not be stored: {error}")
    field = "event_type" if isinstance(error, UnknownEventType) else error.field
    return RefusedItem(http_error(error, NOTIFY).code or "", field, error.message)


def _item(checked: _Checked, outcome: _Outcome | None) -> StoredItem | AcceptableItem | RefusedItem:
    """Tell what became of an acceptable notification; None is the outcome of a dry run."""
    if outcome is None:
        return AcceptableItem()
    if not isinstance(outcome, Appended):
        return _refused(outcome)
    name = f"{checked.event_type.name}@{outcome.sequence}"
    return StoredItem(outcome.sequence, name, True) if outcome.repeated else StoredItem(outcome.sequence, name)


_MAX_FAULTS = 100  # that are listed when a whole batch is refused


def _batch_refused(checked: Sequence[_Checked | RefusedItem]) -> HttpError:
    refused = [(index, one) for index, one in enumerate(checked) if isinstance(one, RefusedItem)]
    faults = [BatchFault(index, one.code, one.field, one.message) for index, one in refused[:_MAX_FAULTS]]
    return HttpError.of(
        "BATCH_REFUSED",
        f"Nothing was stored: {len(refused)} of {len(checked)} notifications cannot be accepted",
        NOTIFY.label,
        details=f"notification {faults[0].index}: {faults[0].message}",
        faults=faults,
    )


def _switch(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidRequest(f"Parameter '{name}' must be true or false; got {quoted(value)}", field=name)
    return value == "true"


# Idempotency keys

MAX_KEY = 255  # characters
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ACCEPTED_KEY = f"1 to {MAX_KEY} printable ASCII characters, without blanks around them"
_DIGEST_BYTES = 16
_BATCH_KEY_BYTES = 12

_Keys = tuple[Sequence[Keyed], BatchKey | None]


async def _keys(request: Request, given: bytes | None, checked: Sequence[_Checked | RefusedItem], alone: bool) -> _Keys:
    """Return accepted notifications with their own keys, and the key for those without.

    The same text from another user is another key. Other content of one notification is other content of the batch.
    """
    owner = None if request.user is None else (request.user.realm, request.user.name)

    def keyed(text: str, draft: Draft) -> Keyed:
        return Keyed(draft, Key(_digest((owner, text)), _digest(_content(draft))))

    if alone and given is not None:
        [one] = checked
        assert isinstance(one, _Checked)  # a refusal is raised
        return [keyed(_header_key(given), one.draft)], None
    entries: list[Keyed] = []
    places: list[int] = []
    # as one list that is encoded whole: that is how the digests of earlier versions came about
    content = blake2b(msgspec.msgpack.encode([None] * len(checked))[: -len(checked) or None], digest_size=_DIGEST_BYTES)
    async for some in _slices(list(enumerate(checked))):
        for place, one in some:
            if isinstance(one, _Checked):
                entries.append(Keyed(one.draft, None) if one.key is None else keyed(one.key, one.draft))
                places.append(place)
        if given is not None:
            contents = [_content(one.draft) if isinstance(one, _Checked) else one.message for _, one in some]
            content.update(b"".join(map(msgspec.msgpack.encode, contents)))
    if given is None:
        return entries, None
    name = _digest((owner, _header_key(given), "batch"))[:_BATCH_KEY_BYTES]
    return entries, BatchKey(name, content.digest(), places)


def _key_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_KEY or not _KEY.fullmatch(value):
        raise InvalidRequest(f"The idempotency key must be {_ACCEPTED_KEY}", field=_KEY_MEMBER)
    return value


def _header_key(value: bytes) -> str:
    """Read the key in a header, with or without quotes."""
    text = _key_text(value.decode("latin-1").strip())
    return _key_text(text[1:-1]) if len(text) >= 2 and text[0] == text[-1] == '"' else text


def _content(draft: Draft) -> tuple[str, str, bytes, bytes]:
    """Return what has to be the same again: as it is stored, not as it was written."""
    return draft.stream, draft.topic, draft.identifier, draft.payload


def _digest(parts: Any) -> bytes:
    return blake2b(msgspec.msgpack.encode(parts), digest_size=_DIGEST_BYTES).digest()


# Storing

_MAX_TOGETHER = 1000  # drafts of one stream that every log can store together
_RUNS_AT_ONCE = 64  # of different streams: on a broker, each of them may have to be made
_RUN = 20  # what a run costs by itself, in notifications
_TRACED_AT_ONCE = 128


async def _store(service: Service, drafts: Sequence[Draft], keys: _Keys | None, whole: bool) -> Sequence[_Outcome]:
    """Store notifications; a key of the batch that was used before refuses all."""
    traces = service.traces
    if whole and len(drafts) > 1 and not await service.store.indivisible(drafts):
        raise InvalidRequest(
            f"Parameter 'all_or_nothing': this server's log stores up to {_MAX_TOGETHER} notifications of one event "
            f"type so; the batch has {len(drafts)} of {len({draft.stream for draft in drafts})}",
            field="all_or_nothing",
        )
    began, failed = perf_counter(), True
    try:
        if traces is None:
            outcomes = await _append(service.store, drafts, keys, whole)
        else:
            with traces.commit(", ".join(sorted({draft.stream for draft in drafts})), service.log.kind):
                outcomes = await _append(service.store, drafts, keys, whole)
        failed = False
    finally:
        service.operations.count("publish", perf_counter() - began, failed)
    if traces is not None:
        for place, (draft, outcome) in enumerate(zip(drafts, outcomes, strict=True), 1):
            if place % _TRACED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if isinstance(outcome, Appended) and not outcome.repeated:
                traces.stored(draft.stream, outcome.sequence)
    return outcomes


async def _append(store: Store, drafts: Sequence[Draft], keys: _Keys | None, whole: bool) -> Sequence[_Outcome]:
    if keys is not None:
        return await store.append_keyed(keys[0], whole or keys[1] is not None, keys[1])
    if len(drafts) == 1:
        return [Appended((await store.append(drafts[0])).sequence)]
    if whole or (len(drafts) <= _MAX_TOGETHER and len({draft.stream for draft in drafts}) == 1):
        return [Appended(one.sequence) for one in await store.append_many(drafts)]
    return await _append_by_stream(store, drafts)


async def _append_by_stream(store: Store, drafts: Sequence[Draft]) -> Sequence[_Outcome]:
    """Store what can be stored; LogError if nothing can."""
    by_stream: dict[str, list[int]] = {}
    for place, draft in enumerate(drafts):
        by_stream.setdefault(draft.stream, []).append(place)
    runs = [
        places[start : start + _MAX_TOGETHER]
        for places in by_stream.values()
        for start in range(0, len(places), _MAX_TOGETHER)
    ]
    outcomes: dict[int, _Outcome] = {}
    failures: list[LogError] = []
    for start in range(0, len(runs), _RUNS_AT_ONCE):
        # begun together, they share a commit where the log has commits
        appends: list[asyncio.Task[Sequence[Notification]]] = []
        begun = 0
        for run in (some := runs[start : start + _RUNS_AT_ONCE]):
            if begun >= _AT_ONCE:
                await asyncio.sleep(0)
                begun = 0
            begun += len(run) + _RUN
            appends.append(asyncio.create_task(store.append_many([drafts[place] for place in run])))
        for run, result in zip(some, await asyncio.gather(*appends, return_exceptions=True), strict=True):
            if isinstance(result, LogError):
                failures.append(result)
                outcomes |= dict.fromkeys(run, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                outcomes |= {place: Appended(one.sequence) for place, one in zip(run, result, strict=True)}
    if failures and len(failures) == len(runs):
        raise failures[0]
    return [outcomes[place] for place in range(len(drafts))]


def _storage_failed(error: LogError, request_id: str) -> HttpError:
    """Build the 500 for a failed write."""
    logger.error(
        "notification could not be stored: %s",
        error,
        extra={"event": "api.request.processing.failed", "request_id": request_id},
    )
    message = "The notification could not be stored"
    return HttpError.of("NOTIFICATION_STORAGE_FAILED", message, details=str(error))


def _now(request: Request) -> str:
    return seconds_text(request.service.clock() // SECOND)


def _log_processed(one: _Checked, request_id: str) -> None:
    if logger.isEnabledFor(logging.INFO) and (left_out := _PROCESSED.take()) is not None:
        told = {
            "event": "api.notification.processed",
            "request_id": request_id,
            "event_type": one.event_type.name,
            "topic": topics.display(one.draft.topic),
        }
        logger.info("notification processed", extra={**told, "suppressed": left_out} if left_out else told)
