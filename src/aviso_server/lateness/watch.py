"""The watch: follows the event types that are expected, and publishes what is overdue and what arrived after all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from aviso_server.errors import HistoryGone, LogError, LogUnavailable
from aviso_server.lockfile import replace_file
from aviso_server.log.base import Appended, Key, Keyed, Subscription
from aviso_server.model.event_type import EventType
from aviso_server.model.lateness import NAME, Book, Detector, Learned, Notice, Status, Watched, decode, file_name
from aviso_server.model.notification import Notification
from aviso_server.model.times import SECOND, seconds_text
from aviso_server.store import Store

__all__ = ["Following", "LatenessOverview", "ModelFiles", "State", "StateFile", "Watch"]

logger = logging.getLogger(__name__)

_Identity = tuple[int, int, int]


class ModelFiles:
    """A folder with a file for each event type; whoever learns puts a new one in place of the old."""

    def __init__(self, folder: Path, watched: Iterable[Watched]) -> None:
        self._folder = folder
        self._watched = {each.event_type: each for each in watched}
        self._known: dict[str, _Identity | None] = {}

    def changed(self) -> Iterator[Learned]:
        """Return what is new since the last call, without what does not fit the configuration."""
        for name, watched in self._watched.items():
            file = self._folder / file_name(name)
            try:
                facts = file.stat()
                identity = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                if self._known.get(name) == identity:
                    continue
                learned = decode(file.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._say(name, f"'{file}' cannot be used: {error}")
                continue
            self._known[name] = identity
            if learned.fits(watched):
                yield learned
            else:
                self._say(name, f"'{file}' was learned for other fields; it is used again once it was learned anew")

    def _say(self, name: str, sentence: str) -> None:
        logger.warning("lateness of '%s': %s", name, sentence, extra={"event": "lateness.model.unusable"})


class State(msgspec.Struct):
    """The books of all event types, and what is decided but perhaps not published yet."""

    books: dict[str, Book] = {}
    outbox: list[Notice] = []


class StateFile:
    """The file; LogUnavailable if it cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "state.json"

    def load(self) -> tuple[State, int]:
        """Return what was saved last, and when the watch was last awake (seconds since 1970; 0 if it never was)."""
        try:
            awake = int(self._file.stat().st_mtime)
            return msgspec.json.decode(self._file.read_bytes(), type=State), awake
        except FileNotFoundError:
            return State(), 0
        except OSError as error:
            raise LogUnavailable(f"'{self._file}' cannot be read: {error}") from None
        except msgspec.DecodeError as error:
            logger.error(
                "'%s' is damaged, the watch begins anew: %s",
                self._file,
                error,
                extra={"event": "lateness.state.damaged"},
            )
            return State(), 0

    def touch(self, now: int) -> None:
        """Note that the watch is awake, whether there is something new or not."""
        with contextlib.suppress(OSError):
            os.utime(self._file, (now, now))

    def save(self, content: bytes, now: int) -> None:
        """Write a state, encoded; when this returns it survives a power cut."""
        try:
            replace_file(self._file, content)
        except OSError as error:
            raise LogUnavailable(f"'{self._file}' cannot be written: {error}") from None
        self.touch(now)


_BATCH = 1000
_MOMENT = 0.01  # seconds


class Following:
    """One stream and its detector. What was stored while nobody listened is read from the log and the archive."""

    def __init__(self, detector: Detector, store: Store, event_type: EventType, say: Callable[[Notice], None]) -> None:
        self._detector = detector
        self._store = store
        self._everything = event_type.compile({}, "replay", lenient=True)
        self._say = say
        self._subscription: Subscription | None = None
        self._live = False
        self._heard = 0  # the newest sequence that was stored since somebody listens

    async def catch_up(self, now: int) -> None:
        """Return once everything that is stored has been reported to the detector; LogError if it cannot be read."""
        if self._live:
            return
        stream, book = self._detector.watched.stream, self._detector.book
        if self._subscription is None:
            self._heard = 0
            self._subscription = self._store.follow(stream, self._hear, self._lose)
        while True:
            last = (await self._store.state(stream)).last
            if book.position is None:
                book.position = last
            elif book.position > max(last, self._heard):
                book.position = 0  # the log began anew
            if book.position >= max(last, self._heard):
                self._live = True
                return
            if book.position < last:
                await self._read(book.position + 1, last, now)
            else:
                await asyncio.sleep(_MOMENT)  # heard of, but not to be read yet

    def close(self) -> None:
        self._live = False
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    async def _read(self, start: int, last: int, now: int) -> None:
        try:
            await self._report_all(start, last, unbroken=True)
        except HistoryGone:
            position = self._detector.book.position
            start = start if position is None else position + 1
            self._detector.begin_anew(now)
            logger.warning(
                "notifications of '%s' from %d on are gone already: whether they were late is unknown",
                self._detector.watched.stream, start, extra={"event": "lateness.history.gone"},
            )  # fmt: skip
            await self._report_all(start, last, unbroken=False)

    async def _report_all(self, start: int, last: int, unbroken: bool) -> None:
        batches = self._store.read(self._everything, start, last, list, unbroken=unbroken, batch=_BATCH)
        async with aclosing(batches):
            async for notifications, following in batches:
                for notification in notifications:
                    self._report(notification)
                self._detector.book.position = following - 1
                await asyncio.sleep(0)  # others want to be served too

    def _hear(self, notifications: Sequence[Notification]) -> None:
        book = self._detector.book
        for notification in notifications:
            self._heard = max(self._heard, notification.sequence)
            if not self._live or book.position is None or notification.sequence <= book.position:
                continue
            if notification.sequence != book.position + 1:
                self._live = False  # the one before it is on its way, or there is none: reading tells
                continue
            self._report(notification)
            book.position = notification.sequence

    def _lose(self, reason: str) -> None:
        self._live = False
        self._subscription = None

    def _report(self, notification: Notification) -> None:
        notice = self._detector.arrive(notification.values(), notification.sequence, notification.time // SECOND)
        if notice is not None:
            self._say(notice)


_GLANCE = 1.0  # seconds between two looks
_MARGIN = 2  # seconds until everything that is stored has come to our ears
_BETWEEN_SAVES = 30  # seconds; what is decided is saved at once
_AT_ONCE = 500  # notices that are published together
_MOST_SHOWN = 100


class Overdue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something expected that has not come."""

    event_type: str
    combination: str
    expected_at: str
    since: str


class LatenessOverview(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is expected, and what of it is overdue."""

    learned_at: Annotated[str | None, Meta(description="When what is usual was learned; null if it has not been.")]
    watched: Annotated[int, Meta(description="Combinations that are expected at some time.")]
    overdue_count: int
    overdue: Annotated[list[Overdue], Meta(description="Those overdue for longest, at most 100.")]


class Watch:
    """Detects late notifications of some event types and publishes alarms in the stream `aviso_lateness`.

    What is decided is written down before it is published, and published under a key of its own: whatever happens in
    between, it is published once. Several servers with one log come to the same keys.
    """

    def __init__(
        self,
        watched: Sequence[tuple[Watched, EventType]],
        store: Store,
        models: ModelFiles,
        file: StateFile,
        clock: Callable[[], int],
    ) -> None:
        self.published: defaultdict[tuple[str, Status], int] = defaultdict(int)  # by event type
        self.detectors: dict[str, Detector] = {}
        self._watched = watched
        self._store = store
        self._models = models
        self._file = file
        self._clock = clock  # nanoseconds since 1970
        self._state: State | None = None
        self._following: dict[str, Following] = {}
        self._quiet_until: dict[str, int] = {}
        self._saved = b""
        self._saved_at = 0
        self._complaint = ""
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="lateness")

    async def stop(self) -> None:
        """Write down how far it came, and let go of the log."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        for each in self._following.values():
            each.close()
        if self._state is not None:
            with contextlib.suppress(LogError):
                await self._save(self._state)

    def describe(self) -> LatenessOverview:
        """Return what is expected and what of it is overdue, for an operator."""
        detectors = self.detectors.values()
        learned = [each.learned.learned_at for each in detectors if each.learned is not None]
        overdue = sorted((notice for each in detectors for notice in each.overdue), key=lambda one: one.overdue_at)
        return LatenessOverview(
            seconds_text(min(learned)) if learned else None,
            sum(each.watching for each in detectors),
            len(overdue),
            [
                Overdue(one.event_type, one.combination, seconds_text(one.expected_at), seconds_text(one.overdue_at))
                for one in overdue[:_MOST_SHOWN]
            ],
        )

    async def step(self) -> None:
        """Look once and publish what is late; LogError if that has to wait."""
        now = self._clock() // SECOND
        state = await self._opened(now)
        for learned in await asyncio.to_thread(lambda: list(self._models.changed())):
            self.detectors[learned.event_type].learn(learned, now)
            self._saved_at = 0  # from when on something is watched must not be forgotten
        failure: LogError | None = None
        for name, detector in self.detectors.items():
            if detector.learned is None:
                continue  # what arrives now is read when it is known what to look for
            try:
                await self._following[name].catch_up(now)
            except LogError as error:
                failure = error
                continue
            if now >= self._quiet_until.get(name, 0):
                state.outbox += detector.due(now - _MARGIN)
        if state.outbox:
            await self._publish(state)
        elif now >= self._saved_at + _BETWEEN_SAVES:
            await self._save(state)
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        while True:
            try:
                await self.step()
                self._complaint = ""
            except LogError as error:
                self._complain(str(error))
            except Exception:
                logger.exception("the watch over late notifications failed", extra={"event": "lateness.watch.failed"})
            await asyncio.sleep(_GLANCE)

    async def _opened(self, now: int) -> State:
        if self._state is not None:
            return self._state
        state, awake = await asyncio.to_thread(self._file.load)
        for watched, event_type in self._watched:
            detector = Detector(watched, state.books.setdefault(watched.event_type, Book()))
            self.detectors[watched.event_type] = detector
            self._following[watched.event_type] = Following(detector, self._store, event_type, state.outbox.append)
            if awake:
                # publishers that waited for this server come now: they get the time that it was away
                away = max(0, now - awake)
                self._quiet_until[watched.event_type] = now + min(away, watched.tolerance)
        names = {watched.event_type for watched, _ in self._watched}
        state.books = {name: book for name, book in state.books.items() if name in names}
        self._state = state
        return state

    async def _publish(self, state: State) -> None:
        await self._save(state)  # first: a notice that is out must not be forgotten
        while state.outbox:
            notices = state.outbox[:_AT_ONCE]
            entries = [Keyed(notice.draft(), _key(notice)) for notice in notices]
            outcomes = await self._store.append_keyed(entries, whole=False)
            del state.outbox[: len(notices)]
            for notice, outcome in zip(notices, outcomes, strict=True):
                if isinstance(outcome, Appended) and not outcome.repeated:
                    self.published[notice.event_type, notice.status] += 1
        self._saved_at = 0  # soon, so that they are not tried again after a restart

    async def _save(self, state: State) -> None:
        now = self._clock() // SECOND
        content = msgspec.json.encode(state)  # here, where nobody changes it meanwhile
        digest = blake2b(content).digest()
        if digest == self._saved:
            await asyncio.to_thread(self._file.touch, now)
        else:
            await asyncio.to_thread(self._file.save, content, now)
        self._saved, self._saved_at = digest, now

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            logger.warning(
                "late notifications cannot be detected now: %s", sentence, extra={"event": "lateness.watch.waiting"}
            )


def _key(notice: Notice) -> Key:
    """Return the key of one notice: the same for every server and after every restart."""
    parts = (NAME, notice.event_type, notice.combination, notice.day, notice.status)
    name = blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()
    return Key(name, name)  # whatever else it says: it is said once
