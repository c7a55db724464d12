"""The express lane: a publish request whose head is known byte for byte needs neither a parser nor a task.

Publishers send the same head again and again; only the length of the body differs. The first request with a head goes
the ordinary way. If the parser found nothing special in it, the head is remembered with its length, and the next
request that begins with exactly these bytes, and has arrived whole, goes straight to the publisher. Whatever the
publisher does not accept plainly goes the ordinary way after all, so that every refusal is written in one place.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from aviso_server.http.connection.slow_clients import LimitedConnection
from aviso_server.http.limits.checks import Limits
from aviso_server.http.metrics.tally import Tally

__all__ = ["Answer", "Publisher", "express_connection"]

_PATH = "/api/v1/notification"
_OPENING = f"POST {_PATH} HTTP/1.1\r\n".encode()
_MOST_HEADS = 1024
_LONGEST_HEAD = 4096  # bytes
_ORDINARY_WAY = frozenset(
    {b"connection", b"content-encoding", b"expect", b"idempotency-key", b"ignored", b"trailer", b"transfer-encoding"}
)
"""Headers whose requests always go the ordinary way."""


class Answer(Protocol):
    """Where an answer goes: its status, and everything from its first header on."""

    def __call__(self, status: int, rest: bytes) -> None: ...


class Publisher(Protocol):
    """Takes notifications on the express lane."""

    longest: int  # bytes of a body that may go this way

    def publish(self, body: bytes, answer: Answer) -> bool:
        """Take the notification in a body and answer once, in a later turn of the event loop.

        False, and nothing has happened, if it has to go the ordinary way.
        """


def express_connection(limits: Limits, tally: Tally, publisher: Publisher) -> type[LimitedConnection]:
    """The class of the connections of a server that has an express lane."""
    members = {"limits": limits, "tally": tally, "publisher": publisher, "heads": {}, "opening": [None, b""]}
    return type("ExpressConnection", (_ExpressConnection,), members)


class _ExpressConnection(LimitedConnection):
    """A connection that recognises the publish requests of busy publishers."""

    publisher: Publisher
    heads: dict[bytes, int]  # of all connections: the length of the body that follows each
    opening: list[Any]  # the default headers that the server gave last, and these as bytes
    _early = b""  # what came while an express answer was due
    _leaving = False
    _active_at = 0.0  # when the last express answer was sent
    answer_due = False

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        if self.answer_due:
            self._early += data
            if len(self._early) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            return
        if not data.startswith(_OPENING) or not self._between_requests:
            super().data_received(data)
            return
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        length = self.heads.get(head)
        if length is None:
            super().data_received(data)
            self._learn(head, len(data) - end)
        elif length != len(data) - end or not self.publisher.publish(data[end:], self._answer):
            super().data_received(data)
        else:
            self.answer_due = True
            if self._waiting is not None:
                self._stop_waiting()

    @property
    def _between_requests(self) -> bool:
        """True if the parser has seen the end of the last request, its answer is out, and the client takes answers."""
        cycle: RequestResponseCycle | None = self.cycle
        over = not self.in_head if cycle is None else cycle.response_complete and not cycle.more_body
        return over and not (self.in_head or self.flow.write_paused or self.transport.is_closing())

    def _learn(self, head: bytes, length: int) -> None:
        """Remember a head if the parser, which has just seen it, found a plain request with a body of this length."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.more_body or not cycle.keep_alive or self.in_head:
            return
        scope: Any = cycle.scope
        names = [name for name, _ in scope["headers"]]
        if (
            (scope["method"], scope["raw_path"], scope["query_string"]) == ("POST", _PATH.encode(), b"")
            and scope["http_version"] == "1.1"
            and _ORDINARY_WAY.isdisjoint(names)
            and [value for name, value in scope["headers"] if name == b"content-length"] == [b"%d" % length]
            and length <= self.publisher.longest
            and len(head) <= _LONGEST_HEAD
        ):
            if len(self.heads) >= _MOST_HEADS:
                self.heads.clear()
            self.heads[head] = length

    def _answer(self, status: int, rest: bytes) -> None:
        self.answer_due = False
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.transport.write(STATUS_LINE[status] + self._default_headers() + rest)
        if self._leaving:
            self.transport.close()
            return
        self._active_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive(self.timeout_keep_alive)
        if self._early:
            early, self._early = self._early, b""
            self.flow.resume_reading()
            self.data_received(early)

    def _default_headers(self) -> bytes:
        given = self.server_state.default_headers
        if self.opening[0] is not given:
            self.opening[:] = given, b"".join([name + b": " + value + b"\r\n" for name, value in given])
        found: bytes = self.opening[1]
        return found

    def shutdown(self) -> None:
        """The server leaves: hang up, or do so once the answer is out."""
        if self.answer_due:
            self._leaving = True
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Hang up on a client that has been idle for long; express answers do not set the clock anew each time."""
        idle = 0.0 if self.answer_due else self.loop.time() - self._active_at
        if idle < self.timeout_keep_alive:
            self._keep_alive(self.timeout_keep_alive - idle)
        else:
            super().timeout_keep_alive_handler()

    def _keep_alive(self, seconds: float) -> None:
        handle: asyncio.TimerHandle = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
        self.timeout_keep_alive_task = handle
