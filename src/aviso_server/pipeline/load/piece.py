"""The check of one piece of the input, as a worker does it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aviso_server.model.schema import EventType, GenericType
from aviso_server.pipeline.load.checking import Checker
from aviso_server.pipeline.load.parts import Part, faults_of, history_of, items_of
from aviso_server.pipeline.load.rows import chunks
from aviso_server.pipeline.load.splits import Split
from aviso_server.pipeline.load.summary import Summary, Tally
from aviso_server.pipeline.load.taken import Wanted

__all__ = ["CheckTask", "check_split"]


class CheckTask(msgspec.Struct, frozen=True):
    """What workers are told. Pickles."""

    event_type: EventType | GenericType
    wanted: Wanted
    latest: int  # the moment up to which times are the past: nanoseconds since 1970
    folder: str  # for what they leave
    faults: bool  # whether refused rows are wanted
    salt: str = ""  # what tells the keys of this load from those of another one of the same rows


def check_split(split: Split, task: CheckTask) -> Summary:
    """Check the rows of a piece and leave them for the next step. Runs on a worker."""
    checker = Checker(task.event_type, task.wanted, task.latest)
    tally = Tally()
    folder = Path(task.folder)
    taken = None
    if task.wanted.history or task.wanted.given:
        taken = Part(folder, "history" if task.wanted.history else "items", split.number)
    refused = Part(folder, "faults", split.number) if task.faults else None
    parts = [part for part in (taken, refused) if part is not None]
    try:
        for chunk in chunks(split, checker, task.event_type):
            tally.add(chunk.count, chunk.passed, chunk.outcome.faults.values())
            if refused is not None and chunk.outcome.faults:
                refused.add(faults_of(chunk))
            if taken is not None and task.wanted.history:
                taken.add(history_of(chunk, split))
            elif taken is not None:
                taken.add(items_of(chunk, split, task.event_type.name, task.salt))
        for part in parts:
            part.finish()
    except BaseException:
        for part in parts:
            part.abandon()
        raise
    return tally.summary()
