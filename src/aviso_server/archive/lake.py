"""The archive as the server sees it: what it covers, reading it, deleting from it, and how it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from aviso_server.archive.flight_client import Address, Refused, Slots, Stream, Unreachable, call, runs
from aviso_server.archive.journal import Journal
from aviso_server.archive.reports import LastAudit
from aviso_server.archive.supervisor import Supervisor
from aviso_server.errors import InvalidRequest, LogDamaged, LogUnavailable, PipelineError
from aviso_server.lake.removal_journal import Removal
from aviso_server.lockfile import replace_file
from aviso_server.log.base import Advancing, Lease, Log
from aviso_server.model.explain import Tally
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification, Run
from aviso_server.store import NOTHING, Coverage, Version

__all__ = ["Known", "Lake", "StreamStatus", "align"]

logger = logging.getLogger(__name__)

_POLL = 1.0  # seconds between two questions how it is doing
_PATIENCE = 30.0  # seconds that a reader waits for a process that is being started
_COUNTING = 300.0  # seconds that a count may take, the waiting for its turn left out
_QUICK = 5.0  # seconds for an answer that needs no Spark
_REMOVING = 120.0  # seconds that it may take to write files anew
_SPARE_THREADS = 4
_LONGEST_SILENCE = 60.0  # seconds without an answer after which the process, or its Java, hangs

T = TypeVar("T")


class StreamStatus(msgspec.Struct, frozen=True):
    """What the pipeline process says of a stream."""

    first: int = 1
    last: int = 0
    gapless: int = 0
    files: int = 0
    bytes: int = 0
    archived_at: str | None = None
    last_error: str | None = None


class _Job(msgspec.Struct, frozen=True):
    state: str
    last_error: str | None = None
    silent: float = 0.0  # seconds since Java answered


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
        self.lease: Lease | None = None  # if several servers share the log
        self._shapes = shapes
        self._watermarks: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(max_replays + _SPARE_THREADS, thread_name_prefix="archive")
        self._changed = asyncio.Event()
        self._due = asyncio.Event()  # there is something to hand over
        self._tasks: list[asyncio.Task[None]] = []
        self._unreadable: dict[str, tuple[int, int, str]] = {}  # by stream: from where to where, and why
        self._held: set[Removal] = set()  # whose outcome in the log is not known yet
        self._early: set[Removal] = set()  # that the process knows of, and that are not archived yet
        supervisor.changed = self._note_change

    async def open(self) -> None:
        """See what there is, without Spark; LogUnavailable if deletes could not be written down."""
        await self.journal.open()
        await self.known.look()
        if self.audited is not None:
            await self.audited.look()

    def start(self, delay: float = 0.0) -> None:
        """Start the pipeline process in so many seconds and keep an eye on it."""
        if self.lease is not None:
            self.lease.start()
        self.supervisor.start(delay)
        self._due.set()
        self._tasks = [
            asyncio.create_task(self._watch(), name="archive status"),
            asyncio.create_task(self._hand_over(), name="archive deletes"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.supervisor.stop()
        if self.lease is not None:
            await self.lease.stop()
        await self.journal.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def watermark(self, stream: str) -> int:
        """The newest sequence up to which the pipeline process has said everything to be archived, without a gap."""
        return self._watermarks.get(stream, 0)

    async def coverage(self, stream: str, through: int = 0) -> Coverage:
        """What is archived of a stream; looked up afresh if what is known ends before `through`."""
        found = self.known.of(stream)
        if found is not None and found.last >= through:
            return found
        if self.lease is not None:
            await self._address()  # another server may have archived more than this one has heard of
        if self.supervisor.state == "running":
            with contextlib.suppress(Unreachable, Refused):
                await self._ask_status(stream)
        else:
            await self.known.look()
        found = self.known.of(stream)
        if found is None:
            await self._address()  # whoever is up has said what there is
            found = self.known.of(stream) or NOTHING
        return found

    async def streams(self) -> Sequence[str]:
        return sorted(stream for stream, covered in self.known.streams.items() if covered.last)

    @property
    def reachable(self) -> bool:
        return self.supervisor.state == "running" and self.supervisor.address is not None

    async def version_at(self, stream: str, time: int) -> Version:
        """The table of a stream as it was at a time; InvalidRequest if it is not kept."""
        answer = await self._ask("version_at", stream=stream, time=time)
        if "gone" in answer:
            raise InvalidRequest(f"as_of: the archive cannot say what was known then: {answer['gone']}", field="as_of")
        return Version(int(answer["version"]), int(answer["last"]))

    async def count(self, wanted: Filter, start: int, end: int, unit: int, version: Version | None = None) -> Tally:
        """How many pass the filter with start <= sequence <= end; it waits for its turn as replays do."""
        async with self.slots.turn():
            through, deleted = self.journal.hidden(wanted.stream) if version is None else (0, [])
            members: dict[str, Any] = {
                "start": start,
                "end": end,
                "unit": unit,
                "wiped_through": through,
                "deleted": deleted,
            }
            members["version"] = None if version is None else version.number
            try:
                async with asyncio.timeout(_COUNTING):
                    return await self._retried(lambda address: self._count(address, wanted, unit, members))
            except TimeoutError:
                reason = f"it did not count within {_COUNTING:g} s; ask for a shorter time"
            except msgspec.ValidationError as error:
                reason = f"its answer cannot be read: {error}"
            raise LogUnavailable(f"the archive cannot be read now: {reason}")

    async def _count(self, address: Address, wanted: Filter, unit: int, members: dict[str, Any]) -> Tally:
        def read(batch: Any) -> Tally:
            return Tally.of_members(unit, msgspec.json.decode(batch.column("tally")[0].as_py()))

        stream = Stream(self._threads, address, read, "count", filter=wanted.to_json().decode(), **members)
        try:
            found = await stream.next()
            if found is None:
                raise Unreachable("the pipeline process broke off")
            return found
        finally:
            stream.hang_up()

    async def first_since(self, stream: str, time: int, version: Version | None = None) -> int:
        """The lowest archived sequence stored at or after `time`; one more than the last if there is none."""
        return await self._ask_sequence("first_since", stream, time, version)

    async def last_until(self, stream: str, time: int, version: Version | None = None) -> int:
        """The highest archived sequence stored at or before `time`; one less than the first if there is none."""
        return await self._ask_sequence("last_until", stream, time, version)

    async def _ask_sequence(self, operation: str, stream: str, time: int, version: Version | None) -> int:
        number = None if version is None else version.number
        return int((await self._ask(operation, stream=stream, time=time, version=number))["sequence"])

    async def read(
        self, wanted: Filter, start: int, end: int, version: Version | None = None
    ) -> AsyncGenerator[Sequence[Notification], None]:
        """What passes the filter with start <= sequence <= end; goes on where it was if the process starts again.

        Of a version of the table all that it held then, also what was deleted since.
        """
        covered = await self.coverage(wanted.stream, end) if version is None else Coverage(1, version.last)
        position, end = max(start, covered.first), min(end, covered.last)
        number = None if version is None else version.number
        failed_at, make, text = 0, partial(runs, self._shapes(wanted.event_type)), wanted.to_json().decode()
        with self.journal.view(wanted.stream) as view:
            while position <= end:
                async with self.slots.turn() as turn:
                    address, begun_at = await self._address(), position
                    stream = Stream(
                        self._threads, address, make, "replay", filter=text, start=position, end=end, version=number
                    )
                    turn.on_lost = stream.hang_up
                    try:
                        while (found := await stream.next()) is not None and not turn.lost:
                            for run in found:
                                position = (run.last if isinstance(run, Run) else run[-1].sequence) + 1
                                turn.rests()
                                yield run if version is not None else view.visible(run)
                                if not turn.goes_on():
                                    break  # somebody else's turn; then ours again
                        if not turn.lost:
                            self._note_read(wanted, start, end)
                            return
                    except (Refused, Unreachable) as error:
                        if turn.lost:
                            continue
                        # what breaks on the way may be Spark that has gone: it is asked once more when it is back
                        if position == failed_at or (isinstance(error, Refused) and position == begun_at):
                            if isinstance(error, Refused):
                                self._note_unreadable(wanted.stream, position, end, str(error))
                            raise LogUnavailable(f"the archive cannot be read now: {error}") from None
                        failed_at = position
                        await self._let_it_notice(address)
                    finally:
                        stream.hang_up()

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
                "last_error": self._unreadable[name][2] if name in self._unreadable else each.last_error,
            }
            for name, each in sorted({**covered, **self.statuses}.items())
        }
        reason = self.supervisor.reason or self.job.last_error
        return {"state": self.supervisor.state, "job": self.job.state, "reason": reason, "streams": streams}

    async def remove_archived(self, removal: Removal) -> bool | None:
        """Hand a removal over now; whether it was there, None if it could not be handed over."""
        found = await self._remove(removal.kind, removal.stream, [removal])
        return None if found is None else removal in found

    async def _remove(self, kind: str, stream: str, removals: Sequence[Removal]) -> set[Removal] | None:
        """Hand removals of one kind over; those that were there, None if they could not be handed over."""
        if self.supervisor.state != "running" or self.supervisor.address is None:
            return None
        members: dict[str, Any] = {"stream": stream}
        if kind == "delete":
            members["sequences"] = [each.sequence for each in removals]
        else:
            members["through"] = max(each.sequence for each in removals)
        try:
            answer = await call(self._threads, self.supervisor.address, kind, _REMOVING, **members)
        except Unreachable:
            return None
        except Refused as error:
            logger.warning(
                "the archive does not take a %s: %s", kind, error,
                extra={"event": "archive.removal.refused", "stream": stream, "sequence": removals[0].sequence},
            )  # fmt: skip
            return None
        early = set(answer["early"]) if kind == "delete" else set()
        if kind == "wipe" and answer["early"]:
            early = {each.sequence for each in removals if each.sequence > self._archived(stream)}
        for each in removals:
            if each.sequence in early:
                self._early.add(each)  # it is asked for again when it is archived
            else:
                self._early.discard(each)
                await self.journal.settle(each)
        return set(removals) if kind == "wipe" else {each for each in removals if each.sequence in answer["deleted"]}

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
        return await self._retried(lambda address: call(self._threads, address, operation, **members))

    async def _retried(self, ask: Callable[[Address], Awaitable[T]]) -> T:
        """Ask, and once more if the process has just ended; LogUnavailable if there is no answer."""
        for attempt in (1, 2):
            address = await self._address()
            try:
                return await ask(address)
            except Refused as error:
                raise LogUnavailable(f"the archive cannot be read now: {error}") from None
            except Unreachable as error:
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
        """A broken connection often means that the process is ending: wait until that is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUICK):
                while self.supervisor.address is address:
                    self._changed.clear()
                    await self._changed.wait()

    async def _watch(self) -> None:
        asked, heard, now = None, 0.0, asyncio.get_running_loop().time
        while True:
            address = self.supervisor.address
            if address is not asked:
                asked, heard = address, now()
            if address is not None:
                try:
                    await self._ask_status()
                    heard = now() - self.job.silent
                except (Unreachable, Refused) as error:
                    logger.debug("no word of the archive: %s", error, extra={"event": "archive.process.silent"})
                if now() - heard > _LONGEST_SILENCE and self.supervisor.address is address:
                    who = "it" if self.job.silent < _LONGEST_SILENCE else "Java"
                    self.supervisor.give_up(f"{who} has not answered for {now() - heard:.0f} s")
                    self.job, heard = _Job("stopped"), now()
            if self.audited is not None:
                await self.audited.look()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _POLL if self.supervisor.state == "running" else _POLL / 4)

    async def _ask_status(self, stream: str = "") -> None:
        """Ask how it is doing; a stream that is named is looked at again before."""
        address = self.supervisor.address
        if address is None:
            raise Unreachable("the pipeline process is not there")
        try:
            status = msgspec.convert(await call(self._threads, address, "status", _QUICK, stream=stream), _Status)
        except msgspec.ValidationError as error:
            raise Refused(f"its status cannot be read: {error}") from None
        self._note_errors(status)
        self.job = status.job
        self.statuses = status.streams
        covered = {name: Coverage(each.first, each.last) for name, each in status.streams.items() if each.last}
        self._watermarks = {name: each.gapless for name, each in status.streams.items()}
        if any(self._archived(each.stream) >= each.sequence for each in self._early):
            self._due.set()
        await self.known.learn(covered)
        if self.supervisor.state != "running" and self.supervisor.address is address:
            if self.on_start is not None:
                await self.on_start(covered)
            self.supervisor.is_up()
            self._early.clear()  # a new process knows of none
            self._due.set()

    def _archived(self, stream: str) -> int:
        """The newest sequence that is archived, whatever is missing before it."""
        return self.statuses[stream].last if stream in self.statuses else 0

    async def _hand_over(self) -> None:
        """Tell the archive what is to go, until it has confirmed it."""
        while True:
            await self._due.wait()
            self._due.clear()
            waiting: dict[tuple[str, str], list[Removal]] = {}
            for each in self.journal.pending:
                early = each in self._early and self._archived(each.stream) < each.sequence
                if each not in self._held and not early:
                    waiting.setdefault((each.kind, each.stream), []).append(each)
            for (kind, stream), removals in waiting.items():
                try:
                    if await self._remove(kind, stream, removals) is None:
                        asyncio.get_running_loop().call_later(_POLL, self._due.set)
                        break
                except LogUnavailable as error:
                    logger.warning("%s", error, extra={"event": "archive.removal.refused"})

    def _note_change(self) -> None:
        self._changed.set()

    def _note_unreadable(self, stream: str, first: int, last: int, sentence: str) -> None:
        """Remember that a part of a stream could not be read, until somebody reads all of it."""
        if stream not in self._unreadable:
            logger.error(
                "archive of stream %s: %s", stream, sentence,
                extra={"event": "archive.read.failed", "stream": stream, "sequence": first},
            )  # fmt: skip
        self._unreadable[stream] = (first, last, sentence)

    def _note_read(self, wanted: Filter, first: int, last: int) -> None:
        """Forget what could not be read before, if all of it was read now; with a filter it may have been skipped."""
        known = self._unreadable.get(wanted.stream)
        if known is not None and wanted.is_open and first <= known[0] and known[1] <= last:
            del self._unreadable[wanted.stream]

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


class _Memory(msgspec.Struct, frozen=True):
    path: str
    streams: dict[str, Coverage] = {}
    once: dict[str, int] = {}


_read = msgspec.json.Decoder(_Memory).decode


class Known:
    """The sequences that each stream's archive covers.

    Tables on this machine can be looked at directly. The last news is kept in a file: of an archive elsewhere nothing
    else is known before Spark has started, and of any archive it says what was there once. An archive that has lost
    something since then is asked for it all the same, and says so.
    """

    def __init__(self, path: str, memory: Path) -> None:
        self._path = path
        self._memory = memory
        self._local = urlsplit(path).scheme in ("", "file")
        self._coverages: dict[str, Coverage] = {}
        self._once: dict[str, int] = {}  # the last sequence that each stream ever had
        self._complete = False  # a stream that is not among them has never been archived

    @property
    def streams(self) -> Mapping[str, Coverage]:
        return self._coverages

    def of(self, stream: str) -> Coverage | None:
        """The coverage of a stream as known now; None if nothing can be said."""
        found = self._coverages.get(stream, NOTHING if self._complete else None)
        if found is None or found.last >= self._once.get(stream, 0):
            return found
        return Coverage(found.first, self._once[stream])

    async def look(self) -> None:
        """Look at the files, or at what was known last."""
        try:
            await asyncio.to_thread(self._look)
        except (OSError, PipelineError, msgspec.DecodeError) as error:
            logger.warning(
                "the archive in %s cannot be looked at: %s", self._path, error,
                extra={"event": "archive.files.unreadable"},
            )  # fmt: skip

    async def learn(self, coverages: Mapping[str, Coverage]) -> None:
        """This is what the archive holds now."""
        changed = coverages != self._coverages
        self._coverages, self._complete = dict(coverages), True
        for stream, covered in coverages.items():
            self._once[stream] = max(covered.last, self._once.get(stream, 0))
        if changed:
            try:
                await asyncio.to_thread(
                    replace_file, self._memory, msgspec.json.encode(_Memory(self._path, self._coverages, self._once))
                )
            except OSError as error:
                logger.warning(
                    "what the archive holds cannot be noted: %s", error, extra={"event": "archive.files.unreadable"}
                )

    def _look(self) -> None:
        memory = _Memory(self._path)
        if self._memory.exists():
            memory = _read(self._memory.read_bytes())
        if memory.path == self._path:
            self._once = {**memory.once, **self._once}
        if self._local:
            # imported late: it needs pyarrow
            from aviso_server.lake.previous import previous_watermarks
            from aviso_server.lake.table import Tables

            tables = Tables(self._path)
            found = {stream: Coverage(1, last) for stream, last in previous_watermarks(self._path).items()}
            for stream in tables.streams():
                last = max(tables.of(stream).snapshot().watermark, found.get(stream, NOTHING).last)
                found[stream] = Coverage(1, last)
            self._coverages, self._complete = found, True
        elif not self._coverages and memory.path == self._path:
            self._coverages = dict(memory.streams)


async def align(log: Log, archived: Mapping[str, Coverage], path: str) -> None:
    """Let the log go on numbering after what is archived; LogDamaged if it cannot.

    A log is behind after it was restored from a copy or began anew. The notifications it has lost are in the archive.
    """
    known = set(await log.streams())
    for stream, covered in archived.items():
        last = (await log.state(stream)).last if stream in known else 0
        if last >= covered.last:
            continue
        if not isinstance(log, Advancing):
            raise LogDamaged(
                f"stream '{stream}' ends at sequence {last} in the log, but at {covered.last} in the archive in "
                f"'{path}': these sequences would be given out a second time. Bring the log back from a copy, set "
                "archive.path to another folder, or move the archive away"
            )
        await log.advance(stream, covered.last)
        logger.warning(
            "stream %s ended at sequence %d in the log and at %d in the archive: its numbering goes on after that",
            stream, last, covered.last,
            extra={"event": "archive.numbering.advanced", "stream": stream, "last": covered.last},
        )  # fmt: skip
