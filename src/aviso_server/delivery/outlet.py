"""The way to one client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from aviso_server.model.run import Rendered

__all__ = ["HangUp", "Outlet", "Send"]

Send = Callable[[Any], Coroutine[Any, Any, None]]
"""The send callable of an ASGI server."""

HangUp = Callable[[], None]
"""Ends a connection at once, whatever still waits to be sent."""


_SLICE = 256 * 1024  # bytes
_USUAL_LINE = 4096  # bytes, of which there is an end of a line nearly always


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

    async def deliver(self, chunk: Rendered, last: bool = False) -> None:
        """Hand over a chunk and wait until the client has room for another.

        A large one goes out in slices, which end with a line where there are lines: the server copies what it is
        given, and memory for a large copy would come from the system and go back to it each time.
        """
        if len(chunk) > _SLICE:
            chunk = memoryview(chunk)
            while len(chunk) > _SLICE:
                end = _end_of_line(chunk[:_SLICE])
                await self._send({"type": "http.response.body", "body": chunk[:end], "more_body": True})
                chunk = chunk[end:]
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})

    def hang_up(self) -> None:
        """Let go of a client that has stopped reading; what still waits for it is dropped."""
        if self._hang_up is not None:
            self._hang_up()


def _end_of_line(part: memoryview) -> int:
    """Where the last whole line ends; all of it if there is none."""
    size = _USUAL_LINE
    while True:
        start = max(0, len(part) - size)
        found = bytes(part[start:]).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        if start == 0:
            return len(part)
        size *= 8


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
