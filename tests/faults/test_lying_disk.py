"""A disk that says it has written and has not, and then the power fails: what is lost is named, never passed over.

    FAULT_SEED=17 make test ARGS=tests/faults/test_lying_disk.py    another schedule

While the disk lies, the database and its write-ahead file reach only memory. The power cut takes some of that: each of
the two files is as it was at some earlier moment, or it is as the server left it, or the newer one is cut short. The
ledger is on disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from aviso_server.log.sqlite.database import DATABASE
from aviso_server.log.sqlite.ledger import read_ledger
from tests.faults.machine import Machine, machine
from tests.faults.recorder import EVENT_TYPE, stored
from tests.harness import StartFailed
from tests.harness.broker import wait_until
from tests.harness.client import body

SEED = int(os.environ.get("FAULT_SEED", "1"))
ROUNDS = int(os.environ.get("FAULT_ROUNDS", "3"))  # at least
MOST_ROUNDS = 20 * ROUNDS  # until something was lost
FILES = (DATABASE, f"{DATABASE}-wal")


def publish(running: Machine, chance: Random, acknowledged: list[str]) -> None:
    """Some, with enough bytes that now and then the write-ahead file is moved into the database."""
    for _ in range(chance.randrange(1, 4)):
        size = chance.choice((1, 50, 400))
        texts = [f"{len(acknowledged) + number}-{'x' * chance.choice((1, 2_000))}" for number in range(size)]
        batch = [body(EVENT_TYPE, {"place": "x", "level": 1}, payload=text) for text in texts]
        assert running.server.client.answer("notifications", batch).status == 200
        acknowledged += texts
        time.sleep(chance.choice((0.0, 0.2)))


def cut_power(running: Machine, chance: Random, earlier: Path) -> str:
    """End the server; of what it wrote, some has never reached the disk."""
    log = running.server.directory / "log"
    running.server.kill()
    (log / f"{DATABASE}-shm").unlink(missing_ok=True)
    lost = chance.choice((FILES[:1], FILES[1:], FILES))
    for name in lost:
        file, before = log / name, earlier / name
        if name != DATABASE and file.exists() and chance.random() < 0.5:
            os.truncate(file, chance.randrange(file.stat().st_size + 1))
        elif before.exists():
            shutil.copy(before, file)
        else:
            file.unlink(missing_ok=True)
    return ", ".join(lost)


@pytest.mark.long  # each round starts four processes
def test_what_a_lying_disk_has_lost_is_named(tmp_path: Path) -> None:
    chance = Random(SEED)
    with machine("sqlite", tmp_path) as running:
        if not running.has_shim:
            pytest.skip("without a C compiler no disk can lie")
        noticed = number = 0
        while number < ROUNDS or (number < MOST_ROUNDS and not noticed):
            noticed += lie_once(running, chance, tmp_path / f"earlier-{number}", tmp_path / f"sound-{number}")
            number += 1
    assert noticed, "no round has lost anything: the test is of no use"


def lie_once(running: Machine, chance: Random, earlier: Path, sound: Path) -> bool:
    """One lie and its power cut on a log of its own; True if something was lost and the server said so."""
    server, log = running.server, running.server.directory / "log"
    acknowledged: list[str] = []
    publish(running, chance, acknowledged)
    shutil.copytree(log, earlier)
    with running.lying_disk():
        publish(running, chance, acknowledged)
        wait_until(lambda: max((read_ledger(log) or {}).values(), default=0) == len(acknowledged))
        lost = cut_power(running, chance, earlier)
    try:
        server.start()
    except StartFailed as refused:
        if "damaged" not in str(refused) and "cannot be used" not in str(refused):
            raise
        shutil.move(log, sound)
        mended = repair(server.directory, sound)
        server.start()
        if mended:
            server.client.publish(EVENT_TYPE, {"place": "x", "level": 1}, "after")
            assert stored(server)[-1][0] > len(acknowledged), f"a sequence was given out again; lost: {lost}"
            start_afresh(running)
        return True
    held = [payload for _, payload in stored(server)]
    assert held == acknowledged, f"lost in silence: {len(acknowledged) - len(held)} of {len(acknowledged)}; {lost}"
    start_afresh(running)
    return False


def repair(directory: Path, sound: Path) -> bool:
    """Give up what is lost, as an operator would; False if SQLite itself cannot read what is left."""
    shutil.copytree(sound, directory / "log")
    command = [sys.executable, "-m", "aviso_server", "log", "repair", "--path", "log", "--accept-loss", "--json"]
    if subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=120).returncode == 0:
        return True
    shutil.rmtree(directory / "log")
    return False


def start_afresh(running: Machine) -> None:
    running.server.kill()
    shutil.rmtree(running.server.directory / "log")
    running.server.start()
