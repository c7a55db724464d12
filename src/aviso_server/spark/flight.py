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
from typing import Annotated, Any, Protocol, TypeVar

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
T = TypeVar("T")

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


class _Replay(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="replay"):
    filter: str
    start: int
    end: int
    version: int | None = None

    @property
    def selection(self) -> Selection:
        try:
            return Selection(Filter.from_json(self.filter), self.start, self.end, self.version)
        except ValueError as error:
            raise PipelineError(f"filter: {error}") from None


class _Count(_Replay, frozen=True, kw_only=True, tag="count"):
    unit: Annotated[int, msgspec.Meta(ge=1)]  # nanoseconds
    wiped_through: int
    deleted: list[int]


class _Status(msgspec.Struct, frozen=True):
    stream: str = ""  # looked at again before, if it is named


class _Moment(msgspec.Struct, frozen=True):
    stream: str
    time: int
    version: int | None = None


class _Delete(msgspec.Struct, frozen=True):
    stream: str
    sequences: list[int]


class _Wipe(msgspec.Struct, frozen=True):
    stream: str
    through: int


class _Work(msgspec.Struct, frozen=True):
    name: str
    members: dict[str, Any]


_ACTIONS: dict[str, type] = {
    "status": _Status,
    "first_since": _Moment,
    "last_until": _Moment,
    "version_at": _Moment,
    "delete": _Delete,
    "wipe": _Wipe,
    "job": _Work,
}


class ArchiveReader(Protocol):
    """Reads the archive, as `ColdReplay` does."""

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]: ...

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally: ...

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int: ...

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int: ...


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
        with _clearly("a stream"):
            request: _Replay = _read(ticket.ticket, _Replay | _Count)  # type: ignore[arg-type]  # a union is a type to msgspec
        if isinstance(request, _Count):
            return flight.GeneratorStream(COUNT_SCHEMA, self._sums(request, context.is_cancelled))
        return flight.GeneratorStream(REPLAY_SCHEMA, self._rows(request, context.is_cancelled))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answer everything that is not a stream, with one JSON object; a job says how far it is before."""
        with _clearly(action.type):
            if action.type not in _ACTIONS:
                raise PipelineError(f"'{action.type}' is not an action; accepted: {', '.join(_ACTIONS)}")
            request: Any = _read(action.body.to_pybytes(), _ACTIONS[action.type])
            if isinstance(request, _Work):
                for words in self._work(request, context.is_cancelled):
                    yield flight.Result(msgspec.json.encode(words))
            else:
                yield flight.Result(msgspec.json.encode(self._answer(action.type, request)))

    def _rows(self, request: _Replay, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        with _clearly("replay"), self._place():
            yield from self._reader().read(request.selection, cancelled)

    def _sums(self, request: _Count, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        with _clearly("count"), self._place():
            through = request.wiped_through
            hidden = Removed(through, tuple(sorted(each for each in request.deleted if each > through)))
            tally = self._reader().count(request.selection, request.unit, hidden, cancelled)
            yield pa.RecordBatch.from_pylist([{"tally": msgspec.json.encode(tally.members()).decode()}], COUNT_SCHEMA)

    def _work(self, request: _Work, cancelled: Cancelled) -> Iterator[dict[str, Any]]:
        """Do a job in a thread of its own, and say how far it is; a caller who leaves stops it at its next step."""
        name, members = request.name, request.members
        if self._job is None:
            raise PipelineError("this process does no jobs")
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

    def _answer(self, operation: str, request: Any) -> dict[str, Any]:
        match operation:
            case "status":
                if request.stream:
                    self._board.readable(request.stream)  # other servers may have archived more
                return self._board.describe()
            case "first_since":
                return {"sequence": self._reader().first_since(request.stream, request.time, request.version)}
            case "last_until":
                return {"sequence": self._reader().last_until(request.stream, request.time, request.version)}
            case "version_at":
                return self._version_at(request)
            case "delete":
                return self._delete(request)
            case _:
                return self._wipe(request)

    def _version_at(self, request: _Moment) -> dict[str, Any]:
        """Say which version it was and where it ended, or why it cannot be read."""
        table = self._board.tables.of(request.stream)
        try:
            version = table.version_at(request.time)
            with table.held(version) as snapshot:
                return {"version": version, "last": snapshot.watermark}
        except VersionGone as error:
            return {"gone": str(error)}

    def _delete(self, request: _Delete) -> dict[str, Any]:
        """Say which of them were archived, and which are not archived yet: those have to be asked for again."""
        stream, sequences, table = request.stream, request.sequences, self._board.tables.of(request.stream)
        reached = self._board.removals.add(stream, lambda: table.snapshot().watermark, deleted=sequences)
        found = delete(table, [each for each in sequences if each <= reached])
        if found:
            self._board.refresh(stream)
        return {"deleted": sorted(found), "early": [each for each in sequences if each > reached]}

    def _wipe(self, request: _Wipe) -> dict[str, Any]:
        """Say whether it reaches beyond what is archived: then it has to be asked for again."""
        stream, through, table = request.stream, request.through, self._board.tables.of(request.stream)
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


def _read(text: bytes, kind: type[T]) -> T:
    if len(text) > _LONGEST_REQUEST:
        raise PipelineError(f"the request has {len(text):,} bytes; accepted are {_LONGEST_REQUEST:,}")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise PipelineError(f"the request is wrong: {error}") from None
