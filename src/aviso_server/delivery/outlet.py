"""The way to one client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

__all__ = ["HangUp", "Outlet", "Send"]

Send = Callable[[Any], Coroutine[Any, Any, None]]
"""The send callable of an ASGI server."""

HangUp = Callable[[], None]
"""Ends a connection at once, whatever still waits to be sent."""


_SLICE = 256 * 1024  # bytes


class Outlet:
    """Writes to one client, without a task and without waiting as long as the client keeps up."""

    __slots__ = ("_hang_up", "_send")

    def __init__(self, send: Send, hang_up: HangUp | None = None) -> None:
        self._send = send
        self._hang_up = hang_up

    def write(self, chunk: bytes, last: bool = False) -> Awaitable[None] | None:
        """Hand over a chunk; None if it is on its way, else what to wait for before the next write."""
        sending = self._send({"type": "http.response.body", "body": chunk, "more_body": not last})
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return None
        return _Suspended(sending, waiting_for)

    async def deliver(self, chunk: bytes, last: bool = False) -> None:
        """Hand over a chunk and wait until the client has room for another.

        A large one goes out in slices, which end with a line where there are lines: the server copies what it is
        given, and memory for a large copy would come from the system and go back to it each time.
        """
        rest: bytes | memoryview = chunk
        if len(chunk) > _SLICE:
            whole, start = memoryview(chunk), 0
            while len(chunk) - start > _SLICE:
                end = chunk.rfind(b"\n", start, start + _SLICE) + 1 or start + _SLICE
                await self._send({"type": "http.response.body", "body": whole[start:end], "more_body": True})
                start = end
            rest = whole[start:]
        await self._send({"type": "http.response.body", "body": rest, "more_body": not last})

    def hang_up(self) -> None:
        """Let go of a client that has stopped reading; what still waits for it is dropped."""
        if self._hang_up is not None:
            self._hang_up()


class _Suspended:
    """A coroutine that was started outside of any task, to be finished inside of one."""

    __slots__ = ("_coroutine", "_waiting_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        self._coroutine = coroutine
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waiting_for
        except BaseException as error:
            with suppress(StopIteration):  # it took the error for a reason to finish
                self._coroutine.throw(error)
            raise
        yield from self._coroutine.__await__()
