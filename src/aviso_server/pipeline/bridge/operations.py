"""What can be asked over the bridge."""

from __future__ import annotations

import pickle
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from aviso_server.errors import PipelineError
from aviso_server.model.filter import Filter
from aviso_server.model.tally import Tally
from aviso_server.pipeline.archive.absences import note_deleted
from aviso_server.pipeline.archive.layout import stream_folder
from aviso_server.pipeline.archive.presence import holds
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.tombstones import Tombstones, mark_deleted, mark_wiped

__all__ = ["ArchiveOperations", "Cold"]


class Cold(Protocol):
    """Reading the archive."""

    def read(self, wanted: Filter, start: int, end: int, cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
        """The notifications that the filter lets through, ascending."""

    def count(
        self, wanted: Filter, start: int, end: int, unit: int, hidden: Tombstones, cancelled: threading.Event
    ) -> Tally:
        """How many there are that are not hidden, by place and by interval of `unit` nanoseconds."""

    def first_since(self, stream: str, time_ns: int) -> int:
        """The lowest archived sequence stored at or after a time; one beyond the last if there is none."""

    def last_until(self, stream: str, time_ns: int) -> int:
        """The highest archived sequence stored at or before a time; one before the first if there is none."""

    def close(self) -> None:
        """Let go of everything."""


class ArchiveOperations:
    """The operations on one archive. `cold` gives the reader once Spark is up, and waits for it."""

    def __init__(self, board: Board, cold: Callable[[], Cold], deleted: Callable[[], None] = lambda: None) -> None:
        self._board = board
        self._cold = cold
        self._deleted = deleted  # told that there is something for compaction to do

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """The members of the answer; PipelineError says why there is none."""
        if operation == "status":
            return self._board.describe()
        if operation == "first_since":
            return {"sequence": self._cold().first_since(_text(request, "stream"), _whole(request, "time"))}
        if operation == "last_until":
            return {"sequence": self._cold().last_until(_text(request, "stream"), _whole(request, "time"))}
        if operation == "delete":
            return {"deleted": self._delete(_text(request, "stream"), _whole(request, "sequence"))}
        if operation == "wipe":
            return self._wipe(_text(request, "stream"), _whole(request, "through"))
        known = "status, replay, count, first_since, last_until, delete, wipe"
        raise PipelineError(f"op: '{operation}' is not an operation; accepted: {known}")

    def replay(self, request: dict[str, Any], cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
        """The rows of a replay."""
        return self._cold().read(_filter(request), _whole(request, "start"), _whole(request, "end"), cancelled)

    def count(self, request: dict[str, Any], cancelled: threading.Event) -> dict[str, Any]:
        """How many rows a replay would have, by time and by place."""
        limits = _whole(request, "start"), _whole(request, "end")
        through, deleted = _whole(request, "wiped_through"), request.get("deleted")
        if not isinstance(deleted, list) or not all(isinstance(each, int) for each in deleted):
            raise PipelineError("deleted: a list of whole numbers is needed")
        if (unit := _whole(request, "unit")) < 1:
            raise PipelineError("unit: at least one nanosecond is needed")
        hidden = Tombstones(through, tuple(sorted(each for each in deleted if each > through)))
        return self._cold().count(_filter(request), *limits, unit, hidden, cancelled).members()

    def _delete(self, stream: str, sequence: int) -> bool:
        folder = stream_folder(self._board.root, stream)
        found = holds(folder, sequence, self._board.storage)
        if found or sequence > self._board.watermark(stream):  # it may be on its way into the archive
            mark_deleted(folder, sequence, self._board.storage)
            self._deleted()
        else:  # it left the log before it was archived
            note_deleted(folder, sequence, self._board.storage)
        return found

    def _wipe(self, stream: str, through: int) -> dict[str, Any]:
        mark_wiped(stream_folder(self._board.root, stream), through, self._board.storage)
        self._deleted()
        return {}


def _filter(request: dict[str, Any]) -> Filter:
    wanted = pickle.loads(b64decode(_text(request, "filter")))  # both ends are one program, and the token is right
    if not isinstance(wanted, Filter):
        raise PipelineError("filter: not a filter")
    return wanted


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise PipelineError(f"{name}: a text is needed")
    return value


def _whole(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PipelineError(f"{name}: a whole number is needed")
    return value
