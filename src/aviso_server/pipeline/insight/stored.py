"""The tables of an archive wherever it lies, for whoever reads them."""

from __future__ import annotations

from aviso_server.pipeline.archive.storage import Storage

__all__ = ["StoredFiles"]


class StoredFiles:
    """Files of a storage, as the reader of tables wants them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted; nothing if there is no such folder."""
        return [each.name for each in self._storage.list(folder)]

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if it is gone."""
        folder, _, name = path.rpartition("/")
        if name not in self.names(folder):
            raise FileNotFoundError(path)
        with self._storage.open(path) as file:
            content: bytes = file.read()
            return content
