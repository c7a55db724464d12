"""Damage to a sqlite log is never silent: all that was acknowledged is there, or the log says what is missing."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from aviso_server.errors import LogDamaged, LogError, LogUnavailable
from aviso_server.log.base import StoragePolicy
from aviso_server.log.sqlite.backup import back_up, restore
from aviso_server.log.sqlite.damage import Found, repair
from aviso_server.log.sqlite.database import DATABASE, PAGE_SIZE, WriteAheadFile
from aviso_server.log.sqlite.ledger import LEDGER, read_ledger, write_ledger
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.scenario import draft, everything, in_event_loop, opened, sequences, until

WAL = f"{DATABASE}-wal"
FRAME = PAGE_SIZE + 24

PUBLISH = """
import asyncio, sys
from pathlib import Path
from aviso_server.log.sqlite import database
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Draft

database.CHECKPOINT_SECONDS = float(sys.argv[2])

async def publish(log, who):
    while True:
        stored = await log.append(Draft("mars", f"mars.{who}", b'{"who":"%d"}' % who, b'"' + b"x" * 500 + b'"'))
        print(stored.sequence, flush=True)

async def main():
    log = SqliteLog(Path(sys.argv[1]))
    await log.open()
    await asyncio.gather(*(publish(log, who) for who in range(8)))

asyncio.run(main())
"""


def publish_and_kill(path: Path, at_least: int, checkpoint_seconds: float) -> tuple[Path, int]:
    command = [sys.executable, "-c", PUBLISH, str(path), str(checkpoint_seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = 0
    while acknowledged < at_least:
        acknowledged = max(acknowledged, int(process.stdout.readline()))
    process.kill()
    acknowledged = max([acknowledged, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    process.wait()
    assert (path / WAL).stat().st_size > 0
    return path, acknowledged


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A log whose process was killed while it published, and the newest sequence that it acknowledged.

    Nothing has come from the write-ahead file into the database.
    """
    return publish_and_kill(tmp_path_factory.mktemp("killed"), 400, 3600)


@pytest.fixture(scope="module", params=[200, 1500, 4000])
def checkpointed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """The same, but what was published is in both files, and the write-ahead file has perhaps begun anew."""
    return publish_and_kill(tmp_path_factory.mktemp("checkpointed"), request.param, 0.005)


def copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for name in (DATABASE, WAL, LEDGER):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    return target


def used_size(wal: Path) -> int:
    """The bytes of a write-ahead file that hold commits; the rest was zeros from the start."""
    return len(wal.read_bytes().rstrip(b"\0"))


def alter(file: Path, offset: int, by: int = 0x55) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= by
    file.write_bytes(content)


def verdict(path: Path, acknowledged: int) -> str | None:
    """What the log says is wrong; None if it has everything. Fails if it lacks something and does not say so."""

    async def look() -> None:
        async with opened(SqliteLog(path)) as log:
            found = await everything(log, "mars")
            assert [each.sequence for each in found] == list(range(1, len(found) + 1))
            assert len(found) >= acknowledged, "acknowledged notifications are gone without a word"
            assert {each.payload for each in found} == {b'"' + b"x" * 500 + b'"'}
            assert {each.identifier for each in found} <= {b'{"who":"%d"}' % who for who in range(8)}
            assert {each.topic for each in found} <= {f"mars.{who}" for who in range(8)}
            assert (await log.append(draft(1))).sequence > acknowledged

    try:
        asyncio.run(look())
    except LogError as error:
        return str(error)
    return None


def test_an_unharmed_log_is_complete_after_a_kill(killed: tuple[Path, int], tmp_path: Path) -> None:
    path, acknowledged = killed
    assert verdict(copy(path, tmp_path / "log"), acknowledged) is None


@pytest.mark.parametrize("seed", range(25))
def test_one_altered_byte_of_the_write_ahead_file_is_noticed(
    killed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    alter(log / WAL, random.Random(seed).randrange(used_size(log / WAL)))
    before = (log / WAL).read_bytes()
    said = verdict(log, acknowledged)
    if said is not None and "missing" in said:
        assert re.search(r"stream 'mars': \d+ notifications? \(sequence \d+", said), said
        assert str(log / DATABASE) in said
        assert (log / WAL).read_bytes() == before, "nothing is changed by looking"


def forget(ledger: Path, name: str = "mars") -> None:
    """Set the ledger back to the start of the log: the power failed before it was forced to disk."""
    write_ledger(ledger.parent, {1: (name, 0)})


@pytest.mark.parametrize("seed", range(12))
def test_commits_behind_an_altered_byte_are_noticed_without_the_ledger(
    killed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    forget(log / LEDGER)
    frames = used_size(log / WAL) // FRAME
    # of the last commits nobody can say whether they were acknowledged
    alter(log / WAL, random.Random(seed).randrange(FRAME * (frames - 30)))
    before = (log / WAL).read_bytes()
    said = verdict(log, acknowledged)
    assert said is not None
    assert "commits" in said
    assert "log repair" in said
    assert (log / WAL).read_bytes() == before, "nothing is changed by looking"


@pytest.mark.parametrize("seed", range(6))
def test_repair_brings_back_the_commits_behind_an_altered_byte(
    killed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    forget(log / LEDGER)
    alter(log / WAL, random.Random(seed).randrange(FRAME * 20, FRAME * (used_size(log / WAL) // FRAME - 30)))
    done = CliRunner().invoke(main, ["log", "repair", "--path", str(log), "--accept-loss"])
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+ commits behind a damaged page .* can be read again", done.output)

    async def go_on() -> None:
        async with opened(SqliteLog(log)) as again:
            found = await everything(again, "mars")
            # a page holds a dozen of them, and most bytes are superseded by later commits
            assert len(found) >= acknowledged - 20
            assert (await again.append(draft(1))).sequence > acknowledged

    asyncio.run(go_on())


def count_commits(wal: Path) -> int:
    content = wal.read_bytes()
    return sum(any(content[start + 4 : start + 8]) for start in range(32, len(content) - FRAME + 1, FRAME))


@in_event_loop
async def test_a_transaction_begins_when_the_last_one_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.05)
    monkeypatch.setattr("aviso_server.log.sqlite.database.CHECKPOINT_SECONDS", 3600)
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_ROWS", 2)
    seen: list[int] = []
    force = WriteAheadFile.force

    def note_and_force(file: WriteAheadFile) -> None:
        seen.append(count_commits(tmp_path / WAL))
        force(file)

    monkeypatch.setattr(WriteAheadFile, "force", note_and_force)
    streams = ("a", "b", "c")
    now = [HOUR]
    policies = {stream: StoragePolicy(retention_ns=HOUR) for stream in streams}
    log = SqliteLog(tmp_path, policies, clock=lambda: now[0])

    async def empty() -> bool:
        return not any([(await log.state(stream)).count for stream in streams])

    async with opened(log):
        drafts = [Draft(stream, f"{stream}.1", b"{}", payload) for stream in streams for payload in (b"1", b"\xff")]
        answers = await asyncio.gather(*map(log.append, drafts), return_exceptions=True)
        assert [isinstance(answer, Notification) for answer in answers] == [True, False] * len(streams)
        now[0] += 2 * HOUR
        await until(empty)
    assert len(seen) > len(streams)
    assert max(after - before for before, after in pairwise([seen[0], *seen])) <= 1, seen


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_in_the_middle_of_a_commit_is_no_damage(
    killed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, _ = killed
    log = copy(path, tmp_path / "log")
    forget(log / LEDGER)
    content = (log / WAL).read_bytes()
    frames = (used_size(log / WAL) - 32) // FRAME
    commits = [each for each in range(frames) if any(content[32 + each * FRAME + 4 : 32 + each * FRAME + 8])]
    chance = random.Random(seed)
    last = chance.randrange(1, len(commits))
    torn = bytearray(content[: 32 + (commits[last] + 1) * FRAME])
    for frame in range(commits[last - 1] + 1, commits[last] + 1):  # some of its pages have reached the disk
        if chance.random() < 0.5 or frame == commits[last]:
            torn[32 + frame * FRAME : 32 + (frame + 1) * FRAME] = bytes(FRAME)
    (log / WAL).write_bytes(torn)
    assert verdict(log, 0) is None


@pytest.mark.parametrize("seed", range(12))
def test_one_altered_byte_beside_checkpoints_is_noticed(
    checkpointed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, acknowledged = checkpointed
    log = copy(path, tmp_path / "log")
    alter(log / WAL, random.Random(seed).randrange(used_size(log / WAL)))
    verdict(log, acknowledged)


@pytest.mark.parametrize("seed", range(6))
def test_a_write_ahead_file_cut_off_beside_checkpoints_is_noticed(
    checkpointed: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    path, acknowledged = checkpointed
    log = copy(path, tmp_path / "log")
    (log / WAL).write_bytes((log / WAL).read_bytes()[: random.Random(seed).randrange(used_size(log / WAL))])
    verdict(log, acknowledged)


@pytest.mark.parametrize("seed", range(8))
def test_a_truncated_write_ahead_file_is_noticed(killed: tuple[Path, int], tmp_path: Path, seed: int) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    size = random.Random(seed).randrange(used_size(log / WAL) * 9 // 10)
    (log / WAL).write_bytes((log / WAL).read_bytes()[:size])
    said = verdict(log, acknowledged)
    assert said is not None
    assert "'mars'" in said


@pytest.mark.parametrize("name", [WAL, DATABASE, LEDGER])
def test_a_removed_file_is_noticed(killed: tuple[Path, int], tmp_path: Path, name: str) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    (log / name).unlink()
    said = verdict(log, acknowledged)
    assert said is not None
    assert "missing" in said


@pytest.mark.parametrize("seed", range(25))
def test_one_altered_byte_of_the_database_is_noticed(killed: tuple[Path, int], tmp_path: Path, seed: int) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    connection = sqlite3.connect(log / DATABASE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = (log / DATABASE).stat().st_size
    # the first bytes are SQLite's own header: counters and the like
    alter(log / DATABASE, random.Random(seed).randrange(100, size))
    verdict(log, acknowledged)


@pytest.mark.parametrize("seed", range(15))
def test_one_altered_byte_of_the_ledger_hides_nothing(killed: tuple[Path, int], tmp_path: Path, seed: int) -> None:
    path, acknowledged = killed
    log = copy(path, tmp_path / "log")
    chance = random.Random(seed)
    alter(log / LEDGER, chance.choice([chance.randrange(16), 512 + chance.randrange(512)]))
    said = verdict(log, acknowledged)
    assert said is None or LEDGER in said


async def fill(path: Path, count: int = 20, box: Box | None = None) -> list[Notification]:
    async with opened(SqliteLog(path)) as log:
        for number in range(count):
            await log.append(Draft("mars", f"mars.{number}", b"{}", b'"needle-%05d"' % number, box))
        return await everything(log, "mars")


def find(file: Path, needle: bytes) -> int:
    content = file.read_bytes()
    assert content.count(needle) == 1
    return content.index(needle)


@pytest.mark.parametrize("gap", [False, True])
def test_an_altered_payload_is_not_handed_out_and_the_others_are(tmp_path: Path, gap: bool) -> None:
    asyncio.run(fill(tmp_path))
    alter(tmp_path / DATABASE, find(tmp_path / DATABASE, b"needle-00011"))

    async def read() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            if gap:
                await log.delete("mars", 3)
            with pytest.raises(LogDamaged, match=r"stream 'mars': 1 notification \(sequence 12\)") as refused:
                await log.read("mars", 1, 20, 100)
            assert "not as they were stored" in str(refused.value)
            around = await log.read("mars", 1, 11, 100)
            assert around.notifications[-1].sequence == 11
            assert [each.sequence for each in (await log.read("mars", 13, 20, 100)).notifications] == [*range(13, 21)]

    asyncio.run(read())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE stream_1 SET time = time + 1 WHERE sequence = 5",
        "UPDATE stream_1 SET topic = 'mars.9' WHERE sequence = 5",
        "UPDATE stream_1 SET topic = X'FF' WHERE sequence = 5",
        "UPDATE stream_1 SET identifier = '{ }' WHERE sequence = 5",
        "UPDATE stream_1 SET payload = char(31) WHERE sequence = 5",
        "UPDATE stream_1 SET payload = 7 WHERE sequence = 5",
        "UPDATE stream_1 SET time = 'now' WHERE sequence = 5",
        "UPDATE stream_1 SET box = X'00' WHERE sequence = 5",
        "UPDATE stream_1 SET box = (SELECT zeroblob(32)) WHERE sequence = 5",
    ],
)
def test_whatever_of_a_notification_is_altered_is_noticed(tmp_path: Path, change: str) -> None:
    asyncio.run(fill(tmp_path, 8, Box(1.0, 2.0, 3.0, 4.0)))
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute(change)
    connection.close()

    async def read() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            with pytest.raises(LogDamaged, match=r"\(sequence 5\)"):
                await log.read("mars", 1, 8, 100)

    asyncio.run(read())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE stream_1 SET box = (SELECT box FROM stream_1 WHERE sequence = 9) WHERE sequence = 5",
        "UPDATE stream_1 SET box = NULL WHERE sequence = 5",
        "UPDATE catalogue SET boxed = 0",
        "DELETE FROM stream_1 WHERE sequence = 5",
    ],
)
@in_event_loop
async def test_a_damaged_box_hides_nothing_from_a_spatial_filter(tmp_path: Path, change: str) -> None:
    near, far = Box(1.0, 2.0, 3.0, 4.0), Box(50.0, 50.0, 51.0, 51.0)
    async with opened(SqliteLog(tmp_path)) as log:
        for number in range(9):
            await log.append(Draft("mars", f"mars.{number}", b"{}", b"1", near if number < 8 else far))
        await log.append(draft(10))
        found = await log.read("mars", 1, 10, 100, box=Box(0.0, 0.0, 10.0, 10.0))
        assert [each.sequence for each in found.notifications] == [*range(1, 9)]
        found = await log.read("mars", 1, 10, 3, box=Box(0.0, 0.0, 10.0, 10.0))
        assert ([each.sequence for each in found.notifications], found.next) == ([1, 2, 3], 4)
        with sqlite3.connect(tmp_path / DATABASE) as connection:
            connection.execute(change)
        connection.close()
        if "boxed" in change:
            found = await log.read("mars", 1, 10, 100, box=far)
            assert [each.sequence for each in found.notifications] == [9]
        else:
            with pytest.raises(LogDamaged, match=r"\(sequence 5\)"):
                await log.read("mars", 1, 10, 100, box=Box(0.0, 0.0, 10.0, 10.0))


@in_event_loop
async def test_a_damaged_time_leads_no_search_by_time_astray(tmp_path: Path) -> None:
    times = iter(range(1_000, 100_000, 1_000))
    log = SqliteLog(tmp_path, clock=lambda: next(times))
    async with opened(log):
        for number in range(8):
            await log.append(draft(number))
        assert await log.last_until("mars", (await everything(log, "mars"))[4].time) == 5
        with sqlite3.connect(tmp_path / DATABASE) as connection:
            connection.execute("UPDATE stream_1 SET time = time + 1000000 WHERE sequence = 5")
        connection.close()
        with pytest.raises(LogDamaged, match=r"\(sequence 5\)"):
            await log.first_since("mars", 9_000)


@pytest.mark.parametrize("sums", ["NULL", "zeroblob(40)", "X'00'"])
def test_altered_checksums_hide_no_damage_and_make_none_of_what_is_sound(tmp_path: Path, sums: str) -> None:
    stored = asyncio.run(fill(tmp_path, 8))
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute(f"UPDATE stream_1 SET sums = {sums} WHERE sequence = 5")
    connection.close()

    async def read() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            for start, end in ((5, 8), (1, 5), (5, 5)):
                with pytest.raises(LogDamaged, match=r"\(sequence 5\)"):
                    await log.read("mars", start, end, 100)
            assert list((await log.read("mars", 1, 8, 100)).notifications) == stored

    asyncio.run(read())


def test_a_gap_that_nobody_made_is_noticed_at_the_start_and_while_reading(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))

    async def read() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            await log.delete("mars", 4)
            with sqlite3.connect(tmp_path / DATABASE) as connection:
                connection.execute("DELETE FROM stream_1 WHERE sequence IN (7, 8, 9)")
            connection.close()
            with pytest.raises(LogDamaged, match=r"3 notifications \(sequence 7-9\)"):
                await log.read("mars", 1, 20, 100)
            assert [each.sequence for each in (await log.read("mars", 1, 6, 100)).notifications] == [1, 2, 3, 5, 6]

    asyncio.run(read())
    with pytest.raises(LogDamaged, match=r"3 notifications \(sequence 7-9\)"):
        asyncio.run(SqliteLog(tmp_path).open())


@in_event_loop
async def test_what_was_deleted_wiped_or_trimmed_is_no_damage(tmp_path: Path) -> None:
    first = SqliteLog(tmp_path)
    async with opened(first) as log:
        for number in range(10):
            await log.append(draft(number))
        await log.delete("mars", 10)
        await log.delete("mars", 1)
        await log.wipe("mars")
        await log.append(draft(1))
        await log.delete("mars", 11)
        await first.advance("tide", 7)
    async with opened(SqliteLog(tmp_path)) as log:
        assert await sequences(log, "mars") == []
        assert (await log.append(draft(2))).sequence == 12
        assert (await log.append(draft(2, "tide"))).sequence == 8
        assert await sequences(log, "mars") == [12]


def make_first_format(path: Path) -> None:
    """What the version before checksums and ledgers would have left."""
    with sqlite3.connect(path / DATABASE, isolation_level=None) as connection:
        for (number,) in connection.execute("SELECT id FROM catalogue").fetchall():
            connection.execute(f"ALTER TABLE stream_{number} DROP COLUMN sums")
        connection.execute("ALTER TABLE catalogue DROP COLUMN checked_from")
        connection.execute("DROP TABLE absent")
        connection.execute("PRAGMA user_version=1")
    connection.close()
    (path / LEDGER).unlink()


@in_event_loop
async def test_a_log_of_the_first_format_goes_on(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        for number in range(6):
            await log.append(draft(number))
        await log.delete("mars", 2)
        before = await everything(log, "mars")
    make_first_format(tmp_path)
    back_up(tmp_path, tmp_path / "old.sqlite")
    async with opened(SqliteLog(tmp_path)) as log:
        assert await everything(log, "mars") == before
        assert (await log.append(draft(7))).sequence == 7
        await log.delete("mars", 1)
    async with opened(SqliteLog(tmp_path)) as log:
        assert await sequences(log, "mars") == [3, 4, 5, 6, 7]
        assert await sequences(log, "mars", 2) == [3, 4, 5, 6, 7]
    restore(tmp_path / "old.sqlite", tmp_path / "other")
    async with opened(SqliteLog(tmp_path / "other")) as log:
        assert await everything(log, "mars") == before


def test_the_ledger_knows_every_acknowledged_sequence_at_once(killed: tuple[Path, int]) -> None:
    path, acknowledged = killed
    ledger = read_ledger(path)
    assert ledger is not None
    assert ledger["mars"] >= acknowledged


def test_repair_restores_what_another_store_holds(tmp_path: Path) -> None:
    stored = asyncio.run(fill(tmp_path, 20, Box(1.0, 2.0, 3.0, 4.0)))
    alter(tmp_path / DATABASE, find(tmp_path / DATABASE, b"needle-00011"))
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("DELETE FROM stream_1 WHERE sequence IN (3, 19, 20)")
        connection.execute("UPDATE catalogue SET last_sequence = 18")
    connection.close()
    with pytest.raises(LogDamaged, match=r"3 notifications \(sequence 3, 19-20\)"):
        asyncio.run(SqliteLog(tmp_path).open())

    def fetch(stream: str, first: int, last: int) -> Found:
        assert stream == "mars"
        return Found([each for each in stored if first <= each.sequence <= last])

    done = repair(tmp_path, fetch, accept_loss=False)
    assert done.usable
    assert done.streams["mars"].missing == [(3, 3), (19, 20)]
    assert done.streams["mars"].altered == [(12, 12)]
    assert done.streams["mars"].lost == []

    async def read() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            assert await everything(log, "mars") == stored
            assert (await log.append(draft(1))).sequence == 21

    asyncio.run(read())
    assert repair(tmp_path, None, accept_loss=False).streams == {}


def lost_write_ahead(killed: tuple[Path, int], target: Path) -> tuple[Path, int]:
    log = copy(killed[0], target)
    (log / WAL).unlink()
    return log, killed[1]


def test_repair_refuses_to_lose_anything_unless_told(killed: tuple[Path, int], tmp_path: Path) -> None:
    log, acknowledged = lost_write_ahead(killed, tmp_path / "log")
    refused = CliRunner().invoke(main, ["log", "repair", "--path", str(log)])
    assert refused.exit_code == 1
    assert "not to be restored" in refused.output
    assert "--accept-loss" in refused.output
    assert verdict(log, acknowledged) is not None
    done = CliRunner().invoke(main, ["log", "repair", "--path", str(log), "--accept-loss"])
    assert done.exit_code == 0, done.output
    assert "given up" in done.output

    async def go_on() -> None:
        async with opened(SqliteLog(log)) as again:
            assert (await again.append(draft(1))).sequence > acknowledged
            await everything(again, "mars")

    asyncio.run(go_on())


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_bytes(b"gone")])
def test_repair_makes_a_new_ledger(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    asyncio.run(fill(tmp_path))
    spoil(tmp_path / LEDGER)
    with pytest.raises(LogDamaged, match="log repair"):
        asyncio.run(SqliteLog(tmp_path).open())
    done = CliRunner().invoke(main, ["log", "repair", "--path", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert len(asyncio.run(fill(tmp_path, 1))) == 21


def test_a_restored_copy_goes_on_after_what_the_ledger_says(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 5))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    asyncio.run(fill(tmp_path / "log", 5))
    (tmp_path / "log" / DATABASE).unlink()
    assert restore(tmp_path / "copy.sqlite", tmp_path / "log").streams == {"mars": 10}
    assert [each.sequence for each in asyncio.run(fill(tmp_path / "log", 1))] == [1, 2, 3, 4, 5, 11]


@in_event_loop
async def test_only_the_owner_may_read_a_log(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path / "log")) as log:
        await log.append(draft(1))
        assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "log").iterdir()}
        assert {DATABASE, WAL, LEDGER} <= modes.keys()
        assert set(modes.values()) == {0o600}


@in_event_loop
async def test_the_files_of_an_earlier_version_become_private(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    (tmp_path / DATABASE).chmod(0o644)
    async with opened(SqliteLog(tmp_path)):
        assert stat.S_IMODE((tmp_path / DATABASE).stat().st_mode) == 0o600


HOUR = 3600 * 10**9


@in_event_loop
async def test_a_clock_that_jumps_ahead_does_not_expire_young_notifications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)
    now, elapsed = [1_000 * HOUR], [5 * HOUR]
    policies = {"mars": StoragePolicy(retention_ns=48 * HOUR)}
    log = SqliteLog(tmp_path, policies, clock=lambda: now[0], elapsed=lambda: elapsed[0])

    async def trimmed(count: int) -> bool:
        return (await log.state("mars")).count == count

    async with opened(log):
        await log.append(draft(1))
        now[0] += HOUR
        elapsed[0] += HOUR
        await log.append(draft(2))
        now[0] += 10_000 * HOUR  # somebody has set it wrong
        await log.append(draft(3))
        await asyncio.sleep(0.3)  # retention has looked many times
        assert await sequences(log, "mars") == [1, 2, 3]
        now[0] += 23 * HOUR
        elapsed[0] += 23 * HOUR
        await asyncio.sleep(0.3)
        assert await sequences(log, "mars") == [1, 2, 3]
        now[0] += 2 * HOUR  # it has been so for a day: that is the time
        elapsed[0] += 2 * HOUR
        await until(lambda: trimmed(1))
        assert await sequences(log, "mars") == [3]


@in_event_loop
async def test_time_that_passes_expires_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)
    now, elapsed = [1_000 * HOUR], [5 * HOUR]
    policies = {"mars": StoragePolicy(retention_ns=48 * HOUR)}
    log = SqliteLog(tmp_path, policies, clock=lambda: now[0], elapsed=lambda: elapsed[0])

    async def empty() -> bool:
        return (await log.state("mars")).count == 0

    async with opened(log):
        await log.append(draft(1))
        now[0] += 49 * HOUR
        elapsed[0] += 49 * HOUR
        await until(empty)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with little room; skipped where this user cannot make one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a disk")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_start_on_a_full_disk_says_so(small_disk: Path) -> None:
    asyncio.run(fill(small_disk / "log", 1))
    room = shutil.disk_usage(small_disk).free
    (small_disk / "else").write_bytes(bytes(room))
    with pytest.raises(LogUnavailable) as refused:
        asyncio.run(SqliteLog(small_disk / "log").open())
    assert str(refused.value).startswith(f"the disk of the log in '{small_disk / 'log'}' is full: make room there")
    (small_disk / "else").unlink()
    assert len(asyncio.run(fill(small_disk / "log", 1))) == 2
