"""The life of the pipeline process, with small programs in its place: started, started again, ended, never orphaned."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from aviso_server.archive.supervisor import Supervisor, end_leftovers
from tests.harness.patience import PATIENCE

LIVES = """
import json, os, sys
json.dump({"port": 1234, "pid": os.getpid()}, open("draft", "w"))
os.replace("draft", "flight.json")
print("here I am", file=sys.stderr, flush=True)
sys.stdin.read()
open("ended", "w").close()
"""


def supervisor(directory: Path, program: str, pause: float = 0.05, healthy: float = 60.0) -> Supervisor:
    program = f"import os; os.chdir({str(directory)!r})\n" + dedent(program)
    return Supervisor(["-c", program], directory / "flight.json", {"A_VARIABLE": "handed on"}, pause, healthy)


async def until(condition, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


def test_it_runs_and_ends_with_its_owner(tmp_path: Path) -> None:
    async def run() -> None:
        child = supervisor(tmp_path, LIVES)
        assert child.state == "starting"
        child.start()
        await until(lambda: child.address is not None)
        assert child.address is not None
        assert child.address.port == 1234
        assert len(child.address.token) >= 32
        child.is_up()
        assert (child.state, child.reason, child.restarts) == ("running", None, 0)
        assert child._process is not None
        pid = child._process.pid
        await child.stop()
        assert (tmp_path / "ended").exists(), "it ends when its input does"
        assert {"state": child.state, "address": child.address} == {"state": "stopped", "address": None}
        assert not alive(pid)

    asyncio.run(run())


def test_one_that_does_not_want_to_end_is_ended_with_its_children(tmp_path: Path) -> None:
    program = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("pid", "w").write(str(child.pid))
    time.sleep(600)
    """

    async def run() -> None:
        child = supervisor(tmp_path, program)
        child.start()
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        grandchild = int((tmp_path / "pid").read_text())
        await child.stop()
        await until(lambda: not alive(grandchild))

    asyncio.run(run())


def test_it_is_started_again_with_longer_and_longer_pauses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = """
    import sys, time
    open("starts", "a").write(f"{time.monotonic()}\\n")
    print("no luck today", file=sys.stderr)
    sys.exit(4)
    """

    async def run() -> None:
        child = supervisor(tmp_path, program, pause=0.2)
        child.start()
        await until(lambda: child.restarts >= 3)
        assert child.state == "restarting"
        assert child.reason == "the pipeline process ended with exit code 4: no luck today"
        await child.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    starts = [float(line) for line in (tmp_path / "starts").read_text().split()]
    first, second = starts[1] - starts[0], starts[2] - starts[1]
    assert first >= 0.2
    assert second >= 0.4
    assert {record.event for record in caplog.records if hasattr(record, "event")} == {"archive.process.ended"}


@pytest.mark.parametrize(("answers", "pauses"), [(True, ["0.05"] * 3), (False, ["0.05", "0.1", "0.2"])])
def test_one_that_was_in_use_is_started_again_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answers: bool, pauses: list[str]
) -> None:
    async def run() -> None:
        child = supervisor(tmp_path, LIVES, healthy=0.1)
        child.start()
        for count in range(3):
            await until(lambda: child.address is not None)
            if answers:
                child.is_up()
            await asyncio.sleep(0.2)
            assert child._process is not None
            os.kill(child._process.pid, signal.SIGKILL)
            await until(lambda so_far=count: child.restarts > so_far)
        await child.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    ends = [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "archive.process.ended"]
    assert [re.findall(r"again in (\S+) s", each) for each in ends] == [[each] for each in pauses]


def test_one_that_cannot_run_here_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = """
    import sys
    open("starts", "a").write("x")
    print("some chatter", file=sys.stderr)
    print("Spark needs Java 17 or newer", file=sys.stderr)
    sys.exit(3)
    """

    async def run() -> None:
        child = supervisor(tmp_path, program)
        child.start()
        await until(lambda: child.state == "unavailable")
        await asyncio.sleep(0.3)
        assert child.reason == "Spark needs Java 17 or newer"
        assert child.restarts == 0
        await child.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert (tmp_path / "starts").read_text() == "x"
    [record] = [record for record in caplog.records if getattr(record, "event", "").startswith("archive.")]
    assert record.levelname == "ERROR"
    assert "without an archive: Spark needs Java 17 or newer" in record.message


def test_it_knows_its_secrets_and_has_a_session_of_its_own(tmp_path: Path) -> None:
    program = """
    import os
    open("facts", "w").write("\\n".join([os.environ["AVISO_FLIGHT_TOKEN"], os.environ["A_VARIABLE"], str(os.getsid(0) == os.getpid())]))
    """  # noqa: E501  # one line of a program

    async def run() -> None:
        child = supervisor(tmp_path, program)
        child.start()
        await until(lambda: (tmp_path / "facts").exists() and (tmp_path / "facts").read_text())
        await child.stop()
        assert (tmp_path / "facts").read_text().splitlines() == [child.token, "handed on", "True"]

    asyncio.run(run())


STUBBORN = """
import json, os, signal, subprocess, sys
deaf = "import os, signal, time; os.setsid(); open('deaf', 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf])
json.dump({"port": 1234, "pid": os.getpid()}, open("draft", "w"))
os.replace("draft", "flight.json")
sys.stdin.read()
"""
"""A pipeline with a child that hears neither the end of its input nor a signal to its group."""

OWNER = """
import asyncio, sys
from pathlib import Path
from tests.archive import test_supervisor
from tests.archive.test_supervisor import supervisor, until

async def run(directory, program):
    child = supervisor(directory, getattr(test_supervisor, program))
    child.start()
    await until(lambda: child.address is not None)
    (directory / "child").write_text(str(child._process.pid))
    await asyncio.sleep(600)

asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
"""


@contextmanager
def owner(directory: Path, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that looks after a program; killed at the end, if it still runs."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(directory), program], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def number(file: Path) -> int:
    """The process id in a file, as soon as it is there."""
    deadline = time.monotonic() + 180
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, "the child outlives its owner"
        time.sleep(0.05)


def test_no_orphan_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    with owner(tmp_path, "LIVES"):
        pid = number(tmp_path / "child")
    gone(pid)


def test_what_a_killed_owner_left_behind_ends_with_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with owner(tmp_path, "STUBBORN"):
        pid, deaf = number(tmp_path / "child"), number(tmp_path / "deaf")
        os.kill(deaf, signal.SIGSTOP)
    gone(pid)
    assert alive(deaf), "nothing tells it to end"

    async def run() -> None:
        child = supervisor(tmp_path, LIVES)
        child.start()
        await until(lambda: child.address is not None)
        assert not alive(deaf)
        await child.stop()

    try:
        with caplog.at_level(logging.WARNING):
            asyncio.run(run())
    finally:
        if alive(deaf):
            os.kill(deaf, signal.SIGKILL)
    assert "archive.process.leftover" in {getattr(record, "event", None) for record in caplog.records}


def test_a_killed_pipeline_takes_along_what_left_its_process_group(tmp_path: Path) -> None:
    async def run() -> None:
        child = supervisor(tmp_path, STUBBORN)
        child.start()
        await until(lambda: (tmp_path / "deaf").exists() and (tmp_path / "deaf").read_text())
        first = number(tmp_path / "deaf")
        assert child._process is not None
        os.kill(child._process.pid, signal.SIGKILL)
        await until(lambda: child.restarts == 1)
        try:
            assert not alive(first)
        finally:
            await child.stop()

    asyncio.run(run())


def test_nobody_ends_the_pipeline_of_another_server(tmp_path: Path) -> None:
    """Even if both have the same folder, which they should not."""
    with owner(tmp_path, "LIVES") as process:
        pid = number(tmp_path / "child")
        assert end_leftovers(tmp_path / "flight.json") == 0
        assert alive(pid)
        assert process.poll() is None
