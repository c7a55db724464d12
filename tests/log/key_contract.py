"""The promises about keys of `aviso_server.log.base`, as tests that every log passes; see `contract.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import pytest

from aviso_server.errors import KeyRefused, KeyReused, LogUnavailable
from aviso_server.log.base import Appended, BatchKey, Key, Keyed, KeyPolicy, Log
from aviso_server.model.notification import Notification
from tests.log.scenario import draft, everything, in_event_loop, opened, sequences, until

SECOND = 1_000_000_000


def keyed(name: str | None, number: int = 0, stream: str = "mars") -> Keyed:
    """A draft under a key; its number is its content."""
    one = draft(number, stream)
    if name is None:
        return Keyed(one)
    return Keyed(one, Key(_digest(name.encode()), _digest(one.topic.encode() + one.payload)))


def batch_key(name: str, entries: Sequence[Keyed], places: Sequence[int] | None = None) -> BatchKey:
    """The key of a batch; what stands in other places of it cannot be stored."""
    at = range(len(entries)) if places is None else places
    content = b"".join(b"%d %b" % (place, one.draft.payload) for place, one in zip(at, entries, strict=True))
    return BatchKey(_digest(name.encode())[:12], _digest(content), at)


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def found(outcomes: Sequence[Appended | KeyRefused]) -> list[int | str]:
    """Outcomes for comparison: a sequence, the same as a negative number if it is a repetition, or "reused"."""
    return [
        (-one.sequence if one.repeated else one.sequence) if isinstance(one, Appended) else type(one).__name__
        for one in outcomes
    ]


class KeyContract:
    """What holds for every log. The same directory, the same log."""

    keys_survive_restart: ClassVar[bool] = True
    atomic: ClassVar[bool] = True

    def make_keyed(self, directory: Path, keys: KeyPolicy) -> Log:
        raise NotImplementedError

    def log(self, directory: Path, **policy: int) -> Log:
        return self.make_keyed(directory, KeyPolicy(**policy))

    @in_event_loop
    async def test_a_repeated_key_gives_the_first_outcome(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append(draft(9))
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [2]
            await log.append(draft(8))
            for _ in range(2):
                assert found(await log.append_keyed([keyed("a", 1)], True)) == [-2]
            assert await sequences(log, "mars") == [1, 2, 3]
            held = (await everything(log, "mars"))[1]
            assert (held.topic, held.payload) == (draft(1).topic, draft(1).payload)

    @in_event_loop
    async def test_a_key_stands_for_one_content(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("a", 1)], True)
            for other in (keyed("a", 2), Keyed(draft(1, "diss"), keyed("a", 1, "diss").key)):
                with pytest.raises(KeyReused, match="used for other content"):
                    await log.append_keyed([other], True)
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [-1]
            assert await sequences(log, "mars") == [1]
            assert list(await log.streams()) == ["mars"]

    @in_event_loop
    async def test_many_at_once_new_known_and_without_a_key(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("b", 2)], False)
            entries = [keyed("a", 1), keyed("b", 2), keyed(None, 3), keyed("c", 4), keyed("d", 5, "diss")]
            assert found(await log.append_keyed(entries, False)) == [2, -1, 3, 4, 1]
            assert found(await log.append_keyed(entries, False)) == [-2, -1, 5, -4, -1]
            assert [one.payload for one in await everything(log, "mars")] == [
                draft(number).payload for number in (2, 1, 3, 4, 3)
            ]

    @in_event_loop
    async def test_a_key_twice_in_one_call(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            assert found(await log.append_keyed([keyed("a", 1), keyed("a", 1)], True)) == [1, -1]
            with pytest.raises(KeyReused):
                await log.append_keyed([keyed("b", 1), keyed("b", 2)], True)
            assert found(await log.append_keyed([keyed("c", 1), keyed("c", 2), keyed("c", 1)], False)) == [
                2, "KeyReused", -2,
            ]  # fmt: skip
            assert await sequences(log, "mars") == [1, 2]

    @in_event_loop
    async def test_a_reused_key_refuses_itself_or_all(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("a", 1)], False)
            entries = [keyed("b", 2), keyed("a", 9), keyed("c", 3)]
            with pytest.raises(KeyReused):
                await log.append_keyed(entries, True)
            assert await sequences(log, "mars") == [1]
            assert found(await log.append_keyed([keyed("b", 7)], True)) == [2], "a refused call takes no keys"
            assert found(await log.append_keyed(entries, False)) == ["KeyReused", "KeyReused", 3]

    @in_event_loop
    async def test_concurrent_repetitions_store_once(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            seen: list[Notification] = []
            log.follow("mars", seen.extend)
            await log.append(draft(0))
            calls = [log.append_keyed([keyed(f"k{n % 5}", n % 5)], True) for n in range(40)]
            outcomes = [(await call)[0] for call in [asyncio.ensure_future(call) for call in calls]]
            by_key = [{one.sequence for one in outcomes[n::5] if isinstance(one, Appended)} for n in range(5)]
            assert sorted(len(each) for each in by_key) == [1] * 5
            assert set.union(*by_key) == {2, 3, 4, 5, 6}
            assert [one.sequence for one in seen] == await sequences(log, "mars") == [1, 2, 3, 4, 5, 6]

    @in_event_loop
    async def test_followers_hear_of_it_before_the_publisher_and_once(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append(draft(0))
            seen: list[Notification] = []
            log.follow("mars", seen.extend)
            await log.state("mars")
            await log.append_keyed([keyed(f"k{n}", n) for n in range(5)], True)
            assert [one.sequence for one in seen] == [2, 3, 4, 5, 6]
            await log.append_keyed([keyed(f"k{n}", n) for n in range(6)], True)
            assert [one.sequence for one in seen] == [2, 3, 4, 5, 6, 7]

    @in_event_loop
    async def test_removals_do_not_free_a_key(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)
            await log.delete("mars", 1)
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [-1]
            await log.wipe("mars")
            assert found(await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)) == [-1, -2]
            assert await sequences(log, "mars") == []

    @in_event_loop
    async def test_keys_after_a_restart(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("a", 1), keyed("b", 2)], True)
        async with opened(self.log(tmp_path)) as log:
            outcomes = found(await log.append_keyed([keyed("b", 2), keyed("c", 3)], True))
            assert outcomes == ([-2, 3] if self.keys_survive_restart else [1, 2])

    @in_event_loop
    async def test_keys_are_forgotten_in_time(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path, retention_ns=SECOND)) as log:
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [1]
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [-1]

            async def forgotten() -> bool:
                return found(await log.append_keyed([keyed("a", 1)], True)) == [2]

            await until(forgotten)
            assert found(await log.append_keyed([keyed("a", 1)], True)) == [-2]

    @in_event_loop
    async def test_the_oldest_keys_give_way(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path, max_keys=50)) as log:
            for start in range(0, 200, 20):
                await log.append_keyed([keyed(f"k{n}", n) for n in range(start, start + 20)], True)
            newest = await log.append_keyed([keyed(f"k{n}", n) for n in range(150, 200)], True)
            assert found(newest) == [-n - 1 for n in range(150, 200)]
            oldest = await log.append_keyed([keyed(f"k{n}", n) for n in range(20)], True)
            assert found(oldest) == list(range(201, 221))

    @in_event_loop
    async def test_a_thousand_at_once(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            entries = [keyed(f"k{n}", n) for n in range(1000)]
            assert found(await log.append_keyed(entries[:600], True)) == list(range(1, 601))
            assert found(await log.append_keyed(entries, True)) == [-n for n in range(1, 601)] + list(range(601, 1001))
            assert [one.payload for one in await everything(log, "mars", limit=1000)] == [
                draft(n).payload for n in range(1000)
            ]

    @in_event_loop
    async def test_the_key_of_a_batch(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append(draft(9))
            entries = [keyed(None, 1), keyed(None, 2, "diss"), keyed(None, 3), keyed(None, 1)]
            key = batch_key("a", entries)
            assert found(await log.append_keyed(entries, True, key)) == [2, 1, 3, 4]
            await log.append(draft(8))
            for _ in range(2):
                assert found(await log.append_keyed(entries, True, key)) == [-2, -1, -3, -4]
            for other in (entries[:2], [*entries, keyed(None, 7)], [keyed(None, 5)]):
                with pytest.raises(KeyReused):
                    await log.append_keyed(other, True, batch_key("a", other))
            assert await sequences(log, "mars") == [1, 2, 3, 4, 5]
            assert found(await log.append_keyed(entries, True, batch_key("b", entries))) == [6, 2, 7, 8]

    @in_event_loop
    async def test_a_batch_of_which_some_have_keys_of_their_own(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            await log.append_keyed([keyed("own", 1)], True)
            entries = [keyed(None, 2), keyed("own", 1), keyed(None, 3), keyed("other", 4), keyed("other", 4)]
            key = batch_key("a", entries, [0, 2, 3, 5, 8])
            assert found(await log.append_keyed(entries, True, key)) == [2, -1, 3, 4, -4]
            assert found(await log.append_keyed(entries, True, key)) == [-2, -1, -3, -4, -4]
            without = [Keyed(entry.draft) for entry in entries]
            assert found(await log.append_keyed(without, True, key)) == [-2, 5, -3, 6, 7], "these were not under it"
            assert found(await log.append_keyed(without, True, key)) == [-2, -5, -3, -6, -7]
            reusing = [keyed(None, 5), keyed("own", 6)]
            with pytest.raises(KeyReused):
                await log.append_keyed(reusing, True, batch_key("b", reusing))
            assert await sequences(log, "mars") == [1, 2, 3, 4, 5, 6, 7]
            fresh = [keyed(None, 8)]
            assert found(await log.append_keyed(fresh, True, batch_key("b", fresh))) == [8], "and took no keys"

    @in_event_loop
    async def test_concurrent_repetitions_of_a_batch_store_once(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            entries = [keyed(None, number) for number in range(30)]
            calls = [log.append_keyed(entries, True, batch_key("a", entries)) for _ in range(5)]
            for outcomes in await asyncio.gather(*calls):
                assert [one.sequence for one in outcomes if isinstance(one, Appended)] == list(range(1, 31))
            assert await sequences(log, "mars") == list(range(1, 31))

    @in_event_loop
    async def test_the_key_of_a_batch_after_a_restart_and_a_wipe(self, tmp_path: Path) -> None:
        entries = [keyed(None, number, "mars" if number % 3 else "diss") for number in range(20)]
        async with opened(self.log(tmp_path)) as log:
            first = found(await log.append_keyed(entries, True, batch_key("a", entries)))
            await log.wipe("mars")
        if not self.keys_survive_restart:
            return
        async with opened(self.log(tmp_path)) as log:
            again = found(await log.append_keyed(entries, True, batch_key("a", entries)))
            assert again == [-n for n in first if isinstance(n, int)]
            assert await sequences(log, "mars") == []

    @in_event_loop
    async def test_the_key_of_a_batch_is_forgotten_in_time(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path, retention_ns=SECOND)) as log:
            entries = [keyed(None, 1), keyed(None, 2)]
            assert found(await log.append_keyed(entries, True, batch_key("a", entries))) == [1, 2]

            async def forgotten() -> bool:
                return found(await log.append_keyed(entries, True, batch_key("a", entries))) == [3, 4]

            await asyncio.sleep(1.5)  # a log with a key for each entry may forget them one by one
            await until(forgotten)
            assert found(await log.append_keyed(entries, True, batch_key("a", entries))) == [-3, -4]

    @in_event_loop
    async def test_nothing_to_store(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            assert list(await log.append_keyed([], True)) == []
        with pytest.raises(LogUnavailable, match="closed"):
            await log.append_keyed([keyed("a", 1)], True)

    @in_event_loop
    async def test_what_is_stored_whole_or_not_at_all(self, tmp_path: Path) -> None:
        async with opened(self.log(tmp_path)) as log:
            assert await log.indivisible([])
            assert await log.indivisible([draft(1)])
            assert await log.indivisible([draft(1), draft(2)]) is self.atomic
