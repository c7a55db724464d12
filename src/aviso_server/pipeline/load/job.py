"""The check of all rows on Spark: every piece of the input is a task."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from aviso_server.errors import AvisoError, PipelineError
from aviso_server.pipeline.archive.job import reason
from aviso_server.pipeline.load.piece import CheckTask
from aviso_server.pipeline.load.source import CHECK, CheckSource, packed
from aviso_server.pipeline.load.splits import Split
from aviso_server.pipeline.load.summary import Summary

__all__ = ["Told", "check_all", "run_watched"]

Told = Callable[[int, int], None]
"""Called with how many pieces are done, and how many there are."""

_POLL = 0.3  # seconds


def check_all(session: SparkSession, splits: Sequence[Split], task: CheckTask, told: Told) -> list[Summary]:
    """The summary of each piece, in order; PipelineError if the input cannot be read."""
    if not splits:
        return []
    session.dataSource.register(CheckSource)
    work = session.read.format(CHECK).option("task", packed((list(splits), task))).load()
    found: dict[int, Summary] = {}
    for row in run_watched(session, work.collect, len(splits), told):
        found[row.number] = msgspec.json.decode(row.summary, type=Summary)
    return [found[number] for number in range(len(splits))]


def run_watched(session: SparkSession, work: Callable[[], Any], total: int, told: Told) -> Any:
    """Run a job of Spark and tell how far it is; PipelineError if it fails.

    The job runs in the caller's thread: Spark finds data sources only from the thread that made the session.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL):
            with contextlib.suppress(Exception):  # a remote session cannot tell
                tracker = session.sparkContext.statusTracker()
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                told(sum(each.numCompletedTasks for each in stages if each is not None), total)

    watching = threading.Thread(target=watch, name="load progress", daemon=True)
    watching.start()
    try:
        return work()
    except AvisoError:
        raise
    except Exception as error:  # Spark has many ways to say that a task failed
        raise PipelineError(reason(error)) from None
    finally:
        ended.set()
        watching.join()
        told(total, total)
