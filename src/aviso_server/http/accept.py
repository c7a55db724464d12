"""The Accept header: which of several forms of an answer a client likes best."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["preferred"]

_PARAMETER = re.compile(r";\s*([^;=\s]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;\s]*)")
_WEIGHT = re.compile(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?", re.ASCII)


def preferred(headers: Iterable[str], offered: Sequence[str]) -> str:
    """The offered media type with the highest weight; the earlier one of equals, the first if none is wanted.

    The first one is the usual answer and what a wildcard stands for; the others have to be asked for by name,
    and then win over a wildcard of the same weight.
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
