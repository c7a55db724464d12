"""Insight in the background of the pipeline process: a look at every stream, again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from aviso_server.errors import AvisoError, InvalidRequest
from aviso_server.insight.tables import FOLDER, stream_of
from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.archive.job import reason
from aviso_server.pipeline.archive.source import ArchiveTask
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import joined
from aviso_server.pipeline.catalogue import fetch_catalogue
from aviso_server.pipeline.insight.rollup import Rollup
from aviso_server.pipeline.insight.subject import Subject, subject_of

__all__ = ["keep_insight", "roll_up", "subjects"]

logger = logging.getLogger(__name__)

_SOON = 5.0  # seconds until the first look: the archive comes first


def keep_insight(
    session: SparkSession, board: Board, task: ArchiveTask, work: Path, interval: float, stop: threading.Event
) -> threading.Thread:
    """Roll up in a thread until told to stop, every so many seconds."""
    rollup = Rollup(session, board.root, board.storage, work)

    def look() -> None:
        wait = min(_SOON, interval)
        while not stop.wait(wait):
            wait = interval
            try:
                if hasattr(session, "_jsparkSession"):
                    session.sparkContext.setLocalProperty("spark.scheduler.pool", "insight")
                names = _names(board, rollup)
                roll_up(rollup, board, subjects(names, names, fetch_catalogue(task.connection())))
            except Exception as error:  # the next round may work; the tables are right as they are
                words = str(error) if isinstance(error, AvisoError) else reason(error)
                logger.warning("insight failed: %s", words, extra={"event": "insight.failed"})

    thread = threading.Thread(target=look, name="insight", daemon=True)
    thread.start()
    return thread


def _names(board: Board, rollup: Rollup) -> dict[str, str]:
    """The event type of every archived stream: as the log has it, else as it was. Of others nothing is known yet."""
    log, found = board.log_streams(), {}
    for stream in board.watermarks():
        if stream in log:
            found[stream] = log[stream].event_type
        elif (state := rollup.state(stream)) is not None:
            found[stream] = state.event_type
    return found


def subjects(streams: Iterable[str], names: Mapping[str, str], event_types: Mapping[str, EventType]) -> list[Subject]:
    """What to count in each stream; `names` says which event type a stream has. Those nobody can read are left out."""
    found = []
    for stream in sorted(streams):
        name = names.get(stream, stream)
        try:
            found.append(subject_of(stream, event_types[name] if name in event_types else GenericType(name)))
        except InvalidRequest:
            continue
    return found


def roll_up(rollup: Rollup, board: Board, wanted: Iterable[Subject]) -> dict[str, int]:
    """One step for every stream: how many hours of each had to be made. Streams that are gone are forgotten."""
    made = {}
    for subject in wanted:
        made[subject.stream] = rollup.step(subject)
    archived = board.watermarks()
    for each in board.storage.list(joined(board.root, FOLDER)):
        stream = stream_of(each.name)
        if stream is not None and stream not in archived:
            rollup.forget(stream)
    return made
