"""The records beside each log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aviso_server.log.base import Change, Log
from aviso_server.log.jetstream.client import BrokerOptions
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from tests.harness.broker import ask, single
from tests.log.record_contract import RecordContract
from tests.log.scenario import in_event_loop, opened


class TestMemory(RecordContract):
    survives_restart = False

    def make(self, directory: Path) -> Log:
        return MemoryLog(10)


class TestSqlite(RecordContract):
    def make(self, directory: Path) -> Log:
        return SqliteLog(directory / "log")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with single(tmp_path_factory.mktemp("broker")) as running:
        yield running


class TestJetStream(RecordContract):
    @pytest.fixture(autouse=True)
    def _empty(self, broker: LocalBroker) -> Iterator[None]:
        type(self)._url = broker.url
        yield
        for stream in ask(broker.url, "STREAM.NAMES").get("streams") or []:
            ask(broker.url, f"STREAM.DELETE.{stream}")

    _url = ""

    def make(self, directory: Path) -> Log:
        return JetStreamLog(BrokerOptions(nats_url=self._url))

    @in_event_loop
    async def test_several_servers_see_each_other(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as one, opened(self.make(tmp_path)) as other:
            (first,) = await one.records.save([Change("state.a", b"1")])
            assert [each.value for each in await other.records.load("state.")] == [b"1"]
            assert await other.records.save([Change("state.a", b"2", first or 0)]) != [None]
            assert await one.records.save([Change("state.a", b"3", first or 0)]) == [None], "it is fenced"
            (found,) = await one.records.changed(first or 0)
            assert found.value == b"2"
            await one.records.save([Change("state.a", b"", found.revision)])
            (gone,) = await other.records.changed(found.revision)
            assert (gone.key, gone.value) == ("state.a", b"")
