"""The log on a broker: the contract, on new brokers and old ones, and what comes with a broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import KeyPolicy, Log, StoragePolicy
from aviso_server.log.jetstream.client import BrokerOptions
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from aviso_server.model.notification import Notification
from tests.harness.broker import ask, single
from tests.log.contract import LogContract, StoragePolicyContract
from tests.log.key_contract import KeyContract
from tests.log.scenario import draft, everything, in_event_loop, opened, sequences, until

ALL = StoragePolicy(allow_duplicates=True)
KEEP_ALL = {"mars": ALL, "diss": ALL, "test_polygon": ALL}


class OwnBroker:
    """A broker for each test: streams are named after topic bases, so tests would see each other's."""

    broker: ClassVar[LocalBroker]

    @pytest.fixture(autouse=True)
    def _broker(self, tmp_path: Path) -> Iterator[None]:
        with single(tmp_path / f"broker-{uuid.uuid4().hex[:8]}") as broker:
            type(self).broker = broker
            yield


class TestContract(OwnBroker, LogContract):
    def make(self, directory: Path) -> Log:
        return JetStreamLog(BrokerOptions(nats_url=self.broker.url), KEEP_ALL)


class TestKeys(OwnBroker, KeyContract):
    def make_keyed(self, directory: Path, keys: KeyPolicy) -> Log:
        return JetStreamLog(BrokerOptions(nats_url=self.broker.url), KEEP_ALL, keys=keys)


class TestStoragePolicy(OwnBroker, StoragePolicyContract):
    def make_limited(self, directory: Path, policies: Mapping[str, StoragePolicy]) -> Log:
        return JetStreamLog(BrokerOptions(nats_url=self.broker.url), policies)


class _OnOldBroker(JetStreamLog):
    """As on a broker that knows neither atomic batches nor batched direct gets."""

    async def open(self) -> None:
        await super().open()
        self._connection.level = 0


class TestContractOnAnOldBroker(OwnBroker, LogContract):
    def make(self, directory: Path) -> Log:
        return _OnOldBroker(BrokerOptions(nats_url=self.broker.url), KEEP_ALL)


class TestKeysOnAnOldBroker(OwnBroker, KeyContract):
    atomic = False

    def make_keyed(self, directory: Path, keys: KeyPolicy) -> Log:
        return _OnOldBroker(BrokerOptions(nats_url=self.broker.url), KEEP_ALL, keys=keys)


class TestOnABroker(OwnBroker):
    """What only a log on a broker has to get right."""

    def make(self, policies: Mapping[str, StoragePolicy] = KEEP_ALL, **options: Any) -> JetStreamLog:
        return JetStreamLog(BrokerOptions(nats_url=self.broker.url, **options), policies)

    async def has_consumers(self, count: int) -> None:
        """Wait until the broker keeps so many consumers for the stream; by itself it would keep them for longer."""

        async def kept() -> bool:
            return bool((await asyncio.to_thread(ask, self.broker.url, "CONSUMER.LIST.MARS"))["total"] == count)

        await until(kept, seconds=5)

    @in_event_loop
    async def test_two_logs_are_one(self) -> None:
        async with opened(self.make()) as one, opened(self.make()) as other:
            seen: list[Notification] = []
            other.follow("mars", seen.extend)
            assert (await other.state("mars")).last == 0
            stored = await asyncio.gather(*(log.append(draft(n)) for n in range(100) for log in (one, other)))
            assert sorted(each.sequence for each in stored) == list(range(1, 201))

            async def all_seen() -> bool:
                return len(seen) == 200

            await until(all_seen)
            assert seen == sorted(stored, key=lambda each: each.sequence)
            assert await everything(one, "mars") == seen
            assert (await one.state("mars")).last == 200

    @in_event_loop
    async def test_nothing_is_left_on_the_broker(self) -> None:
        async with opened(self.make()) as log:
            log.follow("mars", lambda _: None)
            for number in range(50):
                await log.append(draft(number))
            await everything(log, "mars", limit=7)
            await log.first_since("mars", 0)
            await self.has_consumers(1)
            await log.append_many([draft(number) for number in range(2000)])
            assert len(await everything(log, "mars", limit=600)) == 2050
            await self.has_consumers(1)
            await log.read("mars", 1, 2000, 600)  # it may go on in a moment
            await self.has_consumers(2)
        await self.has_consumers(0)

    @in_event_loop
    async def test_one_that_cannot_be_stored_does_not_harm_the_others(self) -> None:
        async with opened(
            self.make({"mars": StoragePolicy(max_messages=60, allow_duplicates=True)}, discard_policy="new")
        ) as log:
            results = await asyncio.gather(*(log.append(draft(n)) for n in range(100)), return_exceptions=True)
            stored = [one for one in results if isinstance(one, Notification)]
            assert [one.sequence for one in stored] == list(range(1, 61))
            refused = [one for one in results if isinstance(one, LogError)]
            assert len(refused) == 40
            assert "maximum messages exceeded" in str(refused[0])
            with pytest.raises(LogError, match="maximum messages exceeded"):
                await log.append_many([draft(n) for n in range(3)])
            assert (await log.state("mars")).count == 60

    @in_event_loop
    async def test_several_together_are_all_or_none(self) -> None:
        async with opened(
            self.make({"mars": StoragePolicy(max_messages=10, allow_duplicates=True)}, discard_policy="new")
        ) as log:
            await log.append_many([draft(n) for n in range(8)])
            with pytest.raises(LogError):
                await log.append_many([draft(n) for n in range(5)])
            assert await sequences(log, "mars") == list(range(1, 9))

    @in_event_loop
    async def test_a_message_that_is_too_large_is_refused_at_once(self) -> None:
        async with opened(self.make()) as log:
            with pytest.raises(LogError, match="the broker takes up to"):
                await log.append(draft(1, padding=1_100_000))
            assert (await log.append(draft(2, padding=1_000_000))).sequence == 1

    @in_event_loop
    async def test_names_that_differ_in_case_only(self) -> None:
        async with opened(self.make()) as log:
            await log.append(draft(1, "mars"))
            with pytest.raises(LogError, match="belongs to topic base 'mars'"):
                await log.append(draft(1, "Mars"))
            assert await sequences(log, "mars") == [1]

    @in_event_loop
    async def test_more_than_a_batch_together(self) -> None:
        async with opened(self.make()) as log:
            stored = await log.append_many([draft(n) for n in range(2500)])
            assert [one.sequence for one in stored] == list(range(1, 2501))
            assert await everything(log, "mars", limit=1000) == list(stored)

    @in_event_loop
    async def test_reads_of_many_bytes_come_in_parts(self) -> None:
        async with opened(self.make()) as log:
            for number in range(24):
                await log.append(draft(number, padding=900_000))
            assert await sequences(log, "mars", limit=4096) == list(range(1, 25))

    @pytest.mark.parametrize("storage", ["file", "memory"])
    @in_event_loop
    async def test_what_is_weak_is_said(self, storage: str, caplog: pytest.LogCaptureFixture) -> None:
        async with opened(self.make(storage_type=storage)):
            pass
        said = caplog.text
        assert "1 replica(s)" in said
        assert ("in memory" in said, "sync_interval" in said) == (storage == "memory", storage == "file")

    @in_event_loop
    async def test_a_connection_that_the_client_gives_up_is_made_anew(self) -> None:
        """The client closes for good when the broker reports an error, though most of them pass."""
        seen: list[Notification] = []
        lost: list[str] = []
        log = self.make(reconnect_delay_ms=50)
        async with opened(log):
            log.follow("mars", seen.extend, lost.append)
            await log.append(draft(1))
            assert log._connection._client is not None
            await log._connection._client._send_command(b"NONSENSE\r\n")
            await log._connection._client.publish("nobody")

            async def gone() -> bool:
                return not log.connected

            async def back() -> bool:
                return log.connected

            await until(gone)
            await until(back)
            await log.append(draft(2))
            assert await sequences(log, "mars") == [1, 2]
            assert ([each.sequence for each in seen], lost) == ([1, 2], [])

    @in_event_loop
    async def test_publishers_are_told_of_errors_that_nobody_expects(self) -> None:
        """A stream whose mark cannot be read raises while a group is gathered, and that is no error of the log."""
        stream = {"name": "MARS", "subjects": ["mars.>"], "metadata": {"aviso_thinned_through": "no number"}}
        await asyncio.to_thread(ask, self.broker.url, "STREAM.CREATE.MARS", stream)
        log = JetStreamLog(BrokerOptions(nats_url=self.broker.url), KEEP_ALL, archived=lambda _: 0)
        async with opened(log), asyncio.timeout(60):
            for drafts in ([draft(1)], [draft(2), draft(3)]):
                with pytest.raises(LogError, match="cannot be stored"):
                    await log.append_many(drafts)

    @pytest.mark.long  # the log hopes for a broker for twelve seconds
    @in_event_loop
    async def test_first_use_of_a_stream_while_the_broker_is_away(self) -> None:
        """Asking for the stream has patience enough: every attempt to publish does not start anew."""
        async with opened(self.make(reconnect_delay_ms=50)) as log:
            self.broker.kill()
            began = time.monotonic()
            with pytest.raises(LogUnavailable, match="not stored: there is no connection to the broker"):
                await log.append(draft(1))
            assert time.monotonic() - began < 40

    @in_event_loop
    async def test_a_client_that_misses_its_cancellation_ends_all_the_same(self) -> None:
        log = self.make(reconnect_delay_ms=50)
        tries = 0

        async def connect(*_args: object, **_options: object) -> None:
            nonlocal tries
            tries += 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
            raise ConnectionRefusedError

        async def trying() -> bool:
            return tries > 1

        async with opened(log):
            client: Any = log._connection._client
            client._transport.connect = connect
            self.broker.kill()
            await until(trying)
            reconnecting = client._reconnection_task
        try:
            await asyncio.wait([reconnecting], timeout=10)
            assert reconnecting.done()
        finally:
            client.options["max_reconnect_attempts"] = 1

    @in_event_loop
    async def test_when_the_broker_stays_away(self) -> None:
        lost: list[str] = []
        log = self.make(max_reconnect_attempts=1, reconnect_delay_ms=50, publish_retry_attempts=2)
        async with opened(log):
            log.follow("mars", lambda _: None, lost.append)
            await log.append(draft(1))
            self.broker.kill()

            async def given_up() -> bool:
                return bool(lost)

            await until(given_up)
            assert not log.connected
            with pytest.raises(LogUnavailable, match="not stored after 2 attempts"):
                await log.append(draft(2))
            with pytest.raises(LogUnavailable):
                await log.state("mars")
