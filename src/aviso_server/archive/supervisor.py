"""Looks after the pipeline process: starts it, starts it again when it ends, and ends it with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from aviso_server.archive.bridge import Address

__all__ = ["ARCHIVE_TOKEN", "State", "Supervisor"]

logger = logging.getLogger(__name__)

ARCHIVE_TOKEN = "AVISO_ARCHIVE_TOKEN"
"""The variable with the credentials of the archive job."""

State = Literal["starting", "running", "restarting", "unavailable", "stopped"]
"""`unavailable`: Spark cannot run here. The reason is always beside."""

_BRIDGE_TOKEN = "AVISO_BRIDGE_TOKEN"
_IMPOSSIBLE = 3  # the exit code of a process that will not do better soon
_GRACE = 3.0  # seconds to end by itself
_SHORTEST_PAUSE = 1.0  # seconds before it is started again
_LONGEST_PAUSE = 60.0
_LONG_PAUSE = 300.0  # after it said that it cannot run here
_HEALTHY = 60.0  # seconds after which an end is not part of a row of failures
_GLANCE = 0.1  # seconds between two looks at the ready file
_WORDS = 20  # last lines of its error output that are kept
_LONGEST_LINE = 1024 * 1024


class _Ready(msgspec.Struct, frozen=True):
    port: int | None = None
    error: str | None = None


class Supervisor:
    """The life of the pipeline process, which owns Spark and the archive.

    It has a session of its own, so that a terminal's Ctrl-C reaches only the server. It ends when its standard input
    does: however this process ends, it leaves nothing behind.
    """

    def __init__(
        self, command: Sequence[str], ready_file: Path, environment: Mapping[str, str], pause: float = _SHORTEST_PAUSE
    ) -> None:
        self.command = command
        self._ready_file = ready_file
        self._environment = environment
        self._pause = pause
        self.token = secrets.token_urlsafe(32)  # what callers of its bridge have to know
        self._running: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._complained = False
        self.changed: Callable[[], None] = lambda: None
        self.address: Address | None = None  # where its bridge listens, while it does
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

    def is_up(self) -> None:
        """Spark is there: it has answered."""
        if self.state not in ("running", "stopped") and self.address is not None:
            self._become("running", None)
            logger.info("the archive is in use", extra={"event": "archive.process.running"})

    async def _look_after(self, delay: float) -> None:
        await asyncio.sleep(delay)
        pause = self._pause
        while True:
            began = time.monotonic()
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
            if time.monotonic() - began > _HEALTHY:
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
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment, _BRIDGE_TOKEN: self.token},
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        listening = asyncio.create_task(self._listen(self._process))
        waiting = asyncio.create_task(self._wait_for_bridge())
        try:
            code = await self._process.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listening, _GRACE)
        finally:
            listening.cancel()
            waiting.cancel()
            await self._end()
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

    async def _wait_for_bridge(self) -> None:
        while True:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                ready = msgspec.json.decode(self._ready_file.read_bytes(), type=_Ready)
                if ready.port is not None:
                    self.address = Address(ready.port, self.token)
                    self.changed()
                    return
            await asyncio.sleep(_GLANCE)

    async def _end(self) -> None:
        """Let it end by itself; if it does not, end it and its children."""
        process, self._process, self.address = self._process, None, None
        if process is None:
            return
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own, so these are only its children
        await process.wait()

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
