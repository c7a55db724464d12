"""A request as handlers see it."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aviso_server.delivery.clients import ClientWriter, Send
from aviso_server.http.body import Receive, read_body

if TYPE_CHECKING:
    from aviso_server.http.app import App
    from aviso_server.http.auth import User
    from aviso_server.http.routing import Route
    from aviso_server.http.service import Service

__all__ = ["Request", "new_request_id"]

_IDS_AT_ONCE = 256  # asking the system for randomness costs more than everything else here


_VERSION = bytes(0x40 | each & 0x0F for each in range(256))
_VARIANT = bytes(0x80 | each & 0x3F for each in range(256))


def _request_ids() -> Iterator[str]:
    while True:
        random = bytearray(os.urandom(16 * _IDS_AT_ONCE))
        random[6::16] = random[6::16].translate(_VERSION)
        random[8::16] = random[8::16].translate(_VARIANT)
        digits = random.hex()
        for at in range(0, len(digits), 32):
            yield (
                f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-{digits[at + 12 : at + 16]}-"
                f"{digits[at + 16 : at + 20]}-{digits[at + 20 : at + 32]}"
            )


_ids = _request_ids()


def new_request_id() -> str:
    """Return a random UUID of version 4."""
    return next(_ids)


class Request:
    """One HTTP request: who sent it, what it asks for, and the service that answers it."""

    __slots__ = ("_receive", "_send", "app", "id", "params", "route", "scope", "service", "user")

    def __init__(self, app: App, service: Service, scope: Any, receive: Receive, send: Send) -> None:
        self.app = app
        self.service = service
        self.scope = scope
        self.id = new_request_id()
        self.user: User | None = None  # None for callers without credentials
        self.route: Route | None = None  # None if no route answers it
        self.params: Mapping[str, str] = {}  # of the path, decoded
        self._receive = receive
        self._send = send

    @property
    def query(self) -> bytes:
        """The query string as it was sent."""
        found: bytes = self.scope["query_string"]
        return found

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, None if it was not sent."""
        for key, value in self.scope["headers"]:
            if key == name:
                found: bytes = value
                return found
        return None

    def preferred(self, offered: Sequence[str]) -> str:
        """Return the media type that the client likes best (Accept)."""
        accepted = [value.decode("latin-1") for name, value in self.scope["headers"] if name == b"accept"]
        return _preferred(accepted, offered)

    def prefers(self, preference: bytes) -> bool:
        """Return whether the client has sent this preference (Prefer)."""
        preferences = [value.lower().replace(b" ", b"") for name, value in self.scope["headers"] if name == b"prefer"]
        return any(preference in value.split(b",") for value in preferences)

    def body(self, limit: int | None = None) -> Awaitable[bytes]:
        """Read the body, decompressed; HttpError if it exceeds the limit, by default limits.max_body_bytes."""
        most = self.service.settings.limits.max_body_bytes if limit is None else limit
        return read_body(self.scope["headers"], self._receive, most)

    async def client_left(self) -> None:
        """Wait until the client has gone or the answer has ended."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def writer(self) -> ClientWriter:
        """Return the client writer for a stream."""
        return ClientWriter(self._send, self.scope.get("hang_up"))


_PARAMETER = re.compile(r";\s*([^;=\s]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;\s]*)")
_WEIGHT = re.compile(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?", re.ASCII)


def _preferred(headers: Iterable[str], offered: Sequence[str]) -> str:
    """Pick the offered media type with the highest weight, the earlier of equals, the first if none is accepted.

    Wildcards stand for the first one. The others have to be named, and then win over a wildcard of the same weight.
    """
    ranges = [found for header in headers for item in header.split(",") if (found := _range(item)) is not None]
    usual = offered[0]
    weights = {name: max((weight for found, weight in ranges if found == name), default=0.0) for name in offered}
    best = max(offered, key=lambda name: weights[name])
    if usual in dict(ranges) or not weights[best]:
        return best if weights[best] else usual
    wildcards = [weight for found, weight in ranges if found in (f"{usual.partition('/')[0]}/*", "*/*")]
    return best if weights[best] >= max(wildcards, default=0.0) else usual


def _range(item: str) -> tuple[str, float] | None:
    name, separator, rest = item.partition(";")
    media_type = name.strip().lower()
    if "/" not in media_type:
        return None
    weight = 1.0
    for key, value in _PARAMETER.findall(separator + rest):
        if key.lower() == "q":
            if _WEIGHT.fullmatch(value) is None:
                return None
            weight = float(value)
    return media_type, weight
