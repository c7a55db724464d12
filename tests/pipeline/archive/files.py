"""Files of an archive as the job makes them, without a server and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from aviso_server.model.arrow import record_batch
from aviso_server.model.columns import STORED, columns_of
from aviso_server.model.definition import build_event_type
from aviso_server.model.notification import Notification
from aviso_server.pipeline.archive.columns import FileShape
from aviso_server.pipeline.archive.layout import data_path, stream_folder
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.writer import RangeWriter
from tests.pipeline.scene import CONFIGURATION, flood

__all__ = ["SHAPE", "event_type", "stored", "write"]


def event_type(**changes: Any) -> Any:
    definition = CONFIGURATION["notification_schema"]["flood"]
    built, problems = build_event_type("flood", {**definition, "identifier": {**definition["identifier"], **changes}})
    assert built is not None, problems
    return built


FLOOD = event_type()
SHAPE = FileShape("flood", columns_of(FLOOD))


def notification(number: int, **changes: Any) -> Notification:
    draft = FLOOD.check({**flood(number), **changes}, {"n": number})
    return Notification(number, number * 1_000_007, draft.topic, draft.identifier, draft.payload, draft.box)


def stored(numbers: list[int]) -> pa.RecordBatch:
    return record_batch(STORED, "flood", [notification(number) for number in numbers])


def write(root: Path, first: int, last: int, missing: set[int] | None = None, shape: FileShape = SHAPE) -> None:
    """A file of the stream `flood`, as the job would make it."""
    folder = Path(stream_folder(str(root), "flood"))
    writer = RangeWriter(folder, first, last, shape.schema)
    numbers = [number for number in range(first, last + 1) if number not in (missing or set())]
    drafts = list(writer.add(shape.batch(stored(numbers)))) if numbers else []
    for draft in [*drafts, *writer.finish()]:
        LOCAL.put(Path(draft.path), data_path(str(root), "flood", draft.first, draft.last))
