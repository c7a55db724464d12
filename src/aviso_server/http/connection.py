"""Connections to clients: uvicorn's HTTP protocol with our limits and timeouts."""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import TimerHandle, Transport
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl, service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from aviso_server.counters import RequestTally
from aviso_server.http.limits import LimitName, RequestLimits
from aviso_server.http.request import new_request_id

__all__ = ["HttpConnection", "LimitedConnection", "limited_connection"]

logger = logging.getLogger(__name__)


class Exchange(RequestResponseCycle):
    """uvicorn's exchange of one request and its answer, which writes head and body together.

    The head of a stream waits until the first chunk or the end of this turn of the event loop, whichever comes first.
    """

    _head = b""

    async def send(self, message: Any) -> None:
        """Take the head or the next part of the body; nothing is written once the connection is closing."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message["headers"])
            return
        if self.response_complete:
            raise RuntimeError("the answer is complete already")
        body, more = message["body"], message.get("more_body", False)
        if self.chunked_encoding:
            body = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        if self.scope["method"] == "HEAD":
            body = b""
        self._write(body)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        closing = False
        self.chunked_encoding = True
        for name, value in (*self.default_headers, *headers):
            if name == b"content-length":
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                self.keep_alive, closing = False, True
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not closing:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
            asyncio.get_running_loop().call_soon(self._write)
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def _write(self, data: bytes | memoryview = b"") -> None:
        if self._head:
            data, self._head = b"".join((self._head, data)), b""
        if data and not self.transport.is_closing():  # uvloop would raise RuntimeError
            self.transport.write(data)


class LenientFlowControl(FlowControl):
    """uvicorn's flow control; a connection that is closing is left alone."""

    def pause_reading(self) -> None:
        """Read no more."""
        if not self.read_paused and not self._transport.is_closing():
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused and not self._transport.is_closing():
            super().resume_reading()


_MAX_HEAD_BYTES = 131_072
_MAX_UNPARSED_BYTES = 65_536  # then the client has to wait
_SLICE = 8192  # bytes that are parsed in one go: hundreds of small requests, about ten milliseconds
_TOO_LARGE = ("431 Request Header Fields Too Large", f"The headers exceed {_MAX_HEAD_BYTES} bytes")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r\n")


class _Rejected(Exception):
    """Raised in a callback of the parser to stop reading a request."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class HttpConnection(HttpToolsProtocol):
    """uvicorn's HTTP connection, with these differences.

    - It knows which request is being answered while later ones wait, so a client that hangs up ends that answer.
    - Requests sent in a row wait unparsed, but for a few.
    - A request that cannot be read is refused after the answers to the requests before it.
    - Heads have a limit, and the only transfer coding is `chunked`.
    - An offer to speak another protocol (`Upgrade`) is ignored. The parser would take the body for that protocol.
    """

    in_head = False  # the headers of a request have begun and are not complete
    in_body = False  # its headers are complete, the rest is not
    answering: RequestResponseCycle | None = None  # the request that the application has; later ones wait in `pipeline`
    _unparsed = b""  # what came while requests were waiting
    _idle_since: float | None = None  # when the last answer was complete, unless a request has begun since
    _final_answer: bytes | None = None  # an error to be sent after the answers that are due; nothing more is read
    _received: bytes = b""  # what came last
    _begun = 0  # requests that began in what came last
    _offered = False  # the request whose head is complete offers another protocol
    _earlier_bytes = 0  # of reads in which the head began and did not end
    _line_bytes = 0  # of a line of the head that is not complete
    _empty_bytes = 0  # of a body without content: chunk extensions, trailers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        self.flow = LenientFlowControl(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, and drop those behind it."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self._forget_waiting()
        if self.answering is not None and not self.answering.response_complete:
            self.answering.disconnected = True
            self.answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent, or buffer it while requests are waiting."""
        if self._final_answer is not None:
            return
        self._unset_keepalive_if_required()
        if not self.pipeline and not self._unparsed:
            self.take(data)
            return
        self._unparsed += data
        if len(self._unparsed) > _MAX_UNPARSED_BYTES:
            self.flow.pause_reading()

    def take(self, data: bytes) -> None:
        """Parse bytes until a request has to wait."""
        if len(data) <= _SLICE:
            self._take_slice(data)
            return
        for place in range(0, len(data), _SLICE):
            if self.pipeline:
                self._unparsed = data[place:]
                self.flow.pause_reading()
                return
            self._take_slice(data[place : place + _SLICE])
            if self._final_answer is not None or self.transport.is_closing():
                return

    def _take_slice(self, data: bytes) -> None:
        between = not (self.in_head or self.in_body)
        self._received, self._begun = data, 0
        try:
            self._parse(data)
        except HttpParserError as error:
            self._refuse_unreadable(error, alone=between and self._begun <= 1)
            return
        finally:
            self._received = b""
        if self.in_head:
            self._count_head(data, exact=self._begun == between)
            return
        self._earlier_bytes = self._line_bytes = 0
        if self.in_body:
            self._empty_bytes += len(data)
            if self._empty_bytes > _MAX_HEAD_BYTES + _SLICE:
                self.refuse(*_TOO_LARGE)

    def shutdown(self) -> None:
        """Close once the answer under way is complete; requests behind it are not answered."""
        if self._answer_due:
            assert self.answering is not None
            self.answering.keep_alive = False
            self._forget_waiting()
        else:
            self.transport.close()

    @property
    def behind(self) -> bool:
        """True while the request that is being received waits for the answer to an earlier one."""
        return self._answer_due and (self.in_head or self.cycle is not self.answering or self._unparsed != b"")

    @property
    def answer_begun(self) -> bool:
        """True once the headers of the newest answer are out."""
        return self.answering is not None and self.answering.response_started

    @property
    def _answer_due(self) -> bool:
        return self.answering is not None and not self.answering.response_complete

    def _forget_waiting(self) -> None:
        self.pipeline.clear()
        self._unparsed = b""

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Start a request, with the means to disconnect a client that does not read."""
        self._begun += 1
        self.in_head = True
        self.url, self.headers, self.expect_100_continue = b"", [], False
        scope: Any = {
            "type": "http",
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "headers": self.headers,
            "hang_up": self.transport.abort,
        }
        self.scope = scope

    def on_headers_complete(self) -> None:
        """Check the head, then let the application have the request."""
        if self._earlier_bytes + len(self._received) > _MAX_HEAD_BYTES:
            self._line_bytes = 0
            self._check_head()
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            raise _Rejected("501 Not Implemented", "The only supported Transfer-Encoding is chunked")
        parser = self.parser
        method, upgrade = parser.get_method(), parser.should_upgrade()
        if upgrade and method != b"CONNECT":
            self._offered = True
            return
        scope, version, url = self.scope, parser.get_http_version(), parse_url(self.url)
        self.in_head, self.in_body = False, True
        path = url.path.decode("ascii")
        scope["method"], scope["http_version"] = method.decode("ascii"), version
        scope["path"], scope["raw_path"] = unquote(path) if "%" in path else path, url.path
        scope["query_string"] = url.query or b""
        busy = self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency
        before: RequestResponseCycle | None = self.cycle
        self.cycle = Exchange(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            # what follows CONNECT may be anything
            keep_alive=version != "1.0" and parser.should_keep_alive() and not upgrade,
            on_response=self.on_response_complete,
        )
        app = service_unavailable if busy else self.app
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def on_body(self, body: bytes) -> None:
        """Hand over a part of the body, and read no more while the application has a lot of it."""
        self._empty_bytes = -_SLICE  # with what came together with it
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """End the request, unless the parser only believes that another protocol follows its head."""
        if not self._offered:
            self.cycle.more_body = False
            self.cycle.message_event.set()
            self.in_body = False
            self._empty_bytes = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request, the buffered bytes, or the error that was put off."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._wait_idle(self.timeout_keep_alive)
        if self._final_answer is not None and not self._answer_due:
            self.transport.write(self._final_answer)
            self.transport.close()
        elif self._unparsed and not self.pipeline:
            self.loop.call_soon(self._go_on)

    def _unset_keepalive_if_required(self) -> None:
        """Note that the connection is in use; its timer runs on, which costs less than a timer for each request."""
        self._idle_since = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for long enough, else wait for the rest of the time."""
        self.timeout_keep_alive_task = None
        if self._idle_since is not None and not self.transport.is_closing():
            left = self._idle_since + self.timeout_keep_alive - self.loop.time()
            if left > 0:
                self._wait_idle(left)
            else:
                self.close_idle()

    def close_idle(self) -> None:
        """Close the connection, on which no request has come for long."""
        self.transport.close()

    def _wait_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _go_on(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if data and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.take(data)

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except HttpParserUpgrade as stopped:
                if not self._offered:
                    return
                rest = memoryview(rest)[stopped.args[0] :]
                self._offered = False
                head = self._head_without_offer()
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    # RequestLimits and errors

    def _count_head(self, data: bytes, exact: bool) -> None:
        """Refuse a head that is too long; `exact` if it began with these bytes or before them."""
        self._earlier_bytes += len(data)
        line = data.rfind(b"\n") + 1
        if not exact:  # nobody knows where it began: this read does not count
            self._line_bytes = 0
        elif line:
            self._line_bytes = len(data) - line
        else:
            self._line_bytes += len(data)
        try:
            self._check_head()
        except _Rejected as refused:
            self.refuse(refused.status, refused.message)

    def _check_head(self) -> None:
        fields = sum([len(name) + len(value) + 4 for name, value in self.headers])
        # without a field the unfinished line may be that of the address
        size = fields + (len(self.url) + self._line_bytes if fields else max(len(self.url), self._line_bytes))
        if size > _MAX_HEAD_BYTES:
            raise _Rejected(*_TOO_LARGE)

    def _refuse_unreadable(self, error: HttpParserError, alone: bool) -> None:
        """Refuse what cannot be parsed; `alone` if the request is the first thing that came with this read."""
        if isinstance(error.__context__, _Rejected):
            self.refuse(error.__context__.status, error.__context__.message)
        elif alone and isinstance(error, HttpParserInvalidMethodError) and _REQUEST_LINE.match(self._received):
            self.refuse("404 Not Found", "")  # a method that nobody knows is on no route
        else:
            self.refuse("400 Bad Request", "Invalid HTTP request received.")

    def refuse(self, status: str, message: str) -> None:
        """Refuse the request that is being received, after the answers to those before it, and close."""
        request_id = new_request_id()
        logger.warning(message or status, extra={"event": "api.request.malformed", "request_id": request_id})
        words = answer(status, message, request_id)
        if self.in_body:  # its head has reached the application or waits for it
            if self.cycle is self.answering:
                if self.cycle.response_started:
                    words = b""
                self.answering = None
            else:
                self.pipeline.popleft()
        if self._answer_due:
            self._final_answer = words
            return
        if words:
            self.transport.write(words)
        self.transport.close()


def answer(status: str, message: str, request_id: str) -> bytes:
    """Build the bytes of an answer in plain text that closes the connection."""
    body = message.encode()
    kind = "content-type: text/plain; charset=utf-8\r\n" if body else ""
    return (
        f"HTTP/1.1 {status}\r\n"
        f"x-request-id: {request_id}\r\n"
        f"{kind}content-length: {len(body)}\r\n"
        "connection: close\r\n"
        "\r\n"
    ).encode() + body


def limited_connection(limits: RequestLimits, tally: RequestTally) -> type[LimitedConnection]:
    """Make the class of a server's connections."""
    return type("OrdinaryConnection", (LimitedConnection,), {"limits": limits, "tally": tally})


class LimitedConnection(HttpConnection):
    """Counts its client's connections, and times out requests that do not arrive."""

    limits: RequestLimits
    tally: RequestTally
    _waiting: TimerHandle | None = None
    _waiting_for_body = False
    _address = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Count the connection and start the timeout of its first head."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.limits.clients.connected(self._address)
        self._wait(body=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.clients.disconnected(self._address)
        self._stop_waiting()
        super().connection_lost(exc)

    def take(self, data: bytes) -> None:
        """Parse what the client sent; a whole request, the usual case, needs no timeout."""
        super().take(data)
        if not (self.in_head or self.in_body):
            if self._waiting is not None:
                self._stop_waiting()
        elif self._waiting is None or self._waiting_for_body is not self.in_body:
            self._stop_waiting()
            self._wait(self.in_body)

    def close_idle(self) -> None:
        """Close an idle connection, and count it."""
        self.limits.refused["idle_timeout"] += 1
        super().close_idle()

    def refuse(self, status: str, message: str) -> None:
        """Count what is not HTTP as a request without a route."""
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
        if self.behind:  # we may have stopped reading ourselves
            self._wait(self._waiting_for_body)
            return
        name: LimitName = "body_timeout" if self._waiting_for_body else "header_timeout"
        self.limits.refused[name] += 1
        # without a single byte of a head there is no request to answer
        unanswered = not self.cycle.response_started if self._waiting_for_body else self.in_head
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
