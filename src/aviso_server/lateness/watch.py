"""The watch: follows the event types that are expected, and publishes what is overdue and what arrived after all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from aviso_server.delivery.history import History
from aviso_server.errors import LogError
from aviso_server.lateness.following import Following
from aviso_server.lateness.model_files import ModelFiles
from aviso_server.lateness.state_file import State, StateFile
from aviso_server.log.base import Appended, Key, Keyed, Log
from aviso_server.model.lateness.judge import Book, Judge
from aviso_server.model.lateness.notice import NAME, Notice, Status
from aviso_server.model.lateness.watched import Watched
from aviso_server.model.schema import EventType
from aviso_server.model.timestamp import SECOND, seconds_text

__all__ = ["Watch"]

logger = logging.getLogger(__name__)

_GLANCE = 1.0  # seconds between two judgements
_MARGIN = 2  # seconds until everything that is stored has come to our ears
_BETWEEN_SAVES = 30  # seconds; what is decided is saved at once
_AT_ONCE = 500  # notices that are published together
_MOST_SHOWN = 100


class Watch:
    """Judges what is expected of some event types, and says so in the stream of `aviso_lateness`.

    What is decided is written down before it is published, and published under a key of its own: whatever happens in
    between, it is published once. Several servers with one log come to the same keys.
    """

    def __init__(
        self,
        watched: Sequence[tuple[Watched, EventType]],
        log: Log,
        history: History,
        models: ModelFiles,
        file: StateFile,
        clock: Callable[[], int],
    ) -> None:
        self.published: defaultdict[tuple[str, Status], int] = defaultdict(int)  # by event type
        self.judges: dict[str, Judge] = {}
        self._watched = watched
        self._log = log
        self._history = history
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
        """Begin to watch."""
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

    def describe(self) -> dict[str, Any]:
        """What is expected and what of it is overdue, for an operator."""
        judges = self.judges.values()
        learned = [judge.learned.learned_at for judge in judges if judge.learned is not None]
        overdue = sorted((notice for judge in judges for notice in judge.overdue), key=lambda each: each.overdue_at)
        return {
            "learned_at": seconds_text(min(learned)) if learned else None,
            "watched": sum(judge.watching for judge in judges),
            "overdue_count": len(overdue),
            "overdue": [
                {
                    "event_type": each.event_type,
                    "combination": each.combination,
                    "expected_at": seconds_text(each.expected_at),
                    "since": seconds_text(each.overdue_at),
                }
                for each in overdue[:_MOST_SHOWN]
            ],
        }

    async def step(self) -> None:
        """Look, judge and publish once; LogError if that has to wait."""
        now = self._clock() // SECOND
        state = await self._opened(now)
        for learned in await asyncio.to_thread(lambda: list(self._models.changed())):
            self.judges[learned.event_type].learn(learned, now)
            self._saved_at = 0  # from when on something is watched must not be forgotten
        failure: LogError | None = None
        for name, judge in self.judges.items():
            if judge.learned is None:
                continue  # what arrives now is read when it is known what to look for
            try:
                await self._following[name].catch_up(now)
            except LogError as error:
                failure = error
                continue
            if now >= self._quiet_until.get(name, 0):
                state.outbox += judge.due(now - _MARGIN)
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
            judge = Judge(watched, state.books.setdefault(watched.event_type, Book()))
            self.judges[watched.event_type] = judge
            self._following[watched.event_type] = Following(
                judge, self._log, self._history, event_type, state.outbox.append
            )
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
            outcomes = await self._log.append_keyed(entries, whole=False)
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
                "late notifications cannot be judged now: %s", sentence, extra={"event": "lateness.watch.waiting"}
            )


def _key(notice: Notice) -> Key:
    """The key of one notice: the same for every server and after every restart."""
    parts = (NAME, notice.event_type, notice.combination, notice.day, notice.status)
    name = blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()
    return Key(name, name)  # whatever else it says: it is said once
