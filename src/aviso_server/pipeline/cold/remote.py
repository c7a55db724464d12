"""Files that only Spark can reach, read in parts: a footer must not cost the whole file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from aviso_server.pipeline.archive.layout import DataFile

__all__ = ["RemoteFile", "opener"]


def opener(session: SparkSession) -> Callable[[DataFile], pa.NativeFile]:
    """What opens files through the Hadoop of a session, with its credentials and settings."""
    return lambda file: pa.PythonFile(RemoteFile(session, file), "r")


class RemoteFile(io.RawIOBase):
    """A file that is fetched piece by piece, as it is read."""

    def __init__(self, session: SparkSession, file: DataFile) -> None:
        self._java = cast(Any, session._jvm)
        context = cast(Any, session._jsc)
        place = self._java.org.apache.hadoop.fs.Path(file.path)
        self._stream: Any = place.getFileSystem(context.hadoopConfiguration()).open(place)
        self._size = file.bytes
        self._place = 0

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def seekable(self) -> bool:
        """From any place."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that are left."""
        left = max(0, self._size - self._place)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        self._stream.seek(self._place)
        data = bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(self._stream, wanted))
        self._place += len(data)
        return data

    def close(self) -> None:
        """Let go of the connection."""
        if not self.closed:
            self._stream.close()
        super().close()
