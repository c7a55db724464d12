"""How often one client may ask: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Buckets"]


class Buckets:
    """One bucket per client; those not seen for longest are forgotten first, and begin anew with a full one."""

    def __init__(
        self, rate: int, burst: int, clock: Callable[[], float] = time.monotonic, most_clients: int = 65_536
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._most_clients = most_clients
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when it had them

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._buckets)

    def take(self, client: str) -> float:
        """Take a token; 0 if there was one, else the seconds until there will be."""
        now = self._clock()
        tokens, since = self._buckets.get(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - since) * self._rate)
        if tokens < 1:
            self._keep(client, tokens, now)
            return (1 - tokens) / self._rate
        self._keep(client, tokens - 1, now)
        return 0.0

    def _keep(self, client: str, tokens: float, now: float) -> None:
        self._buckets[client] = (tokens, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > self._most_clients:
            self._buckets.popitem(last=False)
