"""A broker on this machine: one for each directory, and not longer than its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aviso_server.errors import LogInUse
from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.harness.broker import wait_until

STARTS_ONE = """
import sys, time
from pathlib import Path
from aviso_server.log.jetstream.local_broker import LocalBroker
broker = LocalBroker(Path(sys.argv[1]), tied=True)
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""


def test_a_second_broker_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "nats") as first:
        with pytest.raises(LogInUse, match=f"nats' is in use by the process with pid {first.pid}: stop that one"):
            LocalBroker(tmp_path / "nats").start()
        assert first.running
    with LocalBroker(tmp_path / "nats") as next_one:
        assert next_one.running


def test_a_tied_broker_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", STARTS_ONE, str(tmp_path)], stdout=subprocess.PIPE)
    with server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    wait_until(lambda: not alive(pid))
    with LocalBroker(tmp_path) as broker:
        assert broker.running


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
