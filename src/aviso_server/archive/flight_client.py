"""Asking the process that runs Spark, over Arrow Flight: actions, streams of rows, and whose turn it is.

Nothing here blocks the event loop: all waiting is done in threads of an executor that the caller brings.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import CLOUD_TEXT_MARK, TEXT_MARK, box_of

__all__ = [
    "Address",
    "Refused",
    "Slots",
    "Stream",
    "Turn",
    "Unreachable",
    "call",
    "do_job",
    "find_address",
    "runs",
]

_PATIENCE = 30.0  # seconds
_IDLE = 2.0  # seconds that a reader may do nothing while others wait
_ROWS = 4096  # in one go
_BYTES = 4 * 1024 * 1024  # in one go, unless one notification is larger
# a connection for each call: none waits for what another does not take
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]

T = TypeVar("T")

_identifier = msgspec.json.Decoder(dict[str, Any]).decode


class Unreachable(Exception):
    """Nobody answers at the other end, or it broke off; it may be back soon."""


class Refused(Exception):
    """The other end answers that it cannot; the sentence says why."""


class Address(msgspec.Struct, frozen=True):
    """Where the pipeline process listens, and what it wants to hear first."""

    port: int
    token: str


async def call(
    threads: Executor, address: Address, operation: str, seconds: float = _PATIENCE, **members: Any
) -> dict[str, Any]:
    """Ask for something that is answered at once; Refused or Unreachable if there is no answer."""

    ask = partial(_ask, address, operation, seconds, members)
    return await asyncio.get_running_loop().run_in_executor(threads, ask)


def _ask(address: Address, operation: str, seconds: float, members: dict[str, Any]) -> dict[str, Any]:
    from pyarrow import flight  # large, as all of Arrow: only who asks the archive waits for it

    with _clearly(), flight.connect(_place(address), generic_options=_OPTIONS) as client:
        action = flight.Action(operation, msgspec.json.encode(members))
        (result,) = client.do_action(action, _call_options(address, timeout=seconds))
        return msgspec.json.decode(result.body.to_pybytes(), type=dict[str, Any])


def find_address(ready_file: Path) -> Address | None:
    """Return where the pipeline process of a running server listens; None if there is none, or of another user."""
    try:
        found = msgspec.json.decode(ready_file.read_bytes(), type=_Ready)
        os.kill(found.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return Address(found.port, found.token)


class _Ready(msgspec.Struct, frozen=True):
    port: int
    pid: int
    token: str


def do_job(
    address: Address, name: str, members: dict[str, Any], heard: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Have a job done and return its answer; Unreachable or Refused if it was not begun, PipelineError if it failed.

    For commands: waits, in the caller's thread.
    """
    from pyarrow import flight

    begun = False
    try:
        with _clearly(), flight.connect(_place(address), generic_options=_OPTIONS) as client:
            action = flight.Action("job", msgspec.json.encode({"name": name, "members": members}))
            for result in client.do_action(action, _call_options(address)):
                begun = True
                words = msgspec.json.decode(result.body.to_pybytes(), type=dict[str, Any])
                if "answer" in words:
                    return dict(words["answer"])
                if "error" in words:
                    raise PipelineError(words["error"])
                if words["step"]:
                    heard(words["step"], words["done"], words["total"])
    except (Unreachable, Refused) as error:
        if begun:
            raise PipelineError(f"the server's Spark ended in the middle of it: {error}") from None
        raise
    raise Unreachable("the pipeline process said nothing")


class Stream(Generic[T]):
    """An open replay or count: what `make` makes of each record batch, one ahead. Whoever opens it hangs up."""

    def __init__(
        self, threads: Executor, address: Address, make: Callable[[Any], T], operation: str, **members: Any
    ) -> None:
        self._threads = threads
        self._address = address
        self._make = make  # called in a thread
        self._request = msgspec.json.encode({"op": operation, **members})
        self._lock = threading.Lock()  # one thread at a time reads
        self._client: Any = None
        self._reader: Any = None
        self._gone = False
        self._ahead: Future[T | None] | None = None

    async def next(self) -> T | None:
        """Return what comes next, None after the last; Refused or Unreachable if it cannot go on."""
        ahead = self._ahead or self._threads.submit(self._read)
        self._ahead = None
        found = await asyncio.wrap_future(ahead)
        if found is not None and not self._gone:
            self._ahead = self._threads.submit(self._read)
        return found

    def hang_up(self) -> None:
        """End it; whoever waits for more gets Unreachable. The work at the other end is stopped."""
        if not self._gone:
            self._gone = True
            if self._reader is not None:
                self._reader.cancel()
            with suppress(RuntimeError):  # the server is stopping, and its threads with it
                self._threads.submit(self._close)

    def _read(self) -> T | None:
        with self._lock, _clearly():
            if self._gone:
                raise Unreachable("it was hung up")
            if self._reader is None:
                self._open()
            try:
                batch = self._reader.read_chunk().data
            except StopIteration:
                return None
        return self._make(batch)

    def _open(self) -> None:
        from pyarrow import flight

        self._client = flight.connect(_place(self._address), generic_options=_OPTIONS)
        self._reader = self._client.do_get(flight.Ticket(self._request), _call_options(self._address))
        if self._gone:
            self._reader.cancel()

    def _close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.cancel()
            if self._client is not None:
                self._client.close()
            self._client = self._reader = None


def _place(address: Address) -> str:
    return f"grpc://127.0.0.1:{address.port}"


def _call_options(address: Address, **more: Any) -> Any:
    from pyarrow import flight

    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {address.token}".encode())], **more)


@contextmanager
def _clearly() -> Iterator[None]:
    """Errors of Flight as ours: a sentence of the other end is a refusal, anything else means that it is away."""
    import pyarrow as pa
    from pyarrow import flight

    try:
        yield
    except flight.FlightError as error:
        sentence = (error.extra_info or b"").decode("utf-8", "replace")
        if sentence:
            raise Refused(sentence) from None
        if isinstance(error, flight.FlightTimedOutError):
            raise Unreachable("the pipeline process did not answer in time") from None
        raise Unreachable(f"the pipeline process cannot be reached: {_first_sentence(error)}") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Unreachable(f"the pipeline process broke off: {_first_sentence(error)}") from None


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". gRPC client debug context")[0]


def runs(shapes: Sequence[str], batch: Any) -> list[Sequence[Notification]]:
    """Return the rows of a replay as runs of notifications, which stay Arrow; `shapes` are fields that have a box."""
    import pyarrow as pa

    from aviso_server.model.batch import ArrowRun

    found: list[Sequence[Notification]] = []
    rows = max(1, min(_ROWS, batch.num_rows * _BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        sequences, times = part.column("sequence").cast(pa.string()).cast(pa.binary()), part.column("time_ns")
        identifiers, payloads = (part.column(name).cast(pa.binary()) for name in ("identifier", "payload"))
        boxes = partial(_boxes, identifiers, shapes) if shapes else None
        run = ArrowRun(sequences, times, part.column("topic").to_pylist, identifiers, payloads, boxes)
        # geometry that other servers have stored as text may be malformed: each is looked at
        stored_as_text = shapes and (run.mentions(TEXT_MARK) or run.mentions(CLOUD_TEXT_MARK))
        found.append(run.values if stored_as_text else run)
    return found


def _boxes(identifiers: Any, shapes: Sequence[str]) -> list[Any]:
    return [box_of(_identifier(each), shapes) for each in identifiers.to_pylist()]


class Turn:
    """The right to read, which is lost to whoever waits if its reader takes nothing for a while."""

    def __init__(self) -> None:
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self.idle_since: float | None = None

    def rests(self) -> None:
        """Its reader is busy with something else."""
        self.idle_since = asyncio.get_running_loop().time()

    def goes_on(self) -> bool:
        """Its reader wants more; False if the turn was lost meanwhile."""
        self.idle_since = None
        return not self.lost


class Slots:
    """At most so many turns at a time."""

    def __init__(self, most: int, idle: float = _IDLE) -> None:
        self._most = most
        self._idle = idle
        self._taken: list[Turn] = []
        self._promised = 0  # handed to somebody who has not woken up yet
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Wait for a turn, and hold it."""
        if len(self._taken) + self._promised >= self._most or self._waiting:
            await self._wait()
        turn = Turn()
        self._taken.append(turn)
        try:
            yield turn
        finally:
            if not turn.lost:
                self._taken.remove(turn)
                self._hand_on()

    async def _wait(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            while not mine.done():
                self._take_from_idle()
                await asyncio.wait([mine], timeout=self._idle / 4)
        except BaseException:
            if mine.done():
                self._promised -= 1
                self._hand_on()
            else:
                self._waiting.remove(mine)
            raise
        self._promised -= 1

    def _take_from_idle(self) -> None:
        """Let somebody who waits go before a reader who does nothing."""
        now = asyncio.get_running_loop().time()
        idle = [turn for turn in self._taken if turn.idle_since is not None and now - turn.idle_since >= self._idle]
        if idle:
            longest = min(idle, key=lambda turn: turn.idle_since or now)
            longest.lost = True
            self._taken.remove(longest)
            longest.on_lost()
            self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting and len(self._taken) + self._promised < self._most:
            self._waiting.popleft().set_result(None)
            self._promised += 1
