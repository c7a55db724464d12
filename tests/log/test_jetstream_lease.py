"""The lease on a broker: one of several servers holds it, and another one soon after that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aviso_server.log.jetstream.broker_tables import BrokerLease
from aviso_server.log.jetstream.client import BrokerOptions, Connection
from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.harness.broker import single

SECONDS = 2.4  # that a lease lasts here, so that a busy machine can renew it in time
PATIENCE = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with single(tmp_path / "broker") as running:
        yield running


class Member:
    """A server that takes part, and what it was told."""

    def __init__(self, connection: Connection, options: BrokerOptions) -> None:
        self.connection = connection
        self.told: list[bool] = []
        self.lease = BrokerLease(connection, options, "archive", self.told.append, SECONDS)
        self.lease.start()

    async def die(self) -> None:
        """Go without a word."""
        assert self.lease._running is not None
        self.lease._running.cancel()
        await self.connection.close()


@asynccontextmanager
async def members(broker: LocalBroker, count: int) -> AsyncIterator[list[Member]]:
    options = BrokerOptions(nats_url=broker.url, reconnect_delay_ms=100)
    found = []
    for _ in range(count):
        connection = Connection(options)
        await connection.open()
        found.append(Member(connection, options))
    yield found
    for each in found:
        await each.die()


async def until_one_holds(among: list[Member]) -> Member:
    async with asyncio.timeout(PATIENCE):
        while not any(each.lease.held for each in among):
            await asyncio.sleep(0.02)
    (holder,) = [each for each in among if each.lease.held]
    return holder


def test_one_holds_it_and_another_one_after_it_is_gone(broker: LocalBroker) -> None:
    async def run() -> None:
        async with members(broker, 3) as servers:
            first = await until_one_holds(servers)
            for _ in range(10):  # twice as long as it lasts
                await asyncio.sleep(SECONDS / 5)
                assert [each for each in servers if each.lease.held] == [first]
            assert first.told == [True]
            await first.die()
            rest = [each for each in servers if each is not first]
            began = asyncio.get_running_loop().time()
            second = await until_one_holds(rest)
            assert asyncio.get_running_loop().time() - began < PATIENCE / 2
            began = asyncio.get_running_loop().time()
            await second.lease.stop()
            third = await until_one_holds([each for each in rest if each is not second])
            assert third.told == [True]

    asyncio.run(run())


def test_a_holder_that_cannot_renew_it_gives_it_up_and_gets_it_back(broker: LocalBroker) -> None:
    async def run() -> None:
        async with members(broker, 1) as (only,):
            await until_one_holds([only])
            broker.pause()
            async with asyncio.timeout(PATIENCE):
                while only.lease.held:
                    await asyncio.sleep(0.02)
            broker.resume()
            await until_one_holds([only])
            assert only.told == [True, False, True]

    asyncio.run(run())
