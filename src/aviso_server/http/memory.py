"""How much memory this process uses."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Memory", "give_back", "resident_bytes"]

_STATM = Path("/proc/self/statm")
_SAMPLE_SECONDS = 0.5
_GIVE_BACK_SECONDS = 10.0


def resident_bytes() -> int:
    """The memory of this process that is not swapped out; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


async def give_back() -> None:
    """Return memory that is free to the system, again and again.

    Reading history takes large pieces for a short time. The C library keeps them for later, in many places and with
    holes between them, so that a process which uses no more seems to grow.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_GIVE_BACK_SECONDS)
        await asyncio.to_thread(trim, 0)


class Memory:
    """Compares the memory of this process with a mark, looking only now and then."""

    def __init__(
        self,
        watermark: int,
        read: Callable[[], int] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
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
