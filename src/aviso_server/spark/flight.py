"""The Arrow Flight server in Spark's process: how a server asks for what is archived.

Rows and counts are streams (`do_get`), everything else is an action. Requests are JSON. A stream that ends without an
error is complete. Errors carry one sentence for people as their extra information. Jobs of commands are actions that
say how far they are until they have their answer.
"""

from __future__ import annotations

import hmac
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from aviso_server.errors import AvisoError, PipelineError
from aviso_server.lake.remove import Removed, delete, wipe
from aviso_server.lake.table import VersionGone
from aviso_server.model.explain import Tally
from aviso_server.model.filter import Filter
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.command_jobs import Heard

__all__ = ["COUNT_SCHEMA", "REPLAY_SCHEMA", "ArchiveReader", "Cancelled", "FlightServer", "Job", "Selection"]

logger = logging.getLogger(__name__)

REPLAY_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("time_ns", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
    ]
)
"""The rows of a replay, ascending."""

COUNT_SCHEMA = pa.schema([("tally", pa.string())])
"""The one row of a count: its sums as JSON."""

_MOST_STREAMS = 64  # at a time
_LONGEST_REQUEST = 32 * 1024 * 1024  # bytes
_HEARTBEAT = 0.5  # seconds between two words of a job: whoever waits can leave then
_ACTIONS = {
    "status": "what is archived, and how the job is doing",
    "first_since": "the lowest archived sequence stored at or after a time",
    "last_until": "the highest archived sequence stored at or before a time",
    "version_at": "the version of a table that was the newest at a time",
    "delete": "remove notifications for good",
    "wipe": "remove everything up to a sequence for good",
    "job": "do the work of a command that needs Spark",
}

Cancelled = Callable[[], bool]
"""True when nobody waits for the answer any more."""

Job = Callable[[str, dict[str, Any], Heard], dict[str, Any]]
"""Does the job of this name, and returns its answer."""


class Selection(msgspec.Struct, frozen=True):
    """What a filter lets through from one sequence to another, by default of the newest version of the table."""

    wanted: Filter
    start: int
    end: int
    version: int | None = None


class ArchiveReader(Protocol):
    """Reading the archive."""

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        """Yield the notifications of a selection, ascending."""

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally:
        """Count those that are not hidden, by place and by interval of `unit` nanoseconds."""

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the lowest archived sequence stored at or after a time; one beyond the last if there is none."""

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int:
        """Return the highest archived sequence stored at or before a time; one before the first if there is none."""

    def close(self) -> None:
        """Release everything."""


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Answers callers on this machine who know the token, from the moment that it is made.

    `reader` returns the reader of the archive once Spark is up, and waits for it. A slow caller is waited for: Flight
    holds back what it does not take. The work for a caller who leaves is stopped.
    """

    def __init__(
        self, token: str, board: ArchiveStatus, reader: Callable[[], ArchiveReader], job: Job | None = None
    ) -> None:
        self._board = board
        self._reader = reader
        self._job = job
        self._working = threading.Lock()  # one job at a time: commands have Spark of their own for more
        self._streams = threading.BoundedSemaphore(_MOST_STREAMS)
        super().__init__("grpc://127.0.0.1:0", middleware={"token": _Guard(token)})

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Stream the rows of a replay, or the sums of a count. The work begins when the stream is read."""
        request = _read(ticket.ticket)
        match request.get("op"):
            case "replay":
                return flight.GeneratorStream(REPLAY_SCHEMA, self._rows(request, context.is_cancelled))
            case "count":
                return flight.GeneratorStream(COUNT_SCHEMA, self._sums(request, context.is_cancelled))
        raise _error(f"op: {request.get('op')!r} is not a stream; accepted: replay, count")

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answer everything that is not a stream, with one JSON object; a job says how far it is before."""
        with _clearly(action.type):
            request = _read(action.body.to_pybytes())
            if action.type == "job":
                for words in self._work(request, context.is_cancelled):
                    yield flight.Result(msgspec.json.encode(words))
            else:
                yield flight.Result(msgspec.json.encode(self._answer(action.type, request)))

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Name the actions."""
        return list(_ACTIONS.items())

    def _rows(self, request: dict[str, Any], cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        with _clearly("replay"), self._place():
            yield from self._reader().read(_selection(request), cancelled)

    def _sums(self, request: dict[str, Any], cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        with _clearly("count"), self._place():
            selection, through, deleted = (
                _selection(request),
                _whole(request, "wiped_through"),
                _wholes(request, "deleted"),
            )
            if (unit := _whole(request, "unit")) < 1:
                raise PipelineError("unit: at least one nanosecond is needed")
            hidden = Removed(through, tuple(sorted(each for each in deleted if each > through)))
            tally = self._reader().count(selection, unit, hidden, cancelled)
            yield pa.RecordBatch.from_pylist([{"tally": msgspec.json.encode(tally.members()).decode()}], COUNT_SCHEMA)

    def _work(self, request: dict[str, Any], cancelled: Cancelled) -> Iterator[dict[str, Any]]:
        """Do a job in a thread of its own, and say how far it is; a caller who leaves stops it at its next step."""
        name, members = _text(request, "name"), request.get("members")
        if self._job is None or not isinstance(members, dict):
            raise PipelineError("members: an object is needed, and a process that does jobs")
        if not self._working.acquire(blocking=False):
            raise PipelineError("another command is using the server's Spark")
        said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        job, left = self._job, threading.Event()

        def heard(step: str, done: int, total: int) -> None:
            if left.is_set():
                raise PipelineError("the command that asked has ended")
            said.put({"step": step, "done": done, "total": total})

        def work() -> None:
            try:
                words: dict[str, Any] = {"answer": job(name, members, heard)}
            except AvisoError as error:
                words = {"error": str(error)}
            except Exception as error:  # Spark has many ways to say that Java is gone
                logger.exception("the job of a command failed", extra={"event": "archive.flight.failed"})
                words = {"error": f"{name} failed: {type(error).__name__}: {error}"}
            finally:
                self._working.release()
            said.put(words)

        threading.Thread(target=work, name=f"job {name}", daemon=True).start()
        try:
            yield {"step": "", "done": 0, "total": 0}
            words: dict[str, Any] = {}
            while "answer" not in words and "error" not in words:
                try:
                    words = said.get(timeout=_HEARTBEAT)
                except queue.Empty:
                    words = {"step": "", "done": 0, "total": 0}
                if cancelled():
                    return
                yield words
        finally:
            left.set()

    def _answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        match operation:
            case "status":
                if request.get("stream"):
                    self._board.readable(_text(request, "stream"))  # other servers may have archived more
                return self._board.describe()
            case "first_since":
                return {"sequence": self._reader().first_since(*_moment(request), _version(request))}
            case "last_until":
                return {"sequence": self._reader().last_until(*_moment(request), _version(request))}
            case "version_at":
                return self._version_at(*_moment(request))
            case "delete":
                return self._delete(_text(request, "stream"), _wholes(request, "sequences"))
            case "wipe":
                return self._wipe(_text(request, "stream"), _whole(request, "through"))
        raise PipelineError(f"op: '{operation}' is not an action; accepted: {', '.join(_ACTIONS)}")

    def _version_at(self, stream: str, time_ns: int) -> dict[str, Any]:
        """Say which version it was and where it ended, or why it cannot be read."""
        table = self._board.table(stream)
        try:
            version = table.version_at(time_ns)
            with table.held(version) as snapshot:
                return {"version": version, "last": snapshot.watermark}
        except VersionGone as error:
            return {"gone": str(error)}

    def _delete(self, stream: str, sequences: list[int]) -> dict[str, Any]:
        """Say which of them were archived, and which are not archived yet: those have to be asked for again."""
        table = self._board.table(stream)
        reached = self._board.removals.add(stream, lambda: table.snapshot().watermark, deleted=sequences)
        found = delete(table, [each for each in sequences if each <= reached])
        if found:
            self._board.refresh(stream)
        return {"deleted": sorted(found), "early": [each for each in sequences if each > reached]}

    def _wipe(self, stream: str, through: int) -> dict[str, Any]:
        """Say whether it reaches beyond what is archived: then it has to be asked for again."""
        table = self._board.table(stream)
        reached = self._board.removals.add(stream, lambda: table.snapshot().watermark, wiped_through=through)
        wipe(table, through)
        self._board.refresh(stream)
        return {"early": through > reached}

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            raise PipelineError(f"more than {_MOST_STREAMS} streams are open")
        try:
            yield
        finally:
            self._streams.release()


class _Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Lets those in who know the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        """Check the token; Flight calls it before every other method."""
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the token is wrong", extra_info=b"the token is wrong")


@contextmanager
def _clearly(operation: str) -> Iterator[None]:
    """Whatever goes wrong, as an error of Flight with a sentence for people."""
    try:
        yield
    except AvisoError as error:
        raise _error(str(error)) from None
    except Exception as error:
        logger.exception("a request of the server failed", extra={"event": "archive.flight.failed"})
        raise _error(f"{operation} failed: {type(error).__name__}: {error}") from None


def _error(sentence: str) -> flight.FlightServerError:
    return flight.FlightServerError(sentence, extra_info=sentence.encode())


def _read(text: bytes) -> dict[str, Any]:
    if len(text) > _LONGEST_REQUEST:
        raise _error(f"the request has {len(text):,} bytes; accepted are {_LONGEST_REQUEST:,}")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _error(f"the request is not a JSON object: {error}") from None


def _selection(request: dict[str, Any]) -> Selection:
    try:
        wanted = Filter.from_json(_text(request, "filter"))
    except ValueError as error:
        raise PipelineError(f"filter: {error}") from None
    return Selection(wanted, _whole(request, "start"), _whole(request, "end"), _version(request))


def _moment(request: dict[str, Any]) -> tuple[str, int]:
    return _text(request, "stream"), _whole(request, "time")


def _version(request: dict[str, Any]) -> int | None:
    return None if request.get("version") is None else _whole(request, "version")


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


def _wholes(request: dict[str, Any], name: str) -> list[int]:
    value = request.get(name)
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise PipelineError(f"{name}: a list of whole numbers is needed")
    return value
