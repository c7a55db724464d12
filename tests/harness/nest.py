"""The nest: a process that has imported the server and becomes one for each order, so that servers start quickly.

    python -P nest.py SOCKET

Every order comes with the output, the error output and a connection on which the process id and, at the end, the
status is told. `tests/harness/warm.py` is the other end.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import aviso_server.cli
import aviso_server.server.lifecycle  # noqa: F401  # what `serve` imports

LONGEST = 1 << 20
"""Bytes of an order."""


def become() -> dict[str, Any]:
    """Fork for each order. Returns in the new processes only, with the order of each; the nest ends with its owner."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    living: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([owner.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _bury(living)
        if owner.fileno() not in ready:
            continue
        message, handles, _, _ = socket.recv_fds(owner, LONGEST, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for place, handle in enumerate(handles[:2], 1):
                os.dup2(handle, place)
            os.closerange(3, 1024)
            owner.detach()
            for each in living.values():
                each.detach()
            order: dict[str, Any] = json.loads(message)
            return order
        living[child] = socket.socket(fileno=handles[2])
        _tell(living[child], child)
        for handle in handles[:2]:
            os.close(handle)


def _bury(living: dict[int, socket.socket]) -> None:
    while living:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with living.pop(child) as listener:
            _tell(listener, os.waitstatus_to_exitcode(status))


def _tell(listener: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody may want to know any more
        listener.send(str(number).encode())


if __name__ == "__main__":
    order = become()
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["open_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"], order["open_files"]))
    sys.path.insert(0, order["directory"])  # as with -m
    sys.argv[1:] = order["arguments"]
    runpy.run_module("aviso_server", run_name="__main__", alter_sys=True)
