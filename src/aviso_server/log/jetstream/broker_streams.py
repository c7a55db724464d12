"""Streams on a broker: find them, create them, bring them in line with the configuration, remove what is archived."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from aviso_server.errors import LogError, StreamUnusable
from aviso_server.log.base import Archived, HeldBack, StoragePolicy, StreamState, exceeded, has_limits, horizon
from aviso_server.log.jetstream.client import NAME_IN_USE, NO_STREAM, BrokerOptions, BrokerRefusal, Connection
from aviso_server.log.jetstream.wire import time_of
from aviso_server.model.notification import Notification

if TYPE_CHECKING:
    from aviso_server.log.jetstream.reader import BrokerReader

__all__ = ["BrokerRetention", "StreamInfo", "Streams", "weaknesses"]

logger = logging.getLogger(__name__)


def policy_of(given: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """Return the policy of a stream: the backend's settings apply where its event type has none."""
    return StoragePolicy(
        retention_ns=_first(given.retention_ns, options.retention_time),
        max_messages=_first(given.max_messages, options.max_messages),
        max_bytes=_first(given.max_bytes, options.max_bytes),
        allow_duplicates=bool(given.allow_duplicates),
        compression=given.compression,
    )


def waiting_part(policy: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """Return the part of a policy that removes notifications, which waits for the archive if there is one.

    Under the discard policy `new` a number or a size removes nothing: it keeps new notifications out.
    """
    if options.discard_policy == "old":
        return policy
    return msgspec.structs.replace(policy, max_messages=None, max_bytes=None)


def broker_part(policy: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """Return the rest of a policy, which the broker may apply by itself."""
    if options.discard_policy == "old":
        return StoragePolicy(allow_duplicates=True, compression=policy.compression)
    return msgspec.structs.replace(policy, retention_ns=None, allow_duplicates=True)


def limits_of(policy: StoragePolicy) -> dict[str, int]:
    """Write a policy as the limits of a stream."""
    return {
        "max_msgs_per_subject": -1 if policy.allow_duplicates else 1,
        "max_msgs": -1 if policy.max_messages is None else policy.max_messages,
        "max_bytes": -1 if policy.max_bytes is None else policy.max_bytes,
        "max_age": policy.retention_ns or 0,
    }


def keeps_latest_only(config: Mapping[str, Any]) -> bool:
    """Return whether the broker removes all but the newest of each subject."""
    return bool(config.get("max_msgs_per_subject", -1) > 0)


def is_limited(config: Mapping[str, Any]) -> bool:
    """Return whether the broker keeps to a number, a size or an age."""
    return bool(max(config.get("max_msgs", -1), config.get("max_bytes", -1), config.get("max_age", 0)) > 0)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


_ATOMIC_LEVEL = 3  # older ones refuse message ids in a batch
_BATCH_LEVEL = 1
_LIMITS = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
_RECONCILED = ("subjects", *_LIMITS, "num_replicas", "compression", "discard", "retention")
_OURS = ("allow_direct", "allow_atomic")
_THINNED = "aviso_thinned_through"  # in the metadata of a stream that has, or had, only the newest of each topic
_KEEP = StoragePolicy()


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as the broker has it."""

    name: str
    created: str  # tells a stream from another one of the same name that replaced it
    first: int
    last: int
    count: int
    bytes: int
    subjects: int  # different ones
    first_time: int  # when the oldest was stored; 0 if there is none
    latest_only: bool  # older notifications of a topic give way to newer ones
    limited: bool  # by number, size or age
    replicas: int
    storage: str  # file or memory
    atomic: bool  # takes several notifications as one
    direct: bool  # can be read in batches without a consumer
    window: int  # nanoseconds during which the broker recognises a message id
    now: int  # the broker's time when it said so
    ignores_archive: bool  # somebody gave it limits that do not wait for the archive
    thinned: int | None  # up to here, or if archived, single ones may be missing; None if there never was a reason


class Streams:
    """Knows which streams were seen already; `bases` are the topic bases that are configured."""

    def __init__(
        self,
        connection: Connection,
        options: BrokerOptions,
        policies: Mapping[str, StoragePolicy],
        bases: frozenset[str],
        archived: Archived | None = None,
    ) -> None:
        self._connection = connection
        self._options = options
        self._policies = {base.lower(): policy for base, policy in policies.items()}
        self._bases = bases
        self._archived = archived  # with an archive the broker removes nothing by itself
        self._known: dict[str, StreamInfo] = {}
        self._making: dict[str, asyncio.Task[StreamInfo]] = {}
        self._highest: dict[str, int] = {}  # the newest sequence ever seen here
        self._wiped: dict[str, int] = {}  # up to here an administrator has emptied it

    async def ensure(self, base: str) -> StreamInfo:
        """Return the stream of a topic base, made or brought in line at its first use here. Its numbers may be old."""
        known = self._known.get(base)
        if known is not None:
            return known
        making = self._making.get(base)
        if making is None:
            making = self._making[base] = asyncio.create_task(self._make(base))
            making.add_done_callback(lambda _: self._making.pop(base, None))
        return await asyncio.shield(making)

    async def look(self, base: str) -> StreamInfo:
        """Return the stream as it is now; create it if it is not there."""
        if base not in self._known:
            return await self.ensure(base)
        found = await self.find(base)
        if found is None:
            self.forget(base, "the stream is gone from the broker")
        elif found.storage != self._options.storage_type or found.replicas < (self._options.replicas or 1):
            self.forget(base, "the stream keeps less than the configuration asks for")
        else:
            return found
        return await self.ensure(base)

    async def find(self, base: str) -> StreamInfo | None:
        """Return the stream as it is now; None if it is not there."""
        try:
            return self._read(base, await self._connection.api(f"STREAM.INFO.{base.upper()}"))
        except BrokerRefusal as error:
            if error.code == NO_STREAM:
                return None
            raise

    @property
    def used(self) -> Sequence[str]:
        """The topic bases whose streams this server has used."""
        return list(self._known)

    async def take_up(self) -> None:
        """Bring those streams in line that are there and whose topic base is configured."""
        for base in await self.all():
            if base in self._bases:
                try:
                    await self.ensure(base)
                except StreamUnusable as error:
                    extra = {"event": "backend.jetstream.stream.unusable", "stream": base}
                    logger.error("stream %s cannot be used: %s", base.upper(), error, extra=extra)

    async def unusable(self) -> list[str]:
        """Return why streams that are on the broker already cannot be used, as far as a look can tell."""
        try:
            found = await self.all()
        except LogError:
            return []  # whoever uses a stream gets the error
        problems = [
            self._storage_problem(info.name, info.storage) for base, info in found.items() if base in self._bases
        ]
        return [problem for problem in problems if problem is not None]

    async def bring_in_line(self, base: str) -> StreamInfo:
        self._known.pop(base, None)
        return await self.ensure(base)

    def waiting_policy(self, base: str) -> StoragePolicy:
        """Return the part of the stream's policy that removes notifications."""
        return waiting_part(self._policy(base), self._options)

    def forget(self, base: str, reason: str) -> None:
        """Forget the stream; its next use looks at it again."""
        if self._known.pop(base, None) is not None:
            logger.error(
                "stream %s: %s",
                base.upper(),
                reason,
                extra={"event": "backend.jetstream.stream.missing", "stream": base},
            )

    def note(self, base: str, sequence: int) -> None:
        """Record a sequence that was given out: should the stream vanish, its successor continues after it."""
        if sequence > self._highest.get(base, 0):
            self._highest[base] = sequence

    def newest(self, base: str) -> int:
        return self._highest.get(base, 0)

    def wiped(self, base: str, sequence: int) -> None:
        """Record that an administrator removed everything up to this sequence."""
        self._wiped[base] = max(self._wiped.get(base, 0), sequence)

    def state(self, base: str, info: StreamInfo) -> StreamState:
        """Return what the stream holds, in the terms of the log.

        A broker does not say why a notification is gone. So in a stream with limits everything missing counts as
        trimmed, except what was wiped through this server; in a stream without, nothing does. With an archive
        everything counts: there may have been limits, and what they removed is in the archive.
        """
        gone = info.first - 1
        if info.count < info.last - gone and (info.latest_only or info.thinned is not None):
            gone = max(gone, min(info.last - 1, self._thinned_through(base, info)))
        counts = info.limited or info.latest_only or self._archived is not None
        trimmed = gone if counts and gone > self._wiped.get(base, 0) else 0
        return StreamState(info.first, info.last, info.count, info.bytes, trimmed)

    def _thinned_through(self, base: str, info: StreamInfo) -> int:
        """Return up to where single notifications may be missing because there were newer ones of their topics."""
        if self._archived is None or info.ignores_archive:
            return info.last
        archived = self._archived(base)
        return max(archived, info.thinned or 0) if archived else info.last  # soon after a start nobody knows

    async def all(self) -> dict[str, StreamInfo]:
        """Return the streams of topic bases that ever held a notification; others on the broker are not ours."""
        found: dict[str, StreamInfo] = {}
        offset = 0
        while True:
            page = await self._connection.api("STREAM.LIST", {"offset": offset})
            streams = page.get("streams") or []
            for entry in streams:
                base = base_of(entry["config"])
                if base is not None and entry["state"]["last_seq"]:
                    found[base] = self._read(base, entry)
            offset += len(streams)
            if not streams or offset >= page.get("total", 0):
                return found

    async def _make(self, base: str) -> StreamInfo:
        name, wanted = base.upper(), self._wanted(base)
        try:
            found = await self._connection.api(f"STREAM.INFO.{name}")
        except BrokerRefusal as error:
            if error.code != NO_STREAM:
                raise
            found = await self._create(base, name, wanted)
        if not found.get("did_create"):
            found = await self._reconcile(base, found, wanted)
        info = self._known[base] = self._read(base, found)
        return info

    async def _create(self, base: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        last = self._highest.get(base, 0)
        if last:
            logger.error(
                "stream %s was deleted; it is created again and continues at %d",
                name,
                last + 1,
                extra={"event": "backend.jetstream.stream.deleted", "stream": base},
            )
            wanted = {**wanted, "first_seq": last + 1}
        if self._archived is not None and not self.waiting_policy(base).allow_duplicates:
            wanted = {**wanted, "metadata": {_THINNED: "0"}}
        try:
            made = await self._connection.api(f"STREAM.CREATE.{name}", {"name": name, **wanted})
        except BrokerRefusal as error:
            if error.code != NAME_IN_USE:
                raise LogError(f"stream {name} cannot be made: {error}") from error
            return await self._connection.api(f"STREAM.INFO.{name}")
        logger.info(
            "stream %s made", name, extra={"event": "backend.jetstream.stream.create.succeeded", "stream": base}
        )
        return {**made, "did_create": True}

    async def _reconcile(self, base: str, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        """Update the stream to what the configuration asks for; LogError if it cannot be had.

        Whoever uses the stream gets that error: nothing is acknowledged under weaker terms than configured.
        """
        config = found["config"]
        if config.get("subjects") != wanted["subjects"] and base_of(config) is not None and base not in self._bases:
            raise LogError(f"stream {config['name']} belongs to topic base '{base_of(config)}', not to '{base}'")
        problem = self._storage_problem(config["name"], config.get("storage"))
        if problem is not None:
            raise StreamUnusable(problem)
        asked = {key: wanted[key] for key in _RECONCILED if key in wanted and config.get(key) != wanted[key]}
        if self._archived is not None:
            asked |= self._mark(base, config, found["state"]["last_seq"])
        ours = {key: wanted[key] for key in _OURS if key in wanted and config.get(key) != wanted[key]}
        for attempt in [asked | ours, asked] if ours else [asked]:
            if not attempt:
                break
            updated = {**config, **attempt}
            if 0 < updated.get("max_age", 0) < updated.get("duplicate_window", 0):
                updated["duplicate_window"] = updated["max_age"]
            extra = {"stream": base, "changes": ", ".join(attempt)}
            try:
                answer = await self._connection.api(f"STREAM.UPDATE.{config['name']}", updated)
            except BrokerRefusal as error:
                event = "backend.jetstream.stream.reconcile.failed"
                logger.warning("stream %s stays as it is: %s", config["name"], error, extra={"event": event, **extra})
                if attempt is asked:
                    raise StreamUnusable(
                        f"stream {config['name']} is not as configured ({', '.join(asked)}), and the broker refuses to "
                        f"change it: {error.description} ({error.code})"
                    ) from error
                continue
            event = "backend.jetstream.stream.reconcile.succeeded"
            logger.info("stream %s brought in line", config["name"], extra={"event": event, **extra})
            return answer
        return found

    def _storage_problem(self, name: str, storage: str | None) -> str | None:
        wanted = self._options.storage_type
        if storage == wanted:
            return None
        return (
            f"stream {name}: storage mismatch: the broker keeps it in {storage} storage and storage_type is {wanted}; "
            "a broker cannot move a stream, so change storage_type, or delete the stream on the broker"
        )

    def _mark(self, base: str, config: Mapping[str, Any], last: int) -> dict[str, Any]:
        """Return what to note on a stream with an archive, of which single notifications are or will be missing."""
        metadata: dict[str, str] = config.get("metadata") or {}
        if keeps_latest_only(config):
            return {"metadata": {**metadata, _THINNED: str(last)}}
        if self.waiting_policy(base).allow_duplicates or _THINNED in metadata:
            return {}
        return {"metadata": {**metadata, _THINNED: "0"}}

    def _policy(self, base: str) -> StoragePolicy:
        return policy_of(self._policies.get(base.lower(), _KEEP), self._options)

    def _limits(self, base: str) -> dict[str, int]:
        """Return the limits that the broker is to apply."""
        policy = self._policy(base)
        return limits_of(policy if self._archived is None else broker_part(policy, self._options))

    def _wanted(self, base: str) -> dict[str, Any]:
        options, compression = self._options, self._policy(base).compression
        wanted: dict[str, Any] = {
            "subjects": [f"{base}.>"],
            "storage": options.storage_type,
            "retention": options.retention_policy,
            "discard": options.discard_policy,
            **self._limits(base),
            "allow_direct": True,
        }
        if options.replicas:
            wanted["num_replicas"] = options.replicas
        if compression is not None:
            wanted["compression"] = "s2" if compression else "none"
        if self._connection.level >= _ATOMIC_LEVEL:
            wanted["allow_atomic"] = True
        return wanted

    def _read(self, base: str, found: Mapping[str, Any]) -> StreamInfo:
        config, state = found["config"], found["state"]
        last, count = state["last_seq"], state["messages"]
        self.note(base, last)
        metadata, latest_only, limited, ignores_archive = config.get("metadata") or {}, False, False, False
        if self._archived is not None:
            policy = self.waiting_policy(base)
            latest_only, limited = not policy.allow_duplicates, is_limited(limits_of(policy))
            ignores_archive = any(config.get(key) != limit for key, limit in self._limits(base).items())
        info = StreamInfo(
            name=config["name"],
            created=found.get("created", ""),
            first=state["first_seq"] if count else last + 1,
            last=last,
            count=count,
            bytes=state["bytes"],
            subjects=state.get("num_subjects", 0),
            first_time=time_of(state["first_ts"].encode()) if count else 0,
            latest_only=latest_only or keeps_latest_only(config),
            limited=limited or is_limited(config),
            replicas=config.get("num_replicas", 1),
            storage=config.get("storage", "file"),
            atomic=bool(config.get("allow_atomic")),
            direct=bool(config.get("allow_direct")) and self._connection.level >= _BATCH_LEVEL,
            window=config.get("duplicate_window", 0),
            now=time_of(found["ts"].encode()) if "ts" in found else time.time_ns(),
            ignores_archive=ignores_archive,
            thinned=int(metadata[_THINNED]) if self._archived is not None and _THINNED in metadata else None,
        )
        if base in self._known:
            self._known[base] = info
        return info


def base_of(config: Mapping[str, Any]) -> str | None:
    """Return the topic base a stream was made for; None if it was made for something else."""
    subjects = config.get("subjects") or []
    if len(subjects) != 1 or not subjects[0].endswith(".>"):
        return None
    base: str = subjects[0][:-2]
    return base if base and base.upper() == config["name"] and "." not in base else None


def weaknesses(options: BrokerOptions) -> list[str]:
    """List what the settings make weaker."""
    found = []
    if options.storage_type == "memory":
        found.append("streams are kept in memory: notifications are gone when the brokers that hold them restart")
    if (options.replicas or 1) < 3:
        found.append(
            f"streams have {options.replicas or 1} replica(s): an acknowledged notification can be lost with one "
            "broker; on a cluster set notification_backend.jetstream.replicas to 3"
        )
        if options.storage_type == "file":
            found.append(
                "a broker writes to disk every two minutes unless its own jetstream.sync_interval says otherwise: with "
                "fewer than 3 replicas set it to 'always', or a power failure takes acknowledged notifications along"
            )
    if options.retention_policy != "limits":
        found.append(
            f"retention policy '{options.retention_policy}' removes notifications once they were delivered: "
            "history and several servers need 'limits'"
        )
    return found


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
        return self._held_back.streams

    def start(self) -> None:
        """Begin, with the streams that are there already."""
        self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
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
            keep = max(keep, (await self._reader.around(base, oldest))[1])
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
        newest = await self._connection.message(info.name, last_by_subj=subject)
        if newest is not None and (keep := min(int(newest["seq"]), through + 1)) > info.first:
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
