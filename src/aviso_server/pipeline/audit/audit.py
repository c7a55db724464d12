"""The audit of a server and its archive."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.model.timestamp import event_time
from aviso_server.pipeline.archive.layout import listing, stream_folder
from aviso_server.pipeline.archive.ranges import Range
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.audit.findings import Audit, StreamAudit
from aviso_server.pipeline.audit.log_side import LogView, ServerLog
from aviso_server.pipeline.audit.stream import SLICE, Pending, Told, audit_stream

__all__ = ["SETTINGS", "Auditor", "to_mend"]

SETTINGS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
"""What an audit wants of Spark."""


class Auditor:
    """Audits streams of one server, with the archive in `root` if there is one."""

    def __init__(
        self,
        session: SparkSession,
        server: ServerLog,
        root: str | None,
        storage: Storage,
        pending: Pending,
        slice_length: int = SLICE,
    ) -> None:
        self._session = session
        self._server = server
        self._root = root
        self._storage = storage
        self._pending = pending
        self._slice_length = slice_length

    def run(self, names: Sequence[str], told: Told = lambda stream, done, total: None) -> Audit:
        """Audit the streams of these names or event types, all if none are named; PipelineError if one is unknown."""
        began, at = time.monotonic(), event_time(time.time_ns())
        found: dict[str, StreamAudit] = {}
        for name, view in sorted(self._server.streams(names).items()):
            try:
                if view.problem is not None:
                    raise PipelineError(view.problem)
                found[name] = self._stream(view, told)
            except PipelineError as error:
                found[name] = StreamAudit(
                    event_type=view.event_type, verdict="unchecked", acknowledged=view.last, unchecked=(str(error),)
                )
        return Audit(at=at, seconds=round(time.monotonic() - began, 3), archive=self._root, streams=found)

    def _stream(self, view: LogView, told: Told) -> StreamAudit:
        root = self._root
        if root is not None and not self._server.lists_streams:
            root = None  # such a server was never archived, whatever lies there
        elif (
            root is not None
            and not self._server.archives
            and not listing(stream_folder(root, view.stream), self._storage)
        ):
            root = None
        return audit_stream(
            self._session, self._server, view, root, self._storage, self._pending, told, self._slice_length
        )


def to_mend(audit: Audit) -> dict[str, list[Range]]:
    """The sequences that can be mended, by stream."""
    found = {
        name: [(each.first, each.last) for each in stream.defects if each.repairable]
        for name, stream in audit.streams.items()
    }
    return {name: ranges for name, ranges in found.items() if ranges}
