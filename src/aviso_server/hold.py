"""A folder that one process at a time may use; the hold ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["Held", "Hold"]


class Held(Exception):
    """Another process holds it; `owner` is its process id, as far as that is known."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"it is in use by process {owner}")
        self.owner = owner


class Hold:
    """The hold on one folder, kept by a file in it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.descriptor: int | None = None  # a child that inherits it holds on too

    def take(self) -> None:
        """Take it, or raise Held."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(descriptor, os.getpid())
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise Held(owner) from None
        except OSError:
            os.close(descriptor)
            raise
        self.descriptor = descriptor

    def pass_on(self, owner: int) -> None:
        """Leave it to a child that has inherited it."""
        assert self.descriptor is not None, "only who has it can pass it on"
        _write(self.descriptor, owner)
        self.release()

    def release(self) -> None:
        """Let go of it. Safe to call twice."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _write(descriptor: int, owner: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{owner}\n".encode(), 0)
