"""The places of a batch, packed and unpacked, and how many keys a batch takes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.log.base import KeyPolicy, Log, pack_places, unpack_places
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.database import DATABASE
from aviso_server.log.sqlite.log import SqliteLog
from tests.log.key_contract import batch_key, found, keyed
from tests.log.scenario import in_event_loop, opened

RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 2**60), st.integers(1, 30)), max_size=6)


@given(RUNS)
def test_places_come_back_as_they_were(runs: list[tuple[int, int, int]]) -> None:
    sequences: dict[int, int] = {}
    place = 0
    for gap, sequence, length in runs:
        place += gap
        sequences.update({place + more: sequence + more for more in range(length)})
        place += length
    assert dict(unpack_places(pack_places(sequences))) == sequences


def test_a_batch_of_one_stream_takes_a_few_bytes() -> None:
    assert len(pack_places({place: 10**12 + place for place in range(10_000)})) < 20


@in_event_loop
async def test_the_key_of_a_batch_is_one_row(tmp_path: Path) -> None:
    entries = [keyed(None, number) for number in range(2000)]
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append_keyed(entries, True, batch_key("a", entries))
        await log.append_keyed(entries, True, batch_key("a", entries))
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        assert connection.execute("SELECT count(*) FROM keys").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["in_memory", "sqlite"])
@in_event_loop
async def test_the_key_of_a_batch_counts_as_one(tmp_path: Path, kind: str) -> None:
    policy = KeyPolicy(max_keys=3)
    log: Log = SqliteLog(tmp_path, keys=policy) if kind == "sqlite" else MemoryLog(10_000, keys=policy)
    entries = [keyed(None, number) for number in range(50)]
    async with opened(log):
        for name in ("a", "b", "c"):
            await log.append_keyed(entries, True, batch_key(name, entries))
        assert found(await log.append_keyed(entries, True, batch_key("a", entries)))[0] == -1
        await log.append_keyed([keyed("one", 1)], True)
        assert found(await log.append_keyed(entries, True, batch_key("b", entries)))[0] == -51
        assert found(await log.append_keyed(entries, True, batch_key("a", entries)))[0] == 152, "the oldest gave way"


@pytest.mark.parametrize("kind", ["in_memory", "sqlite"])
@in_event_loop
async def test_of_repetitions_at_the_same_time_one_is_the_first(tmp_path: Path, kind: str) -> None:
    log: Log = SqliteLog(tmp_path) if kind == "sqlite" else MemoryLog(10_000)
    entries = [keyed(None, number) for number in range(30)]
    async with opened(log):
        calls = [log.append_keyed(entries, True, batch_key("a", entries)) for _ in range(5)]
        outcomes = [found(each) for each in await asyncio.gather(*calls)]
    assert outcomes == [list(range(1, 31)), *[[-n for n in range(1, 31)]] * 4]
