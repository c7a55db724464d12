"""The tables of insight: how they lie beside the archive, what is known of each stream, and reading them.

    <archive.path>/_insight/stream=<stream>/state.json
    <archive.path>/_insight/stream=<stream>/<table>-<day>-<generation>.parquet

A table has one file per day (UTC), with a row per hour and more. The state names the generation of every day: a reader
who begins with the state finds files that belong together, however often they are made anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.lake.storage import list_folder, open_file

__all__ = [
    "FOLDER",
    "HOUR",
    "QUESTIONS",
    "STATE",
    "TABLES",
    "VALUES",
    "Day",
    "Reader",
    "State",
    "folder_of",
    "hour_text",
    "stored_state",
    "stream_of",
    "table_name",
    "table_names",
]

FOLDER = "_insight"
"""The folder in the archive; its name keeps it out of the archive's streams."""

STATE = "state.json"
TABLES = ("hours", "fields", "delays", "cells", "coverage")
"""Counts; values of fields; delays; cells of one degree by hour; the same by day."""

QUESTIONS = ("hours", "fields", "delays", "coverage", "seen")
"""What can be asked about an event type."""

HOUR = 3_600_000_000_000
"""Nanoseconds."""

VALUES = 50
"""Values of a field that an hour keeps; what is less frequent is counted together."""

_PREFIX = "stream="
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Day(msgspec.Struct, frozen=True):
    """What is known of one day of a stream without opening its files."""

    day: int  # since 1970
    generation: int  # of its files
    tables: tuple[str, ...]  # those that have rows
    count: int
    first_sequence: int
    last_sequence: int
    first_time: int  # nanoseconds
    last_time: int


class State(msgspec.Struct, frozen=True):
    """How far a stream is rolled up."""

    stream: str
    event_type: str
    rules: str  # stands for what the rows were made by: other rules, other rows
    through: int = 0  # every sequence up to here is in the tables
    updated: int = 0  # nanoseconds
    generation: int = 0
    days: tuple[Day, ...] = ()  # ascending
    version: int = -1  # of the table of the archive
    stamp: str | None = None  # of the commit that made it: the same number may come again

    @property
    def count(self) -> int:
        return sum(each.count for each in self.days)


_decoder = msgspec.json.Decoder(State)


def stored_state(root: str, stream: str) -> State | None:
    """How far a stream is; None if it has no tables, or those of another version."""
    try:
        with open_file(f"{folder_of(root, stream)}/{STATE}") as file:
            return _decoder.decode(file.read())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def folder_of(root: str, stream: str) -> str:
    return f"{root.rstrip('/')}/{FOLDER}/{_PREFIX}{quote(stream, safe='')}"


def stream_of(folder_name: str) -> str | None:
    """The stream whose tables are in a folder; None if it is not such a folder."""
    return unquote(folder_name.removeprefix(_PREFIX)) if folder_name.startswith(_PREFIX) else None


def table_name(table: str, day: int, generation: int) -> str:
    return f"{table}-{day_text(day)}-{generation:08d}.parquet"


def table_names(days: Iterable[Day]) -> set[str]:
    return {table_name(table, each.day, each.generation) for each in days for table in each.tables}


def day_text(day: int) -> str:
    """Days since 1970 as YYYY-MM-DD."""
    return (_EPOCH + timedelta(days=day)).date().isoformat()


def hour_text(hour: int) -> str:
    """Hours since 1970 as YYYY-MM-DDTHH:00:00Z."""
    return (_EPOCH + timedelta(hours=hour)).replace(tzinfo=None).isoformat() + "Z"


_MOST_BYTES = 64 * 1024 * 1024  # of tables that are remembered
_MOST_STREAMS = 512  # names of generic event types are without limit


class Reader:
    """The tables of one archive; threads may share it."""

    def __init__(self, root: str, most_bytes: int = _MOST_BYTES) -> None:
        self._root = root.rstrip("/")
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, pa.Table] = OrderedDict()  # path -> content, the last used one at the end
        self._bytes = 0

    def states(self) -> list[State]:
        """Every stream that has tables, by name."""
        names = (stream_of(each.name) for each in list_folder(f"{self._root}/{FOLDER}")[:_MOST_STREAMS])
        found = (self.state(stream) for stream in names if stream is not None)
        return sorted((state for state in found if state is not None), key=lambda state: state.stream)

    def state(self, stream: str) -> State | None:
        """How far a stream is; None if nothing is known of it."""
        return stored_state(self._root, stream)

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
        with open_file(path) as file:
            content = pq.read_table(file)
        with self._lock:
            if path not in self._known:
                self._known[path] = content
                self._bytes += content.nbytes
            while self._bytes > self._most_bytes and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.nbytes
        return content
