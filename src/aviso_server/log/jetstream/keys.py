"""The keys on the broker: a stream with one subject per key, shared by all servers.

A key is claimed before its notification is published and settled afterwards. A claim is a message that the broker takes
only if the key has none; so of several servers one gets it. The message says what is to be stored, and from which
sequence on it can be found. Settling replaces it by where the notification is, releasing by nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from aviso_server.errors import KeyInDoubt, KeyRefused, KeyReused, LogError, LogUnavailable
from aviso_server.log.base import Appended, Key, Keyed, KeyPolicy
from aviso_server.log.jetstream.broker_streams import NO_MESSAGE, StreamInfo, Streams
from aviso_server.log.jetstream.client import BrokerOptions, BrokerRefusal, Connection
from aviso_server.log.jetstream.publisher import NotStored
from aviso_server.log.jetstream.subject_table import SubjectTable
from aviso_server.log.jetstream.wire import message_of
from aviso_server.model.notification import Draft, Notification

__all__ = ["Claim", "Keys", "OncePublisher"]

logger = logging.getLogger(__name__)


STREAM = "_AVISO_KEYS"  # no topic base begins like this
SUBJECT = "_aviso.keys"
_ROUNDS = 10  # of taking a key that others take and release at the same moment
_AT_ONCE = 1000


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
    """Claims, settles and releases keys."""

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
        """Store a message for each key, unless its last one is not the expected; the numbers of those stored."""
        return await self._table.write([(name.hex(), expected, body) for name, expected, body in messages])

    async def _read(self, names: Sequence[bytes]) -> list[Claim | int]:
        """Ask the leader about each key: a claim, or the number of the message that released it, 0 without one."""
        found: list[Claim | int] = []
        for start in range(0, len(names), _AT_ONCE):
            found += await asyncio.gather(*[self._get(name) for name in names[start : start + _AT_ONCE]])
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
        """Store what was not stored under its key before."""
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
        while (found := await self._next(info, subject, sequence + 1)) is not None:
            sequence, headers = found
            if wanted in headers:
                await self._settle([(key, claim, sequence)])
                return Appended(sequence, repeated=True)
            seen = True
        replaced = seen and info.latest_only  # perhaps, by a newer one of its topic
        removed = info.first > claim.after + 1 and (
            info.limited or not info.latest_only
        )  # perhaps, by a limit or a wipe
        return KeyInDoubt() if replaced or removed else info

    async def _next(self, info: StreamInfo, subject: str, sequence: int) -> tuple[int, bytes] | None:
        """Return sequence and headers of the first message of a subject from a sequence on."""
        try:
            request = {"seq": sequence, "next_by_subj": subject}
            message = (await self._connection.api(f"STREAM.MSG.GET.{info.name}", request))["message"]
        except BrokerRefusal as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        return message["seq"], base64.b64decode(message.get("hdrs", ""))

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
