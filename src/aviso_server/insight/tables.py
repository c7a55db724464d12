"""How the tables of insight lie beside the archive, and what is known of each stream.

    <archive.path>/_insight/stream=<stream>/state.json
    <archive.path>/_insight/stream=<stream>/<table>-<day>-<generation>.parquet

A table has one file per day (UTC), with a row per hour and more. The state names the generation of every day: a reader
who begins with the state finds files that belong together, however often they are made anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

import msgspec

__all__ = [
    "FOLDER",
    "HOUR",
    "QUESTIONS",
    "STATE",
    "TABLES",
    "VALUES",
    "Block",
    "Day",
    "State",
    "day_text",
    "folder_of",
    "hour_text",
    "read_state",
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


class Block(msgspec.Struct, frozen=True):
    """A file of the archive as it was when it was looked at last."""

    first: int
    last: int
    bytes: int
    modified: float
    marks: str  # stands for what was deleted in it
    rows: int  # that were not


class State(msgspec.Struct, frozen=True):
    """How far a stream is rolled up."""

    stream: str
    event_type: str
    rules: str  # stands for what the rows were made by: other rules, other rows
    through: int = 0  # every sequence up to here is in the tables
    updated: int = 0  # nanoseconds
    generation: int = 0
    days: tuple[Day, ...] = ()  # ascending
    blocks: tuple[Block, ...] = ()

    @property
    def count(self) -> int:
        """How many notifications the tables count."""
        return sum(each.count for each in self.days)


_decoder = msgspec.json.Decoder(State)


def read_state(content: bytes) -> State | None:
    """The state in a file; None if it is of another version."""
    try:
        return _decoder.decode(content)
    except msgspec.DecodeError:
        return None


def folder_of(root: str, stream: str) -> str:
    """The folder with the tables of a stream."""
    return f"{root.rstrip('/')}/{FOLDER}/{_PREFIX}{quote(stream, safe='')}"


def stream_of(folder_name: str) -> str | None:
    """The stream whose tables are in a folder; None if it is not such a folder."""
    return unquote(folder_name.removeprefix(_PREFIX)) if folder_name.startswith(_PREFIX) else None


def table_name(table: str, day: int, generation: int) -> str:
    """The name of a file."""
    return f"{table}-{day_text(day)}-{generation:08d}.parquet"


def table_names(days: Iterable[Day]) -> set[str]:
    """The names of all files of these days."""
    return {table_name(table, each.day, each.generation) for each in days for table in each.tables}


def day_text(day: int) -> str:
    """Days since 1970 as YYYY-MM-DD."""
    return (_EPOCH + timedelta(days=day)).date().isoformat()


def hour_text(hour: int) -> str:
    """Hours since 1970 as YYYY-MM-DDTHH:00:00Z."""
    return (_EPOCH + timedelta(hours=hour)).replace(tzinfo=None).isoformat() + "Z"
