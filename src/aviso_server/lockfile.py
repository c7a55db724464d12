"""Lockfiles, which end with their process however it ends, and files that are replaced as a whole."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["LockHeld", "Lockfile", "force_to_disk", "move_into_place", "replace_file"]


class LockHeld(Exception):
    """Another process holds the lock; `owner` is its process id, as far as that is known."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"it is in use by process {owner}")
        self.owner = owner


class Lockfile:
    """A lock that one process at a time can hold."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.descriptor: int | None = None  # a child that inherits it holds the lock too

    def take(self) -> None:
        """Take the lock; raises LockHeld if another process has it."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(descriptor, os.getpid())
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise LockHeld(owner) from None
        except OSError:
            os.close(descriptor)
            raise
        self.descriptor = descriptor

    def pass_on(self, owner: int) -> None:
        """Leave the lock to a child that has inherited the descriptor."""
        assert self.descriptor is not None, "only a lock that is held can be passed on"
        _write(self.descriptor, owner)
        self.release()

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _write(descriptor: int, owner: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{owner}\n".encode(), 0)


def replace_file(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace the content of a file; when this returns, it survives a power cut. Raises OSError if that fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as stream:
        stream.write(content)
    move_into_place(draft, file)


def move_into_place(draft: Path, file: Path) -> None:
    """Rename a finished draft to its file; when this returns, content and name survive a power cut."""
    force_to_disk(draft)
    draft.replace(file)
    force_to_disk(file.parent)


def force_to_disk(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
