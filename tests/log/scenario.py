"""What the tests of the logs share: running coroutines, drafts to store, and reading a stream to its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import pytest
from nats.aio.client import Client

from aviso_server.log.base import Log
from aviso_server.log.jetstream.wire import Message
from aviso_server.log.sqlite.writer import Writer
from aviso_server.model.notification import Box, Draft, Notification
from tests.harness.patience import PATIENCE

P = ParamSpec("P")

EVERYTHING = 2**63 - 1


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def block(message: Message) -> bytes:
    """The headers of a message as the client writes them, without the blank line at their end."""
    written: list[bytes] = []

    class Writing(Client):
        async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
            written.append(cmd)

    asyncio.run(Writing()._send_publish(message.subject, "", message.body, len(message.body), dict(message.headers)))
    [command] = written
    return command[command.index(b"\r\n") + 2 :].removesuffix(message.body + b"\r\n").removesuffix(b"\r\n")


@asynccontextmanager
async def opened(log: Log) -> AsyncIterator[Log]:
    """The log, open inside the block and closed after it."""
    await log.open()
    try:
        yield log
    finally:
        await log.close()


def draft(
    number: int = 0, stream: str = "mars", topic: str | None = None, box: Box | None = None, padding: int = 0
) -> Draft:
    """A draft that says its number in topic, identifier and payload."""
    return Draft(
        stream=stream,
        topic=f"{stream}.od.{number}" if topic is None else topic,
        identifier=b'{"class":"od","number":"%d"}' % number,
        payload=b'{"number":%d,"padding":"%s"}' % (number, b"x" * padding),
        box=box,
    )


def size(one: Draft) -> int:
    """The bytes a draft takes: what the limits of a storage policy count."""
    return len(one.topic.encode()) + len(one.identifier) + len(one.payload)


async def everything(
    log: Log, stream: str, start: int = 1, end: int = EVERYTHING, limit: int = 100, box: Box | None = None
) -> list[Notification]:
    """All notifications of a range, batch by batch as a reader would."""
    found: list[Notification] = []
    while start <= end:
        batch = await log.read(stream, start, end, limit, box)
        assert len(batch.notifications) <= limit
        assert batch.next > start, "reading must get on"
        found += batch.notifications
        start = batch.next
    return found


async def sequences(log: Log, stream: str, limit: int = 100) -> list[int]:
    """The sequences a stream holds, in the order they are read."""
    return [one.sequence for one in await everything(log, stream, limit=limit)]


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float = PATIENCE) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


class Tidying:
    """Counts how often writers of sqlite logs tidy up, and makes them do so fifty times a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        tidy = Writer._tidy

        def counted(writer: Writer) -> bool:
            more = tidy(writer)
            self.count += 1
            return more

        monkeypatch.setattr(Writer, "_tidy", counted)
        monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)

    async def twice(self) -> None:
        """Wait until a writer has tidied up twice from now on: once of it began after this call."""
        enough = self.count + 2

        async def done() -> bool:
            return self.count >= enough

        await until(done)
