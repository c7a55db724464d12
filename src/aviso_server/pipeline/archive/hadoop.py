"""Files that only Spark can reach: hdfs, s3a and whatever else its Hadoop knows."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.storage import LOCAL, Entry, Storage, is_local

__all__ = ["HadoopStorage", "storage_of"]


def storage_of(root: str, session: SparkSession | None) -> Storage:
    """The storage for an archive; PipelineError if it cannot be reached from here."""
    if is_local(root):
        return LOCAL
    if session is None or not hasattr(session, "_jvm"):
        raise PipelineError(f"'{root}' is not on this machine: it can be reached only with a Spark of our own")
    return HadoopStorage(session)


class HadoopStorage:
    """Files through the Hadoop of a Spark session, with its credentials and settings."""

    def __init__(self, session: SparkSession) -> None:
        self._java: Any = session._jvm
        self._gateway: Any = session.sparkContext._gateway
        self._configuration: Any = session._jsc.hadoopConfiguration()

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""
        place, files = self._reach(folder)
        if not files.exists(place) or not files.getFileStatus(place).isDirectory():
            return []
        found = [
            Entry(
                name=each.getPath().getName(),
                path=each.getPath().toString(),
                is_folder=bool(each.isDirectory()),
                bytes=int(each.getLen()),
                modified=each.getModificationTime() / 1000,
            )
            for each in files.listStatus(place)
        ]
        return sorted(found, key=lambda each: each.name)

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read; it is fetched as a whole."""
        place, files = self._reach(path)
        with tempfile.TemporaryDirectory(prefix="aviso-") as folder:
            copy = Path(folder) / "file"
            files.copyToLocalFile(False, place, self._path(copy.as_uri()), True)
            return pa.BufferReader(copy.read_bytes())

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""
        place, files = self._reach(path)
        files.mkdirs(place.getParent())
        beside = self._path(f"{place.getParent().toString()}/_{uuid.uuid4().hex}")
        files.copyFromLocalFile(True, True, self._path(local.resolve().as_uri()), beside)
        context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(place.toUri(), self._configuration)
        rename = getattr(self._java.org.apache.hadoop.fs, "Options$Rename")
        modes = self._gateway.new_array(rename, 1)
        modes[0] = rename.OVERWRITE
        context.rename(beside, place, modes)

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""
        with tempfile.TemporaryDirectory(prefix="aviso-") as folder:
            local = Path(folder) / "file"
            local.write_bytes(data)
            self.put(local, path)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""
        place, files = self._reach(path)
        files.delete(place, True)

    def _reach(self, path: str) -> tuple[Any, Any]:
        place = self._path(path)
        return place, place.getFileSystem(self._configuration)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)
