"""Real brokers for tests: one alone, or three that form a cluster; on free ports of this machine, gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aviso_server.log.local_broker import LocalBroker

__all__ = ["cluster", "single"]


@contextmanager
def single(directory: Path, sync_always: bool = False) -> Iterator[LocalBroker]:
    """One broker."""
    with LocalBroker(directory, sync_always=sync_always) as broker:
        yield broker


@contextmanager
def cluster(directory: Path, size: int = 3) -> Iterator[list[LocalBroker]]:
    """Brokers that replicate each other's streams."""
    brokers = [LocalBroker(directory / f"broker{number}") for number in range(1, size + 1)]
    try:
        for broker in brokers:
            broker.join(brokers)
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()
