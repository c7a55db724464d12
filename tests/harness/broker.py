"""Real brokers for tests: one alone, or three that form a cluster; on free ports of this machine, gone afterwards."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.harness.patience import PATIENCE

__all__ = ["ask", "brokers_of_a_cluster", "cluster", "publish", "single", "stored", "wait_until"]


@contextmanager
def single(directory: Path, sync_always: bool = False) -> Iterator[LocalBroker]:
    """One broker."""
    with LocalBroker(directory, sync_always=sync_always) as broker:
        yield broker


def brokers_of_a_cluster(directory: Path, size: int = 3, sync_always: bool = False) -> list[LocalBroker]:
    """Brokers that replicate each other's streams, not started yet; they have to know each other's ports before."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(size)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    routes = json.dumps([f"nats://127.0.0.1:{port}" for port in ports])
    return [
        LocalBroker(
            directory / f"broker{number}",
            sync_always=sync_always,
            more=f"cluster {{ name: aviso, host: 127.0.0.1, port: {port}, routes: {routes} }}",
        )
        for number, port in enumerate(ports, 1)
    ]


@contextmanager
def cluster(directory: Path, size: int = 3) -> Iterator[list[LocalBroker]]:
    """Brokers that replicate each other's streams."""
    brokers = brokers_of_a_cluster(directory, size)
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


def ask(url: str, name: str, request: Any = None) -> dict[str, Any]:
    """The answer of the JetStream API to a request that none of our own code makes; has `error` if there is none."""

    async def run() -> dict[str, Any]:
        client = await nats.connect(url)
        body = b"" if request is None else json.dumps(request).encode()
        try:
            answer = await client.request(f"$JS.API.{name}", body, timeout=2)
        except nats.errors.Error as error:
            return {"error": repr(error)}
        finally:
            await client.close()
        decoded: dict[str, Any] = json.loads(answer.data)
        return decoded

    return asyncio.run(run())


def publish(url: str, *messages: tuple[str, bytes, Mapping[str, str] | None]) -> None:
    """Have messages stored as another program would: subject, body and headers."""

    async def run() -> None:
        client = await nats.connect(url)
        for subject, body, headers in messages:
            answer = await client.request(subject, body, timeout=PATIENCE, headers=dict(headers) if headers else None)
            assert b'"seq"' in answer.data, answer.data
        await client.close()

    asyncio.run(run())


def stored(url: str, stream: str, sequence: int) -> tuple[str, bytes, dict[str, str]]:
    """Subject, body and headers of a stored message, as another program would see them."""

    async def run() -> tuple[str, bytes, dict[str, str]]:
        client = await nats.connect(url)
        found = await client.jetstream().get_msg(stream, sequence)
        await client.close()
        return found.subject or "", found.data or b"", dict(found.headers or {})

    return asyncio.run(run())


def wait_until(condition: Callable[[], bool], seconds: float = 2 * PATIENCE) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
