"""Receipts: proof that a set is complete, or of what it lacks.

A subscription may ask for sets instead of single notifications. Those that agree in some fields are one set; it is
complete when another field has taken every expected value. The subscription gets one event `aviso_complete` then. If
the deadline comes first, it gets `aviso_incomplete` with what is missing, and `aviso_complete` when the rest has come
after all, with what was late. Nothing here does I/O; the state of sets is part of the state of their subscription.

The digest is that of `model.cloudevent`, over the events of a set in order of sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from aviso_server.model.cloudevent import EMPTY_DIGEST, extend_digest
from aviso_server.model.times import SECOND, event_time, parse_instant
from aviso_server.subscriptions.cursor import Event
from aviso_server.subscriptions.subscription import OpenSet, ReceiptWish, State

__all__ = ["close_overdue", "collect", "learn", "next_deadline"]

COMPLETE = "int.ecmwf.aviso.aviso_complete"
INCOMPLETE = "int.ecmwf.aviso.aviso_incomplete"
_MAX_SETS = 1000  # that wait at a time; the oldest gives way, and is told as incomplete
_KEPT = 7  # deadlines after which a set that was told as incomplete is forgotten
_MAX_LISTED = 1000  # missing or late values in a receipt


class _Data(msgspec.Struct, gc=False):
    identifier: dict[str, Any]


class _Read(msgspec.Struct, gc=False):
    time: str
    data: _Data


_decode = msgspec.json.Decoder(_Read).decode


def collect(state: State, wish: ReceiptWish, events: Sequence[Event], source: str, name: str) -> None:
    """Take events into their sets; receipts that are due go to the state's outbox."""
    for event in events:
        read = _decode(event.body)
        now = parse_instant("time", read.time)
        close_overdue(state, wish, now, source, name)
        state.next = event.sequence + 1
        values = read.data.identifier
        value = values.get(wish.field)
        if not isinstance(value, str):
            continue
        key = "\x1f".join(str(values.get(each, "")) for each in wish.by)
        known = state.sets.get(key)
        if known is None:
            _make_room(state, wish, now, source, name)
            known = state.sets[key] = OpenSet(
                {each: str(values.get(each, "")) for each in wish.by}, now, event.sequence, event.sequence, {}, "", 0
            )
        known.last = event.sequence
        known.count += 1
        known.digest = extend_digest(bytes.fromhex(known.digest) or EMPTY_DIGEST, event.body).hex()
        if known.told and value not in known.values:
            known.late.append(value)
        known.values.setdefault(value, event.sequence)
        expected = _expected(state, wish)
        if expected and all(each in known.values for each in expected):
            del state.sets[key]
            _remember(state, wish, known)
            _send(state, wish, known, COMPLETE, now, source, name)


def close_overdue(state: State, wish: ReceiptWish, now: int, source: str, name: str) -> None:
    """Tell sets as incomplete whose deadline is over, and forget those that nobody waits for any more."""
    deadline = wish.deadline_seconds * SECOND
    for key, known in list(state.sets.items()):
        age = now - known.began
        if age >= deadline and not known.told:
            known.told = True
            if _expected(state, wish):
                _send(state, wish, known, INCOMPLETE, now, source, name)
            _remember(state, wish, known)
        if age >= _KEPT * deadline:
            del state.sets[key]


def next_deadline(state: State, wish: ReceiptWish) -> int | None:
    """Return when a set is to be told as incomplete, in nanoseconds since 1970; None if no set waits."""
    began = [known.began for known in state.sets.values() if not known.told]
    return min(began) + wish.deadline_seconds * SECOND if began else None


def learn(state: State, wish: ReceiptWish, events: Sequence[Event]) -> None:
    """Learn from earlier notifications which values a set has: those of most of the last sets."""
    sets: dict[str, dict[str, None]] = {}
    for event in events:
        values = _decode(event.body).data.identifier
        if isinstance(value := values.get(wish.field), str):
            key = "\x1f".join(str(values.get(each, "")) for each in wish.by)
            sets.setdefault(key, {})[value] = None
    state.learned = [list(each) for each in list(sets.values())[-wish.learn_sets :]]


def _expected(state: State, wish: ReceiptWish) -> Sequence[str]:
    if wish.expected:
        return wish.expected
    learned = state.learned or []
    counts = Counter(value for each in learned for value in each)
    return sorted(value for value, count in counts.items() if 2 * count >= len(learned))


def _remember(state: State, wish: ReceiptWish, known: OpenSet) -> None:
    if not wish.expected:
        state.learned = [*(state.learned or []), list(known.values)][-wish.learn_sets :]


def _make_room(state: State, wish: ReceiptWish, now: int, source: str, name: str) -> None:
    while len(state.sets) >= _MAX_SETS:
        key = min(state.sets, key=lambda each: state.sets[each].began)
        known = state.sets.pop(key)
        if not known.told and _expected(state, wish):
            _send(state, wish, known, INCOMPLETE, now, source, name)


def _send(state: State, wish: ReceiptWish, known: OpenSet, kind: str, now: int, source: str, name: str) -> None:
    expected = _expected(state, wish)
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
    state.receipts += 1
    event = {
        "specversion": "1.0",
        "type": kind,
        "source": source,
        "id": f"{name}@receipt-{state.receipts}",
        "time": event_time(now),
        "datacontenttype": "application/json",
        "data": data,
    }
    state.outbox[-state.receipts] = _encode(event).decode()


_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
