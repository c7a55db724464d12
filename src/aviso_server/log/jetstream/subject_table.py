"""Tables on the broker: a stream that keeps the newest message of each subject, shared by all servers.

A message is stored only if the newest of its subject has the number that the writer names, so of several writers one
wins. Idempotency keys are kept like this, and the records of subscriptions.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from aviso_server.errors import LogError
from aviso_server.log.jetstream.broker_streams import NAME_IN_USE, NO_MESSAGE, NO_STREAM
from aviso_server.log.jetstream.client import BrokerOptions, BrokerRefusal, Connection, NotReached, Unanswered
from aviso_server.log.jetstream.wire import time_of
from aviso_server.log.records import Change, Record

__all__ = ["BrokerRecords", "StoredMessage", "SubjectTable"]

_WRONG_LAST_SEQUENCE = 10071
_AT_ONCE = 1000
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
        return await self._ask({"last_by_subj": f"{self._subject}.{name}"})

    async def following(self, number: int, below: str = "") -> StoredMessage | None:
        """Return the first message from a number on, of the names that begin with the tokens `below`."""
        return await self._ask({"seq": number, "next_by_subj": f"{self._subject}.{below}>"})

    async def remove(self, number: int) -> None:
        """Remove a message for good."""
        with suppress(BrokerRefusal):  # somebody else has
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": number, "no_erase": True})

    async def _ask(self, request: Mapping[str, Any]) -> StoredMessage | None:
        try:
            message = (await self._connection.api(f"STREAM.MSG.GET.{self._stream}", request))["message"]
        except BrokerRefusal as error:
            if error.code in (NO_MESSAGE, NO_STREAM):
                return None
            raise
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
