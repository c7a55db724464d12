"""Looks after the pipeline process: starts it, starts it again when it ends, and ends it with the server.

Whatever it leaves behind is found by a mark in the environment and ended. A pipeline ends with its server, and Java
with the pipeline, because each reads the end of its input. One that hangs or was stopped reads nothing, and Spark's
Python workers are in process groups of their own. The mark is handed on to all of them; it names the server that
started them, so that nobody ends what belongs to a server that is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from aviso_server.archive.flight_client import Address

__all__ = ["ARCHIVE_TOKEN", "MARK", "State", "Supervisor", "end_leftovers", "has_ended", "mark"]

logger = logging.getLogger(__name__)

ARCHIVE_TOKEN = "AVISO_ARCHIVE_TOKEN"
"""The variable with the credentials of the archive job."""

MARK = "AVISO_PIPELINE_OF"
"""The variable that all processes of a pipeline have."""

State = Literal["starting", "running", "restarting", "unavailable", "stopped"]
"""`unavailable`: the archive cannot be used. The reason is always beside."""

_FLIGHT_TOKEN = "AVISO_FLIGHT_TOKEN"
_IMPOSSIBLE = 3  # the exit code of a process that will not do better soon
_GRACE = 3.0  # seconds to end by itself
_SHORTEST_PAUSE = 1.0  # seconds before it is started again
_LONGEST_PAUSE = 20.0  # readers wait longer than this
_LONG_PAUSE = 300.0  # after it said that it cannot run here
_HEALTHY = 20.0  # seconds of use after which an end is not part of a row of failures
_GLANCE = 0.1  # seconds between two looks at the ready file
_WORDS = 20  # last lines of its error output that are kept
_LONGEST_LINE = 1024 * 1024
_PROCESSES = Path("/proc")
_PATIENCE = 5.0  # seconds for the system to clear away what was killed


class _Ready(msgspec.Struct, frozen=True):
    port: int | None = None
    error: str | None = None


class Supervisor:
    """The life of the pipeline process, which owns Spark and the archive.

    It has a session of its own, so that a terminal's Ctrl-C reaches only the server. It ends when its standard input
    does: however this process ends, it leaves nothing behind that still listens. What hangs is ended at the next start.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready_file: Path,
        environment: Mapping[str, str],
        pause: float = _SHORTEST_PAUSE,
        healthy: float = _HEALTHY,
    ) -> None:
        self.command = command
        self._ready_file = ready_file
        self._environment = environment
        self._pause = pause
        self._healthy = healthy
        self._used_since = math.inf  # it has not answered yet
        self.elected = True  # it is this server that archives
        self.token = secrets.token_urlsafe(32)  # what callers have to know
        self._running: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._complained = False
        self.changed: Callable[[], None] = lambda: None
        self.address: Address | None = None  # where it listens, while it does
        self.state: State = "starting"
        self.reason: str | None = None  # why it is not running
        self.restarts = 0

    def start(self, delay: float = 0.0) -> None:
        """Begin to look after it, in so many seconds."""
        self._running = asyncio.create_task(self._look_after(delay), name="pipeline process")

    async def stop(self) -> None:
        """End it and everything that it has started."""
        self._become("stopped", "the server is stopping")
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self._end()

    def elect(self, elected: bool) -> None:
        """Let it archive, or let it only answer while another server does."""
        self.elected = elected
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"archive\n" if elected else b"standby\n")

    def give_up(self, reason: str) -> None:
        """End a process that does not answer any more; another one takes its place."""
        if self._process is not None:
            self._words.append(reason)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def is_up(self) -> None:
        """Note that Spark is there: it has answered."""
        if self.state not in ("running", "stopped") and self.address is not None:
            self._become("running", None)
            self._used_since = time.monotonic()
            logger.info("the archive is in use", extra={"event": "archive.process.running"})

    async def _look_after(self, delay: float) -> None:
        await asyncio.sleep(delay)
        pause = self._pause
        while True:
            self._used_since = math.inf
            try:
                code = await self._run()
            except OSError as error:
                code = -1
                self._words.append(str(error))
            finally:
                self.address = None
            if code == _IMPOSSIBLE:
                self._become("unavailable", self._last_words())
                self._complain_once()
                await asyncio.sleep(_LONG_PAUSE)
                continue
            self._complained = False
            self.restarts += 1
            self._become("restarting", f"the pipeline process ended with exit code {code}: {self._last_words()}")
            if time.monotonic() - self._used_since > self._healthy:
                pause = self._pause
            logger.warning(
                "%s; it is started again in %g s", self.reason, pause,
                extra={"event": "archive.process.ended", "exit_code": code},
            )  # fmt: skip
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _run(self) -> int:
        """Start it, and return how it ended."""
        self._words.clear()
        if many := await asyncio.to_thread(end_leftovers, self._ready_file):
            logger.warning(
                "ended %d processes that an earlier pipeline process left behind", many,
                extra={"event": "archive.process.leftover"},
            )  # fmt: skip
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.command,
            *(() if self.elected else ("--standby",)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment, _FLIGHT_TOKEN: self.token, MARK: mark(self._ready_file)},
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        listening = asyncio.create_task(self._listen(self._process))
        waiting = asyncio.create_task(self._wait_until_ready())
        try:
            await has_ended(self._process.pid)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listening, _GRACE)  # its children may write on while they end
        finally:
            listening.cancel()
            waiting.cancel()
            code = await self._end()
        return code

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep its last words: an error is announced there."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # too long to be a word of ours
            if not line:
                return
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._words.append(text)
                logger.debug("pipeline process: %s", text, extra={"event": "archive.process.said"})

    async def _wait_until_ready(self) -> None:
        while True:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                ready = msgspec.json.decode(self._ready_file.read_bytes(), type=_Ready)
                if ready.port is not None:
                    self.address = Address(ready.port, self.token)
                    self.changed()
                    return
            await asyncio.sleep(_GLANCE)

    async def _end(self) -> int:
        """Let it end by itself; if it does not, end it and its children. Return its exit code."""
        process, self._process, self.address = self._process, None, None
        if process is None:
            return 0
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_ended(process.pid), _GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own, so these are only its children
        await asyncio.to_thread(end_leftovers, self._ready_file)  # Spark's workers have process groups of their own
        return await process.wait()

    def _become(self, state: State, reason: str | None) -> None:
        if self.state != "stopped":
            self.state, self.reason = state, reason
            self.changed()

    def _complain_once(self) -> None:
        if not self._complained:
            self._complained = True
            logger.error(
                "the server runs without an archive: %s", self.reason, extra={"event": "archive.process.impossible"}
            )

    def _last_words(self) -> str:
        return self._words[-1] if self._words else "it did not say why"


def mark(ready_file: Path) -> str:
    """Return the mark of processes that this one starts for a pipeline; there is one pipeline for a ready file."""
    return f"{_began(os.getpid())}.{os.getpid()}:{ready_file.absolute()}"


def end_leftovers(ready_file: Path) -> int:
    """End what this process, or one that has ended, has started for a pipeline; return how many there were.

    Only while that pipeline does not run.
    """
    found: list[int] = []
    try:
        for each in _PROCESSES.iterdir():
            if each.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
                    process = os.pidfd_open(int(each.name))
                    found.append(process)  # from here on the number means this process and no later one
                    if not _is_leftover(each, ready_file):
                        os.close(found.pop())
                        continue
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        _wait(found)
        return len(found)
    finally:
        for process in found:
            os.close(process)


async def has_ended(number: int) -> None:
    """Return when a child has ended; asyncio also waits until nobody has its output open, and its children may."""
    try:
        process = os.pidfd_open(number)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def _is_leftover(process: Path, ready_file: Path) -> bool:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    opening = f"{MARK}=".encode()
    for variable in variables:
        if variable.startswith(opening):
            owner, _, place = os.fsdecode(variable.removeprefix(opening)).partition(":")
            began, _, number = owner.partition(".")
            return place == str(ready_file.absolute()) and (
                number == str(os.getpid()) or not number.isdigit() or _began(int(number)) != began
            )
    return False


def _began(number: int) -> str:
    """Return when a process began, in the system's own unit; empty if there is none that runs."""
    try:
        words = (_PROCESSES / str(number) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def _wait(processes: list[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    waiting = set(processes)
    while waiting and (left := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(waiting, [], [], left)
        waiting.difference_update(ended)
