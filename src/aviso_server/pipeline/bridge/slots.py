"""A fair limit: so many at a time, the others wait in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Left", "Slots"]

_GLANCE = 0.2  # seconds


class Left(Exception):
    """Whoever waited has gone away."""


class Slots:
    """At most `most` at a time."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._free = most
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def taken(self, left: threading.Event) -> Iterator[None]:
        """Wait for a slot and hold it; Left if `left` is set before it is one's turn."""
        turn = threading.Event()
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                turn.set()
            else:
                self._waiting.append(turn)
        while not turn.wait(_GLANCE):
            if left.is_set():
                self._give_up(turn)
                raise Left
        try:
            if left.is_set():
                raise Left
            yield
        finally:
            self._hand_on()

    def _give_up(self, turn: threading.Event) -> None:
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
                return
        self._hand_on()  # it was given just now

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
