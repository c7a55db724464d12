"""How much memory this process uses."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Memory", "give_back", "keep_large_pieces_apart", "resident_bytes"]

_STATM = Path("/proc/self/statm")
_SAMPLE_SECONDS = 0.5
_GIVE_BACK_SECONDS = 5.0
_LARGE = 1024 * 1024
_M_TRIM_THRESHOLD = -1  # as malloc.h numbers them
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ARENAS = 2  # by default there are as many as threads, each with holes of its own


def resident_bytes() -> int:
    """The memory of this process that is not swapped out; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def keep_large_pieces_apart() -> None:
    """Have the C library return large pieces to the system as soon as they are free.

    Reading history takes many megabytes for a moment. By default they end up among the small pieces, with holes between
    them, and a process that uses no more than before seems to grow.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, _LARGE)
        adjust(_M_TRIM_THRESHOLD, 8 * _LARGE)
        adjust(_M_ARENA_MAX, _ARENAS)


async def give_back() -> None:
    """Return memory that is free to the system whenever the process has grown."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    least = resident_bytes()
    while trim is not None:
        await asyncio.sleep(_GIVE_BACK_SECONDS)
        if resident_bytes() > least + 8 * _LARGE:
            await asyncio.to_thread(trim, 0)
            least = resident_bytes()


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
