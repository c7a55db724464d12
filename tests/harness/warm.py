"""Servers out of the nest: processes of their own that need not import anything any more."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.harness.patience import PATIENCE

__all__ = ["Forked", "Nest", "nest", "use_warm_starts"]

_PROGRAM = Path(__file__).with_name("nest.py")
_lock = threading.Lock()
_wanted = False
_nest: Nest | None = None


def use_warm_starts() -> None:
    """Let servers under test come out of the nest. Without this they start as people start them."""
    global _wanted
    _wanted = True


def nest(python_path: str) -> Nest | None:
    """The nest of this process; None if nobody wants one."""
    global _nest
    with _lock:
        if _wanted and _nest is None:
            _nest = Nest(python_path)
        return _nest


class Forked:
    """A process out of the nest; as much of `subprocess.Popen` as a server under test needs."""

    def __init__(self, life: socket.socket, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._life = life
        self._code: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self.pid = int(self._heard(2 * PATIENCE))

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        if self._code is None:
            self._code = int(self._heard(timeout))
            self._life.close()
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _heard(self, timeout: float | None) -> bytes:
        self._life.settimeout(timeout)
        try:
            told = self._life.recv(100)
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired("serve", timeout or 0.0) from None
        assert told, "the nest is gone"
        return told


class Nest:
    """The process that forks them; it ends with this one."""

    def __init__(self, python_path: str) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(
        self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], open_files: int | None = None
    ) -> Forked:
        """Start `aviso-server` with these arguments."""
        order = {
            "arguments": list(arguments),
            "directory": str(directory.resolve()),
            "environment": dict(environment),
            "open_files": open_files,
        }
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        life, life_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with life_end, os.fdopen(out_end, "wb"), os.fdopen(err_end, "wb"):
            ends = [out_end, err_end, life_end.fileno()]
            socket.send_fds(self._orders, [json.dumps(order).encode()], ends)
        return Forked(life, os.fdopen(out, "rb"), os.fdopen(err, "rb"))
