"""Connections to clients: HTTP/1.1 over the parser of httptools, with our limits and timeouts, for uvicorn's server."""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import Future, Task, TimerHandle, Transport
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from time import perf_counter
from typing import Any
from urllib.parse import unquote

import uvicorn
from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.server import ServerState

from aviso_server.counters import RequestTally
from aviso_server.http.limits import RequestLimits
from aviso_server.http.request import new_request_id

__all__ = ["HttpConnection", "limited_connection"]

logger = logging.getLogger(__name__)

_STATUS_LINES = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_MAX_HEAD_BYTES = 131_072
_MAX_UNREAD_BYTES = 65_536  # of a body that the application has not taken; then the client has to wait
_MAX_UNPARSED_BYTES = 65_536  # the same for requests in a row
_SLICE = 8192  # bytes that are parsed in one go: hundreds of small requests, about ten milliseconds
_TOO_LARGE = ("431 Request Header Fields Too Large", f"The headers exceed {_MAX_HEAD_BYTES} bytes")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r\n")


class Exchange:
    """One request and its answer, as an ASGI application sees them.

    Head and body of the answer are written together. The head of a stream waits until the first chunk or the end of
    this turn of the event loop, whichever comes first.
    """

    __slots__ = (
        "_chunked", "_connection", "_head", "_news", "_waiter", "body", "complete", "disconnected", "expects_continue",
        "keep_alive", "more_body", "scope", "started", "task",
    )  # fmt: skip

    def __init__(
        self, connection: HttpConnection, scope: dict[str, Any], keep_alive: bool, expects_continue: bool
    ) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue  # the client sends the body when it is told to
        self.body = b""  # what the application has not taken yet
        self.more_body = True
        self.disconnected = False
        self.started = False  # the application has given the head of its answer
        self.complete = False  # and all of the answer
        self._chunked = True
        self._head = b""
        self._news = False  # something that `receive` has not told
        self._waiter: Future[None] | None = None
        self.task: Task[None] | None = None

    async def run(self) -> None:
        """Have the application answer the request, and answer for it if it fails."""
        connection = self._connection
        try:
            await connection.app(self.scope, self.receive, self.send)
            if not (self.complete or self.disconnected):
                raise RuntimeError("the application has not answered")
        except BaseException as error:
            request_id = new_request_id()
            logger.error(
                "the application failed",
                exc_info=error,
                extra={"event": "api.request.processing.failed", "request_id": request_id},
            )
            if not (self.started or connection.transport.is_closing()):
                text = "Internal Server Error"
                connection.transport.write(answer(f"500 {text}", text, request_id))
            connection.transport.close()
        finally:
            connection.state.tasks.discard(self.task)

    def notify(self) -> None:
        """Wake the application if it waits for the request to go on."""
        self._news = True
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def disconnect(self) -> None:
        """Tell the application that the client has gone."""
        if not self.complete:
            self.disconnected = True
            self.notify()

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, or that the client has gone or has its answer."""
        connection = self._connection
        if self.expects_continue:
            self.expects_continue = False
            if not connection.transport.is_closing():
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self.disconnected or self.complete):
            connection.read_on()
            if not self._news:
                self._waiter = connection.loop.create_future()
                await self._waiter
            self._news = False
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        """Take the head or the next part of the body; nothing is written once the connection is closing."""
        connection = self._connection
        if connection.writable is not None and not self.disconnected:
            await connection.writable.wait()
        if self.disconnected:
            return
        if not self.started:
            self._start(message["status"], message["headers"])
            return
        if self.complete:
            raise RuntimeError("the answer is complete already")
        body, more = message["body"], message.get("more_body", False)
        if self._chunked:
            body = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        if self.scope["method"] == "HEAD":
            body = b""
        self._write(body)
        if not more:
            self.complete = True
            self.notify()
            if not self.keep_alive:
                connection.transport.close()
            connection.answered()

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.started = True
        self.expects_continue = False
        lines = [_STATUS_LINES[status]]
        closing = False
        for name, value in (*self._connection.state.default_headers, *headers):
            if name == b"content-length":
                self._chunked = False
            elif name == b"connection" and value == b"close":
                self.keep_alive, closing = False, True
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not closing:
            lines.append(b"connection: close\r\n")
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
            self._connection.loop.call_soon(self._write)
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def _write(self, data: bytes | memoryview = b"") -> None:
        if self._head:
            data, self._head = b"".join((self._head, data)), b""
        transport = self._connection.transport
        if data and not transport.is_closing():  # uvloop would raise RuntimeError
            transport.write(data)


_FEW = 128  # connections: so few cannot make a turn of the event loop long, at a tenth of a millisecond each
_MOST_AT_ONCE = 64  # connections that are looked after in one turn
_LONG = 0.005  # seconds: when turns take longer, fewer are looked after


class Turnstile:
    """Lets a few connections do something in each turn of the event loop, and the others in later ones, in order.

    Thousands of clients that come, ask or hang up at once would make one turn so long that everybody else has to wait.
    """

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()
        self._at_once = _MOST_AT_ONCE
        self._passed = 0  # in this turn
        self._turning = False
        self._began = 0.0

    def do(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        """Do something now, or in one of the next turns."""
        if not self._turning:
            self._turning, self._passed, self._began = True, 0, perf_counter()
            loop.call_soon(self._turn, loop)
        if self._line or self._passed >= self._at_once:
            self._line.append(act)
        else:
            self._passed += 1
            act()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        now = perf_counter()
        self._at_once = (
            max(1, self._at_once // 2) if now - self._began > _LONG else min(_MOST_AT_ONCE, self._at_once * 2)
        )
        self._began, self._passed = now, 0
        if not self._line:
            self._turning = False
            return
        loop.call_soon(self._turn, loop)
        while self._line and self._passed < self._at_once:
            self._passed += 1
            self._line.popleft()()


class _Rejected(Exception):
    """Raised in a callback of the parser to stop reading a request."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


@lru_cache(64)
def _split(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path, decoded and as it was sent, and the query of a request's address."""
    parsed = parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


def limited_connection(limits: RequestLimits, tally: RequestTally) -> type[HttpConnection]:
    """Make the class of a server's connections."""
    members = {"limits": limits, "tally": tally, "turnstile": Turnstile()}
    return type("OrdinaryConnection", (HttpConnection,), members)


class HttpConnection(asyncio.Protocol):
    """The connection of one client.

    - One request is answered at a time. Requests sent in a row wait, and but for a few they wait unparsed.
    - A client that hangs up ends the answer under way.
    - A request that cannot be read is refused after the answers to the requests before it.
    - Heads have a limit, and the only transfer coding is `chunked`. A head or body that does not arrive times out.
    - An offer to speak another protocol (`Upgrade`) is ignored. The parser would take the body for that protocol.
    """

    limits: RequestLimits
    tally: RequestTally
    turnstile: Turnstile
    transport: Transport
    writable: asyncio.Event | None = None  # set once the client has room again; None while it has
    in_head = False  # the headers of a request have begun and are not complete
    in_body = False  # its headers are complete, the rest is not
    _receiving: Exchange | None = None  # the newest request whose head is complete
    answering: Exchange | None = None  # the request that the application has; later ones wait in `pipeline`
    _reading = True  # what the client sends is taken from the socket
    _unparsed = b""  # what came while requests were waiting
    _idle_since: float | None = None  # when the last answer was complete, unless a request has begun since
    _idle_timer: TimerHandle | None = None
    _final_answer: bytes | None = None  # an error to be sent after the answers that are due; nothing more is read
    _slice_bytes = 0  # of what is being parsed
    _begun = 0  # requests that began in it
    _url = b""  # of the newest request
    _codings = b""  # its values of Transfer-Encoding
    _expects_continue = False
    _offered = False  # the request whose head is complete offers another protocol
    _earlier_bytes = 0  # of reads in which the head began and did not end
    _line_bytes = 0  # of a line of the head that is not complete
    _empty_bytes = 0  # of a body without content: chunk extensions, trailers
    _deadline: float | None = None  # for the head or body that is arriving
    _timeout: TimerHandle | None = None
    _timeout_due = 0.0
    _timeout_of_body = False
    _address = ""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: object = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.app: Any = config.loaded_app
        self.loop = _loop or asyncio.get_running_loop()
        self.state: Any = server_state  # which is declared for uvicorn's own connections only
        self._idle_seconds = config.timeout_keep_alive
        self._most_connections = config.limit_concurrency
        self.pipeline: deque[Exchange] = deque()
        self._headers: list[tuple[bytes, bytes]] = []
        self._client: tuple[str, int] | None = None
        self._renew_parser()

    def _renew_parser(self) -> None:
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    # Callbacks of the transport

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # it is one of a socket
        """Count the connection and start the timeout of its first head."""
        self.transport = transport
        self.state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple | list) else None
        self._address = self._client[0] if self._client else ""
        self.limits.clients.connected(self._address)
        self._wait(body=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, and drop those behind it."""
        self.state.connections.discard(self)
        self.limits.clients.disconnected(self._address)
        self._stop_timeout()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._forget_waiting()
        self.resume_writing()
        if self.answering is not None:
            self.turnstile.do(self.loop, self.answering.disconnect)
        self.answering = self._receiving = None  # circles would stay until the next full collection
        del self.parser

    def pause_writing(self) -> None:
        """Have answers wait: the client does not read."""
        self.writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Let answers go on."""
        if self.writable is not None:
            self.writable.set()
            self.writable = None

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent, or buffer it while requests are waiting."""
        if self._final_answer is not None:
            return
        self._idle_since = None  # its timer runs on, which costs less than a timer for each request
        if not self.pipeline and not self._unparsed:
            if len(self.state.connections) <= _FEW:
                self._take(data)
            else:
                self._unparsed = data
                self.turnstile.do(self.loop, self._go_on)
            return
        self._unparsed += data
        if len(self._unparsed) > _MAX_UNPARSED_BYTES:
            self._stop_reading()

    def _take(self, data: bytes) -> None:
        """Parse bytes until a request has to wait."""
        if len(data) <= _SLICE:
            self._take_slice(data)
        else:
            for place in range(0, len(data), _SLICE):
                if self.pipeline:
                    self._unparsed = data[place:]
                    self._stop_reading()
                    break
                self._take_slice(data[place : place + _SLICE])
                if self._final_answer is not None or self.transport.is_closing():
                    break
        if not (self.in_head or self.in_body):  # a whole request, the usual case, needs no timeout
            self._deadline = None
        elif self._deadline is None or self._timeout_of_body is not self.in_body:
            self._wait(self.in_body)

    def _take_slice(self, data: bytes) -> None:
        between = not (self.in_head or self.in_body)
        self._begun, self._slice_bytes = 0, len(data)
        try:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as stopped:
                self._go_on_behind_offer(memoryview(data)[stopped.args[0] :])
        except HttpParserError as error:
            self._refuse_unreadable(error, data if between and self._begun <= 1 else None)
            return
        if self.in_head:
            self._count_head(data, exact=self._begun == between)
            return
        self._earlier_bytes = self._line_bytes = 0
        if self.in_body:
            self._empty_bytes += len(data)
            if self._empty_bytes > _MAX_HEAD_BYTES + _SLICE:
                self.refuse(*_TOO_LARGE)

    def _go_on_behind_offer(self, rest: memoryview) -> None:
        """Parse the head again, without its offer of another protocol, and what came behind it."""
        while self._offered:
            self._offered = False
            head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self._url, self.parser.get_http_version().encode())]
            head += [b"%b: %b" % each for each in self._headers if each[0] != b"upgrade"]
            self._renew_parser()
            self.parser.feed_data(b"\r\n".join([*head, b"", b""]))
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as stopped:
                rest = rest[stopped.args[0] :]

    def shutdown(self) -> None:
        """Close once the answer under way is complete; requests behind it are not answered."""
        if self.answering is not None and self._answer_due:
            self.answering.keep_alive = False
            self._forget_waiting()
        else:
            self.transport.close()

    @property
    def behind(self) -> bool:
        """True while the request that is being received waits for the answer to an earlier one."""
        return self._answer_due and (self.in_head or self._receiving is not self.answering or self._unparsed != b"")

    @property
    def answer_begun(self) -> bool:
        """True once the headers of the newest answer are out."""
        return self.answering is not None and self.answering.started

    @property
    def _answer_due(self) -> bool:
        return self.answering is not None and not self.answering.complete

    def _forget_waiting(self) -> None:
        self.pipeline.clear()
        self._unparsed = b""

    def _stop_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Take what the client sends from the socket again."""
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Start a request."""
        self._begun += 1
        self.in_head = True
        self._url, self._headers, self._codings, self._expects_continue = b"", [], b"", False

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        name = name.lower()
        self._headers.append((name, value))
        if name == b"transfer-encoding":
            self._codings += b",%b" % value.strip().lower()
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        """Check the head, then let the application have the request."""
        if self._earlier_bytes + self._slice_bytes > _MAX_HEAD_BYTES:
            self._line_bytes = 0
            self._check_head()
        if self._codings and self._codings != b",chunked":
            raise _Rejected("501 Not Implemented", "The only supported Transfer-Encoding is chunked")
        parser = self.parser
        method, upgrade = parser.get_method(), parser.should_upgrade()
        if upgrade and method != b"CONNECT":
            self._offered = True
            return
        path, raw_path, query = _split(self._url)
        if self._most_connections is not None and len(self.state.connections) >= self._most_connections:
            raise _Rejected("503 Service Unavailable", "Service Unavailable")
        self.in_head, self.in_body = False, True
        version = parser.get_http_version()
        scope = {
            "type": "http",
            "http_version": version,
            "client": self._client,
            "method": method.decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "hang_up": self.transport.abort,  # disconnects a client that does not read
        }
        # what follows CONNECT may be anything
        keep_alive = version != "1.0" and parser.should_keep_alive() and not upgrade
        self._receiving = Exchange(self, scope, keep_alive, self._expects_continue)
        if self.answering is None or self.answering.complete:
            self._answer(self._receiving)
        else:
            self.pipeline.append(self._receiving)
            self._stop_reading()

    def on_body(self, body: bytes) -> None:
        """Hand over a part of the body, and read no more while the application has a lot of it."""
        self._empty_bytes = -_SLICE  # with what came together with it
        exchange = self._receiving
        if exchange is not None and not exchange.complete:
            exchange.body += body
            if len(exchange.body) > _MAX_UNREAD_BYTES:
                self._stop_reading()
            exchange.notify()

    def on_message_complete(self) -> None:
        """End the request, unless the parser only believes that another protocol follows its head."""
        if not self._offered and self._receiving is not None:
            self._receiving.more_body = False
            self._receiving.notify()
            self.in_body = False
            self._empty_bytes = 0

    # Answers

    def _answer(self, exchange: Exchange) -> None:
        self.answering = exchange
        exchange.task = self.loop.create_task(exchange.run())
        self.state.tasks.add(exchange.task)

    def answered(self) -> None:
        """Go on with the next request, the buffered bytes, or the error that was put off."""
        self.state.total_requests += 1
        if self.transport.is_closing():
            return
        self.read_on()
        if self.pipeline:
            self._answer(self.pipeline.popleft())
        else:
            self._idle_since = self.loop.time()
            if self._idle_timer is None:
                self._idle_timer = self.loop.call_later(self._idle_seconds, self._close_idle)
        if self._final_answer is not None and not self._answer_due:
            self.transport.write(self._final_answer)
            self.transport.close()
        elif self._unparsed and not self.pipeline:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        data, self._unparsed = self._unparsed, b""
        if data and not self.transport.is_closing():
            self._idle_since = None
            self.read_on()
            self._take(data)

    # Limits and errors

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
        fields = sum([len(name) + len(value) + 4 for name, value in self._headers])
        # without a field the unfinished line may be that of the address
        size = fields + (len(self._url) + self._line_bytes if fields else max(len(self._url), self._line_bytes))
        if size > _MAX_HEAD_BYTES:
            raise _Rejected(*_TOO_LARGE)

    def _refuse_unreadable(self, error: HttpParserError, alone: bytes | None) -> None:
        """Refuse what cannot be parsed; `alone` are its bytes if it is the first thing that came with this read."""
        if isinstance(error.__context__, _Rejected):
            self.refuse(error.__context__.status, error.__context__.message)
        elif alone and isinstance(error, HttpParserInvalidMethodError) and _REQUEST_LINE.match(alone):
            self.refuse("404 Not Found", "")  # a method that nobody knows is on no route
        else:
            self.refuse("400 Bad Request", "Invalid HTTP request received.")

    def refuse(self, status: str, message: str) -> None:
        """Refuse the request that is being received, after the answers to those before it, and close.

        It counts as a request without a route.
        """
        self.tally.requests["error", "other", int(status[:3])] += 1
        request_id = new_request_id()
        logger.warning(message or status, extra={"event": "api.request.malformed", "request_id": request_id})
        words = answer(status, message, request_id)
        if self.in_body and self._receiving is not None:  # its head has reached the application or waits for it
            if self._receiving is self.answering:
                if self._receiving.started:
                    words = b""
                self._receiving.disconnect()
                self.answering = None
            else:
                self.pipeline.pop()
        if self._answer_due:
            self._final_answer = words
            return
        if words:
            self.transport.write(words)
        self.transport.close()

    def _close_idle(self) -> None:
        """Close a connection that was idle for long enough, else wait for the rest of the time."""
        self._idle_timer = None
        if self._idle_since is not None and not self.transport.is_closing():
            left = self._idle_since + self._idle_seconds - self.loop.time()
            if left > 0:
                self._idle_timer = self.loop.call_later(left, self._close_idle)
            else:
                self.limits.refused["idle_timeout"] += 1
                self.transport.close()

    def _wait(self, body: bool) -> None:
        seconds = self.limits.body_seconds if body else self.limits.header_seconds
        self._timeout_of_body = body
        self._deadline = self.loop.time() + seconds
        if self._timeout is not None and self._timeout_due <= self._deadline:
            return  # it runs on, which costs less than a timer for each request
        self._stop_timeout()
        self._timeout, self._timeout_due = self.loop.call_later(seconds, self._give_up), self._deadline

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _give_up(self) -> None:
        self._timeout = None
        if self._deadline is None or self.transport.is_closing():
            return
        left = self._deadline - self.loop.time()
        if left > 0:
            self._timeout, self._timeout_due = self.loop.call_later(left, self._give_up), self._deadline
            return
        if self.behind:  # we may have stopped reading ourselves
            self._wait(self._timeout_of_body)
            return
        name = "body_timeout" if self._timeout_of_body else "header_timeout"
        self.limits.refused[name] += 1
        # without a single byte of a head there is no request to answer
        exchange = self._receiving
        unanswered = self.in_head if not self._timeout_of_body else exchange is not None and not exchange.started
        if unanswered:
            request_id = new_request_id()
            self.tally.requests["error", "other", 408] += 1
            logger.warning(
                "request did not arrive in time",
                extra={"event": "api.request.limit.reached", "request_id": request_id, "limit": name},
            )
            part = "body" if self._timeout_of_body else "headers"
            text = f"The {part} of the request did not arrive in time"
            self.transport.write(answer("408 Request Timeout", text, request_id))
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
