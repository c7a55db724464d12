"""Lag: the sequence that a subscription has come to, and the age of what it has not delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aviso_server.log.base import Log
from aviso_server.model.times import SECOND
from aviso_server.store import Store
from aviso_server.subscriptions.active import Active

__all__ = ["idle_place", "lag", "lag_seconds", "longest_lags", "place"]

_AT_ONCE = 256  # subscriptions that are looked at in one turn


def place(active: Active) -> int:
    """Return the sequence that a subscription has come to: everything before it is done."""
    waiting = min([each for each in active.state.leased if each > 0], default=active.state.next)
    return waiting if waiting < active.state.next else max(active.state.next, idle_place(active))


def idle_place(active: Active) -> int:
    """Return up to where nothing more is to be delivered; 0 if something is, or nobody knows."""
    cursor = active.cursor
    if cursor is None or not cursor.live or cursor.waiting or active.task is not None or active.state.attempts:
        return 0
    if active.state.sending:
        return 0
    return cursor.next


def _oldest(active: Active) -> int:
    """Return the first sequence that a subscription has to deliver, or that it has not come to."""
    cursor = active.cursor
    if cursor is not None and cursor.waiting and active.task is None and not active.state.leased:
        return cursor.waiting[0].sequence
    return place(active)


async def lag(store: Store, active: Active) -> int:
    """Return how many sequences of its stream a subscription has not come to yet."""
    if active.wanted is None:
        return 0
    return max(0, (await store.state(active.wanted.stream)).last + 1 - place(active))


async def lag_seconds(store: Store, active: Active, now: int) -> float:
    """Return the age of the oldest notification that a subscription has not delivered, or not come to."""
    if active.wanted is None:
        return 0.0
    stream = active.wanted.stream
    return await _age(store.log, stream, _oldest(active), (await store.state(stream)).last, now)


async def longest_lags(
    log: Log, actives: Sequence[Active], lasts: Mapping[str, int], now: int
) -> Mapping[tuple[str, str], float]:
    """Return the longest lags in seconds by event type and delivery.

    `lasts` are the newest sequences by event type; the others are not looked at.
    """
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for number, active in enumerate(actives, 1):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others wait too
        if active.wanted is not None:
            kind, found = (active.wanted.event_type, active.delivery), (active.wanted.stream, _oldest(active))
            first[kind] = min(first.get(kind, found), found)
    return {kind: await _age(log, *found, lasts.get(kind[0], 0), now) for kind, found in first.items()}


async def _age(log: Log, stream: str, sequence: int, last: int, now: int) -> float:
    """Return the age in seconds of the first notification in a log from `sequence` to `last`; 0 if there is none."""
    while sequence <= last:
        batch = await log.read(stream, sequence, last, 1)
        if batch.notifications:
            return max(0.0, (now - batch.notifications[0].time) / SECOND)
        sequence = batch.next
    return 0.0
