"""The keys on the broker: a stream with one subject per key, shared by all servers.

A key is claimed before its notification is published and settled afterwards. A claim is a message that the broker takes
only if the key has none; so of several servers one gets it. The message says what is to be stored, and from which
sequence on it can be found. Settling replaces it by where the notification is, releasing by nothing.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import Key, KeyPolicy
from aviso_server.log.jetstream.connection import Connection, NotReached, Refused, Unanswered
from aviso_server.log.jetstream.options import BrokerOptions
from aviso_server.log.jetstream.streams import NAME_IN_USE, NO_MESSAGE, NO_STREAM
from aviso_server.log.jetstream.wire import time_of

__all__ = ["Claim", "Keys"]

STREAM = "_AVISO_KEYS"  # no topic base begins like this
SUBJECT = "_aviso.keys"
_WRONG_LAST_SEQUENCE = 10071
_ROUNDS = 10  # of taking a key that others take and release at the same moment
_AT_ONCE = 1000


class Claim(msgspec.Struct, frozen=True):
    """What the broker knows of a key."""

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
        self._connection = connection
        self._options = options
        self._policy = policy
        self._ready = False

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
        """These notifications are at these sequences. A claim that somebody else has settled stays as it is."""
        await self._write(
            [
                (key.name, claim.number, msgspec.json.encode(_Said(key.content.hex(), claim.after, sequence)))
                for key, claim, sequence in settled
            ]
        )

    async def release(self, released: Sequence[tuple[Key, Claim]]) -> None:
        """Nothing was stored under these keys, and nothing will be under these claims."""
        await self._write([(key.name, claim.number, b"") for key, claim in released])

    async def _write(self, messages: Sequence[tuple[bytes, int, bytes]]) -> list[int | None]:
        """Store a message for each key, unless its last one is not the expected; the numbers of those stored."""
        numbers: list[int | None] = []
        for start in range(0, len(messages), _AT_ONCE):
            run = messages[start : start + _AT_ONCE]
            numbers += await self._connection.patiently(partial(self._send, run))
        return numbers

    async def _send(self, messages: Sequence[tuple[bytes, int, bytes]]) -> list[int | None]:
        await self._ensure()
        replies, answers, future = self._connection.expect_many(len(messages))
        commands = []
        for (name, expected, body), reply in zip(messages, replies, strict=True):
            headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
            subject = f"{SUBJECT}.{name.hex()}".encode()
            size = len(headers)
            commands.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, size, size + len(body), headers, body))
        try:
            await self._connection.send(b"".join(commands))
            await self._connection.wait(future)
        finally:
            future.cancel()
        return [self._number(*answer) for answer in answers if answer is not None]

    def _number(self, headers: bytes, answer: bytes) -> int | None:
        if headers.startswith(b"NATS/1.0 503"):
            self._ready = False
            raise NotReached("nobody at the broker takes keys now")
        decoded = msgspec.json.decode(answer)
        error = decoded.get("error")
        if error is None:
            number: int = decoded["seq"]
            return number
        if error.get("err_code") == _WRONG_LAST_SEQUENCE:
            return None
        raise Unanswered(f"the broker did not take a key: {error.get('description', 'no reason given')}")

    async def _read(self, names: Sequence[bytes]) -> list[Claim | int]:
        """What the leader knows of each key: a claim, or the number of the message that released it, 0 without one."""
        found: list[Claim | int] = []
        for start in range(0, len(names), _AT_ONCE):
            found += await asyncio.gather(*[self._get(name) for name in names[start : start + _AT_ONCE]])
        return found

    async def _get(self, name: bytes) -> Claim | int:
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": f"{SUBJECT}.{name.hex()}"})
        except Refused as error:
            if error.code == NO_MESSAGE:
                return 0
            raise
        message: dict[str, Any] = answer["message"]
        number: int = message["seq"]
        if not message.get("data"):
            return number
        said = msgspec.json.decode(base64.b64decode(message["data"]), type=_Said)
        return Claim(number, bytes.fromhex(said.content), said.after, said.sequence, time_of(message["time"].encode()))

    async def _ensure(self) -> None:
        """Make the stream of keys, or bring it in line."""
        if self._ready:
            return
        options = self._options
        wanted: dict[str, Any] = {
            "name": STREAM,
            "subjects": [f"{SUBJECT}.>"],
            "storage": options.storage_type,
            "max_msgs_per_subject": 1,
            "max_msgs": self._policy.max_keys,
            "max_age": self._policy.retention_ns,
        }
        if options.replicas:
            wanted["num_replicas"] = options.replicas
        try:
            found = await self._connection.api(f"STREAM.INFO.{STREAM}", patience=0)
        except Refused as error:
            if error.code != NO_STREAM:
                raise
            await self._create(wanted)
        else:
            config = found["config"]
            changes = {name: value for name, value in wanted.items() if name != "storage" and config.get(name) != value}
            if changes:
                updated = {**config, **changes}
                updated["duplicate_window"] = min(updated.get("duplicate_window", 0), updated["max_age"])
                await self._connection.api(f"STREAM.UPDATE.{STREAM}", updated, patience=0)
        self._ready = True

    async def _create(self, wanted: dict[str, Any]) -> None:
        try:
            await self._connection.api(f"STREAM.CREATE.{STREAM}", wanted, patience=0)
        except Refused as error:
            if error.code != NAME_IN_USE:
                raise LogError(f"the stream for idempotency keys cannot be made: {error}") from error
