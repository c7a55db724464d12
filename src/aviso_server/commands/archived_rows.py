"""Notifications out of the archive's tables, for the repair of a log. Without Spark: local files only."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from aviso_server.errors import LogUnavailable, PipelineError
from aviso_server.lake.storage import is_local, local_path
from aviso_server.lake.table import Table
from aviso_server.log.sqlite.damage import Fetch, Found
from aviso_server.model.batch import BOX, STORED
from aviso_server.model.notification import Box, Notification

__all__ = ["archived_rows"]


def archived_rows(root: str) -> Fetch:
    """Return the function that reads the archive in this folder; LogUnavailable if it is not on this machine."""
    if not is_local(root):
        raise LogUnavailable(f"the archive '{root}' is not on this machine; copy it here and name it with --archive")

    def fetch(stream: str, first: int, last: int) -> Found:
        held: list[Notification] = []
        covered: set[int] = set()
        try:
            files = Table(root, stream).snapshot().files
        except PipelineError as error:
            raise LogUnavailable(str(error)) from error
        for file in files:
            low, high = max(first, file.first), min(last, file.last)
            if low > high:
                continue
            covered.update(range(low, high + 1))
            held += _rows(str(local_path(file.path)), low, high)
        removed = sorted(covered - {each.sequence for each in held})
        return Found(held, [(each, each) for each in removed])

    return fetch


def _rows(path: str, first: int, last: int) -> list[Notification]:
    field = ds.field("sequence")
    try:
        file = ds.dataset(path, format="parquet")
        names = [column.name for column in STORED if column not in BOX or column.name in file.schema.names]
        table = file.to_table(columns=names, filter=(field >= first) & (field <= last))
        return [_notification(row) for row in table.to_pylist()]
    except (pa.ArrowException, OSError) as error:
        raise LogUnavailable(f"the archive's file '{path}' cannot be read: {error}") from error


def _notification(row: dict[str, Any]) -> Notification:
    corners: list[Any] = [row.get(column.name) for column in BOX]
    box = None if None in corners else Box(*corners)
    return Notification(
        row["sequence"], row["time_ns"], row["topic"], _raw(row["identifier"]), _raw(row["payload"]), box
    )


def _raw(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
