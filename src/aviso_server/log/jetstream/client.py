"""The connection to a NATS broker: options, wire protocol, requests and answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol import parser

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.jetstream.wire import Identify, notification_of
from aviso_server.model.notification import Notification

__all__ = [
    "NAME_IN_USE",
    "NO_MESSAGE",
    "NO_STREAM",
    "BrokerOptions",
    "BrokerRefusal",
    "Connection",
    "Consumer",
    "NotReached",
    "Parser",
    "Unanswered",
    "refusal",
]

logger = logging.getLogger(__name__)


class BrokerOptions(msgspec.Struct, frozen=True):
    """The address of the broker, credentials, and the settings of new streams; None leaves a setting to the broker."""

    nats_url: str = "nats://localhost:4222"  # several, separated by commas, for a cluster
    token: str | None = None
    credentials_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout_seconds: float = 30
    retry_attempts: int = 3
    max_messages: int | None = None
    max_bytes: int | None = None
    retention_time: int | None = None  # nanoseconds
    storage_type: Literal["file", "memory"] = "file"
    replicas: int | None = None
    retention_policy: Literal["limits", "interest"] = "limits"
    discard_policy: Literal["old", "new"] = "old"
    max_reconnect_attempts: int | None = None  # None or 0: for ever
    reconnect_delay_ms: int = 2000
    publish_retry_attempts: int = 5
    publish_retry_base_delay_ms: int = 150


Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply subject, header block and body of a message; must not block."""

Deliver = Callable[[int, Notification], None]
"""Called with what a consumer delivers: which of its deliveries it is, and the notification; must not block."""

_LONGEST_LINE = 1024 * 1024  # bytes; a broker's INFO names all brokers of its cluster
_LARGEST_MESSAGE = 128 * 1024 * 1024  # bytes; brokers refuse to be configured for half of that


class Parser(parser.Parser):
    """The wire protocol of one connection; handlers and consumers are found by the number of the subscription.

    The client's own parser passes each message through a queue and a task. This one calls whoever waits for it.
    """

    def __init__(self, client: Any) -> None:
        self.handlers: dict[bytes, Handler] = {}
        self.consumers: dict[bytes, tuple[Deliver, Identify]] = {}
        super().__init__(client)

    def reset(self) -> None:
        """Forget what was read only in part: the connection is a new one."""
        super().reset()
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived; what is not complete waits for the rest. ProtocolError ends the connection."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        data = b"".join(self._parts)
        position = self._needed = 0
        while (end := data.find(b"\r\n", position)) >= 0:
            words = data[position:end].split()
            start = stop = end + 2
            if words and words[0] in (b"MSG", b"HMSG"):
                head, total = _sizes(words)
                stop += total + 2
                if stop > len(data):
                    self._needed = stop - position
                    break
                if data[stop - 2 : stop] != b"\r\n":
                    raise nats.errors.ProtocolError("a message is not as long as the broker says")
            if stop == start or not self._took(words, data[start : start + head], data[start + head : stop - 2]):
                await self._pass_on(data[position:stop])
            position = stop
        rest = data[position:]
        if not self._needed and len(rest) > _LONGEST_LINE:
            raise nats.errors.ProtocolError("a line of the broker does not end")
        self._parts = [rest]
        self._size = len(rest)

    async def _pass_on(self, data: bytes) -> None:
        """Let the client's own parser deal with a line or a message; it waits for ever for what it does not know."""
        try:
            await super().parse(data)
        except (ValueError, TypeError, LookupError) as error:
            raise nats.errors.ProtocolError(f"a line of the broker cannot be understood: {error}") from error
        if self.buf:
            raise nats.errors.ProtocolError("a line of the broker cannot be understood")

    def _took(self, words: Sequence[bytes], headers: bytes, body: bytes) -> bool:
        """Hand a message to whoever waits for it here; False if nobody does. The words are those of its first line."""
        subject, number = words[1], words[2]
        handler = self.handlers.get(number)
        if handler is None:
            return False
        reply = words[3] if len(words) == (6 if words[0] == b"HMSG" else 5) else b""
        consumer = self.consumers.get(number) if reply else None
        try:
            if consumer is None:
                handler(subject, reply, headers, body)
            else:
                # $JS.ACK.<stream>.<consumer>.<times>.<sequence>.<delivery>.<time>.<pending>, with domains two more
                parts = reply.split(b".")
                sequence, delivery, when = map(int, parts[5:8] if len(parts) == 9 else parts[7:10])
                deliver, identify = consumer
                deliver(delivery, notification_of(sequence, when, subject, headers, body, identify))
        except Exception as error:  # the connection must live on
            _report(error)
        return True


def _sizes(words: Sequence[bytes]) -> tuple[int, int]:
    """Return how long the headers of a message and the whole of it are, by its first line."""
    headed = words[0] == b"HMSG"
    numbers = words[-2:] if headed else [b"0", words[-1]]
    if not 4 + headed <= len(words) <= 5 + headed or not all(each.isdigit() and len(each) < 12 for each in numbers):
        raise nats.errors.ProtocolError("a line of the broker cannot be understood")
    head, total = map(int, numbers)
    if not head <= total <= _LARGEST_MESSAGE:
        raise nats.errors.ProtocolError("a message of the broker has impossible sizes")
    return head, total


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a message from the broker could not be handled", "exception": error}
    )


T = TypeVar("T")

ANSWER_SECONDS = 5.0
PATIENCE_SECONDS = 12.0  # a cluster needs up to ten seconds to choose a new leader
_PING_SECONDS = 5  # a broker that misses three is taken for dead
_RETRY_SECONDS = 0.2
NO_STREAM = 10059
NO_MESSAGE = 10037
NAME_IN_USE = 10058
_NO_LEADER = frozenset({10008, 10009, 10118, 10189})  # the broker says: not now


class NotReached(LogUnavailable):
    """Nobody took the request: what it asked for was not done."""


class Unanswered(LogUnavailable):
    """The answer did not come: what was asked for may or may not have been done."""


class BrokerRefusal(LogError):
    """The broker said no; `code` is its error code."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"the broker refused: {description} ({code})")
        self.code = code
        self.description = description


def refusal(error: Mapping[str, Any], passing: Set[int]) -> NotReached | BrokerRefusal:
    """Build what to raise for an error in a broker's answer: NotReached for the codes that mean "not now"."""
    code, text = error.get("err_code", error.get("code", 0)), error.get("description", "no reason given")
    return NotReached(f"the broker cannot do this now: {text}") if code in passing else BrokerRefusal(code, text)


class Consumer:
    """A consumer on the broker, for as long as it is used; it delivers what it is asked for."""

    def __init__(self, connection: Connection, name: str, subscription: Subscription, parser: Parser) -> None:
        self._connection = connection
        self._name = name  # with that of its stream
        self._subscription = subscription
        self._parser = parser

    async def ask(self, **request: Any) -> None:
        """Ask for deliveries; NotReached if there is no connection."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._name}"
        await self._connection.publish(subject, msgspec.json.encode(request), self._subscription.subject)

    async def close(self) -> None:
        """Unsubscribe and delete it; nobody waits for the broker's answer."""
        number = b"%d" % self._subscription._id
        self._parser.handlers.pop(number, None)
        self._parser.consumers.pop(number, None)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._subscription.unsubscribe()
        with contextlib.suppress(LogError):
            await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._name}", b"")


class _Client(Client):
    """The client with a parser of our own. It has no public place for one, nor for the number of a subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.parser = self._ps = Parser(self)


class Connection:
    """Connects and reconnects, by default for ever, and lets everyone know when it is lost and when it is back."""

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
        self._reopening: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
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
                return await self._dial()
            except LogUnavailable as error:
                reason = str(error)
                self._log_retry(reason, attempt)
            if attempt < options.retry_attempts:
                await asyncio.sleep(options.reconnect_delay_ms / 1000)
        raise LogUnavailable(
            f"cannot use the broker at {options.nats_url} after {options.retry_attempts} attempts: {reason}"
        )

    async def close(self) -> None:
        """Send what waits and close the connection. Safe to call twice."""
        reopening, self._reopening = self._reopening, None
        if reopening is not None:
            reopening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reopening
        await self._drop_client()

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        # an attempt to connect may miss that it was cancelled (`wait_for` of Python 3.11): it is to be the last one
        client.options["max_reconnect_attempts"] = 1
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            if client.is_connected:
                await client.flush(timeout=2)
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()
        self._fail_waiting("the connection to the broker was closed")

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a message; NotReached if there is no connection to send it over."""
        client = self._client
        if client is None or not client.is_connected:
            raise NotReached("there is no connection to the broker")
        try:
            await client.publish(subject, body, reply, headers)  # type: ignore[arg-type]  # it only reads them
        except nats.errors.Error as error:
            raise NotReached(f"the broker cannot be reached: {error}") from error
        except OSError as error:
            raise Unanswered(f"the connection to the broker broke: {error}") from error

    async def consume(
        self, stream: str, name: str, start: int, idle: int, deliver: Deliver, handler: Handler, identify: Identify
    ) -> Consumer:
        """Make a consumer that delivers from a sequence on; the handler gets everything else.

        It is kept in memory and acknowledges nothing. The broker deletes it after so many idle seconds.
        """
        client = self._client
        if client is None or not client.is_connected:
            raise NotReached("there is no connection to the broker")
        # not one of the subjects that the shared inbox hears too
        subscription = await client.subscribe(f"{self._prefix}d.{next(self._numbers)}")
        number = b"%d" % subscription._id
        client.parser.handlers[number] = handler
        client.parser.consumers[number] = (deliver, identify)
        consumer = Consumer(self, f"{stream}.{name}", subscription, client.parser)
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": idle * 1_000_000_000,
        }
        try:
            request = {"stream_name": stream, "config": config, "action": "create"}
            await self.api(f"CONSUMER.CREATE.{stream}.{name}", request)
        except BaseException:
            await consumer.close()
            raise
        return consumer

    def expect(self, handler: Handler) -> tuple[str, asyncio.Future[Any]]:
        """Open a reply subject for any number of answers, and a future that the handler ends or a lost connection."""
        token = b"%d" % next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = handler
        self._futures[token] = future
        future.add_done_callback(lambda _: self._forget(token))
        return f"{self._prefix}.{token.decode()}", future

    def expect_many(
        self, count: int
    ) -> tuple[Sequence[str], Sequence[tuple[bytes, bytes] | None], asyncio.Future[None]]:
        """Open reply subjects, with a place for the answer to each, and a future that is done when all are there."""
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
        return [f"{self._prefix}.{number}" for number in range(first, first + count)], answers, future

    async def request(self, subject: str, body: bytes) -> bytes:
        """Return the body of the answer; NotReached or Unanswered if there is none."""
        (reply,), answers, future = self.expect_many(1)
        try:
            await self.publish(subject, body, reply)
            await self.wait(future)
        finally:
            future.cancel()
        assert answers[0] is not None  # the future is done
        headers, answer = answers[0]
        if headers.startswith(b"NATS/1.0 503"):
            raise NotReached("the broker does not take this request now")
        return answer

    async def wait(self, future: asyncio.Future[None]) -> None:
        """Wait for expected answers; Unanswered if they take longer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await future
        except TimeoutError:
            raise Unanswered(f"the broker did not answer within {ANSWER_SECONDS:g} s") from None

    async def api(self, name: str, request: Any = None, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Call the JetStream API; BrokerRefusal if the answer is an error.

        It is asked again while nobody answers, so this is for what does no harm when it is done twice.
        """
        body = b"" if request is None else msgspec.json.encode(request)

        async def ask() -> dict[str, Any]:
            decoded: dict[str, Any] = msgspec.json.decode(await self.request(f"$JS.API.{name}", body))
            error = decoded.get("error")
            if error is not None:
                raise refusal(error, _NO_LEADER)
            return decoded

        return await self.patiently(ask, patience)

    async def message(self, stream: str, **which: Any) -> dict[str, Any] | None:
        """Return a message of a stream as its leader has it; None if it is not there."""
        try:
            found: dict[str, Any] = (await self.api(f"STREAM.MSG.GET.{stream}", which))["message"]
        except BrokerRefusal as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        return found

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

    async def _dial(self) -> None:
        """Connect a new client once; LogUnavailable says why that failed."""
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                await self._connect()
                self.level = int((await self.api("INFO", patience=0)).get("api", {}).get("level", 0))
        except (nats.errors.Error, OSError, TimeoutError, LogError) as error:
            await self._drop_client()
            # the client says only that no server is left; its last error says why
            cause = self._last_error if isinstance(error, nats.errors.NoServersError) and self._last_error else error
            raise LogUnavailable(str(cause) or type(cause).__name__) from error

    async def _reopen(self) -> None:
        """Connect with a new client, however long that takes."""
        await self._drop_client()
        for attempt in itertools.count(1):
            await asyncio.sleep(self._options.reconnect_delay_ms / 1000)
            try:
                await self._dial()
            except LogUnavailable as error:
                self._log_retry(str(error), attempt)
            if self.connected:  # a client may be gone again right after it was let in
                return await self._back()

    def _log_retry(self, reason: str, attempt: int) -> None:
        extra = {"event": "backend.jetstream.connection.retry", "attempt": attempt}
        logger.warning("cannot reach the broker: %s", reason, extra=extra)

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
            pending_size=0,  # what cannot be sent now fails now: whoever wants it sent tries again
            skip_subject_validation=True,
            error_cb=self._note_error,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            closed_cb=self._gone,
            **more,
        )
        # From now on as often and as patiently as the operator wants it.
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
        if self._client is None:
            return
        if self._options.max_reconnect_attempts:
            self.closed_for_good = True
            logger.error(
                "the broker cannot be reached: giving up", extra={"event": "backend.jetstream.connection.failed"}
            )
        elif self._reopening is None or self._reopening.done():
            # the client ends its life over errors that pass, such as too many connections or a slow authentication
            self._reopening = asyncio.create_task(self._reopen(), name="reconnect to the broker")
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
