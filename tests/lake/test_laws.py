"""Laws: what is heard live, read from the log and read from the lake is the same, whatever the schema goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.lake.compact import Compactor
from aviso_server.lake.files import FileWriter
from aviso_server.lake.remove import delete, wipe
from aviso_server.lake.schema import FileShape, table_columns
from aviso_server.lake.table import Table, Tables
from aviso_server.log.memory import MemoryLog
from aviso_server.model.batch import STORED, columns_of, field_arrays, record_batch
from aviso_server.model.event_type import EventType
from aviso_server.model.notification import Notification
from tests.lake.scene import event_type, rows_in

# Fields come, go and change their types.
AGES: Sequence[EventType] = [
    event_type(),
    event_type(severity={"type": "StringHandler", "required": False}),
    event_type(wind={"type": "FloatHandler", "required": False}),
    event_type(severity={"type": "FloatHandler", "required": False}, bbox={"type": "StringHandler", "required": False}),
    event_type(wind={"type": "IntHandler", "required": False}, Wind={"type": "StringHandler", "required": False}),
]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "severity": st.integers(1, 7).map(str),
    "wind": st.integers(0, 99).map(str),
    "Wind": st.sampled_from(["calm", "gale"]),
    "bbox": st.sampled_from(["here", "there"]),
    "depth": st.sampled_from(["0.25", "-3.5"]),
    "polygon": st.sampled_from(["(0,0,0,2,2,2,2,0,0,0)", "(10,20,10,21.123456789,11,21,10,20)"]),
}


@st.composite
def identifiers(draw: st.DrawFn, age: EventType) -> dict[str, Any]:
    chosen: dict[str, Any] = {"region": draw(st.sampled_from(["north", "south"])), "date": "20250706", "time": "1200"}
    for name in age.fields:
        if name in VALUES:
            chosen[name] = draw(VALUES[name])
    return chosen


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What happens to a stream: publishing in some age, archiving, deleting, wiping, compacting."""
    steps: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(2, 8))):
        age = draw(st.integers(0, len(AGES) - 1))
        steps.append(("publish", (age, draw(st.lists(identifiers(AGES[age]), min_size=1, max_size=6)))))
        kinds = st.sampled_from(["delete", "wipe", "compact", "nothing"])
        steps += [(kind, draw(st.integers(1, 30))) for kind in draw(st.lists(kinds, max_size=2))]
    return steps


def archive(table: Table, age: EventType, stored: Sequence[Notification], first: int, last: int) -> None:
    shape = FileShape("flood", columns_of(age), table.snapshot().columns)
    writer = FileWriter(table.folder, first, last, shape.schema)
    files = list(writer.add(shape.batch(record_batch(STORED, "flood", stored))))
    table.commit([*files, *writer.finish()], watermark=last, after=first - 1)


def plain(each: Notification) -> tuple[Any, ...]:
    return each.sequence, each.time, each.topic, bytes(each.identifier), bytes(each.payload)


async def lived(root: Path, steps: Sequence[tuple[str, Any]]) -> tuple[list[tuple[Any, ...]], dict[int, EventType]]:
    """Do it all; what was heard live and not removed, which equals what the log holds, and the age of each."""
    heard: dict[int, Notification] = {}
    ages: dict[int, EventType] = {}
    table, log = Table(str(root), "floods"), MemoryLog(max_history_per_topic=10**6)
    await log.open()
    log.follow("floods", lambda news: heard.update({each.sequence: each for each in news}))
    for kind, what in steps:
        last = (await log.state("floods")).last
        if kind == "publish":
            age = AGES[what[0]]
            stored = await log.append_many([age.check(each, {"n": last}) for each in what[1]])
            ages |= {each.sequence: age for each in stored}
            archive(table, age, stored, last + 1, stored[-1].sequence)
        elif kind == "delete":
            found = await log.delete("floods", what)
            heard.pop(what, None)
            assert delete(table, [what]) == ({what} if found else set())
        elif kind == "wipe" and what <= last:
            for sequence in range(1, what + 1):
                await log.delete("floods", sequence)
                heard.pop(sequence, None)
            wipe(table, what)
        elif kind == "compact":
            for _ in Compactor(Tables(str(root)), target=what).run(everything=what % 2 == 0):
                pass
    kept = (await log.read("floods", 1, 10**6, 10**6)).notifications
    assert [plain(each) for each in kept] == [plain(heard[number]) for number in sorted(heard)], "live = log"
    return [plain(each) for each in kept], ages


@settings(max_examples=40, deadline=None)
@given(histories())
def test_live_log_and_lake_are_the_same_through_schema_changes(steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        expected, ages = asyncio.run(lived(Path(folder), steps))
        own = rows_in(folder, "floods").to_pylist()
        ours = [(row["sequence"], row["time_ns"], row["topic"], row["identifier"].encode(), row["payload"].encode())
                for row in own]  # fmt: skip
        assert ours == expected, "log = lake"
        table = Table(folder, "floods")
        outside = DeltaTable(table.folder).to_pyarrow_table().sort_by("sequence")
        assert outside["sequence"].to_pylist() == [each[0] for each in expected], "lake = outside"
        rows = {row["sequence"]: row for row in outside.to_pylist()}
        kinds = table.snapshot().columns
        for sequence, _, _, identifier, _ in expected:
            columns = columns_of(ages[sequence])
            values = field_arrays(columns, [identifier])
            shown = {name: value for name, value in rows[sequence].items() if value is not None}
            for column, placed in zip(columns, table_columns(columns, kinds), strict=True):
                if column.field is not None:
                    assert shown.get(placed.name) == values[column.name][0].as_py(), (column, placed)
