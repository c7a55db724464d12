"""A short soak: clients of every kind come and go, and the server keeps nothing of them; `bench/soak.py` is longer.

What the system gives to a process rises and falls by megabytes, so memory is not judged by that here (`bench/soak.py`
does, over minutes). A server with its memory allocations traced runs in the process of the test instead: it shows a few
hundred bytes that a connection leaves behind.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from aviso_server.config.settings import Limits, Settings, WatchEndpoint
from aviso_server.http.app import App, Service
from aviso_server.http.connection import HttpConnection, limited_connection
from aviso_server.http.routes import ROUTES
from aviso_server.log.memory import MemoryLog
from aviso_server.model.event_type import EventType
from aviso_server.server.wiring import make_service
from bench.churn import Churn
from bench.soak import Sample, Soak, growth, memory_growth
from tests.harness.patience import PATIENCE
from tests.model.event_types import event_type

TIDE: EventType = event_type(
    "tide", {"port": "StringHandler", "level": "IntHandler"}, base="tides", order=["port", "level"]
)
QUICK = 300  # connections that only ask whether the server is alive
ENOUGH = 150  # connections of other kinds, however slow the machine
MOST_LEFT = 400  # bytes of each connection: counters and lists that are bounded grow a little in the beginning


@pytest.mark.long  # growth takes its time
def test_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    with soak.server:
        churn = soak.run(seconds=16, rounds=4)
        assert soak.server.client.get("/ready").status == 200
    assert churn.surprises == []
    assert growth(soak.samples) == []
    for kind in ("publish", "watch", "replay", "slow", "notifications", "broken JSON", "half a head", "not HTTP"):
        assert churn.counts[kind] > 0, f"no client did this: {kind}"


@asynccontextmanager
async def traced_server() -> AsyncIterator[tuple[int, ServerState, Service]]:
    """A whole server on a port, in this process, on a log that keeps little."""
    limits = Limits(header_timeout_seconds=10, body_timeout_seconds=10, idle_timeout_seconds=10)
    watch = WatchEndpoint(sse_heartbeat_interval_sec=1, buffer_bytes=65_536)
    log = MemoryLog(1, 100)
    await log.open()
    service = make_service(Settings(event_types=(TIDE,), strict=True, limits=limits, watch_endpoint=watch), log)
    service.hub.start()
    config = uvicorn.Config(App(service, ROUTES), lifespan="off", ws="none", log_config=None, access_log=False)
    state, kind = ServerState(), limited_connection(service.limits, service.tally)
    server = await asyncio.get_running_loop().create_server(lambda: kind(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], state, service
    finally:
        server.close()
        await service.hub.stop()
        await service.close()
        await log.close()


async def ask(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def left_by_each_connection() -> float:
    """How many bytes more are in use for each connection that has come and gone."""

    async def rest(state: ServerState, service: Service) -> int:
        async with asyncio.timeout(PATIENCE):
            while state.connections or state.tasks or service.hub.open_streams or service.hub.feeds:
                await asyncio.sleep(0.02)
        for _ in range(5):  # tasks that were cancelled end
            await asyncio.sleep(0)
        await service.log.wipe("tides")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with traced_server() as (port, state, service):
        churn = Churn("127.0.0.1", port)
        await churn.run(2.0, ENOUGH)  # everything that is made once and kept
        tracemalloc.start()
        try:
            await churn.run(0.5)
            before = await rest(state, service)
            await churn.run(2.0, ENOUGH)
            for _ in range(QUICK):
                await ask(port)
            after = await rest(state, service)
        finally:
            tracemalloc.stop()
    return (after - before) / (churn.connections + QUICK)


def run_traced() -> float:
    logging.disable()  # pytest would keep the records
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(left_by_each_connection())
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.long  # memory is traced
def test_a_connection_leaves_nothing_behind() -> None:
    assert run_traced() < MOST_LEFT


@pytest.mark.long  # memory is traced
def test_a_kilobyte_of_each_connection_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    made = HttpConnection.connection_made

    def keep(connection: HttpConnection, transport: Any) -> None:
        kept.append(bytes(1024))
        made(connection, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", keep)
    assert run_traced() > MOST_LEFT


def sample(at: int, memory: int = 100, files: int = 20, tasks: int = 5, streams: int = 0) -> Sample:
    return Sample(at, memory * 2**20, files, tasks, streams, 0)


def test_growth_is_noticed() -> None:
    even = [sample(at) for at in range(7)]
    assert growth([*even, sample(7, files=21)]) == []
    assert len(growth([*even, sample(7, files=60)])) == 1
    assert len(growth([*even, sample(7, tasks=30)])) == 1
    assert len(growth([*even, sample(7, streams=1)])) == 1
    assert memory_growth([*even, sample(7, memory=105)]) == []
    assert memory_growth([sample(at, memory=100 + 20 * (at % 2)) for at in range(8)]) == [], "up and down is no growth"
    assert len(memory_growth([sample(at, memory=100 + 6 * at) for at in range(8)])) == 1
