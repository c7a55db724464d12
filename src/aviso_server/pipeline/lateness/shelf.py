"""Where what was learned is kept: in the archive, and on this machine if the server cannot read the archive."""

from __future__ import annotations

from pathlib import Path

from aviso_server.model.lateness.learned import FOLDER, Learned, decode, encode, file_name
from aviso_server.pipeline.archive.storage import LOCAL, Storage, is_local, joined

__all__ = ["Shelf"]


class Shelf:
    """The files of one archive. `near` is the folder for copies that a server on this machine reads."""

    def __init__(self, root: str, storage: Storage, near: Path) -> None:
        self._folder = joined(root, FOLDER)
        self._storage = storage
        self._near = None if is_local(root) else near

    def put(self, learned: Learned) -> None:
        """Keep it, over what was there."""
        name, content = file_name(learned.event_type), encode(learned)
        self._storage.write(joined(self._folder, name), content)
        self._copy(name, content)

    def get(self, event_type: str) -> Learned | None:
        """What was learned last; None if nothing was, or if it cannot be read."""
        name = file_name(event_type)
        for each in self._storage.list(self._folder):
            if each.name == name:
                with self._storage.open(each.path) as file:
                    content = bytes(file.read())
                try:
                    found = decode(content)
                except ValueError:
                    return None
                self._copy(name, content)
                return found
        return None

    def _copy(self, name: str, content: bytes) -> None:
        if self._near is not None:
            LOCAL.write(str(self._near / name), content)
