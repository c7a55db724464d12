"""Sinks: which addresses may be called, and the client that calls them.

The client is our own because it has to know what it connects to. A name is looked up for every new connection, every
address in the answer is judged, and the connection is made to the address that was judged, not to the name. There are
no redirects, no cookies, no proxies, and limits to the time, the head and the body of an answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from aviso_server import __version__
from aviso_server.errors import InvalidRequest
from aviso_server.model.json_text import quoted

__all__ = ["Answer", "NotSent", "Resolve", "Sink", "SinkClient", "SinkRules", "check_headers"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks a name up; the answer is addresses."""

_MAX_URL = 2048
_MAX_HEADERS = 16
_MAX_HEADER_BYTES = 4096
_MAX_HEAD = 16 * 1024  # bytes of an answer's head
_MAX_ANSWER_HEADERS = 100
_MAX_BODY = 64 * 1024  # bytes of an answer's body that are read
_KEPT = 1024  # bytes of it that people are shown
_IDLE_SECONDS = 30.0
_LIFETIME_SECONDS = 300.0  # then the name is looked up again
_MAX_IDLE = 1000  # connections that are kept
_LOOKUPS = 512  # names that are looked up at a time
_FIRST_UNPRIVILEGED = 1024

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_RESERVED = frozenset(
    {
        *("host", "content-length", "content-type", "connection", "transfer-encoding", "upgrade", "te", "trailer"),
        *("expect", "keep-alive", "proxy-authorization", "proxy-connection", "user-agent", "cookie", "accept-encoding"),
    }
)
_RESERVED_BEGINNINGS = ("webhook-", "ce-")

# What the registries of special addresses list, besides what `is_global` knows in every version of Python.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class NotSent(Exception):
    """No answer came; `refused` if we did not want to connect. The text says why and holds no secrets."""

    def __init__(self, reason: str, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class Answer(msgspec.Struct, frozen=True):
    """What a sink answered."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes  # its beginning
    seconds: float

    @property
    def text(self) -> str:
        """The beginning of the body for people."""
        return self.body[:_KEPT].decode("utf-8", "replace")


class Sink(msgspec.Struct, frozen=True):
    """A checked address to send to."""

    url: str
    secure: bool
    host: str
    port: int
    target: str  # path and query
    allowed: bool  # by name: wherever it is

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class SinkRules:
    """Which sinks may be called: public addresses over TLS, and what the operator lists."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        """Read the list: host names (`*.` for all below), host:port, addresses, networks; ValueError names a fault."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._hosts: set[tuple[str, int | None]] = set()
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
                continue
            except ValueError:
                pass
            host, _, port = entry.lower().rpartition(":") if ":" in entry else (entry.lower(), "", "")
            name = host.removeprefix("*.")
            if (not _is_name(name) and _literal(name.strip("[]")) is None) or (port and not port.isdigit()):
                raise ValueError(f"{quoted(entry)} is no host, host:port, address or network")
            self._hosts.add((host.strip("[]"), int(port) if port else None))

    def check(self, url: str) -> Sink:
        """Return the sink of an address; InvalidRequest if nothing may be sent there, whatever its name means."""
        if len(url) > _MAX_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise _refused(f"sink must be an address of up to {_MAX_URL} ASCII characters; got {quoted(url)}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _refused(f"sink is not an address: {quoted(url)}") from None
        host = (parts.hostname or "").rstrip(".")
        secure = parts.scheme == "https"
        if parts.scheme not in ("https", "http") or not host:
            raise _refused(f"sink must begin with https:// and name a host; got {quoted(url)}")
        if parts.username is not None or parts.password is not None or "#" in url:
            raise _refused("sink must hold no user name, password or fragment; send credentials in headers")
        literal = _literal(host)
        if literal is None and not _is_name(host):
            raise _refused(f"sink must name a host, or an address in its usual form; got {quoted(host)}")
        number = port if port is not None else (443 if secure else 80)
        allowed = self._listed(host, number)
        if literal is not None and not allowed and not self.admits(literal):
            raise _refused(f"sink {quoted(host)} is not a public address; subscriptions.allow_sinks does not list it")
        known = allowed or (literal is not None and self._in_networks(literal))
        if not secure and not known:
            raise _refused("sink must begin with https://; only what subscriptions.allow_sinks lists may do without")
        if not known and number not in (443, 80) and number < _FIRST_UNPRIVILEGED:
            raise _refused(f"sink must have port 443, 80, or {_FIRST_UNPRIVILEGED} and above; got {number}")
        return Sink(url, secure, host, number, _target(parts), allowed)

    def admits(self, address: Address) -> bool:
        """Return whether an address may be connected to: it is public, or listed."""
        return self._in_networks(address) or is_public(address)

    def _in_networks(self, address: Address) -> bool:
        inner = _unwrapped(address)
        return any(each in network for each in {address, inner} for network in self._networks)

    def _listed(self, host: str, port: int) -> bool:
        names = [host, *[f"*.{host.split('.', n)[n]}" for n in range(1, host.count(".") + 1)]]
        return any((name, number) in self._hosts for name in names for number in (None, port))


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet, and so does the one inside it."""
    inner = _unwrapped(address)
    if inner != address:
        return is_public(inner)
    if any(address in network for network in _SPECIAL if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for; the same if it stands for none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    found = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if found is None and (address in _NAT64 or (address in _COMPATIBLE and int(address) > 1)):
        found = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return found or address


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_name(host: str) -> bool:
    """Return whether it is a name of the DNS; one whose last label is a number is an address in disguise."""
    labels = host.lower().split(".")
    last = labels[-1]
    disguised = last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None
    return len(host) <= 253 and not disguised and all(_LABEL.fullmatch(label) for label in labels)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="sink")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise InvalidRequest unless these headers may be sent along."""
    if (
        len(headers) > _MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers.items()) > _MAX_HEADER_BYTES
    ):
        raise InvalidRequest(
            f"headers may be {_MAX_HEADERS}, of {_MAX_HEADER_BYTES} characters in all", field="headers"
        )
    for name, value in headers.items():
        lower = name.lower()
        if _TOKEN.fullmatch(name) is None or lower in _RESERVED or lower.startswith(_RESERVED_BEGINNINGS):
            raise InvalidRequest(f"headers: {quoted(name)} is not a name that may be sent", field="headers")
        if not value.isascii() or not value.isprintable():
            raise InvalidRequest(f"headers: the value of {quoted(name)} is not printable ASCII", field="headers")


class Resolver:
    """Looks names up, each once at a time and in a thread of its own: one that hangs keeps nobody else waiting.

    The loop has a few threads for this, and everybody waits when they are taken.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        self._free = asyncio.Semaphore(_LOOKUPS)

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; OSError if there are none."""
        running = self._running.get((host, port))
        if running is None:
            running = self._running[host, port] = asyncio.create_task(self._look_up(host, port))
            running.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        return await asyncio.shield(running)

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(found: Any) -> None:
            if not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            try:
                found: Any = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                found = error
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, found)

        try:
            async with self._free:
                threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
                found = await answer
        finally:
            del self._running[host, port]
        if isinstance(found, Exception):
            raise socket.gaierror(str(found)) from None
        return list(dict.fromkeys(str(each[4][0]) for each in found))


class _Connection(asyncio.Protocol):
    """One connection to a sink, one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.opened = time.monotonic()
        self.reusable = True
        self._parser: Any = None
        self._waiting: asyncio.Future[None] | None = None
        self._head = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self._no_body = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._fail("the connection was closed before an answer came")

    def request(self, data: Sequence[bytes]) -> asyncio.Future[None]:
        """Send a request; the future is done when its answer is complete."""
        self._parser = httptools.HttpResponseParser(self)
        self._head, self.status, self.headers, self.body = 0, 0, {}, bytearray()
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.writelines(data)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked
            self.close()
            return
        try:
            for start in range(0, len(data), _MAX_HEAD):
                if not self.status and self._head > _MAX_HEAD:
                    self._fail("the head of the answer is too long")
                    self.close()
                    return
                if not self.status:
                    self._head += len(data) - start
                self._parser.feed_data(data[start : start + _MAX_HEAD])
        except httptools.HttpParserUpgrade:
            self._fail("the answer asks for another protocol")
            self.close()
        except httptools.HttpParserError:
            self._fail("the answer is not HTTP")
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header (called by the parser)."""
        if len(self.headers) > _MAX_ANSWER_HEADERS:
            raise ValueError("the head of the answer is too long")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take the end of the head."""
        self.status = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body; no more than anybody needs."""
        if len(self.body) < _MAX_BODY:
            self.body += part
        else:  # we have our answer
            self._done()
            self.close()

    def on_message_complete(self) -> None:
        """Take the end of the answer."""
        if 100 <= self.status < 200:
            self._fail("the answer is informational")
            self.close()
            return
        self._done()

    def eof_received(self) -> None:
        """Take the end of what the sink sends: that of a body without a length."""
        if self._waiting is not None and self.status and "content-length" not in self.headers:
            self.reusable = False
            self._done()

    def close(self) -> None:
        """Close at once."""
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    def _done(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NotSent(reason))
        self._waiting = None


class SinkClient:
    """Sends requests to sinks, and keeps a connection for each subscription while it is busy."""

    def __init__(
        self,
        rules: SinkRules,
        seconds: float = 15.0,
        ca_file: Path | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.rules = rules
        self._seconds = seconds
        self._ca_file = ca_file
        self._resolve = resolve or Resolver()
        self._tls: ssl.SSLContext | None = None
        self._idle: OrderedDict[str, tuple[float, str, _Connection]] = OrderedDict()

    async def send(
        self,
        key: str,
        sink: Sink,
        method: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> Answer:
        """Send a request over the connection of `key`, a new one if there is none; NotSent if no answer comes."""
        began = time.monotonic()
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, sink.target.encode(), sink.authority.encode())
        head += b"".join([b"%b: %b\r\n" % header for header in headers])
        head += _USER_AGENT + b"content-length: %d\r\n\r\n" % len(body)
        data = [head, body] if body else [head]
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._seconds):
                connection = self._take(key, sink)
                try:
                    if connection is not None:
                        await connection.request(data)
                except NotSent:
                    connection = None  # it was closed while nobody used it, as servers do
                if connection is None:
                    connection = await self._connect(sink)
                    await connection.request(data)
        except TimeoutError:
            self._drop(connection)
            raise NotSent(f"no answer within {self._seconds:g} s") from None
        except (OSError, ssl.SSLError) as error:
            self._drop(connection)
            raise NotSent(_reason(error)) from None
        except BaseException:
            self._drop(connection)
            raise
        answer = Answer(connection.status, connection.headers, bytes(connection.body), time.monotonic() - began)
        if connection.reusable and time.monotonic() - connection.opened < _LIFETIME_SECONDS:
            self._keep(key, sink, connection)
        else:
            connection.close()
        return answer

    def forget(self, key: str) -> None:
        """Close the connection of a subscription."""
        kept = self._idle.pop(key, None)
        if kept is not None:
            kept[2].close()

    def tidy(self) -> None:
        """Close connections that nobody has used for a while."""
        now = time.monotonic()
        while self._idle and (oldest := next(iter(self._idle.items())))[1][0] < now - _IDLE_SECONDS:
            self.forget(oldest[0])

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._idle):
            self.forget(key)

    def _take(self, key: str, sink: Sink) -> _Connection | None:
        kept = self._idle.pop(key, None)
        if kept is None:
            return None
        since, url, connection = kept
        usable = connection.reusable and url == sink.url and time.monotonic() - since < _IDLE_SECONDS
        if usable and not connection.transport.is_closing():
            return connection
        connection.close()
        return None

    def _keep(self, key: str, sink: Sink, connection: _Connection) -> None:
        self.forget(key)
        self._idle[key] = (time.monotonic(), sink.url, connection)
        if len(self._idle) > _MAX_IDLE:
            self.forget(next(iter(self._idle)))

    def _drop(self, connection: _Connection | None) -> None:
        if connection is not None:
            connection.close()

    async def _connect(self, sink: Sink) -> _Connection:
        """Connect to an address that was judged; the name is used for TLS only."""
        literal = _literal(sink.host)
        found = [sink.host] if literal is not None else await self._resolve(sink.host, sink.port)
        addresses = [address for text in found if (address := _literal(text)) is not None]
        for address in addresses:
            # one that may not be called spoils the answer: whoever sends it does not mean well, or has made a mistake
            if not sink.allowed and not self.rules.admits(address):
                raise NotSent(f"the sink is at {address}, which is not a public address", refused=True)
        if not addresses:
            raise NotSent("the sink's name has no address")
        error: Exception | None = None
        for address in addresses[:4]:
            try:
                return await self._connect_to(sink, address)
            except OSError as failed:
                error = failed
        assert error is not None  # there was an address, and every try ends with a return or an error
        raise error

    async def _connect_to(self, sink: Sink, address: Address) -> _Connection:
        loop = asyncio.get_running_loop()
        tls, name = (self._context(), sink.host) if sink.secure else (None, None)
        transport, connection = await loop.create_connection(
            _Connection, str(address), sink.port, ssl=tls, server_hostname=name
        )
        peer = _literal(str((transport.get_extra_info("peername") or ("",))[0]))
        if peer is None or (not sink.allowed and not self.rules.admits(peer)):
            connection.close()
            raise NotSent("the connection led to an address that is not public", refused=True)
        with suppress(OSError, AttributeError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=None if self._ca_file is None else str(self._ca_file))
        return self._tls


_USER_AGENT = f"user-agent: aviso-server/{__version__}\r\naccept-encoding: identity\r\n".encode()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return "its name cannot be looked up"
    if isinstance(error, ConnectionRefusedError):
        return "it refuses connections"
    return (
        f"it cannot be reached: {error.strerror or type(error).__name__}" if isinstance(error, OSError) else str(error)
    )
