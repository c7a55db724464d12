"""The archive as the server sees it: what it covers, reading it, deleting from it, and how it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from aviso_server.archive.audited import LastAudit
from aviso_server.archive.bridge import Address, BridgeDown, BridgeRefused, call
from aviso_server.archive.cold_read import ColdRead
from aviso_server.archive.journal import Journal, Removal
from aviso_server.archive.known import Known
from aviso_server.archive.slots import Slots
from aviso_server.archive.supervisor import Supervisor
from aviso_server.delivery.archive import NOTHING, Coverage
from aviso_server.errors import LogUnavailable
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.tally import Tally

__all__ = ["Lake", "StreamStatus"]

logger = logging.getLogger(__name__)

_POLL = 1.0  # seconds between two questions how it is doing
_PATIENCE = 30.0  # seconds that a reader waits for a process that is being started
_COUNTING = 300.0  # seconds that a count may take, the waiting for its turn left out
_QUICK = 5.0  # seconds for an answer that needs no Spark
_SPARE_THREADS = 4


class StreamStatus(msgspec.Struct, frozen=True):
    """What the pipeline process says of a stream."""

    first: int = 1
    last: int = 0
    files: int = 0
    bytes: int = 0
    archived_at: str | None = None
    last_error: str | None = None


class _Job(msgspec.Struct, frozen=True):
    state: str
    last_error: str | None = None


class _Status(msgspec.Struct, frozen=True):
    streams: dict[str, StreamStatus]
    job: _Job


Shapes = Callable[[str], Sequence[str]]
"""The fields of an event type that are shapes."""

Learnt = Callable[[Mapping[str, Coverage]], Any]
"""Awaited with what the archive covers, each time that its process has started."""


class Lake:
    """The archive behind a log. Everything that needs Spark is asked of the pipeline process."""

    def __init__(
        self,
        supervisor: Supervisor,
        known: Known,
        journal: Journal,
        max_replays: int,
        shapes: Shapes,
        audited: LastAudit | None = None,
    ) -> None:
        self.audited = audited
        self.supervisor = supervisor
        self.known = known
        self.journal = journal
        self.slots = Slots(max_replays)
        self.statuses: Mapping[str, StreamStatus] = {}
        self.job = _Job("stopped")
        self.errors = 0  # that the pipeline process has reported
        self.last_error_at = 0.0  # seconds since 1970
        self.on_start: Learnt | None = None
        self._shapes = shapes
        self._watermarks: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(max_replays + _SPARE_THREADS, thread_name_prefix="archive")
        self._changed = asyncio.Event()
        self._due = asyncio.Event()  # there is something to hand over
        self._tasks: list[asyncio.Task[None]] = []
        self._held: set[Removal] = set()  # whose outcome in the log is not known yet
        supervisor.changed = self._note_change

    async def open(self) -> None:
        """See what there is, without Spark; LogUnavailable if deletes could not be written down."""
        await self.journal.open()
        await self.known.look()
        if self.audited is not None:
            await self.audited.look()

    def start(self, delay: float = 0.0) -> None:
        """Start the pipeline process in so many seconds and keep an eye on it."""
        self.supervisor.start(delay)
        self._due.set()
        self._tasks = [
            asyncio.create_task(self._watch(), name="archive status"),
            asyncio.create_task(self._hand_over(), name="archive deletes"),
        ]

    async def close(self) -> None:
        """End the pipeline process and let go of everything."""
        for task in self._tasks:
            task.cancel()
        await self.supervisor.stop()
        await self.journal.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def watermark(self, stream: str) -> int:
        """The newest sequence that the pipeline process has said to be archived."""
        return self._watermarks.get(stream, 0)

    async def coverage(self, stream: str, through: int = 0) -> Coverage:
        """What is archived of a stream; looked up afresh if what is known ends before `through`."""
        found = self.known.of(stream)
        if found is not None and found.last >= through:
            return found
        if self.supervisor.state == "running":
            with contextlib.suppress(BridgeDown, BridgeRefused):
                await self._ask_status()
        else:
            await self.known.look()
        found = self.known.of(stream)
        if found is None:
            await self._address()  # whoever is up has said what there is
            found = self.known.of(stream) or NOTHING
        return found

    async def streams(self) -> Sequence[str]:
        """The streams that are archived, sorted."""
        return sorted(stream for stream, covered in self.known.streams.items() if covered.last)

    @property
    def reachable(self) -> bool:
        """True while the pipeline process runs."""
        return self.supervisor.state == "running" and self.supervisor.address is not None

    async def count(self, wanted: Filter, start: int, end: int, unit: int) -> Tally:
        """How many pass the filter with start <= sequence <= end; it waits for its turn as replays do."""
        async with self.slots.turn():
            through, deleted = self.journal.hidden(wanted.stream)
            members = {
                "filter": b64encode(pickle.dumps(wanted)).decode(),
                "start": start,
                "end": end,
                "unit": unit,
                "wiped_through": through,
                "deleted": deleted,
            }
            try:
                async with asyncio.timeout(_COUNTING):
                    answer = await self._ask("count", seconds=2 * _COUNTING, **members)
                return Tally.of_members(unit, answer)
            except TimeoutError:
                reason = f"it did not count within {_COUNTING:g} s; ask for a shorter time"
            except msgspec.ValidationError as error:
                reason = f"its answer cannot be read: {error}"
            raise LogUnavailable(f"the archive cannot be read now: {reason}")

    async def first_since(self, stream: str, time: int) -> int:
        """The lowest archived sequence stored at or after `time`; one more than the last if there is none."""
        return int((await self._ask("first_since", stream=stream, time=time))["sequence"])

    async def last_until(self, stream: str, time: int) -> int:
        """The highest archived sequence stored at or before `time`; one less than the first if there is none."""
        return int((await self._ask("last_until", stream=stream, time=time))["sequence"])

    async def read(self, wanted: Filter, start: int, end: int) -> AsyncGenerator[Sequence[Notification], None]:
        """What passes the filter with start <= sequence <= end; goes on where it was if the process starts again."""
        covered = await self.coverage(wanted.stream, end)
        position, end = max(start, covered.first), min(end, covered.last)
        failed_at = 0
        with self.journal.view(wanted.stream) as view:
            while position <= end:
                async with self.slots.turn() as turn:
                    address = await self._address()
                    cold = ColdRead(self._threads, address, wanted, position, end, self._shapes(wanted.event_type))
                    turn.on_lost = cold.hang_up
                    try:
                        while (found := await cold.next()) is not None:
                            if found:
                                position = found[-1].sequence + 1
                            turn.rests()
                            yield view.visible(found)
                            if not turn.goes_on():
                                break  # somebody else's turn; then ours again
                        else:
                            return
                    except BridgeRefused as error:
                        raise LogUnavailable(f"the archive cannot be read now: {error}") from None
                    except BridgeDown as error:
                        if position == failed_at:
                            raise LogUnavailable(f"the archive cannot be read now: {error}") from None
                        failed_at = position
                        await self._let_it_notice(address)
                    finally:
                        cold.hang_up()

    @asynccontextmanager
    async def deleting(self, stream: str, sequence: int) -> AsyncIterator[_Deletion]:
        """Take one notification out of history for good."""
        removal = Removal("delete", stream, sequence)
        if self.journal.hides(stream, sequence):
            yield _Deletion(self, removal, known=True)
            return
        async with self._removing(removal):
            yield _Deletion(self, removal, known=False)

    @asynccontextmanager
    async def wiping(self, stream: str, through: int) -> AsyncIterator[None]:
        """Take everything up to a sequence out of history for good."""
        async with self._removing(Removal("wipe", stream, through)):
            yield

    async def describe(self) -> dict[str, Any]:
        """How it is doing, for people."""
        covered = {name: StreamStatus(first=each.first, last=each.last) for name, each in self.known.streams.items()}
        streams = {
            name: {
                "first": each.first,
                "last": each.last,
                "files": each.files,
                "bytes": each.bytes,
                "last_error": each.last_error,
            }
            for name, each in sorted({**covered, **self.statuses}.items())
        }
        reason = self.supervisor.reason or self.job.last_error
        return {"state": self.supervisor.state, "job": self.job.state, "reason": reason, "streams": streams}

    async def remove_archived(self, removal: Removal) -> bool | None:
        """Hand a removal over now; whether it was there, None if it could not be handed over."""
        if self.supervisor.state != "running" or self.supervisor.address is None:
            return None
        name = "sequence" if removal.kind == "delete" else "through"
        members: dict[str, Any] = {"stream": removal.stream, name: removal.sequence}
        try:
            answer = await call(self.supervisor.address, removal.kind, **members)
        except BridgeDown:
            return None
        except BridgeRefused as error:
            logger.warning(
                "the archive does not take a %s: %s", removal.kind, error,
                extra={"event": "archive.removal.refused", "stream": removal.stream, "sequence": removal.sequence},
            )  # fmt: skip
            return None
        await self.journal.settle(removal)
        return bool(answer.get("deleted", True))

    @asynccontextmanager
    async def _removing(self, removal: Removal) -> AsyncIterator[None]:
        self._held.add(removal)
        try:
            await self.journal.add(removal)
            try:
                yield
            except Exception:  # not a cancellation: then the log may have forgotten it
                await self.journal.settle(removal)
                raise
        finally:
            self._held.discard(removal)
            self._due.set()

    async def _ask(self, operation: str, **members: Any) -> dict[str, Any]:
        for attempt in (1, 2):
            address = await self._address()
            try:
                return await call(address, operation, **members)
            except BridgeRefused as error:
                raise LogUnavailable(f"the archive cannot be read now: {error}") from None
            except BridgeDown as error:
                if attempt == 2:
                    raise LogUnavailable(f"the archive cannot be read now: {error}") from None
                await self._let_it_notice(address)
        raise AssertionError("not reached")

    async def _address(self) -> Address:
        """Where to ask; waits for a process that is being started."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while self.supervisor.state != "running" or self.supervisor.address is None:
            left = deadline - asyncio.get_running_loop().time()
            if self.supervisor.state in ("unavailable", "stopped") or left <= 0:
                reason = self.supervisor.reason or "the pipeline process is still starting"
                raise LogUnavailable(f"the archive cannot be read now: {reason}")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, _POLL))
        return self.supervisor.address

    async def _let_it_notice(self, address: Address) -> None:
        """A broken bridge often means that the process is ending: wait until that is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUICK):
                while self.supervisor.address is address:
                    self._changed.clear()
                    await self._changed.wait()

    async def _watch(self) -> None:
        while True:
            if self.supervisor.address is not None:
                try:
                    await self._ask_status()
                except (BridgeDown, BridgeRefused) as error:
                    logger.debug("no word of the archive: %s", error, extra={"event": "archive.process.silent"})
            if self.audited is not None:
                await self.audited.look()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _POLL if self.supervisor.state == "running" else _POLL / 4)

    async def _ask_status(self) -> None:
        address = self.supervisor.address
        if address is None:
            raise BridgeDown("the pipeline process is not there")
        try:
            status = msgspec.convert(await call(address, "status", _QUICK), _Status)
        except msgspec.ValidationError as error:
            raise BridgeRefused(f"its status cannot be read: {error}") from None
        self._note_errors(status)
        self.job = status.job
        if status.job.state == "starting":
            return  # it has not looked at the files yet
        self.statuses = status.streams
        covered = {name: Coverage(each.first, each.last) for name, each in status.streams.items() if each.last}
        self._watermarks = {name: each.last for name, each in covered.items()}
        await self.known.learn(covered)
        if self.supervisor.state != "running" and self.supervisor.address is address:
            if self.on_start is not None:
                await self.on_start(covered)
            self.supervisor.is_up()
            self._due.set()

    async def _hand_over(self) -> None:
        """Tell the archive what is to go, until it has confirmed it."""
        while True:
            await self._due.wait()
            self._due.clear()
            for removal in self.journal.pending:
                if removal in self._held:
                    continue
                try:
                    if await self.remove_archived(removal) is None:
                        asyncio.get_running_loop().call_later(_POLL, self._due.set)
                        break
                except LogUnavailable as error:
                    logger.warning("%s", error, extra={"event": "archive.removal.refused"})

    def _note_change(self) -> None:
        self._changed.set()

    def _note_errors(self, status: _Status) -> None:
        news: list[tuple[str, str | None]] = []
        if status.job.last_error is not None and status.job.last_error != self.job.last_error:
            news.append((status.job.last_error, None))
        for name, each in status.streams.items():
            before = self.statuses.get(name)
            if each.last_error is not None and (before is None or before.last_error != each.last_error):
                news.append((each.last_error, name))
        for sentence, stream in news:
            self.errors += 1
            self.last_error_at = time.time()
            where = "archive" if stream is None else f"archive of stream {stream}"
            logger.warning("%s: %s", where, sentence, extra={"event": "archive.job.failed", "stream": stream})


class _Deletion:
    """A delete that was noted; `known` if it had been noted before."""

    def __init__(self, lake: Lake, removal: Removal, known: bool) -> None:
        self._lake = lake
        self._removal = removal
        self._known = known

    async def archived(self) -> bool:
        """True if the archive held the notification, or may have held it and cannot be asked."""
        if self._known:
            return False
        found = await self._lake.remove_archived(self._removal)
        if found is not None:
            return found
        covered = self._lake.known.of(self._removal.stream)
        return covered is None or covered.includes(self._removal.sequence, self._removal.sequence)
