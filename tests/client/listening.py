"""Listeners of the published client, read in a thread so that a test can wait for what they deliver."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol

from pyaviso import Notification

from tests.harness import Server

__all__ = ["ENOUGH", "Listening", "Open", "open_streams", "payloads", "sequences", "wait_until"]

ENOUGH = 30.0
"""Seconds after which something that should have come will not come any more."""


class Iterator(Protocol):
    """What both kinds of listeners of the client offer."""

    def __next__(self) -> Any: ...
    def close(self) -> None: ...


class Listening:
    """What one listener delivers, in order of arrival; an error of the listener is raised to whoever waits."""

    def __init__(self, notifications: Iterator) -> None:
        self._notifications = notifications
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def take(self, count: int = 1, timeout: float = ENOUGH) -> list[Any]:
        """The next ones, so many."""
        deadline = time.monotonic() + timeout
        taken: list[Any] = []
        while len(taken) < count:
            try:
                arrived = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"only {taken} arrived, and {count} were expected") from None
            if isinstance(arrived, BaseException):
                raise arrived
            taken.append(arrived)
        return taken

    def up_to(self, payload: Any, timeout: float = ENOUGH) -> list[Any]:
        """Everything up to the notification with this payload, which is the last."""
        deadline, taken = time.monotonic() + timeout, self.take(timeout=timeout)
        while taken[-1].payload != payload:
            taken += self.take(timeout=deadline - time.monotonic())
        return taken

    def close(self) -> None:
        """Hang up."""
        self._notifications.close()
        self._thread.join(ENOUGH)
        assert not self._thread.is_alive(), "the listener did not end"

    def _read(self) -> None:
        try:
            while True:
                self._arrived.put(next(self._notifications))
        except StopIteration:
            self._arrived.put(EOFError("the listener has ended"))
        except BaseException as error:
            self._arrived.put(error)


class Open:
    """Opens listeners, waits until the server has them, and closes them at the end of the test."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing

    def __call__(self, server: Server, listen: Callable[[], Iterator], streams: int = 1) -> Listening:
        """Call `listen`, which opens so many streams, and read from it."""
        wanted = open_streams(server) + streams
        listening = Listening(listen())
        self._closing.callback(listening.close)
        wait_until(lambda: open_streams(server) >= wanted, "the server has opened the stream")
        return listening


def open_streams(server: Server) -> int:
    """How many streams the process has opened since it started; for a few, as the log leaves out floods."""
    return server.stdout.count('.stream.established"')


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait until something has become true."""
    deadline = time.monotonic() + ENOUGH
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def payloads(notifications: Iterable[Notification]) -> list[Any]:
    """The payload of each."""
    return [notification.payload for notification in notifications]


def sequences(notifications: Iterable[Notification]) -> list[int]:
    """The sequence of each."""
    return [notification.sequence for notification in notifications]
