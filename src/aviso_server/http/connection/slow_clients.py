"""Connections with limited patience: a request must arrive in time, and one client may hold only so many."""

from __future__ import annotations

import logging
from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from aviso_server.http.connection.protocol import Connection, answer
from aviso_server.http.limits.checks import LimitName, Limits
from aviso_server.http.metrics.tally import Tally
from aviso_server.http.request_id import new_request_id

__all__ = ["LimitedConnection", "limited_connection"]

logger = logging.getLogger(__name__)


def limited_connection(limits: Limits, tally: Tally) -> type[LimitedConnection]:
    """The class of a server's connections."""
    return type("OrdinaryConnection", (LimitedConnection,), {"limits": limits, "tally": tally})


class LimitedConnection(Connection):
    """Counts its client's connections and hangs up on a request that does not arrive."""

    limits: Limits
    tally: Tally
    _waiting: TimerHandle | None = None
    _waiting_for_body = False
    _address = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """A client is there; from now on it has to show what it wants."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.limits.clients.connected(self._address)
        self._wait(body=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self.limits.clients.disconnected(self._address)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client sent; mostly that is a whole request, and then no clock has to run."""
        super().data_received(data)
        in_head = self.in_head
        cycle: RequestResponseCycle | None = self.cycle
        in_body = not in_head and cycle is not None and cycle.more_body
        if not in_head and not in_body:
            if self._waiting is not None:
                self._stop_waiting()
        elif self._waiting is None or self._waiting_for_body is not in_body:
            self._stop_waiting()
            self._wait(in_body)

    def timeout_keep_alive_handler(self) -> None:
        """Hang up on a client that has sent nothing for long after its last answer."""
        if not self.transport.is_closing():
            self.limits.refused["idle_timeout"] += 1
        super().timeout_keep_alive_handler()

    def refuse(self, status: str, message: str) -> None:
        """Refuse what is not HTTP: a request without a route."""
        self.tally.requests["error", "other", int(status[:3])] += 1
        super().refuse(status, message)

    def _wait(self, body: bool) -> None:
        seconds = self.limits.body_seconds if body else self.limits.header_seconds
        self._waiting_for_body = body
        self._waiting = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.transport.is_closing():
            return
        name: LimitName = "body_timeout" if self._waiting_for_body else "header_timeout"
        self.limits.refused[name] += 1
        if self._waiting_for_body:
            unanswered = not self.cycle.response_started
        else:  # without a single byte of it there is no request to answer
            scope: object | None = self.scope
            cycle: RequestResponseCycle | None = self.cycle
            unanswered = scope is not None and (cycle is None or cycle.response_complete)
        if unanswered:
            request_id = new_request_id()
            self.tally.requests["error", "other", 408] += 1
            logger.warning(
                "request did not arrive in time",
                extra={"event": "api.request.limit.reached", "request_id": request_id, "limit": name},
            )
            part = "body" if self._waiting_for_body else "headers"
            text = f"The {part} of the request did not arrive in time"
            self.transport.write(answer("408 Request Timeout", text, request_id))
        self.transport.close()
