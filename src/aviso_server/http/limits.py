"""Refusals before a route sees a request: limits of connections, rates, sizes and memory, and pages of other sites."""

from __future__ import annotations

import ipaddress
import logging
import math
import resource
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cachetools import LRUCache

from aviso_server.config import settings
from aviso_server.config.settings import Settings
from aviso_server.errors import PolygonTooLarge, RequestError
from aviso_server.http.response import HttpError, forbidden, unavailable
from aviso_server.model.json_text import compact

if TYPE_CHECKING:
    from aviso_server.http.request import Request

__all__ = ["Browsers", "Buckets", "Clients", "Memory", "RequestLimits", "resident_bytes"]

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Clients:
    """Knows clients by their address and counts their connections."""

    def __init__(self, trusted: Iterable[Network] = (), most_each: int | None = None) -> None:
        self._trusted: Sequence[Network] = tuple(trusted)
        self._most_each = most_each
        self._connections: defaultdict[str, int] = defaultdict(int)

    def connected(self, address: str) -> None:
        self._connections[address] += 1

    def disconnected(self, address: str) -> None:
        self._connections[address] -= 1
        if self._connections[address] <= 0:
            del self._connections[address]

    def too_many(self, address: str) -> bool:
        """Return whether an address has more connections than one client may; a trusted proxy speaks for many."""
        return (
            self._most_each is not None
            and self._connections.get(address, 0) > self._most_each
            and not self._is_trusted(address)
        )

    def address(self, scope: Any) -> str:
        """Return the client's address: the last one that a trusted proxy has not added itself."""
        peer = str(scope["client"][0]) if scope.get("client") else ""
        if not self._trusted or not self._is_trusted(peer):
            return peer
        forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
        for hop in reversed(forwarded.decode("latin-1").split(",")):
            hop = hop.strip()
            if _parsed(hop) is None:
                break  # what comes before it cannot be trusted either
            peer = hop
            if not self._is_trusted(hop):
                break
        return peer

    def _is_trusted(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._trusted)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    # what comes over IPv4 to a socket of both kinds carries its address like this
    return getattr(found, "ipv4_mapped", None) or found


_STATM = Path("/proc/self/statm")
_SAMPLE_SECONDS = 0.5


def resident_bytes() -> int:
    """Return the memory of this process that is not swapped out; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


class Memory:
    """Compares the memory of this process with a mark, looking only now and then."""

    def __init__(
        self, watermark: int, read: Callable[[], int] = resident_bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watermark = watermark
        self._read = read
        self._clock = clock
        self._look_again = 0.0
        self._above = False

    @property
    def above(self) -> bool:
        """True while the process uses more than the mark."""
        now = self._clock()
        if now >= self._look_again:
            self._look_again = now + _SAMPLE_SECONDS
            self._above = self._read() > self._watermark
        return self._above


class Buckets:
    """One bucket per client; those not seen for longest are forgotten first, and begin anew with a full one."""

    def __init__(
        self, rate: int, burst: int, clock: Callable[[], float] = time.monotonic, most_clients: int = 65_536
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(most_clients)  # tokens, and when it had them

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str) -> float:
        """Take a token; 0 if there was one, else the seconds until there will be."""
        now = self._clock()
        tokens, since = self._buckets.get(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - since) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[client] = (tokens if wait else tokens - 1, now)
        return wait


LIMITS = {
    "body_bytes": "max_body_bytes",
    "batch_bytes": "max_batch_bytes",
    "batch_items": "max_batch_items",
    "identifier_bytes": "max_identifier_bytes",
    "polygon_vertices": "max_polygon_vertices",
    "connections": "max_connections",
    "connections_per_client": "max_connections_per_client",
    "requests_per_second": "requests_per_second",
    "memory": "memory_watermark_bytes",
    "header_timeout": "header_timeout_seconds",
    "body_timeout": "body_timeout_seconds",
    "idle_timeout": "idle_timeout_seconds",
}
"""The limits by the name that metrics and log records have for them, each with its setting."""

_BUSY_SECONDS = 5


class RequestLimits:
    """The limits of one server at work."""

    def __init__(self, limits: settings.Limits) -> None:
        self.refused = dict.fromkeys(LIMITS, 0)
        self.clients = Clients(
            [ipaddress.ip_network(network, strict=False) for network in limits.trusted_proxies],
            limits.max_connections_per_client,
        )
        self.header_seconds = limits.header_timeout_seconds
        self.body_seconds = limits.body_timeout_seconds
        self._limits = limits
        rate = limits.requests_per_second
        self._rate = None if rate is None else Buckets(rate, limits.request_burst or 2 * rate)
        mark = limits.memory_watermark_bytes
        self._memory = None if mark is None else Memory(mark)

    @property
    def configured(self) -> dict[str, float]:
        """The limits that are on."""
        return {name: value for name, key in LIMITS.items() if (value := getattr(self._limits, key)) is not None}

    @property
    def active(self) -> bool:
        """True if callers have to be counted or memory to be watched."""
        return self._rate is not None or self._memory is not None

    def check_connections(self, scope: Any, connections: int) -> None:
        """Refuse to serve one connection too many; the client may use another server or come back."""
        if connections > self._limits.max_connections:
            raise self._refuse(
                "connections",
                _busy(f"The server has reached its limit of {self._limits.max_connections} connections"),
                closing=True,
            )
        if self._limits.max_connections_per_client is not None:
            address = scope["client"][0] if scope.get("client") else ""
            if self.clients.too_many(address):
                most = self._limits.max_connections_per_client
                message = f"{address} has reached the limit of {most} connections for one client"
                raise self._refuse("connections_per_client", _too_many(message, _BUSY_SECONDS), closing=True)

    def check_rate(self, request: Request) -> None:
        """Refuse a client that asks too often: a user wherever they are, anybody else by their address."""
        if self._rate is None:
            return
        user = request.user
        client = self.clients.address(request.scope) if user is None else f"user {user.realm}/{user.name}"
        wait = self._rate.take(client)
        if wait:
            message = f"More than {self._limits.requests_per_second} requests per second"
            raise self._refuse("requests_per_second", _too_many(message, math.ceil(wait)))

    def check_memory(self) -> None:
        """Refuse new work while the process uses more memory than it should."""
        if self._memory is not None and self._memory.above:
            raise self._refuse("memory", _busy("The server is short of memory"))

    def check_identifier(self, identifier: dict[str, Any], body_size: int) -> None:
        """Refuse an identifier that is too large; one in a small body cannot be."""
        most = self._limits.max_identifier_bytes
        if body_size > most and len(compact(identifier)) > most:
            message = f"The identifier exceeds the size limit of {most} bytes"
            raise self._refuse("identifier_bytes", HttpError(413, message))

    def check_batch(self, items: int) -> None:
        """Refuse a batch of too many notifications."""
        most = self._limits.max_batch_items
        if items > most:
            message = f"The batch holds {items} notifications; the limit is {most}"
            raise self._refuse("batch_items", HttpError(413, message))

    def note_batch(self, error: HttpError) -> HttpError:
        """Count a batch whose body was too large."""
        return self._refuse("batch_bytes", error) if error.status == 413 else error

    def note(self, error: HttpError) -> None:
        """Count a body that was too large."""
        if error.status == 413 and error.limit is None:
            self.refused["body_bytes"] += 1

    def note_invalid(self, error: RequestError) -> None:
        """Count a polygon that was too large."""
        if isinstance(error, PolygonTooLarge):
            self.refused["polygon_vertices"] += 1

    def _refuse(self, name: str, error: HttpError, closing: bool = False) -> HttpError:
        self.refused[name] += 1
        error.limit = name
        if closing:
            error.headers = [*error.headers, (b"connection", b"close")]
        return error


def _busy(message: str) -> HttpError:
    return unavailable(f"{message}; try again later", _BUSY_SECONDS)


def _too_many(message: str, seconds: int) -> HttpError:
    seconds = max(1, seconds)
    retry = (b"retry-after", b"%d" % seconds)
    return HttpError.of("TOO_MANY_REQUESTS", f"{message}; try again in {seconds} s", headers=[retry])


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({b"same-origin", b"none"})  # none: the reader typed the address
_MAX_REMEMBERED = 1024


class Browsers:
    """Refuses requests that a browser sends on behalf of somebody else's page.

    A page may send requests to any address that its reader can reach. Two of the ways to abuse that are closed here:

    * DNS rebinding: the page's own name is made to point at this server, so that the browser takes both for one site.
      The `Host` header still has the page's name. Only a name in the DNS can be used this way: no address, and no name
      without a dot.
    * Cross-site requests: the browser says in `Sec-Fetch-Site` and `Origin` where a request comes from. Reading is open
      to every page, because streams carry `Access-Control-Allow-Origin: *`; changing something is not.

    Programs send neither `Origin` nor `Sec-Fetch-Site`, and call the server by a name or an address of its own.
    """

    def __init__(self, settings: Settings) -> None:
        application = settings.application
        base_url = urlsplit(application.base_url)
        self._allowed = frozenset(_without_dot(name) for name in application.allowed_hosts)
        self._names = self._allowed | {_without_dot(application.host), _without_dot(base_url.hostname or "")}
        self._base_url = _authority(base_url.netloc.rpartition("@")[2].encode())
        local = not settings.auth.enabled and _is_loopback(application.host)
        self._checks_host = local or bool(self._allowed)
        self._is_called = lru_cache(_MAX_REMEMBERED)(self._find_name)

    def check(self, request: Request) -> None:
        """Raise HttpError if the request comes under an unknown host name or from a page of another site."""
        reason = self._objection(request)
        if reason is None:
            return
        logger.warning(
            "request refused: %s",
            reason,
            extra={"event": "api.request.site.refused", "request_id": request.id, "status": 403},
        )
        raise forbidden(reason)

    def _objection(self, request: Request) -> str | None:
        """Return why a request is not answered; None if it is."""
        scope = request.scope
        given = dict(scope["headers"])
        origin, site = given.get(b"origin"), given.get(b"sec-fetch-site")
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if self._checks_host:
            for host in hosts:
                if not self._is_called(host):
                    return (
                        f"This server is not called '{_name(host)[:255]}' (header Host); accepted are addresses, "
                        "localhost, the host of application.base_url and the names in application.allowed_hosts"
                    )
        if (origin is None and site is None) or scope["method"] in _SAFE:
            return None
        if request.route is not None and request.route.access == "reader":
            return None  # changes nothing, although its method may be POST
        if site is not None and site.strip().lower() in _OWN_SITE:
            return None
        if origin is not None and self._is_own(origin, hosts):
            return None
        return "A page of another site must not change anything here (headers Origin and Sec-Fetch-Site)"

    def _find_name(self, host: bytes) -> bool:
        name = _name(host)
        return "." not in name or name in self._names or name.endswith(".localhost") or _is_address(name)

    def _is_own(self, origin: bytes, hosts: list[bytes]) -> bool:
        _, separator, rest = origin.strip().partition(b"://")
        if not separator:
            return False  # `null`: a file, or a page that is kept apart on purpose
        own = _authority(rest)
        return own == self._base_url or own in map(_authority, hosts) or _name(rest) in self._allowed


def _name(host: bytes) -> str:
    """Return the name or address in a Host header, without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address if port[:1] in ("", ":") else text  # `[::1].evil.example` is no address
    return _without_dot(text.partition(":")[0])


def _authority(host: bytes) -> bytes:
    """Return name and port without the usual ports: a proxy may have taken TLS off, so the scheme says nothing."""
    return host.strip().lower().removesuffix(b":443").removesuffix(b":80")


def _without_dot(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens there."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(address).is_loopback
    except (OSError, ValueError):
        return False  # such a server does not come to listen
