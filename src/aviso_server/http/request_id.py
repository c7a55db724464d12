"""The id of a request, by which its answer and its log lines are found again."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["new_request_id"]

_AT_ONCE = 256  # asking the system for randomness costs more than everything else here


def _request_ids() -> Iterator[str]:
    while True:
        digits = os.urandom(16 * _AT_ONCE).hex()
        for start in range(0, len(digits), 32):
            one = digits[start : start + 32]
            variant = "89ab"[int(one[16], 16) & 3]
            yield f"{one[:8]}-{one[8:12]}-4{one[13:16]}-{variant}{one[17:20]}-{one[20:]}"


_ids = _request_ids()


def new_request_id() -> str:
    """A random UUID of version 4 as text."""
    return next(_ids)
