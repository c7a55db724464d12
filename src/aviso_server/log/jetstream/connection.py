"""One connection to a NATS broker, shared by everything a log does: requests, acknowledgements, deliveries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.jetstream.options import BrokerOptions
from aviso_server.log.jetstream.parser import Collect, Deliver, Handler, Parser
from aviso_server.log.jetstream.wire import Identify

__all__ = ["Connection", "Inbox", "NotReached", "Refused", "Unanswered"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_SECONDS = 5.0
PATIENCE_SECONDS = 12.0  # a cluster needs up to ten seconds to choose a new leader
_PING_SECONDS = 5  # a broker that misses three is taken for dead
_RETRY_SECONDS = 0.2
_NO_LEADER = frozenset({10008, 10009, 10118, 10189})  # the broker says: not now


class NotReached(LogUnavailable):
    """Nobody took the request: what it asked for was not done."""


class Unanswered(LogUnavailable):
    """The answer did not come: what was asked for may or may not have been done."""


class Refused(LogError):
    """The broker said no; `code` is its error code."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"the broker refused: {description} ({code})")
        self.code = code
        self.description = description


class Inbox:
    """A subscription of our own; messages to `subject` reach its handler until it is closed."""

    def __init__(self, subject: str, subscription: Subscription, parser: Parser) -> None:
        self.subject = subject
        self._subscription = subscription
        self._parser = parser

    async def close(self) -> None:
        """Hear nothing more."""
        number = b"%d" % self._subscription._id
        self._parser.handlers.pop(number, None)
        self._parser.consumers.pop(number, None)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._subscription.unsubscribe()


class _Client(Client):
    """The client with a parser that is fast for our own subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.parser = self._ps = Parser(self)

    async def send(self, commands: bytes) -> None:
        """Write commands that are ready to the broker, at once if nothing else waits to be written."""
        if self._pending or self._transport is None:
            await self._send_command(commands)
            await self._flush_pending()
        else:
            self._transport.write(commands)
            await self._transport.drain()  # type: ignore[no-untyped-call]


class Connection:
    """Connects, stays connected as the options say, and lets everyone know when it could not."""

    def __init__(self, options: BrokerOptions) -> None:
        self.level = 0  # of the broker's JetStream API: 1 knows batched direct gets, 3 atomic batches with ids
        self.on_change: list[Callable[[], None]] = []  # called after each loss and each return of the connection
        self.closed_for_good = False
        self._options = options
        self._client: _Client | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, Handler] = {}  # by the last token of the reply subject
        self._futures: dict[bytes, asyncio.Future[Any]] = {}
        self._prefix = ""
        self._last_error: Exception | None = None

    @property
    def connected(self) -> bool:
        """True while the broker can be reached."""
        return self._client is not None and self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The most bytes a message may have, headers included."""
        return self._client.max_payload if self._client is not None else 0

    async def open(self) -> None:
        """Connect with the patience the options give; LogUnavailable if that was not enough."""
        options = self._options
        for attempt in range(1, options.retry_attempts + 1):
            try:
                async with asyncio.timeout(options.timeout_seconds):
                    await self._connect()
                    self.level = int((await self.api("INFO", patience=0)).get("api", {}).get("level", 0))
                return
            except (nats.errors.Error, OSError, TimeoutError, LogError) as error:
                await self.close()
                # the client says only that no server is left; its last error says why
                cause = (
                    self._last_error if isinstance(error, nats.errors.NoServersError) and self._last_error else error
                )
                reason = str(cause) or type(cause).__name__
                logger.warning(
                    "cannot reach the broker: %s",
                    reason,
                    extra={"event": "backend.jetstream.connection.retry", "attempt": attempt},
                )
            if attempt < options.retry_attempts:
                await asyncio.sleep(options.reconnect_delay_ms / 1000)
        raise LogUnavailable(
            f"cannot use the broker at {options.nats_url} after {options.retry_attempts} attempts: {reason}"
        )

    async def close(self) -> None:
        """Send what waits and let go. Safe to call twice."""
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            if client.is_connected:
                await client.flush(timeout=2)
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()
        self._fail_waiting("the connection to the broker was closed")

    async def send(self, commands: bytes) -> None:
        """Send commands of the wire protocol; NotReached if there is no connection to send them over."""
        client = self._client
        if client is None or not client.is_connected:
            raise NotReached("there is no connection to the broker")
        try:
            await client.send(commands)
        except nats.errors.Error as error:
            raise NotReached(f"the broker cannot be reached: {error}") from error
        except OSError as error:
            raise Unanswered(f"the connection to the broker broke: {error}") from error

    async def publish(self, subject: str, body: bytes, reply: str = "") -> None:
        """Send one message without headers."""
        await self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(body), body))

    async def subscribe(
        self, deliver: Deliver, handler: Handler, identify: Identify, collect: Collect | None = None
    ) -> Inbox:
        """An inbox of its own, for what a consumer delivers; the handler gets what is no delivery.

        With `collect`, that gets what is of the usual kind, and `deliver` only the rest.
        """
        client = self._client
        if client is None or not client.is_connected:
            raise NotReached("there is no connection to the broker")
        subject = f"{self._prefix}d.{next(self._numbers)}"  # not one that the shared inbox hears too
        subscription = await client.subscribe(subject)
        number = b"%d" % subscription._id
        client.parser.handlers[number] = handler
        client.parser.consumers[number] = (deliver, identify, collect)
        return Inbox(subject, subscription, client.parser)

    def expect(self, handler: Handler | None = None) -> tuple[str, asyncio.Future[Any]]:
        """A reply subject on the shared inbox, and a future that fails if the connection does.

        Without a handler the future takes the first answer, as a pair of header block and body; with one, the handler
        gets every answer and has to end the future.
        """
        token = b"%d" % next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
            if not future.done():
                if headers.startswith(b"NATS/1.0 503"):
                    future.set_exception(NotReached("nobody at the broker takes this request now"))
                else:
                    future.set_result((headers, body))

        self._waiting[token] = handler or take
        self._futures[token] = future
        future.add_done_callback(lambda _: self._forget(token))
        return f"{self._prefix}.{token.decode()}", future

    def expect_many(
        self, count: int
    ) -> tuple[Sequence[bytes], Sequence[tuple[bytes, bytes] | None], asyncio.Future[None]]:
        """Reply subjects, a place for the answer to each, and a future that is done when all are there."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[tuple[bytes, bytes] | None] = [None] * count
        first = next(self._numbers)
        self._numbers = itertools.count(first + count)
        left = count

        def take(subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
            nonlocal left
            place = int(subject[subject.rfind(b".") + 1 :]) - first
            if answers[place] is None:
                answers[place] = (headers, body)
                left -= 1
                if not left and not future.done():
                    future.set_result(None)

        tokens = [b"%d" % number for number in range(first, first + count)]
        self._waiting.update(dict.fromkeys(tokens, take))
        self._futures[tokens[0]] = future

        def forget(_: asyncio.Future[None]) -> None:
            for token in tokens:
                self._forget(token)

        future.add_done_callback(forget)
        prefix = self._prefix.encode()
        return [b"%b.%b" % (prefix, token) for token in tokens], answers, future

    async def request(self, subject: str, body: bytes, seconds: float = ANSWER_SECONDS) -> tuple[bytes, bytes]:
        """Header block and body of the answer; NotReached or Unanswered if there is none."""
        reply, future = self.expect()
        try:
            await self.publish(subject, body, reply)
            return await self.wait(future, seconds)
        finally:
            future.cancel()

    async def wait(self, future: asyncio.Future[T], seconds: float = ANSWER_SECONDS) -> T:
        """The result of an expected answer; Unanswered if it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise Unanswered(f"the broker did not answer within {seconds:g} s") from None

    async def api(self, name: str, request: Any = None, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The answer of the JetStream API; Refused if it is an error.

        It is asked again while nobody answers, so this is for what does no harm when it is done twice.
        """
        body = b"" if request is None else msgspec.json.encode(request)

        async def ask() -> dict[str, Any]:
            _, answer = await self.request(f"$JS.API.{name}", body)
            decoded: dict[str, Any] = msgspec.json.decode(answer)
            error = decoded.get("error")
            if error is not None:
                code, text = error.get("err_code", error.get("code", 0)), error.get("description", "no reason given")
                raise (
                    NotReached(f"the broker cannot do this now: {text}") if code in _NO_LEADER else Refused(code, text)
                )
            return decoded

        return await self.patiently(ask, patience)

    async def patiently(self, ask: Callable[[], Awaitable[T]], seconds: float = PATIENCE_SECONDS) -> T:
        """Ask until somebody answers, until the patience is used up, or until there is no hope."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            try:
                return await ask()
            except (NotReached, Unanswered):
                if self.closed_for_good or loop.time() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self) -> None:
        options = self._options
        client = self._client = _Client()
        more: dict[str, Any] = {}
        if options.token:
            more["token"] = str(options.token)
        if options.credentials_file is not None:
            more["user_credentials"] = str(options.credentials_file)
        tls = _tls(options)
        if tls is not None:
            more["tls"] = tls
        await client.connect(
            [url.strip() for url in options.nats_url.split(",") if url.strip()],
            name="aviso-server",
            allow_reconnect=True,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, int(options.timeout_seconds)),
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            skip_subject_validation=True,
            error_cb=self._note_error,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            closed_cb=self._gone,
            **more,
        )
        # From now on as often and as patiently as the operator wants it.
        client.options["allow_reconnect"] = options.enable_auto_reconnect
        client.options["max_reconnect_attempts"] = options.max_reconnect_attempts or -1
        client.options["reconnect_time_wait"] = options.reconnect_delay_ms / 1000
        self._prefix = f"_INBOX.aviso{uuid.uuid4().hex[:16]}"
        subscription = await client.subscribe(f"{self._prefix}.*")
        client.parser.handlers[b"%d" % subscription._id] = self._answered

    def _answered(self, subject: bytes, reply: bytes, headers: bytes, body: bytes) -> None:
        handler = self._waiting.get(subject[subject.rfind(b".") + 1 :])
        if handler is not None:
            handler(subject, reply, headers, body)

    def _forget(self, token: bytes) -> None:
        self._waiting.pop(token, None)
        self._futures.pop(token, None)

    def _fail_waiting(self, reason: str) -> None:
        for future in list(self._futures.values()):
            if not future.done():
                future.set_exception(Unanswered(reason))

    async def _lost(self) -> None:
        self._fail_waiting("the connection to the broker was lost")
        if self._client is not None:
            logger.warning("connection to the broker lost", extra={"event": "backend.jetstream.connection.lost"})
            self._changed()

    async def _back(self) -> None:
        logger.info("connected to the broker again", extra={"event": "backend.jetstream.connection.restored"})
        self._changed()

    async def _gone(self) -> None:
        if self._client is not None:
            self.closed_for_good = True
            logger.error("the broker stays away: giving up", extra={"event": "backend.jetstream.connection.failed"})
            self._changed()

    async def _note_error(self, error: Exception) -> None:
        self._last_error = error
        logger.debug("broker connection: %r", error, extra={"event": "backend.jetstream.connection.error"})

    def _changed(self) -> None:
        for call in self.on_change:
            call()


def _tls(options: BrokerOptions) -> ssl.SSLContext | None:
    if options.ca_file is None and options.cert_file is None:
        return None
    context = ssl.create_default_context(cafile=None if options.ca_file is None else str(options.ca_file))
    if options.cert_file is not None:
        context.load_cert_chain(str(options.cert_file), None if options.key_file is None else str(options.key_file))
    return context
