"""What the watch remembers over restarts: one file, replaced as a whole and forced to disk."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from aviso_server.disk import replace_file
from aviso_server.errors import LogUnavailable
from aviso_server.model.lateness.judge import Book
from aviso_server.model.lateness.notice import Notice

__all__ = ["State", "StateFile"]

logger = logging.getLogger(__name__)


class State(msgspec.Struct):
    """The books of all event types, and what is decided but perhaps not published yet."""

    books: dict[str, Book] = {}
    outbox: list[Notice] = []


class StateFile:
    """The file; LogUnavailable if it cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "state.json"

    def load(self) -> tuple[State, int]:
        """What was saved last, and when the watch was last awake (seconds since 1970; 0 if it never was)."""
        try:
            awake = int(self._file.stat().st_mtime)
            return msgspec.json.decode(self._file.read_bytes(), type=State), awake
        except FileNotFoundError:
            return State(), 0
        except OSError as error:
            raise LogUnavailable(f"'{self._file}' cannot be read: {error}") from None
        except msgspec.DecodeError as error:
            logger.error(
                "'%s' is damaged, the watch begins anew: %s",
                self._file,
                error,
                extra={"event": "lateness.state.damaged"},
            )
            return State(), 0

    def touch(self, now: int) -> None:
        """Note that the watch is awake, whether there is something new or not."""
        with contextlib.suppress(OSError):
            os.utime(self._file, (now, now))

    def save(self, content: bytes, now: int) -> None:
        """Write a state, encoded; when this returns it survives a power cut."""
        try:
            replace_file(self._file, content)
        except OSError as error:
            raise LogUnavailable(f"'{self._file}' cannot be written: {error}") from None
        self.touch(now)
