"""How fast the subscriptions of one user may be, and how often a sink wants to be called."""

from __future__ import annotations

import asyncio

from aviso_server.subscriptions.active import Active

__all__ = ["OwnerRates"]

_BURST_SECONDS = 2.0
_MINUTE = 60.0


class _Bucket:
    """Allows so much per second, and a little at once; may go into debt, which has to be waited for."""

    __slots__ = ("_filled", "_level", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate * _BURST_SECONDS
        self._filled = now

    def pause(self, now: float) -> float:
        """Return the seconds until something may go through."""
        self._level = min(self._rate * _BURST_SECONDS, self._level + (now - self._filled) * self._rate)
        self._filled = now
        return 0.0 if self._level > 0 else (1.0 - self._level) / self._rate

    def take(self, amount: float) -> None:
        self._level -= amount


class OwnerRates:
    """The notifications and bytes per second of each owner, None without limit."""

    def __init__(self, notifications: int | None, size: int | None) -> None:
        self._limits = (notifications, size)
        self._buckets: dict[str, tuple[_Bucket | None, _Bucket | None]] = {}

    def pause(self, active: Active) -> float:
        """Return the seconds until the subscription may deliver."""
        now = asyncio.get_running_loop().time()
        pauses = [bucket.pause(now) for bucket in self._of(active, now) if bucket is not None]
        return max([0.0, active.not_before - now, *pauses])

    def charge(self, active: Active, count: int, size: int) -> None:
        """Count a request with so many notifications and bytes."""
        now = asyncio.get_running_loop().time()
        for bucket, amount in zip(self._of(active, now), (count, size), strict=True):
            if bucket is not None:
                bucket.take(amount)
        if rate := active.subscription.allowed_rate:
            active.not_before = now + _MINUTE / rate

    def _of(self, active: Active, now: float) -> tuple[_Bucket | None, _Bucket | None]:
        if self._limits == (None, None):
            return None, None
        key = active.subscription.owner.key
        found = self._buckets.get(key)
        if found is None:
            made = [None if limit is None else _Bucket(limit, now) for limit in self._limits]
            found = self._buckets[key] = (made[0], made[1])
        return found
