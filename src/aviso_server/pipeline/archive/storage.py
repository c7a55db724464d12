"""Where the archive's files lie: the few operations on files that it needs, for this machine's disk and for others."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from aviso_server.disk import move_into_place

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LOCAL", "Entry", "LocalStorage", "Storage", "is_local", "joined", "local_path"]


class Entry(msgspec.Struct, frozen=True):
    """A file or a folder, as listed."""

    name: str
    path: str
    is_folder: bool
    bytes: int
    modified: float  # seconds since 1970


class Storage(Protocol):
    """Files by path; paths are those that Spark is given to read."""

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read."""

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""


class LocalStorage:
    """Files of this machine or of a file system that is mounted here."""

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""
        found = []
        try:
            with os.scandir(local_path(folder)) as entries:
                for each in entries:
                    try:
                        facts = each.stat()
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    found.append(Entry(each.name, each.path, each.is_dir(), facts.st_size, facts.st_mtime))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda each: each.name)

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read."""
        import pyarrow as pa  # large, and a server that only looks at names does without it

        return pa.OSFile(str(local_path(path)), "rb")

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if local.stat().st_dev != target.parent.stat().st_dev:
            beside = target.with_name(f"_{uuid.uuid4().hex}")
            shutil.copyfile(local, beside)
            local.unlink()
            local = beside
        move_into_place(local, target)

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"_{uuid.uuid4().hex}")
        beside.write_bytes(data)
        self.put(beside, path)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""
        target = local_path(path)
        try:
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()
        except FileNotFoundError:
            pass


LOCAL = LocalStorage()
"""The storage of local paths; it has no state."""


def is_local(path: str) -> bool:
    """True for a path of this machine, with or without `file:` in front."""
    scheme = urlsplit(path).scheme
    return scheme in ("", "file")


def local_path(path: str) -> Path:
    """The path on this machine."""
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


def joined(folder: str, name: str) -> str:
    """The path of what lies in a folder."""
    return f"{folder.rstrip('/')}/{name}"
