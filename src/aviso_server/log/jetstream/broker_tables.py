"""Tables on the broker: a stream that keeps the newest message of each subject, shared by all servers.

A message is stored only if the newest of its subject has the number that the writer names, so of several writers one
wins. Idempotency keys are kept like this, the records of subscriptions, and the lease to archive.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from aviso_server.errors import KeyInDoubt, KeyRefused, KeyReused, LogError, LogUnavailable
from aviso_server.log.base import Appended, Change, Key, Keyed, KeyPolicy, Record
from aviso_server.log.jetstream.broker_streams import StreamInfo, Streams
from aviso_server.log.jetstream.client import (
    NAME_IN_USE,
    NO_STREAM,
    BrokerOptions,
    BrokerRefusal,
    Connection,
    NotReached,
    Unanswered,
)
from aviso_server.log.jetstream.publisher import NotStored
from aviso_server.log.jetstream.wire import message_of, time_of
from aviso_server.model.notification import Draft, Notification

__all__ = ["BrokerLease", "BrokerRecords", "Claim", "Keys", "OncePublisher", "StoredMessage", "SubjectTable"]

logger = logging.getLogger(__name__)

_WRONG_LAST_SEQUENCE = 10071
_AT_ONCE = 1000
_ASKED_AT_ONCE = 128  # each question is a task of its own
_REMEMBERED = 3600 * 1_000_000_000  # nanoseconds that others have to see that a record was removed


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """The newest message of a subject."""

    name: str  # the subject without what all of the table have
    number: int  # in the stream
    time: int
    body: bytes


class SubjectTable:
    """The newest message of each subject below one; `what` is its content in words."""

    def __init__(
        self,
        connection: Connection,
        options: BrokerOptions,
        stream: str,
        subject: str,
        what: str,
        limits: Mapping[str, int],
    ) -> None:
        self._connection = connection
        self._options = options
        self._stream = stream
        self._subject = subject
        self._what = what
        self._limits = limits
        self._ready = False

    async def write(self, messages: Sequence[tuple[str, int, bytes]]) -> list[int | None]:
        """Store a message for each name, unless its last one is not the expected; the numbers of those stored."""
        numbers: list[int | None] = []
        for start in range(0, len(messages), _AT_ONCE):
            run = messages[start : start + _AT_ONCE]
            numbers += await self._connection.patiently(partial(self._send, run))
        return numbers

    async def get(self, name: str) -> StoredMessage | None:
        """Return the newest message of a name; one without a body counts."""
        return await self._ask(last_by_subj=f"{self._subject}.{name}")

    async def following(self, number: int, below: str = "") -> StoredMessage | None:
        """Return the first message from a number on, of the names that begin with the tokens `below`."""
        return await self._ask(seq=number, next_by_subj=f"{self._subject}.{below}>")

    async def remove(self, number: int) -> None:
        with suppress(BrokerRefusal):  # somebody else has
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": number, "no_erase": True})

    async def _ask(self, **which: Any) -> StoredMessage | None:
        try:
            message = await self._connection.message(self._stream, **which)
        except BrokerRefusal as error:
            if error.code != NO_STREAM:
                raise
            message = None
        if message is None:
            return None
        body = base64.b64decode(message.get("data") or "")
        name = message["subject"][len(self._subject) + 1 :]
        return StoredMessage(name, message["seq"], time_of(message["time"].encode()), body)

    async def _send(self, messages: Sequence[tuple[str, int, bytes]]) -> list[int | None]:
        await self.ensure()
        replies, answers, future = self._connection.expect_many(len(messages))
        try:
            for (name, expected, body), reply in zip(messages, replies, strict=True):
                headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
                await self._connection.publish(f"{self._subject}.{name}", body, reply, headers)
            await self._connection.wait(future)
        finally:
            future.cancel()
        return [self._number(*answer) for answer in answers if answer is not None]

    def _number(self, headers: bytes, answer: bytes) -> int | None:
        if headers.startswith(b"NATS/1.0 503"):
            self._ready = False
            raise NotReached(f"the broker does not take {self._what} now")
        decoded = msgspec.json.decode(answer)
        error = decoded.get("error")
        if error is None:
            number: int = decoded["seq"]
            return number
        if error.get("err_code") == _WRONG_LAST_SEQUENCE:
            return None
        raise Unanswered(f"the broker did not take {self._what}: {error.get('description', 'no reason given')}")

    async def ensure(self) -> None:
        """Make the stream, or bring it in line."""
        if self._ready:
            return
        options = self._options
        wanted: dict[str, Any] = {
            "name": self._stream,
            "subjects": [f"{self._subject}.>"],
            "storage": options.storage_type,
            "max_msgs_per_subject": 1,
            **self._limits,
        }
        if options.replicas:
            wanted["num_replicas"] = options.replicas
        try:
            found = await self._connection.api(f"STREAM.INFO.{self._stream}", patience=0)
        except BrokerRefusal as error:
            if error.code != NO_STREAM:
                raise
            await self._create(wanted)
        else:
            config = found["config"]
            if config.get("storage") != options.storage_type:
                raise LogError(
                    f"stream {self._stream}: storage mismatch: the broker keeps {self._what} in "
                    f"{config.get('storage')} storage and storage_type is {options.storage_type}; delete the stream "
                    "on the broker"
                )
            changes = {name: value for name, value in wanted.items() if name != "storage" and config.get(name) != value}
            if changes:
                updated = {**config, **changes}
                if updated.get("max_age"):
                    updated["duplicate_window"] = min(updated.get("duplicate_window", 0), updated["max_age"])
                await self._connection.api(f"STREAM.UPDATE.{self._stream}", updated, patience=0)
        self._ready = True

    async def _create(self, wanted: dict[str, Any]) -> None:
        try:
            await self._connection.api(f"STREAM.CREATE.{self._stream}", wanted, patience=0)
        except BrokerRefusal as error:
            if error.code != NAME_IN_USE:
                raise LogError(f"the stream for {self._what} cannot be made: {error}") from error


class BrokerRecords:
    """Records on the broker, shared by all servers; revisions are the numbers of messages."""

    shared = True

    def __init__(self, connection: Connection, options: BrokerOptions) -> None:
        self._table = SubjectTable(connection, options, "_AVISO_RECORDS", "_aviso.records", "records", {})

    async def load(self, prefix: str) -> Sequence[Record]:
        tokens, _, _ = prefix.rpartition(".")
        found = await self._from(0, f"{tokens}." if tokens else "", tidy=True)
        return sorted((each for each in found if each.value and each.key.startswith(prefix)), key=lambda one: one.key)

    async def save(self, changes: Sequence[Change]) -> Sequence[int | None]:
        revisions = await self._table.write([(change.key, change.expected, change.value) for change in changes])
        for place, change in enumerate(changes):
            if revisions[place] is None and not change.expected:
                # a record that was removed has left a message without a body
                known = await self._table.get(change.key)
                if known is not None and not known.body:
                    (revisions[place],) = await self._table.write([(change.key, known.number, change.value)])
        return revisions

    async def changed(self, after: int) -> Sequence[Record]:
        return await self._from(after)

    async def _from(self, after: int, below: str = "", tidy: bool = False) -> list[Record]:
        found: dict[str, Record] = {}  # a record that changes meanwhile comes twice
        while (message := await self._table.following(after + 1, below)) is not None:
            found.pop(message.name, None)
            found[message.name] = Record(message.name, message.number, message.body)
            after = message.number
            if tidy and not message.body and message.time < time.time_ns() - _REMEMBERED:
                await self._table.remove(message.number)
        return list(found.values())


_SECONDS = 4.0  # that a lease lasts unless it is renewed


class BrokerLease:
    """A server's part in the election for one task; `changed` is called with True when it begins to hold the lease.

    The lease is the last message of a subject. Whoever holds it replaces it again and again. A server that sees the
    same message for longer than the lease lasts, by its own clock, takes it over. A holder that could not renew it
    gives it up before that. So at most one holds it as a rule, and what must never be done twice does not rest on it:
    commits to the archive check for themselves.
    """

    def __init__(
        self,
        connection: Connection,
        options: BrokerOptions,
        task: str,
        changed: Callable[[bool], None],
        seconds: float = _SECONDS,
    ) -> None:
        # no topic base begins like the name of this stream
        self._table = SubjectTable(connection, options, "_AVISO_LEASES", "_aviso.leases", "leases", {})
        self._task = task
        self._changed = changed
        self._seconds = seconds
        self._name = uuid.uuid4().hex.encode()
        self._number = 0  # of the last message that was seen
        self._since = 0.0  # when it was seen first, or renewed
        self._running: asyncio.Task[None] | None = None
        self.held = False

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="lease")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        if self.held:
            self.held = False
            with contextlib.suppress(LogError, TimeoutError):
                await self._put(b"")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._seconds / 2):
                    await self._step(loop.time())
            except (LogError, TimeoutError) as error:
                logger.debug("the lease cannot be asked for: %s", error, extra={"event": "archive.lease.unknown"})
            if self.held and loop.time() - self._since > self._seconds * 2 / 3:
                self._become(False)
            await asyncio.sleep(self._seconds / 4)

    async def _step(self, now: float) -> None:
        if self.held and await self._put(self._name):
            self._since = now
            return
        await self._table.ensure()
        found = await self._table.get(self._task)
        number, holder = (0, b"") if found is None else (found.number, found.body)
        if holder == self._name:  # an answer of the broker was lost
            self._number, self._since = number, now
            self._become(True)
            return
        self._become(False)
        if number != self._number:
            self._number, self._since = number, now
        free = not holder or now - self._since > self._seconds
        if free and await self._put(self._name):
            self._since = now
            self._become(True)

    def _become(self, held: bool) -> None:
        if held != self.held:
            self.held = held
            if held:
                logger.info("this server has the lease to archive", extra={"event": "archive.lease.taken"})
            else:
                logger.info("this server has lost the lease to archive", extra={"event": "archive.lease.lost"})
            self._changed(held)

    async def _put(self, body: bytes) -> bool:
        """Replace the message that was seen last; False if it is not the last one any more."""
        (number,) = await self._table.write([(self._task, self._number, body)])
        self._number = number or self._number
        return number is not None


STREAM = "_AVISO_KEYS"  # no topic base begins like this
SUBJECT = "_aviso.keys"
_ROUNDS = 10  # of taking a key that others take and release at the same moment


class Claim(msgspec.Struct, frozen=True):
    """A key as the broker has it."""

    number: int  # of the message that says so; whoever changes it has to name it
    content: bytes
    after: int  # its notification, if stored, has a higher sequence
    sequence: int  # 0: not known yet
    time: int = 0  # when it was claimed or settled; 0: just now, by this very call
    fresh: bool = False  # it is this call's


class _Said(msgspec.Struct, frozen=True):
    """The body of a message about a key."""

    content: str
    after: int
    sequence: int


class Keys:
    """Claims, settles and releases keys.

    A key is claimed before its notification is published and settled afterwards. A claim is a message that the broker
    takes only if the key has none. It says what is to be stored, and from which sequence on it can be found. Settling
    replaces it by where the notification is, releasing by nothing.
    """

    def __init__(self, connection: Connection, options: BrokerOptions, policy: KeyPolicy) -> None:
        limits = {"max_msgs": policy.max_keys, "max_age": policy.retention_ns}
        self._table = SubjectTable(connection, options, STREAM, SUBJECT, "idempotency keys", limits)

    async def claim(self, wanted: Sequence[tuple[Key, int]]) -> list[Claim]:
        """Claim each of these keys, with the sequence after which its notification will be; all names differ.

        A key that has a message already is answered with that.
        """
        claims: list[Claim | None] = [None] * len(wanted)
        numbers = [0] * len(wanted)
        for _ in range(_ROUNDS):
            left = [place for place, claim in enumerate(claims) if claim is None]
            if not left:
                return [claim for claim in claims if claim is not None]
            said = [_Said(wanted[place][0].content.hex(), wanted[place][1], 0) for place in left]
            given = await self._write(
                [
                    (wanted[place][0].name, numbers[place], msgspec.json.encode(one))
                    for place, one in zip(left, said, strict=True)
                ]
            )
            taken = [place for place, number in zip(left, given, strict=True) if number is None]
            for place, number in zip(left, given, strict=True):
                if number is not None:
                    key, after = wanted[place]
                    claims[place] = Claim(number, key.content, after, 0, fresh=True)
            found = await self._read([wanted[place][0].name for place in taken])
            for place, one in zip(taken, found, strict=True):
                if isinstance(one, Claim):
                    claims[place] = one
                else:
                    numbers[place] = one  # released, or forgotten by now
        raise LogUnavailable("a key is used by too many at the same moment; publish again")

    async def settle(self, settled: Sequence[tuple[Key, Claim, int]]) -> None:
        """Record where notifications are. A claim that somebody else has settled stays as it is."""
        await self._write(
            [
                (key.name, claim.number, msgspec.json.encode(_Said(key.content.hex(), claim.after, sequence)))
                for key, claim, sequence in settled
            ]
        )

    async def release(self, released: Sequence[tuple[Key, Claim]]) -> None:
        """Release keys under which nothing was stored, and nothing will be under these claims."""
        await self._write([(key.name, claim.number, b"") for key, claim in released])

    async def _write(self, messages: Sequence[tuple[bytes, int, bytes]]) -> list[int | None]:
        return await self._table.write([(name.hex(), expected, body) for name, expected, body in messages])

    async def _read(self, names: Sequence[bytes]) -> list[Claim | int]:
        """Ask the leader about each key: a claim, or the number of the message that released it, 0 without one."""
        found: list[Claim | int] = []
        for start in range(0, len(names), _ASKED_AT_ONCE):
            found += await asyncio.gather(*[self._get(name) for name in names[start : start + _ASKED_AT_ONCE]])
        return found

    async def _get(self, name: bytes) -> Claim | int:
        message = await self._table.get(name.hex())
        if message is None:
            return 0
        if not message.body:
            return message.number
        said = msgspec.json.decode(message.body, type=_Said)
        return Claim(message.number, bytes.fromhex(said.content), said.after, said.sequence, message.time)


Publish = Callable[[str, Sequence[Draft], Sequence[str]], Awaitable[Sequence[Notification]]]
"""Stores drafts of one stream next to each other, each under a message id."""

Outcomes = dict[int, Appended | KeyRefused]
_NANOSECONDS = 1_000_000_000


class _Mine(msgspec.Struct, frozen=True):
    """A key whose notification is ours to publish."""

    key: Key
    claim: Claim
    last: int = 0  # somebody else may have published it, with a sequence up to this one


class OncePublisher:
    """Stores each key's notification once, over all servers and for as long as keys are remembered."""

    def __init__(self, connection: Connection, streams: Streams, keys: Keys, publish: Publish) -> None:
        self._connection = connection
        self._streams = streams
        self._keys = keys
        self._publish = publish

    async def append(self, entries: Sequence[Keyed], whole: bool) -> Sequence[Appended | KeyRefused]:
        if not entries:
            return []
        began = time.monotonic()
        window = min([(await self._streams.ensure(stream)).window for stream in _streams(entries)])
        outcomes: Outcomes = {}
        first: dict[bytes, int] = {}  # where each key stands for the first time
        for place, entry in enumerate(entries):
            if entry.key is not None:
                original = entries[first.setdefault(entry.key.name, place)].key
                if original is not None and original.content != entry.key.content:
                    outcomes[place] = KeyReused()
        mine = await self._claim({place: entries[place] for place in first.values()}, outcomes)
        refused = next((outcome for outcome in outcomes.values() if isinstance(outcome, KeyRefused)), None)
        if whole and refused is not None:
            await self._release(mine)
            raise refused
        if window and time.monotonic() - began > window / 2 / _NANOSECONDS:
            # what is sent now might come too late to be recognised
            raise LogUnavailable("the broker took too long to answer; publish again under the same key")
        due = [place for place, entry in enumerate(entries) if entry.key is None or place in mine]
        await self._store(entries, due, mine, outcomes)
        for place, entry in enumerate(entries):
            if place not in outcomes and entry.key is not None:
                found = outcomes[first[entry.key.name]]
                outcomes[place] = Appended(found.sequence, repeated=True) if isinstance(found, Appended) else found
        return [outcomes[place] for place in range(len(entries))]

    async def _claim(self, entries: dict[int, Keyed], outcomes: Outcomes) -> dict[int, _Mine]:
        """Claim the keys of these entries; those that are ours to publish, by their places."""
        mine: dict[int, _Mine] = {}
        wanted = [(place, entry.key, entry.draft) for place, entry in entries.items() if entry.key is not None]
        claims = await self._keys.claim([(key, self._streams.newest(draft.stream)) for _, key, draft in wanted])
        for (place, key, draft), claim in zip(wanted, claims, strict=True):
            if claim.content != key.content:
                outcomes[place] = KeyReused()
            elif claim.sequence:
                outcomes[place] = Appended(claim.sequence, repeated=True)
            elif claim.fresh:
                mine[place] = _Mine(key, claim)
            else:
                found = await self._take_up(key, claim, draft)
                if isinstance(found, StreamInfo):
                    mine[place] = _Mine(key, claim, found.last)
                else:
                    outcomes[place] = found
        return mine

    async def _take_up(self, key: Key, claim: Claim, draft: Draft) -> Appended | KeyInDoubt | StreamInfo:
        """Find the notification of a key that somebody claimed and has not settled; the stream if it is nowhere."""
        info = await self._streams.look(draft.stream)
        if info.now - claim.time < info.window / 2:
            return info  # sent again, it is recognised
        subject = message_of(draft).subject
        wanted = f"Nats-Msg-Id: {_message_id(key, claim)}\r\n".encode()
        sequence, seen = claim.after, False
        while found := await self._connection.message(info.name, seq=sequence + 1, next_by_subj=subject):
            sequence = found["seq"]
            if wanted in base64.b64decode(found.get("hdrs", "")):
                await self._settle([(key, claim, sequence)])
                return Appended(sequence, repeated=True)
            seen = True
        replaced = seen and info.latest_only  # perhaps, by a newer one of its topic
        removed = info.first > claim.after + 1 and (
            info.limited or not info.latest_only
        )  # perhaps, by a limit or a wipe
        return KeyInDoubt() if replaced or removed else info

    async def _store(
        self, entries: Sequence[Keyed], due: Sequence[int], mine: Mapping[int, _Mine], outcomes: Outcomes
    ) -> None:
        by_stream: dict[str, list[int]] = {}
        for place in due:
            by_stream.setdefault(entries[place].draft.stream, []).append(place)
        ids = {
            place: _message_id(mine[place].key, mine[place].claim) if place in mine else uuid.uuid4().hex
            for place in due
        }
        calls = [
            self._publish(stream, [entries[place].draft for place in places], [ids[place] for place in places])
            for stream, places in by_stream.items()
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        settled: list[tuple[Key, Claim, int]] = []
        failure: BaseException | None = None
        for places, result in zip(by_stream.values(), results, strict=True):
            if isinstance(result, BaseException):
                failure = failure or result
                if isinstance(result, NotStored):
                    await self._release({place: mine[place] for place in places if place in mine})
                continue
            for place, notification in zip(places, result, strict=True):
                one = mine.get(place)
                repeated = one is not None and notification.sequence <= one.last
                outcomes[place] = Appended(notification.sequence, repeated)
                if one is not None:
                    settled.append((one.key, one.claim, notification.sequence))
        await self._settle(settled)
        if failure is not None:
            raise failure

    async def _settle(self, settled: Sequence[tuple[Key, Claim, int]]) -> None:
        """Settle keys; if this fails, whoever repeats the publish finds what is stored."""
        try:
            await self._keys.settle(settled)
        except LogError as error:
            logger.warning("keys could not be settled: %s", error, extra={"event": "backend.jetstream.keys.unsettled"})

    async def _release(self, mine: Mapping[int, _Mine]) -> None:
        # a claim that stays only means that its key is taken for this content
        with contextlib.suppress(LogError):
            await self._keys.release([(one.key, one.claim) for one in mine.values() if one.claim.fresh])


def _streams(entries: Sequence[Keyed]) -> set[str]:
    return {entry.draft.stream for entry in entries}


def _message_id(key: Key, claim: Claim) -> str:
    """Build an id that is the same for everybody who acts on a claim, and another one after the key was forgotten."""
    return f"aviso-{key.name.hex()}-{claim.number}"
