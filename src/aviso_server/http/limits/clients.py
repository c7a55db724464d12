"""Where a request comes from: the address of the client, seen through proxies that are trusted."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["Clients", "Network"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Clients:
    """Knows clients by their address and counts their connections."""

    def __init__(self, trusted: Iterable[Network] = (), most_each: int | None = None) -> None:
        self._trusted: Sequence[Network] = tuple(trusted)
        self._most_each = most_each
        self._connections: defaultdict[str, int] = defaultdict(int)

    def connected(self, address: str) -> None:
        """One more connection from this address."""
        self._connections[address] += 1

    def disconnected(self, address: str) -> None:
        """One less."""
        self._connections[address] -= 1
        if self._connections[address] <= 0:
            del self._connections[address]

    def too_many(self, address: str) -> bool:
        """True if the address has more connections than one client may; a trusted proxy speaks for many."""
        return (
            self._most_each is not None
            and self._connections.get(address, 0) > self._most_each
            and not self._is_trusted(address)
        )

    def address(self, scope: Any) -> str:
        """The client's address: the last one that a trusted proxy has not added itself."""
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
