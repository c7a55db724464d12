"""The streams on the broker: made on first use, kept as the configuration wants them, and what they hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aviso_server.errors import LogError
from aviso_server.log.base import StoragePolicy, StreamState
from aviso_server.log.jetstream.connection import Connection, Refused
from aviso_server.log.jetstream.limits import (
    broker_part,
    is_limited,
    keeps_latest_only,
    limits_of,
    policy_of,
    waiting_part,
)
from aviso_server.log.jetstream.options import BrokerOptions
from aviso_server.log.jetstream.wire import time_of
from aviso_server.log.retention import Archived

__all__ = ["NAME_IN_USE", "NO_MESSAGE", "NO_STREAM", "StreamInfo", "Streams", "base_of"]

logger = logging.getLogger(__name__)

NO_STREAM = 10059
NO_MESSAGE = 10037
NAME_IN_USE = 10058

_ATOMIC_LEVEL = 3  # older ones refuse message ids in a batch
_BATCH_LEVEL = 1
_LIMITS = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
_RECONCILED = (
    "subjects",
    *_LIMITS,
    "num_replicas",
    "compression",
    "discard",
    "retention",
)
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
    in_memory: bool
    atomic: bool  # takes several notifications as one
    direct: bool  # can be read in batches without a consumer
    window: int  # nanoseconds during which the broker recognises a message id
    now: int  # the broker's time when it said so
    hasty: bool  # somebody gave it limits that do not wait for the archive
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
        """The stream of a topic base, made or brought in line if this is its first use here. Its numbers may be old."""
        known = self._known.get(base)
        if known is not None:
            return known
        making = self._making.get(base)
        if making is None:
            making = self._making[base] = asyncio.create_task(self._make(base))
            making.add_done_callback(lambda _: self._making.pop(base, None))
        return await asyncio.shield(making)

    async def look(self, base: str) -> StreamInfo:
        """The stream as it is now; it is made if it is not there."""
        if base not in self._known:
            return await self.ensure(base)
        found = await self.find(base)
        if found is None:
            self.forget(base, "the stream is gone from the broker")
            return await self.ensure(base)
        return found

    async def find(self, base: str) -> StreamInfo | None:
        """The stream as it is now, None if it is not there."""
        try:
            return self._read(base, await self._connection.api(f"STREAM.INFO.{base.upper()}"))
        except Refused as error:
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
                await self.ensure(base)

    async def bring_in_line(self, base: str) -> StreamInfo:
        """The stream after another look at how the configuration wants it."""
        self._known.pop(base, None)
        return await self.ensure(base)

    def waiting_policy(self, base: str) -> StoragePolicy:
        """What of the stream's policy removes notifications."""
        return waiting_part(self._policy(base), self._options)

    def forget(self, base: str, reason: str) -> None:
        """Look at the stream anew at its next use."""
        if self._known.pop(base, None) is not None:
            logger.error(
                "stream %s: %s",
                base.upper(),
                reason,
                extra={"event": "backend.jetstream.stream.missing", "stream": base},
            )

    def note(self, base: str, sequence: int) -> None:
        """This sequence was given out: should the stream vanish, its successor goes on after it."""
        if sequence > self._highest.get(base, 0):
            self._highest[base] = sequence

    def newest(self, base: str) -> int:
        """The newest sequence ever seen here."""
        return self._highest.get(base, 0)

    def wiped(self, base: str, sequence: int) -> None:
        """Everything up to this sequence was removed by an administrator."""
        self._wiped[base] = max(self._wiped.get(base, 0), sequence)

    def state(self, base: str, info: StreamInfo) -> StreamState:
        """What the stream holds, in the terms of the log.

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
        """Up to where single notifications may be missing because there were newer ones of their topics."""
        if self._archived is None or info.hasty:
            return info.last
        archived = self._archived(base)
        return max(archived, info.thinned or 0) if archived else info.last  # soon after a start nobody knows

    async def all(self) -> dict[str, StreamInfo]:
        """The streams of topic bases that ever held a notification; others on the broker are not ours."""
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
        except Refused as error:
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
                "stream %s was deleted; it is made again and goes on at %d",
                name,
                last + 1,
                extra={"event": "backend.jetstream.stream.deleted", "stream": base},
            )
            wanted = {**wanted, "first_seq": last + 1}
        if self._archived is not None and not self.waiting_policy(base).allow_duplicates:
            wanted = {**wanted, "metadata": {_THINNED: "0"}}
        try:
            made = await self._connection.api(f"STREAM.CREATE.{name}", {"name": name, **wanted})
        except Refused as error:
            if error.code != NAME_IN_USE:
                raise LogError(f"stream {name} cannot be made: {error}") from error
            return await self._connection.api(f"STREAM.INFO.{name}")
        logger.info(
            "stream %s made", name, extra={"event": "backend.jetstream.stream.create.succeeded", "stream": base}
        )
        return {**made, "did_create": True}

    async def _reconcile(self, base: str, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        config = found["config"]
        if config.get("subjects") != wanted["subjects"] and base_of(config) is not None and base not in self._bases:
            raise LogError(f"stream {config['name']} belongs to topic base '{base_of(config)}', not to '{base}'")
        changes = {
            key: wanted[key] for key in (*_RECONCILED, *_OURS) if key in wanted and config.get(key) != wanted[key]
        }
        attempts = [changes, {key: value for key, value in changes.items() if key in _OURS}]
        if self._archived is not None:
            mark = self._mark(base, config, found["state"]["last_seq"])
            limits = {key: value for key, value in changes.items() if key in _LIMITS}
            attempts = [changes | mark, limits | mark, attempts[1]]
        for place, attempt in enumerate(attempts):
            if not attempt or attempt in attempts[:place]:
                continue
            updated = {**config, **attempt}
            if 0 < updated.get("max_age", 0) < updated.get("duplicate_window", 0):
                updated["duplicate_window"] = updated["max_age"]
            extra = {"stream": base, "changes": ", ".join(attempt)}
            try:
                answer = await self._connection.api(f"STREAM.UPDATE.{config['name']}", updated)
            except Refused as error:
                event = "backend.jetstream.stream.reconcile.failed"
                logger.warning("stream %s stays as it is: %s", config["name"], error, extra={"event": event, **extra})
                continue
            event = "backend.jetstream.stream.reconcile.succeeded"
            logger.info("stream %s brought in line", config["name"], extra={"event": event, **extra})
            return answer
        return found

    def _mark(self, base: str, config: Mapping[str, Any], last: int) -> dict[str, Any]:
        """What to note on a stream with an archive, of which single notifications are or will be missing."""
        metadata: dict[str, str] = config.get("metadata") or {}
        if keeps_latest_only(config):
            return {"metadata": {**metadata, _THINNED: str(last)}}
        if self.waiting_policy(base).allow_duplicates or _THINNED in metadata:
            return {}
        return {"metadata": {**metadata, _THINNED: "0"}}

    def _policy(self, base: str) -> StoragePolicy:
        return policy_of(self._policies.get(base.lower(), _KEEP), self._options)

    def _limits(self, base: str) -> dict[str, int]:
        """The limits that the broker is to apply."""
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
        metadata, latest_only, limited, hasty = config.get("metadata") or {}, False, False, False
        if self._archived is not None:
            policy = self.waiting_policy(base)
            latest_only, limited = not policy.allow_duplicates, is_limited(limits_of(policy))
            hasty = any(config.get(key) != limit for key, limit in self._limits(base).items())
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
            in_memory=config.get("storage") == "memory",
            atomic=bool(config.get("allow_atomic")),
            direct=bool(config.get("allow_direct")) and self._connection.level >= _BATCH_LEVEL,
            window=config.get("duplicate_window", 0),
            now=time_of(found["ts"].encode()) if "ts" in found else time.time_ns(),
            hasty=hasty,
            thinned=int(metadata[_THINNED]) if self._archived is not None and _THINNED in metadata else None,
        )
        if base in self._known:
            self._known[base] = info
        return info


def base_of(config: Mapping[str, Any]) -> str | None:
    """The topic base a stream was made for, None if it was made for something else."""
    subjects = config.get("subjects") or []
    if len(subjects) != 1 or not subjects[0].endswith(".>"):
        return None
    base: str = subjects[0][:-2]
    return base if base and base.upper() == config["name"] and "." not in base else None
