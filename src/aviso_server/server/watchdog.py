"""The watchdog of the event loop: how late the loop is, and which code held it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from aviso_server.counters import Histogram
from aviso_server.http.request import Request

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)

_INTERVAL = 0.02  # seconds between two looks
_LOGGED = 0.1  # seconds: who holds the loop longer is named in the log
_LOGGED_STARVED = 1.0  # seconds: on a busy machine shorter delays come all the time
_MAX_FRAMES = 200  # of a stack
_SHOWN_FRAMES = 4
_IDLE = ("asyncio/runners.py", "selectors.py")  # where a loop waits that has nothing to do
_NOTHING = "nothing"
_SCHEDULER = Path("/proc/thread-self/schedstat")  # nanoseconds that ran, nanoseconds that waited, turns


class Watchdog:
    """Measures the lag of the event loop; a thread looks at the loop's stack while it is held."""

    def __init__(self, lag: Histogram) -> None:
        self._lag = lag
        self._due = 0.0  # when the loop should look at the clock again
        self._seen: tuple[float, dict[str, Any]] = (0.0, {})  # a turn that was due, and what the loop did instead
        self._ended = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._due = perf_counter() + _INTERVAL
        self._task = asyncio.create_task(self._measure(), name="watchdog")
        arguments = (threading.get_ident(),)
        threading.Thread(target=self._look, args=arguments, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        if self._task is not None:
            self._task.cancel()

    async def _measure(self) -> None:
        waited = _waited_for_processor()
        while True:
            await asyncio.sleep(_INTERVAL)
            due, now = self._due, perf_counter()
            lag = max(0.0, now - due)
            self._lag.observe(lag)
            self._due = now + _INTERVAL
            before, waited = waited, _waited_for_processor()
            if lag <= _LOGGED:
                continue
            seen_due, culprit = self._seen
            known = culprit if seen_due == due else {}
            if waited - before > lag / 2 or known.get("where") == _NOTHING:
                if lag > _LOGGED_STARVED:
                    logger.info(
                        "the event loop was %.1f s late though nothing held it: the machine is busy",
                        lag,
                        extra={"event": "event_loop.starved", "seconds": round(lag, 3)},
                    )
            else:
                logger.warning(
                    "the event loop was held for %.0f ms by %s",
                    lag * 1000,
                    known.get("where", "something that let no other thread run"),
                    extra={"event": "event_loop.held", "seconds": round(lag, 3), **known},
                )

    def _look(self, loop_thread: int) -> None:
        """Remember, in a thread of its own, what the loop does while its turn is overdue."""
        while not self._ended.wait(_INTERVAL):
            due = self._due
            if perf_counter() - due > _LOGGED / 2 and self._seen[0] != due:
                frame = sys._current_frames().get(loop_thread)
                if frame is not None:
                    self._seen = (due, _culprit(frame))


def _waited_for_processor() -> float:
    """Return the seconds that this thread was ready to run and did not; 0 if the system does not say."""
    try:
        return int(_SCHEDULER.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _culprit(frame: FrameType) -> dict[str, Any]:
    """Return where the loop is and for which request, from the innermost functions of ours."""
    if frame.f_code.co_filename.endswith(_IDLE):
        return {"where": _NOTHING}
    where: list[str] = []
    known: dict[str, Any] = {}
    inner: FrameType | None = frame
    for _ in range(_MAX_FRAMES):
        if inner is None:
            break
        code = inner.f_code
        if "aviso_server" in code.co_filename:
            if code.co_filename == __file__ and not where:
                return {"where": _NOTHING}  # its own turn has come: only the machine can have made it late
            if len(where) < _SHOWN_FRAMES:
                where.append(f"{code.co_qualname} ({code.co_filename.rpartition('aviso_server/')[2]}:{inner.f_lineno})")
            for value in inner.f_locals.values():
                if isinstance(value, Request) and value.route is not None:
                    known |= {"request_id": value.id, "route": value.route.path}
        inner = inner.f_back
    return {**known, "where": " < ".join(where) or f"{frame.f_code.co_qualname} ({frame.f_code.co_filename})"}
