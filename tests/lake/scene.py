"""Tables of an archive as the job fills them, without a server and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from aviso_server.lake.files import FileWriter, NewFile, read_rows
from aviso_server.lake.schema import FileShape
from aviso_server.lake.storage import open_file
from aviso_server.lake.table import Table
from aviso_server.model.batch import STORED, columns_of, record_batch
from aviso_server.model.event_type import build_event_type
from aviso_server.model.notification import Notification
from tests.spark.scene import CONFIGURATION, flood

__all__ = ["FLOOD", "SHAPE", "event_type", "made", "ranges", "rows_in", "sequences", "stored", "write"]


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


def made(table: Table, first: int, last: int, missing: set[int] | None = None, columns: Any = FLOOD) -> list[NewFile]:
    """Files of a table that no commit has brought into it yet, as the job's workers make them."""
    shape = FileShape("flood", columns_of(columns), table.snapshot().columns)
    writer = FileWriter(table.folder, first, last, shape.schema)
    numbers = [number for number in range(first, last + 1) if number not in (missing or set())]
    files = list(writer.add(shape.batch(stored(numbers)))) if numbers else []
    return [*files, *writer.finish()]


def write(root: Path, first: int, last: int, missing: set[int] | None = None, columns: Any = FLOOD) -> Table:
    """Archive some of the stream `flood`, as the job would; its table."""
    table = Table(str(root), "flood")
    table.commit(made(table, first, last, missing, columns), watermark=last, after=first - 1)
    return table


def rows_in(root: Path | str, stream: str) -> pa.Table:
    """What a reader finds of a stream: the rows of its files one after the other, which cover it without a gap."""
    snapshot = Table(str(root), stream).snapshot()
    assert not snapshot.missing
    expected, tables = 1, []
    for each in snapshot.files:
        assert each.first == expected, f"a gap or an overlap before {each.path}"
        expected = each.last + 1
        with open_file(each.path) as content:
            table = read_rows(content, ["sequence", "time_ns", "topic", "identifier", "payload"])
        assert table.num_rows == each.rows
        if table.num_rows:
            sequences = table.column("sequence").to_pylist()
            assert each.first <= sequences[0] <= sequences[-1] <= each.last
        tables.append(table)
    assert expected == snapshot.watermark + 1
    return pa.concat_tables(tables).replace_schema_metadata(None)


def ranges(root: Path | str, stream: str = "flood") -> list[tuple[int, int]]:
    """What the files of a stream cover."""
    return [(each.first, each.last) for each in Table(str(root), stream).snapshot().files]


def sequences(root: Path | str, stream: str = "flood") -> list[int]:
    """The sequences of the rows in a table."""
    found: list[int] = rows_in(root, stream).column("sequence").to_pylist()
    return found
