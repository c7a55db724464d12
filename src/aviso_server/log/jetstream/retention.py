"""Retention on a broker with an archive behind it: the server removes what is archived, the broker removes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from aviso_server.errors import LogError
from aviso_server.log.base import Archived, HeldBack, StoragePolicy, exceeded, has_limits, horizon
from aviso_server.log.jetstream.broker_streams import NO_MESSAGE, StreamInfo, Streams
from aviso_server.log.jetstream.client import BrokerRefusal, Connection
from aviso_server.log.jetstream.reader import BrokerReader
from aviso_server.model.notification import Notification

__all__ = ["BrokerRetention"]

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
QUIET_SECONDS = 10.0  # between two looks at a stream in which nothing seems to have happened
STEP = 20_000  # sequences that leave at a time, so that publishers never wait long
TOPICS = 1000  # that are thinned out at a time
_PAUSE = 0.02  # seconds between two steps
_AT_ONCE = 32  # requests under way
_MEASURED = 500  # notifications whose sizes are looked at in one step


class _Seen(msgspec.Struct, frozen=True):
    """A stream when it was looked at last."""

    archived: int
    newest: int
    expires: int | None  # when the oldest does
    at: float  # monotonic seconds


class _Thinning(msgspec.Struct, frozen=True):
    """A position in a pass over the topics of a stream."""

    began: tuple[int, int]  # how far archive and stream were then
    page: int = 0
    after: str = ""  # the last topic that was looked at


class BrokerRetention:
    """Applies storage policies a little at a time, beside the publishers and never ahead of the archive.

    Several servers may do so for one stream: what is gone already cannot be removed a second time. `handed_on` tells
    up to where the followers of this process have a stream, 0 if it has none: they are not overtaken either.
    """

    def __init__(
        self,
        connection: Connection,
        streams: Streams,
        reader: BrokerReader,
        archived: Archived,
        patience: int,
        handed_on: Callable[[str], int],
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._reader = reader
        self._archived = archived
        self._patience = patience
        self._handed_on = handed_on
        self._held_back = HeldBack("jetstream")
        self._seen: dict[str, _Seen] = {}
        self._thinning: dict[str, _Thinning] = {}
        self._thinned: dict[str, tuple[int, int]] = {}  # how far archive and stream were when it began last
        self._ignoring_archive: set[str] = set()  # streams whose limits were to be taken off
        self._failing: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def held_back(self) -> frozenset[str]:
        """The streams that have waited long for the archive."""
        return self._held_back.streams

    def start(self) -> None:
        """Begin, with the streams that are there already."""
        self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
        """Stop removing notifications."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        taken_up = False
        while True:
            more = False
            taken_up = taken_up or await self._taken_up()
            for base in self._streams.used:
                more = await self._tidied(base) or more
            await asyncio.sleep(_PAUSE if more else SWEEP_SECONDS)

    async def _taken_up(self) -> bool:
        """Take limits off that are from before there was an archive; False if that is to be tried again."""
        try:
            await self._streams.take_up()
        except LogError as error:
            logger.info("streams cannot be looked at yet: %s", error)
        except Exception:  # whatever it is, the streams that are used are looked after
            logger.exception("streams cannot be looked at")
        else:
            return True
        return False

    async def _tidied(self, base: str) -> bool:
        """Look after one stream if there may be something to do; True if more may be left."""
        try:
            more = await self._sweep(base) if self._is_due(base) else False
        except LogError as error:
            self._thinning.pop(base, None)  # from the start next time
            if base not in self._failing and self._connection.connected:
                self._failing.add(base)
                logger.warning(
                    "archived notifications of stream %s cannot be removed: %s",
                    base,
                    error,
                    extra={"event": "backend.jetstream.retention.failed", "stream": base},
                )
        except Exception:  # whatever it is, the other streams are looked after
            logger.exception("stream %s: retention failed", base)
        else:
            self._failing.discard(base)
            return more
        return False

    def _is_due(self, base: str) -> bool:
        seen = self._seen.get(base)
        if seen is None or time.monotonic() - seen.at >= QUIET_SECONDS:
            return True
        if not has_limits(self._streams.waiting_policy(base)):
            return False
        moved = (self._archived(base), self._streams.newest(base)) != (seen.archived, seen.newest)
        return moved or (seen.expires is not None and seen.expires <= time.time_ns())

    async def _sweep(self, base: str) -> bool:
        archived, handed_on = self._archived(base), self._handed_on(base)  # both before what the stream is compared to
        info = await self._streams.find(base)
        if info is None:
            return False
        if not info.ignores_archive:
            self._ignoring_archive.discard(base)
        elif base not in self._ignoring_archive:
            info = await self._remove_limits(base)
        policy = self._streams.waiting_policy(base)
        expires = None if policy.retention_ns is None or not info.count else info.first_time + policy.retention_ns
        self._seen[base] = _Seen(archived, info.last, expires, time.monotonic())
        if not has_limits(policy) or not info.count:
            self._held_back.note(base, False)
            return False
        if archived > info.last:
            archived = 0  # another stream was archived under this name
        oldest = horizon(policy, info.now)
        beyond = exceeded(policy, info.count, info.bytes) or (oldest is not None and info.first_time < oldest)
        self._held_back.note(base, beyond and info.first > archived and info.now - info.first_time > self._patience)
        through = min(archived, handed_on) if handed_on else archived
        if info.first > through:
            return False
        if beyond and await self._trim_archived(base, info, policy, through):
            return True
        return not policy.allow_duplicates and await self._thin_out(base, info, through)

    async def _remove_limits(self, base: str) -> StreamInfo:
        """Take limits off that a server without an archive, or somebody else, has put on the stream."""
        self._ignoring_archive.add(base)
        logger.warning(
            "stream %s was given limits that do not wait for the archive; they are taken off",
            base,
            extra={"event": "backend.jetstream.retention.limited", "stream": base},
        )
        return await self._streams.bring_in_line(base)

    async def _trim_archived(self, base: str, info: StreamInfo, policy: StoragePolicy, through: int) -> bool:
        """Remove some of the oldest that the policy does not keep; True if more may be left.

        Between the oldest and the newest some may be missing, so a range of sequences holds at most as many as it is
        long: rather a few too many are kept for a moment than one too few.
        """
        keep = info.first
        if policy.max_messages is not None:
            keep = max(keep, info.first + info.count - policy.max_messages)
        if policy.max_bytes is not None and info.bytes > policy.max_bytes:
            keep = max(keep, await self._after_bytes(base, info, info.bytes - policy.max_bytes))
        oldest = horizon(policy, info.now)
        if oldest is not None and info.first_time < oldest and keep <= through:
            keep = max(keep, await self._reader.first_since(base, oldest))
        keep = min(keep, through + 1, info.first + STEP)
        if keep <= info.first:
            return False
        await self._connection.api(f"STREAM.PURGE.{info.name}", {"seq": keep})
        self._seen.pop(base, None)
        return keep <= through and keep - info.first >= _MEASURED

    async def _after_bytes(self, base: str, info: StreamInfo, excess: int) -> int:
        """Return the sequence after as many of the oldest as take up no more than so many bytes, and one more."""
        keep = info.first
        batch = await self._reader.read(base, info.first, info.first + STEP, _MEASURED)
        for one in batch.notifications:
            if excess <= 0:
                break
            excess -= _largest_size(one)
            keep = one.sequence + 1
        return keep

    async def _thin_out(self, base: str, info: StreamInfo, through: int) -> bool:
        """Remove what newer notifications of the same topics have superseded; True if more may be left."""
        way = self._thinning.get(base)
        if way is None:
            way = _Thinning((through, info.last))
            if info.count <= info.subjects or self._thinned.get(base) == way.began:
                return False
        request = {"subjects_filter": ">", "offset": way.page}
        answer = await self._connection.api(f"STREAM.INFO.{info.name}", request)
        found: dict[str, int] = answer["state"].get("subjects") or {}
        repeated = sorted(each for each, count in found.items() if count > 1 and each > way.after and _is_literal(each))
        chosen = repeated[:TOPICS]
        for start in range(0, len(chosen), _AT_ONCE):
            several = chosen[start : start + _AT_ONCE]
            await asyncio.gather(*(self._supersede(info, subject, through) for subject in several))
        if len(repeated) > len(chosen):
            self._thinning[base] = _Thinning(way.began, way.page, chosen[-1])
        elif found and way.page + len(found) < answer.get("total", 0):
            self._thinning[base] = _Thinning(way.began, way.page + len(found))
        else:
            self._thinning.pop(base, None)
            self._thinned[base] = way.began
            return False
        self._seen.pop(base, None)
        return True

    async def _supersede(self, info: StreamInfo, subject: str, through: int) -> None:
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{info.name}", {"last_by_subj": subject})
        except BrokerRefusal as error:
            if error.code == NO_MESSAGE:
                return
            raise
        keep = min(int(answer["message"]["seq"]), through + 1)
        if keep > info.first:
            await self._connection.api(f"STREAM.PURGE.{info.name}", {"filter": subject, "seq": keep})


def _is_literal(subject: str) -> bool:
    """Return whether the subject stands for itself only when it is used as a filter."""
    return not {"*", ">"} & set(subject.split("."))


def _largest_size(one: Notification) -> int:
    """Bytes that a notification takes at the broker at most: nobody can ask for the exact number.

    The topic may be there a second time as a header, percent-encoded, and an area twice more than in the identifier.
    """
    areas = 0 if one.box is None else 2 * len(one.identifier) + 128
    return 4 * len(one.topic.encode()) + len(one.identifier) + areas + len(one.payload) + 512
