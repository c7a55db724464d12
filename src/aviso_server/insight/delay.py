"""Delays as they are counted: rounded a little, so that few numbers stand for many and any span can be put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["BITS", "PERCENTILES", "percentiles", "rounded"]

BITS = 6
"""How many binary digits of a delay are kept: it is never more than 1/32 too small."""

PERCENTILES = (5, 25, 50, 75, 95, 99)


def rounded(seconds: int) -> int:
    """A delay as it is counted: its highest binary digits, towards zero."""
    size = abs(seconds)
    spare = max(0, size.bit_length() - BITS)
    size = size >> spare << spare
    return -size if seconds < 0 else size


def percentiles(counts: Mapping[int, int], wanted: Iterable[int] = PERCENTILES) -> dict[int, int]:
    """For each percentage the smallest delay that so many notifications do not exceed; nothing if there are none."""
    total = sum(counts.values())
    if not total:
        return {}
    found: dict[int, int] = {}
    ascending = sorted(counts.items())
    for percentage in wanted:
        rest = -(-total * percentage // 100)  # rounded up: at least so many
        for seconds, count in ascending:
            rest -= count
            if rest <= 0:
                found[percentage] = seconds
                break
    return found
