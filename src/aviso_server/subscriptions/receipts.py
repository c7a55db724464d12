"""Receipts: proof that a set is complete, or of what it lacks.

A subscription may ask for sets instead of single notifications. Those that agree in some fields are one set; it is
complete when another field has taken every expected value. The subscription gets one event `aviso_complete` then. If
the deadline comes first, it gets `aviso_incomplete` with what is missing, and `aviso_complete` when the rest has come
after all, with what was late. Nothing here does I/O; the state of sets is part of the state of their subscription.

The digest is that of `model.cloudevent`, over the events of a set in order of sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from aviso_server.model.cloudevent import EMPTY_DIGEST, extend_digest
from aviso_server.model.times import SECOND, event_time, parse_instant
from aviso_server.subscriptions.cursor import Event
from aviso_server.subscriptions.subscription import Collected, OpenSet, ReceiptWish, State

__all__ = ["AT_ONCE", "COMPLETE", "INCOMPLETE", "Sets", "close_overdue", "collect", "learn", "learned", "next_deadline"]

COMPLETE = "int.ecmwf.aviso.aviso_complete"
INCOMPLETE = "int.ecmwf.aviso.aviso_incomplete"
AT_ONCE = 128  # events that are taken into sets in one turn: some milliseconds at worst
_MAX_SETS = 1000  # that wait at a time; the oldest gives way, and is told as incomplete
_MAX_VALUES = 20_000  # of all sets that wait
_MAX_LISTED = 1000  # values of one set
_MAX_OUTBOX = 32  # receipts that wait to be delivered; then no more events are taken
_KEPT = 7  # deadlines after which a set that was told as incomplete is forgotten
_NEVER = 2**63

Sets = dict[str, dict[str, None]]
"""The values of sets, in order of appearance."""


class _Data(msgspec.Struct, gc=False):
    identifier: dict[str, Any]


class _Read(msgspec.Struct, gc=False):
    time: str
    data: _Data


_decode = msgspec.json.Decoder(_Read).decode


def collect(state: State, wish: ReceiptWish, events: Sequence[Event], source: str, name: str) -> int:
    """Take events into their sets and return how many; receipts that are due go to the state's outbox.

    At most AT_ONCE are taken, and none while the outbox is full.
    """
    collected = state.collecting()
    expected, changes = frozenset(_expected(collected, wish)), _next_change(collected, wish)
    for number, event in enumerate(events[:AT_ONCE]):
        if len(collected.outbox) >= _MAX_OUTBOX:
            return number
        read = _decode(event.body)
        now = parse_instant("time", read.time)
        if now >= changes:
            close_overdue(state, wish, now, source, name)
            expected, changes = frozenset(_expected(collected, wish)), _next_change(collected, wish)
        state.next = event.sequence + 1
        values = read.data.identifier
        value = values.get(wish.field)
        if not isinstance(value, str):
            continue
        key = _key(wish, values)
        known = collected.sets.get(key)
        if known is None:
            _make_room(collected, wish, now, source, name)
            known = collected.sets[key] = OpenSet(
                {each: str(values.get(each, "")) for each in wish.by}, now, event.sequence, event.sequence, {}, "", 0
            )
            changes = min(changes, now + wish.deadline_seconds * SECOND)
        known.last = event.sequence
        known.count += 1
        known.digest = extend_digest(bytes.fromhex(known.digest) or EMPTY_DIGEST, event.body).hex()
        if value in known.values or not _is_kept(wish, known, value, expected):
            continue
        known.values[value] = event.sequence
        if known.told:
            known.late.append(value)
        if 0 < len(expected) <= len(known.values) and expected <= known.values.keys():
            del collected.sets[key]
            _remember(collected, wish, known)
            _send(collected, wish, known, COMPLETE, now, source, name)
            expected = frozenset(_expected(collected, wish))
    return min(len(events), AT_ONCE)


def close_overdue(state: State, wish: ReceiptWish, now: int, source: str, name: str) -> None:
    """Tell sets as incomplete whose deadline is over, and forget those that nobody waits for any more."""
    collected, deadline = state.collecting(), wish.deadline_seconds * SECOND
    for key, known in list(collected.sets.items()):
        if len(collected.outbox) >= _MAX_OUTBOX:
            return
        age = now - known.began
        if age >= deadline and not known.told:
            known.told = True
            if _expected(collected, wish):
                _send(collected, wish, known, INCOMPLETE, now, source, name)
            _remember(collected, wish, known)
        if age >= _KEPT * deadline:
            del collected.sets[key]


def next_deadline(state: State, wish: ReceiptWish) -> int | None:
    """Return when a set is to be told as incomplete, in nanoseconds since 1970; None if no set waits."""
    sets = {} if state.collected is None else state.collected.sets
    began = [known.began for known in sets.values() if not known.told]
    return min(began) + wish.deadline_seconds * SECOND if began else None


def learn(earlier: Sets, wish: ReceiptWish, events: Sequence[Event]) -> None:
    """Add what earlier notifications say about their sets; only the last sets and their first values are kept."""
    for event in events:
        values = _decode(event.body).data.identifier
        if isinstance(value := values.get(wish.field), str):
            known = earlier.setdefault(_key(wish, values), {})
            if len(known) < _MAX_LISTED:
                known[value] = None
            if len(earlier) > wish.learn_sets + 1:
                del earlier[next(iter(earlier))]


def learned(earlier: Sets, wish: ReceiptWish) -> list[list[str]]:
    """Return the values of the last of these sets."""
    return [list(each) for each in list(earlier.values())[-wish.learn_sets :]]


def _next_change(collected: Collected, wish: ReceiptWish) -> int:
    """Return when a set is to be told as incomplete, or forgotten."""
    deadline = wish.deadline_seconds * SECOND
    found = [known.began + (_KEPT if known.told else 1) * deadline for known in collected.sets.values()]
    return min(found, default=_NEVER)


def _key(wish: ReceiptWish, values: Mapping[str, Any]) -> str:
    return "\x1f".join([str(values.get(each, "")) for each in wish.by])


def _is_kept(wish: ReceiptWish, known: OpenSet, value: str, expected: Collection[str]) -> bool:
    """Return whether a set needs a value: one that is expected, or that can be learned."""
    return value in expected or (not wish.expected and len(known.values) < _MAX_LISTED)


def _expected(collected: Collected, wish: ReceiptWish) -> Sequence[str]:
    """Return the values that are listed, or those of most of the sets that were learned from."""
    if wish.expected:
        return wish.expected
    learned = collected.learned or []
    counts = Counter(value for each in learned for value in each)
    return sorted(value for value, count in counts.items() if 2 * count >= len(learned))


def _remember(collected: Collected, wish: ReceiptWish, known: OpenSet) -> None:
    if not wish.expected:
        collected.learned = [*(collected.learned or []), list(known.values)][-wish.learn_sets :]


def _make_room(collected: Collected, wish: ReceiptWish, now: int, source: str, name: str) -> None:
    sets = collected.sets
    while len(sets) >= _MAX_SETS or sum([len(each.values) for each in sets.values()]) >= _MAX_VALUES:
        known = sets.pop(min(sets, key=lambda each: sets[each].began))
        if not known.told and _expected(collected, wish):
            _send(collected, wish, known, INCOMPLETE, now, source, name)


def _send(collected: Collected, wish: ReceiptWish, known: OpenSet, kind: str, now: int, source: str, name: str) -> None:
    expected = _expected(collected, wish)
    missing = [each for each in expected if each not in known.values]
    data: dict[str, Any] = {
        "subscription": name,
        "set": known.fields,
        "field": wish.field,
        "count": known.count,
        "expected": len(expected),
        "first_sequence": known.first,
        "last_sequence": known.last,
        "digest": f"sha-256-chain:{known.digest}",
    }
    if kind == COMPLETE:
        data["late"] = known.late[:_MAX_LISTED]
    else:
        data["missing"] = missing[:_MAX_LISTED]
        data["missing_count"] = len(missing)
    collected.receipts += 1
    event = {
        "specversion": "1.0",
        "type": kind,
        "source": source,
        "id": f"{name}@receipt-{collected.receipts}",
        "time": event_time(now),
        "datacontenttype": "application/json",
        "data": data,
    }
    collected.outbox[-collected.receipts] = _encode(event).decode()


_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
