"""Heartbeats of 10,000 watchers: our timers against one `call_later` each. Run as `python -m bench.timers`."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from typing import Any

import uvloop

from aviso_server.delivery.hub import Timers

_WATCHERS = 10_000
_INTERVAL = 1.0  # seconds; ten times as often as the default
_SECONDS = 6.0
_WORK = 10e-6  # seconds that a heartbeat takes: render a frame and hand it to the transport


class Watcher:
    """Something with a heartbeat."""

    def __init__(self) -> None:
        self.ticks = 0
        self.timer: asyncio.TimerHandle | None = None

    def tick(self, now: float) -> float | None:
        """Take as long as a heartbeat does."""
        self.ticks += 1
        end = time.perf_counter() + _WORK
        while time.perf_counter() < end:
            pass
        return now + _INTERVAL

    def abort(self) -> None:
        """Do nothing."""

    def again(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tick, and set the next timer."""
        when = self.tick(loop.time())
        assert when is not None
        self.timer = loop.call_at(when, self.again, loop)


async def _measure(kind: str) -> None:
    loop = asyncio.get_running_loop()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watchers = [Watcher() for _ in range(_WATCHERS)]
    when = loop.time() + _INTERVAL  # all at once: they reconnected after a restart
    running: asyncio.Task[Any] | None = None
    if kind == "ours":
        timers = Timers()
        running = asyncio.create_task(timers.run())
        await asyncio.sleep(0)
        for each in watchers:
            timers.add(each, when)
    else:
        for each in watchers:
            each.timer = loop.call_at(when, each.again, loop)
    began, cpu, longest = loop.time(), time.process_time(), 0.0
    while loop.time() < began + _SECONDS:
        asked = loop.time()
        await asyncio.sleep(0.001)
        longest = max(longest, loop.time() - asked - 0.001)
    ticks = sum(each.ticks for each in watchers)
    cost = (time.process_time() - cpu) / ticks - _WORK
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / _WATCHERS
    print(f"{kind:10} {cost * 1e6:5.2f} µs per tick, {memory:4.0f} B per watcher, others wait {longest * 1e3:.1f} ms")
    if running is not None:
        running.cancel()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(_measure(sys.argv[1]))
    else:
        for _ in range(3):
            for name in ("ours", "call_later"):
                subprocess.run([sys.executable, "-m", "bench.timers", name], check=True)
