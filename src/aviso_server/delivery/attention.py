"""Waiting for history without being deaf to everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from aviso_server.delivery.piece import Piece

__all__ = ["Bell", "attended"]


class Bell:
    """Tells whoever waits for history that something else is due: a heartbeat, or the end."""

    __slots__ = ("rung",)

    def __init__(self) -> None:
        self.rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ring(self) -> None:
        """Something is due."""
        if not self.rung.done():
            self.rung.set_result(None)

    def heard(self) -> None:
        """It is being seen to."""
        self.rung = asyncio.get_running_loop().create_future()


async def attended(pieces: AsyncGenerator[Piece, None], bell: Bell) -> AsyncGenerator[Piece | None, None]:
    """The pieces, and None each time the bell rings while the next one is not there yet."""
    coming: asyncio.Task[Piece | None] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.create_task(_next(pieces))
            await asyncio.wait((coming, bell.rung), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                bell.heard()
                yield None
                continue
            piece, coming = coming.result(), None
            if piece is None:
                return
            yield piece
    finally:
        if coming is not None:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):  # nobody waits for it any longer
                await coming
        await pieces.aclose()


async def _next(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)
