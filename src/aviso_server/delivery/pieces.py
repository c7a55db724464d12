"""History piece by piece, always a little ahead of its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aviso_server.delivery.forms import Render
from aviso_server.delivery.history import History
from aviso_server.delivery.piece import FIRST_BATCH, Piece, next_batch
from aviso_server.delivery.reading import Reading
from aviso_server.log.base import Batch
from aviso_server.model.filter import Filter

__all__ = ["pieces", "pieces_with_pauses"]

_Pieces = AsyncGenerator[Piece, None]


async def pieces(
    history: History,
    wanted: Filter,
    render: Render,
    start: int,
    end: int,
    room: int | None = None,
    plain: bool = False,
) -> _Pieces:
    """What matches from `start` to `end`, at most `room` notifications of it.

    With `plain`, a notification is rendered the same whatever came before it, and without its topic.
    """
    reading = history.reading(wanted, start)
    try:
        while start <= end:
            if await reading.can_pour():
                some = _poured(history, reading, render, end, room, plain)
            else:
                some = _step_by_step(history, reading, render, start, end, room)
            async with aclosing(some) as found:
                async for piece in found:
                    start = piece.next
                    room = None if room is None else room - piece.count
                    yield piece
                    if piece.more:
                        return
    finally:
        reading.close()


async def pieces_with_pauses(
    history: History,
    wanted: Filter,
    render: Render,
    start: int,
    end: int,
    room: int | None,
    batch: int,
    pause: float,
) -> _Pieces:
    """The same, `batch` notifications at a time, with so many seconds between them; nothing is read ahead."""
    reading = history.reading(wanted, start)
    try:
        while start <= end:
            piece = await history.piece(wanted, render, await reading.next(end, batch), room)
            start = piece.next
            room = None if room is None else room - piece.count
            yield piece
            if piece.more:
                return
            if start <= end:
                await asyncio.sleep(pause)
    finally:
        reading.close()


async def _poured(
    history: History, reading: Reading, render: Render, end: int, room: int | None, plain: bool
) -> _Pieces:
    """What the log can pour; less than everything if retention is faster."""
    pour = await history.pour(reading, render, end, room, plain)
    try:
        while (piece := await pour.next()) is not None:
            # asked after the read, because retention may have been at work during it
            if not await reading.can_pour():
                return
            reading.position = piece.next
            yield piece
    finally:
        pour.close()


async def _step_by_step(
    history: History, reading: Reading, render: Render, start: int, end: int, room: int | None
) -> _Pieces:
    """What cannot be poured: while a piece is sent the next one is rendered, and that after it is read."""
    batch = FIRST_BATCH
    found: asyncio.Task[Batch] | None = None
    ahead: asyncio.Task[Piece] | None = None

    async def make() -> Piece:
        nonlocal batch, found
        this = await (found or reading.next(end, batch))
        found = None
        if this.next <= end and not await reading.can_pour():
            batch = next_batch(batch)
            found = asyncio.create_task(reading.next(end, batch))
        return await history.piece(reading.wanted, render, this, room)

    try:
        while start <= end:
            piece = await (ahead or make())
            start, ahead = piece.next, None
            room = None if room is None else room - piece.count
            if start <= end and not piece.more and found is not None:
                ahead = asyncio.create_task(make())
            yield piece
            if ahead is None:
                return
    finally:
        for task in (ahead, found):
            if task is not None:
                task.cancel()
                task.add_done_callback(_ignore)


def _ignore(task: asyncio.Task[Any]) -> None:
    """Nobody is interested any longer, nor in why it failed."""
    if not task.cancelled():
        task.exception()
