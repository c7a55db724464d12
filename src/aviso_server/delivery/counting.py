"""How many notifications of the past a filter lets through: counted by the archive where it can, else in the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal

import msgspec

from aviso_server.delivery.hub import Hub
from aviso_server.errors import LogUnavailable
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.span import Span
from aviso_server.model.tally import Tally

__all__ = ["Counted", "Source", "count"]

Source = Literal["archive", "log"]


class Counted(msgspec.Struct, frozen=True):
    """What was counted: as many notifications as a replay from one sequence to another brings."""

    tally: Tally
    first: int
    last: int  # lower than `first` if there was nothing to count
    sources: Sequence[Source]


async def count(hub: Hub, wanted: Filter, since: int, unit: int) -> Counted:
    """Count what was stored at or after a time, in intervals of `unit` nanoseconds; LogError if it cannot be read.

    Everything that is archived is counted there and the rest in the log, each notification once. A log that still has
    all of it stands in for an archive that cannot be asked.
    """
    history, stream = hub.history, wanted.stream
    state = await hub.log.state(stream)
    start, end = await history.start_of(stream, Span(from_time=since)), state.last
    tally, sources, left = Tally(unit), list[Source](), [(start, end)]
    if history.archive is not None and start <= end:
        covered = await history.archive.coverage(stream, state.trimmed)
        low, high = max(start, covered.first), min(end, covered.last)
        whole = state.trimmed < start  # in the log
        if low <= high and (history.archive.reachable or not whole):
            try:
                tally.merge(await history.archive.count(wanted, low, high, unit))
            except LogUnavailable:
                if not whole:
                    raise
            else:
                sources.append("archive")
                left = [(start, low - 1), (high + 1, end)]
    ranges = [(low, high) for low, high in left if low <= high]
    for low, high in ranges:
        await _read(hub, wanted, low, high, tally)
    if ranges or not sources:
        sources.append("log")
    return Counted(tally, start, end, sources)


async def _read(hub: Hub, wanted: Filter, start: int, end: int, tally: Tally) -> None:
    """Count as a replay reads: piece by piece, filtered in threads, also across what retention moves meanwhile."""

    def take(notifications: Sequence[Notification]) -> bytes:
        tally.add(notifications)
        return b""

    async with aclosing(hub.pieces(hub.history, wanted, take, start, end)) as pieces:
        async for _ in pieces:
            pass
