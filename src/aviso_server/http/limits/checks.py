"""What one server takes on: the limits, the answers when they are reached, and how often that was."""

from __future__ import annotations

import ipaddress
import math
from typing import Any, Literal, get_args

from aviso_server.config import settings
from aviso_server.errors import PolygonTooLarge, RequestError
from aviso_server.http.answers import Refusal
from aviso_server.http.limits.clients import Clients
from aviso_server.http.limits.memory import Memory
from aviso_server.http.limits.rate import Buckets
from aviso_server.model.json_value import compact

__all__ = ["LIMITS", "LimitName", "Limits"]

LimitName = Literal[
    "body_bytes",
    "batch_bytes",
    "batch_items",
    "identifier_bytes",
    "polygon_vertices",
    "connections",
    "connections_per_client",
    "requests_per_second",
    "memory",
    "header_timeout",
    "body_timeout",
    "idle_timeout",
]
LIMITS: tuple[LimitName, ...] = get_args(LimitName)

_BUSY_SECONDS = 5


class Limits:
    """The limits of one server at work."""

    def __init__(self, limits: settings.Limits) -> None:
        self.refused: dict[LimitName, int] = dict.fromkeys(LIMITS, 0)
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
    def configured(self) -> dict[LimitName, float]:
        """The limits that are on."""
        limits = self._limits
        values: dict[LimitName, int | None] = {
            "body_bytes": limits.max_body_bytes,
            "batch_bytes": limits.max_batch_bytes,
            "batch_items": limits.max_batch_items,
            "identifier_bytes": limits.max_identifier_bytes,
            "polygon_vertices": limits.max_polygon_vertices,
            "connections": limits.max_connections,
            "connections_per_client": limits.max_connections_per_client,
            "requests_per_second": limits.requests_per_second,
            "memory": limits.memory_watermark_bytes,
            "header_timeout": limits.header_timeout_seconds,
            "body_timeout": limits.body_timeout_seconds,
            "idle_timeout": limits.idle_timeout_seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

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

    def check_rate(self, scope: Any) -> None:
        """Refuse a client that asks too often: a user wherever they are, anybody else by their address."""
        if self._rate is None:
            return
        user = scope.get("user")
        client = self.clients.address(scope) if user is None else f"user {user.realm}/{user.name}"
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
            raise self._refuse("identifier_bytes", Refusal(413, message))

    def check_batch(self, items: int) -> None:
        """Refuse a batch of too many notifications."""
        most = self._limits.max_batch_items
        if items > most:
            message = f"The batch holds {items} notifications; the limit is {most}"
            raise self._refuse("batch_items", Refusal(413, message))

    def note_batch(self, refusal: Refusal) -> Refusal:
        """Count a batch whose body was too large."""
        return self._refuse("batch_bytes", refusal) if refusal.status == 413 else refusal

    def note(self, refusal: Refusal) -> None:
        """Count a body that was too large."""
        if refusal.status == 413 and refusal.limit is None:
            self.refused["body_bytes"] += 1

    def note_invalid(self, error: RequestError) -> None:
        """Count a polygon that was too large."""
        if isinstance(error, PolygonTooLarge):
            self.refused["polygon_vertices"] += 1

    def _refuse(self, name: LimitName, refusal: Refusal, closing: bool = False) -> Refusal:
        self.refused[name] += 1
        refusal.limit = name
        if closing:
            refusal.headers = [*refusal.headers, (b"connection", b"close")]
        return refusal


def _busy(message: str) -> Refusal:
    refusal = Refusal.error(503, "SERVICE_UNAVAILABLE", "service_unavailable", f"{message}; try again later")
    refusal.headers = [(b"retry-after", b"%d" % _BUSY_SECONDS)]
    return refusal


def _too_many(message: str, seconds: int) -> Refusal:
    refusal = Refusal.error(
        429, "TOO_MANY_REQUESTS", "too_many_requests", f"{message}; try again in {max(1, seconds)} s"
    )
    refusal.headers = [(b"retry-after", b"%d" % max(1, seconds))]
    return refusal
