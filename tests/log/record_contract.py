"""The promises of `aviso_server.log.base`, as tests that the records of every log pass."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviso_server.log.base import Change, Log, Record
from tests.log.scenario import draft, in_event_loop, opened

KEYS = ("state.a", "state.b", "dead.a.1")


class RecordContract:
    """What holds for the records of every log; `make` gives the same log for the same directory."""

    survives_restart: ClassVar[bool] = True

    def make(self, directory: Path) -> Log:
        raise NotImplementedError

    @in_event_loop
    async def test_a_record_is_found_by_the_beginning_of_its_key(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.records.save([Change(key, key.encode()) for key in ("state.b", "dead.a.7", "state.a")])
            found = await log.records.load("state.")
            assert [(each.key, each.value) for each in found] == [("state.a", b"state.a"), ("state.b", b"state.b")]
            assert [each.key for each in await log.records.load("dead.a.")] == ["dead.a.7"]
            assert await log.records.load("other.") == []

    @in_event_loop
    async def test_of_two_writers_with_the_same_revision_one_wins(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            (first,) = await log.records.save([Change("state.a", b"1")])
            assert first
            assert await log.records.save([Change("state.a", b"again")]) == [None]
            (second,) = await log.records.save([Change("state.a", b"2", first)])
            assert second is not None
            assert second > first
            assert await log.records.save([Change("state.a", b"late", first)]) == [None]
            assert await log.records.load("") == [Record("state.a", second, b"2")]

    @in_event_loop
    async def test_each_change_is_judged_by_itself(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.records.save([Change("state.a", b"1")])
            refused, stored = await log.records.save([Change("state.a", b"2"), Change("state.b", b"3")])
            assert refused is None
            assert stored
            assert [each.value for each in await log.records.load("state.")] == [b"1", b"3"]

    @in_event_loop
    async def test_a_removed_record_is_gone_and_its_key_can_be_used_again(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            (first,) = await log.records.save([Change("dead.a.1", b"1")])
            assert await log.records.save([Change("dead.a.1", b"", (first or 0) + 1000)]) == [None]
            assert await log.records.save([Change("dead.a.1", b"", first or 0)]) != [None]
            assert await log.records.load("dead.") == []
            (second,) = await log.records.save([Change("dead.a.1", b"2")])
            assert second is not None
            assert first is not None
            assert second > first
            assert [each.value for each in await log.records.load("dead.")] == [b"2"]

    @in_event_loop
    async def test_changes_come_in_order_after_a_revision(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            a, b = await log.records.save([Change("state.a", b"1"), Change("state.b", b"1")])
            assert [each.key for each in await log.records.changed(0)] == ["state.a", "state.b"]
            await log.records.save([Change("state.a", b"2", a or 0)])
            assert [(each.key, each.value) for each in await log.records.changed(b or 0)] == [("state.a", b"2")]

    @in_event_loop
    async def test_records_and_notifications_do_not_get_in_each_others_way(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            await log.append(draft(1))
            await log.records.save([Change("state.a", b"1")])
            await log.append(draft(2))
            assert (await log.state("mars")).last == 2
            assert list(await log.streams()) == ["mars"]

    @in_event_loop
    async def test_records_outlive_a_restart(self, tmp_path: Path) -> None:
        async with opened(self.make(tmp_path)) as log:
            (kept, removed) = await log.records.save([Change("state.a", b"\x00\xff"), Change("state.b", b"1")])
            await log.records.save([Change("state.b", b"", removed or 0)])
        async with opened(self.make(tmp_path)) as log:
            found = await log.records.load("state.")
            if self.survives_restart:
                assert found == [Record("state.a", kept or 0, b"\x00\xff")]
                (again,) = await log.records.save([Change("state.b", b"2")])
                assert again is not None
                assert removed is not None
                assert again > removed
            else:
                assert found == []

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.lists(st.tuples(st.sampled_from(KEYS), st.binary(max_size=3), st.booleans()), min_size=1, max_size=4),
            max_size=8,
        )
    )
    @in_event_loop
    async def test_any_changes_end_as_in_a_dictionary(
        self, tmp_path_factory: object, saves: list[list[tuple[str, bytes, bool]]]
    ) -> None:
        directory: Path = tmp_path_factory.mktemp("records")  # type: ignore[attr-defined]  # pytest's own type
        expected: dict[str, bytes] = {}
        revisions: dict[str, int] = {}
        async with opened(self.make(directory)) as log:
            # the same broker may serve all examples
            await log.records.save([Change(each.key, b"", each.revision) for each in await log.records.load("")])
            for save in saves:
                for key, value, right in save:
                    known = revisions.get(key, 0)
                    (given,) = await log.records.save([Change(key, value, known if right else known + 100_000)])
                    assert (given is not None) == right
                    if not right:
                        continue
                    if value:
                        expected[key], revisions[key] = value, given or 0
                    else:
                        expected.pop(key, None)
                        revisions.pop(key, None)
            found = await log.records.load("")
            assert {each.key: each.value for each in found} == expected
            assert {each.key: each.revision for each in found} == revisions
