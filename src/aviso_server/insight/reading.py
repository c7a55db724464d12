"""Reading the tables of insight: with pyarrow alone, each file once for as long as it is in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.insight.tables import FOLDER, STATE, Day, State, folder_of, read_state, stream_of, table_name

__all__ = ["Files", "LocalFiles", "Reader"]

_MOST_BYTES = 64 * 1024 * 1024  # of tables that are remembered
_MOST_STREAMS = 512  # names of generic event types are without limit


class Files(Protocol):
    """Where the files lie."""

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted; nothing if there is no such folder."""

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if it is gone."""


class LocalFiles:
    """Files of this machine."""

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted; nothing if there is no such folder."""
        try:
            return sorted(each.name for each in _path(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if it is gone."""
        return _path(path).read_bytes()


class Reader:
    """The tables of one archive; threads may share it."""

    def __init__(self, root: str, files: Files | None = None, most_bytes: int = _MOST_BYTES) -> None:
        self._root = root.rstrip("/")
        self._files = files or LocalFiles()
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, pa.Table] = OrderedDict()  # path -> content, the last used one at the end
        self._bytes = 0

    def states(self) -> list[State]:
        """Every stream that has tables, by name."""
        names = map(stream_of, self._files.names(f"{self._root}/{FOLDER}")[:_MOST_STREAMS])
        found = (self.state(stream) for stream in names if stream is not None)
        return sorted((state for state in found if state is not None), key=lambda state: state.stream)

    def state(self, stream: str) -> State | None:
        """How far a stream is; None if nothing is known of it."""
        try:
            return read_state(self._files.read(f"{folder_of(self._root, stream)}/{STATE}"))
        except FileNotFoundError:
            return None

    def table(self, state: State, table: str, first_hour: int, last_hour: int) -> pa.Table | None:
        """The rows of these hours (of whole days if the table is by day); None if there are none.

        FileNotFoundError says that the state is old by now.
        """
        days = [day for day in state.days if table in day.tables and first_hour // 24 <= day.day <= last_hour // 24]
        if not days:
            return None
        found = pa.concat_tables([self._day(state, table, day) for day in days])
        if "hour" not in found.column_names:
            return found
        within = pc.and_(pc.greater_equal(found["hour"], first_hour), pc.less_equal(found["hour"], last_hour))
        return found.filter(within)

    def _day(self, state: State, table: str, day: Day) -> pa.Table:
        path = f"{folder_of(self._root, state.stream)}/{table_name(table, day.day, day.generation)}"
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
                return self._known[path]
        content = pq.read_table(pa.BufferReader(self._files.read(path)))
        with self._lock:
            if path not in self._known:
                self._known[path] = content
                self._bytes += content.nbytes
            while self._bytes > self._most_bytes and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.nbytes
        return content


def _path(path: str) -> Path:
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)
