"""The log on a broker: the contract."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from aviso_server.log.base import Log, StoragePolicy
from aviso_server.log.jetstream import JetStreamLog
from aviso_server.log.jetstream_options import BrokerOptions
from aviso_server.log.local_broker import LocalBroker
from tests.harness.broker import single
from tests.log.contract import LogContract, StoragePolicyContract

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


class TestStoragePolicy(OwnBroker, StoragePolicyContract):
    def make_limited(self, directory: Path, policies: Mapping[str, StoragePolicy]) -> Log:
        return JetStreamLog(BrokerOptions(nats_url=self.broker.url), policies)
