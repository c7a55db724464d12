"""Learning again and again, in the background of the pipeline process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import msgspec
from pyspark.sql import SparkSession

from aviso_server.model.lateness.watched import Watched
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.lateness.learning import learn
from aviso_server.pipeline.lateness.shelf import Shelf

__all__ = ["keep_learning", "learn_if_old", "read_tasks"]

logger = logging.getLogger(__name__)

_SHORTEST_WAIT = 1.0  # seconds
_FIRST_WAIT = 10.0  # seconds: the archive job starts first
_RETRY = 60.0  # seconds after a failure


def read_tasks(text: str) -> Sequence[Watched]:
    """The event types that are to be learned, as a server hands them to the pipeline process."""
    return msgspec.json.decode(text, type=list[Watched])


def keep_learning(
    session: SparkSession,
    board: Board,
    shelf: Shelf,
    tasks: Sequence[Watched],
    interval: float,
    stop: threading.Event,
) -> threading.Thread:
    """Learn every event type whenever what is known of it is older than the interval; the thread that does it."""

    def work() -> None:
        wait = min(_FIRST_WAIT, interval)
        while not stop.wait(max(wait, _SHORTEST_WAIT)):
            wait = interval
            for watched in tasks:
                try:
                    wait = min(wait, learn_if_old(session, board, shelf, watched, interval, time.time()))
                except Exception as error:  # Spark has many ways to fail; the next round may work
                    logger.warning(
                        "lateness of '%s' was not learned: %s", watched.event_type, error,
                        extra={"event": "lateness.learning.failed"},
                    )  # fmt: skip
                    wait = min(wait, _RETRY)

    thread = threading.Thread(target=work, name="lateness", daemon=True)
    thread.start()
    return thread


def learn_if_old(
    session: SparkSession, board: Board, shelf: Shelf, watched: Watched, interval: float, now: float
) -> float:
    """Learn an event type unless that was done lately; seconds until it is due again."""
    known = shelf.get(watched.event_type)
    if known is not None and known.fits(watched) and 0 <= now - known.learned_at < interval:
        return known.learned_at + interval - now
    learned = learn(session, board.root, board.storage, watched, int(now))
    shelf.put(learned)
    if learned.left_out:
        logger.warning(
            "lateness of '%s': %d combinations are not watched, there are more than max_combinations (%d)",
            watched.event_type, learned.left_out, watched.max_combinations,
            extra={"event": "lateness.learning.bounded"},
        )  # fmt: skip
    return interval
