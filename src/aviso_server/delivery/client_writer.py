"""One client: the stream that it has opened, and the way to write to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from aviso_server.counters import Endpoint
from aviso_server.errors import AvisoError
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Rendered

if TYPE_CHECKING:
    from aviso_server.delivery.hub import Hub

__all__ = ["ClientWriter", "OpenStream", "Send"]

logger = logging.getLogger(__name__)


Send = Callable[[Any], Coroutine[Any, Any, None]]
"""The send callable of an ASGI server."""

HangUp = Callable[[], None]
"""Ends a connection at once, and drops what still waits to be sent."""


_SLICE = 256 * 1024  # bytes
_USUAL_LINE = 4096  # bytes, of which there is an end of a line nearly always


class ClientWriter:
    """Writes to one client, without a task and without waiting as long as the client keeps up.

    Whatever the transport raises comes out as ConnectionError: only this client is lost.
    """

    __slots__ = ("_hang_up", "_send")

    def __init__(self, send: Send, hang_up: HangUp | None = None) -> None:
        self._send = send
        self._hang_up = hang_up

    def write(self, chunk: bytes, last: bool = False) -> Awaitable[None] | None:
        """Hand over a chunk; return None if it is on its way, else what to await before the next write."""
        sending = self._send({"type": "http.response.body", "body": chunk, "more_body": not last})
        try:
            waiting_for = sending.send(None)
        except StopIteration:
            return None
        except Exception as error:
            raise _lost(error) from error
        return _Suspended(sending, waiting_for)

    async def deliver(self, chunk: Rendered, last: bool = False) -> None:
        """Hand over a chunk and wait until the client has room for another.

        A large one goes out in slices, which end with a line where there are lines: the server copies what it is
        given, and memory for a large copy would come from the system and go back to it each time.
        """
        try:
            if len(chunk) > _SLICE:
                chunk = memoryview(chunk)
                while len(chunk) > _SLICE:
                    end = _end_of_line(chunk[:_SLICE])
                    await self._send({"type": "http.response.body", "body": chunk[:end], "more_body": True})
                    chunk = chunk[end:]
            await self._send({"type": "http.response.body", "body": chunk, "more_body": not last})
        except Exception as error:
            raise _lost(error) from error

    def hang_up(self) -> None:
        """End the connection of a client that has stopped reading."""
        if self._hang_up is not None:
            try:
                self._hang_up()
            except Exception as error:
                _lost(error)


def _lost(error: Exception) -> ConnectionError:
    """Return the error as ConnectionError; log one that a lost client does not explain."""
    if isinstance(error, ConnectionError):
        return error
    if not isinstance(error, OSError):
        logger.warning("a connection failed: %r", error, extra={"event": "stream.connection.failed"})
    return ConnectionResetError(f"the connection failed: {error!r}")


def _end_of_line(part: memoryview) -> int:
    """Return where the last whole line ends; the end of the part if none does."""
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
        try:
            yield from self._coroutine.__await__()
        except Exception as error:
            raise _lost(error) from error


class OpenStream:
    """What watches and replays have in common."""

    __slots__ = ("_hub", "caller", "flow", "request_id", "since", "user", "wanted", "writer")

    endpoint: ClassVar[Endpoint]

    def __init__(self, hub: Hub, wanted: Filter, writer: ClientWriter, request_id: str) -> None:
        self.wanted = wanted
        self.writer = writer
        self.request_id = request_id
        self.flow = hub.flow(self.endpoint, wanted.event_type)
        self.since = time.monotonic()
        self.user: str | None = None  # who opened it, if known
        self.caller = ("anonymous", "none")  # the same for log records: name and realm
        self._hub = hub

    def _log(self, level: int, event: str, message: str, error: Exception | None = None) -> None:
        logger.log(
            level,
            message,
            exc_info=None if isinstance(error, AvisoError) else error,
            extra={
                "event": event,
                "request_id": self.request_id,
                "username": self.caller[0],
                "auth_realm": self.caller[1],
                "topic": self.wanted.topic,
            },
        )

    def _log_failed_read(self, error: Exception) -> None:
        self.flow.failed += 1
        self._log(logging.ERROR, "stream.replay.batch.failed", f"history could not be read: {error}", error)
