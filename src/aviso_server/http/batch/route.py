"""POST /api/v1/notifications: many notifications in one request and one commit, with an outcome for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from aviso_server.delivery.outlet import Send
from aviso_server.errors import InvalidRequest, KeyRefused, LogError, RequestError
from aviso_server.http.answers import ENDPOINTS, JSON, Refusal, refusal_of, respond
from aviso_server.http.batch.body import read_items, read_options
from aviso_server.http.batch.items import Alike, Checked, Checker, Fault
from aviso_server.http.body import Receive, header, read_body
from aviso_server.http.idempotency import HEADER, REPLAYED, Keyring, header_text
from aviso_server.http.notify import storage_failed
from aviso_server.http.service import Service
from aviso_server.log.base import Appended, BatchKey, Keyed, Log
from aviso_server.model.notification import Draft
from aviso_server.model.timestamp import SECOND, seconds_text

__all__ = ["notify_many"]

Outcome = Appended | KeyRefused | LogError
Checks = Alike | Sequence[Checked | Fault]
_Keys = tuple[Sequence[Keyed], BatchKey | None]

_ENDPOINT = ENDPOINTS["notifications"]
_AT_ONCE = 256  # notifications that are checked before others get their turn
_TOGETHER = 1000  # drafts of one stream that are stored together: the most that every log can
_MOST_LISTED = 100  # faults in the refusal of a whole batch


async def notify_many(service: Service, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
    """Store a batch and answer when it is safe, with an outcome for every notification."""
    try:
        body = await read_body(scope, receive, service.settings.limits.max_batch_bytes)
    except Refusal as refusal:
        raise service.limits.note_batch(refusal) from None
    checker = Checker(service, scope, request_id)
    traces = service.traces
    try:
        with nullcontext() if traces is None else traces.publish(scope, request_id):
            whole = read_options(scope)
            given = header(scope, HEADER)
            batch_key = None if given is None else header_text(given)
            items = read_items(scope, body)
            service.limits.check_batch(len(items))
            service.tally.batch_sizes.observe(len(items))
            checked = await _check(checker, items)
            if isinstance(checked, Alike):
                drafts = checked.drafts
            else:
                drafts = [one.draft for one in checked if isinstance(one, Checked)]
                if whole and len(drafts) < len(checked):
                    raise _refused(checked)
            keyed = None if batch_key is None and not checker.keyed else _keys(scope, batch_key, _each_of(checked))
            outcomes = await _store(service, drafts, keyed, whole)
    except RequestError as error:
        raise refusal_of(error, _ENDPOINT) from None
    except LogError as error:
        raise storage_failed(error, request_id) from None
    answer, replayed = _answer(service, checker, checked, outcomes, request_id)
    await respond(send, 200, JSON, answer, request_id, [REPLAYED] if replayed else [])


async def _check(checker: Checker, items: list[Any]) -> Checks:
    """What becomes of each. Takes the items out of the list: they are freed fastest while they are in a cache."""
    runs: list[Checks] = []
    while items:
        if runs:
            await asyncio.sleep(0)
        some, items[:_AT_ONCE] = items[:_AT_ONCE], []
        runs.append(checker.check_all(some) or [checker.check(members) for members in some])
    alike = [run for run in runs if isinstance(run, Alike)]
    if alike and len(alike) == len(runs) and all(run.kind is alike[0].kind for run in alike):
        return Alike(alike[0].kind, [draft for run in alike for draft in run.drafts])
    return [one for run in runs for one in _each_of(run)]


def _each_of(checked: Checks) -> Sequence[Checked | Fault]:
    return checked.each() if isinstance(checked, Alike) else checked


def _keys(scope: Any, batch_key: str | None, checked: Sequence[Checked | Fault]) -> _Keys:
    """The notifications that can be stored with the keys of their own, and the key for those that have none."""
    ring = Keyring(scope)
    entries = [
        Keyed(one.draft, None if one.key is None else ring.of_item(one.key, one.draft))
        for one in checked
        if isinstance(one, Checked)
    ]
    if batch_key is None:
        return entries, None
    return entries, ring.of_batch(
        batch_key, [one.draft if isinstance(one, Checked) else one.message for one in checked]
    )


async def _store(service: Service, drafts: Sequence[Draft], keyed: _Keys | None, whole: bool) -> Sequence[Outcome]:
    """What became of each; `whole` is all or nothing, and a key of the batch that was used before refuses all."""
    log, traces = service.log, service.traces
    streams = sorted({draft.stream for draft in drafts})
    if whole and not await log.indivisible(drafts):
        raise InvalidRequest(
            f"Parameter 'all_or_nothing': this server's log stores up to {_TOGETHER} notifications of one event type "
            f"so; the batch has {len(drafts)} of {len(streams)}",
            field="all_or_nothing",
        )
    with (
        service.operations.timed("publish"),
        nullcontext() if traces is None else traces.commit(", ".join(streams), log.kind),
    ):
        outcomes: Sequence[Outcome]
        if keyed is not None:
            entries, batch_key = keyed
            outcomes = await log.append_keyed(entries, whole or batch_key is not None, batch_key)
        elif whole or (len(streams) == 1 and len(drafts) <= _TOGETHER):
            outcomes = [Appended(one.sequence) for one in await log.append_many(drafts)]
        else:
            outcomes = await _append(log, drafts)
    if traces is not None:
        for draft, outcome in zip(drafts, outcomes, strict=True):
            if isinstance(outcome, Appended) and not outcome.repeated:
                traces.stored(draft.stream, outcome.sequence)
    return outcomes


async def _append(log: Log, drafts: Sequence[Draft]) -> Sequence[Outcome]:
    """Store what can be stored; LogError if nothing can."""
    by_stream: dict[str, list[int]] = {}
    for place, draft in enumerate(drafts):
        by_stream.setdefault(draft.stream, []).append(place)
    runs = [
        places[start : start + _TOGETHER] for places in by_stream.values() for start in range(0, len(places), _TOGETHER)
    ]
    # begun in the same turn of the loop, they share a commit where the log has commits
    results = await asyncio.gather(
        *[log.append_many([drafts[place] for place in run]) for run in runs], return_exceptions=True
    )
    outcomes: dict[int, Outcome] = {}
    failures: list[BaseException] = []
    for run, result in zip(runs, results, strict=True):
        if isinstance(result, BaseException):
            failures.append(result)
            if not isinstance(result, LogError):
                raise result
            for place in run:
                outcomes[place] = result
        else:
            for place, notification in zip(run, result, strict=True):
                outcomes[place] = Appended(notification.sequence)
    if failures and len(failures) == len(runs):
        raise failures[0]
    return [outcomes[place] for place in range(len(drafts))]


def _refused(checked: Sequence[Checked | Fault]) -> Refusal:
    """The refusal of a batch that is to be stored whole and cannot be."""
    faults = [
        {"index": place, **msgspec.structs.asdict(one)} for place, one in enumerate(checked) if isinstance(one, Fault)
    ]
    first = faults[0]
    message = f"Nothing was stored: {len(faults)} of {len(checked)} notifications cannot be accepted"
    return Refusal.error(
        400,
        "BATCH_REFUSED",
        _ENDPOINT.label,
        message,
        details=f"notification {first['index']}: {first['message']}",
        faults=faults[:_MOST_LISTED],
    )


def _answer(
    service: Service, checker: Checker, checked: Checks, outcomes: Sequence[Outcome], request_id: str
) -> tuple[bytes, bool]:
    """The body of the answer, and whether all of it was stored before."""
    stored: Counter[str] = Counter()
    replayed: Counter[str] = Counter()
    sequences = [one.sequence for one in outcomes if isinstance(one, Appended) and not one.repeated]
    if isinstance(checked, Alike) and len(sequences) == len(outcomes):  # most batches are, and all is well
        stored[checked.kind.label] = len(sequences)
        shown = [checked.kind.stored(sequences)]
    else:
        shown = _each(checker, _each_of(checked), outcomes, stored, replayed)
    for label, count in (stored + replayed).items():
        service.tally.notifications[label, "success"] += count
    for label, count in replayed.items():
        service.tally.replayed[label] += count
    new, old = stored.total(), replayed.total()
    asked = len(outcomes) if isinstance(checked, Alike) else len(checked)
    refused = asked - new - old
    status = b"success" if not refused else b"partial" if new or old else b"error"
    body = (
        b'{"status":"%b","request_id":"%b","processed_at":"%b","stored":%d,"replayed":%d,"refused":%d,"outcomes":[%b]}'
        % (
            status,
            request_id.encode(),
            seconds_text(service.clock() // SECOND).encode(),
            new,
            old,
            refused,
            ",".join(shown).encode(),
        )
    )
    return body, bool(old) and old == asked


def _each(
    checker: Checker,
    checked: Sequence[Checked | Fault],
    outcomes: Sequence[Outcome],
    stored: Counter[str],
    replayed: Counter[str],
) -> list[str]:
    """What stands in the answer for one after the other, counted on the way."""
    left = iter(outcomes)
    shown: list[str] = []
    for one in checked:
        if isinstance(one, Fault):
            shown.append(one.rendered())
            continue
        outcome = next(left)
        kind = one.kind
        if not isinstance(outcome, Appended):
            shown.append(checker.failed(one, outcome))
        elif outcome.repeated:
            replayed[kind.label] += 1
            shown.append(kind.replayed(outcome.sequence))
        else:
            stored[kind.label] += 1
            shown.append(kind.stored([outcome.sequence]))
    return shown
