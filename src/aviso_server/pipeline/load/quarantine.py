"""The quarantine: a table of the rows that were refused, with where they stand and why."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.model.quarantine import KEY, RefusedFor, encode, note
from aviso_server.model.timestamp import event_time
from aviso_server.pipeline.load.faults import Fault
from aviso_server.pipeline.load.inputs import Input
from aviso_server.pipeline.load.parts import part_path
from aviso_server.pipeline.load.splits import Split
from aviso_server.pipeline.load.summary import Summary, Tally, summed

__all__ = ["QUARANTINE", "RefusedRow", "first_lines", "quarantine_file", "write_quarantine"]

QUARANTINE = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("raw", pa.string()),
        ("field", pa.string()),
        ("reason", pa.string()),
        ("code", pa.string()),
    ]
)
"""The columns of the table."""
_REPEATED = ["file", "field", "reason", "code"]  # columns in which many rows have the same


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that only the server refused."""

    file: str
    line: int
    raw: str
    field: str | None
    reason: str
    code: str


def quarantine_file(folder: Path, event_type: str, files: Sequence[Input]) -> Path:
    """The file of the table for this load: the same input has the same, so that a repetition takes its place."""
    name = blake2b("\n".join([event_type, *(each.name for each in files)]).encode(), digest_size=8).hexdigest()
    return folder / f"refused-{name}.parquet"


def first_lines(splits: Sequence[Split], summaries: Sequence[Summary]) -> list[int]:
    """How many lines of its file come before each piece."""
    passed: dict[int, int] = {}
    found = []
    for split, summary in zip(splits, summaries, strict=True):
        if split.given.form == "parquet":
            found.append(0)  # their rows are counted from the beginning of the file
            continue
        before = passed.get(split.file, 1 if split.given.form == "csv" else 0)
        found.append(before)
        passed[split.file] = before + summary.lines
    return found


def write_quarantine(
    target: Path,
    event_type: str,
    at: int,
    work: Path,
    splits: Sequence[Split],
    summaries: Sequence[Summary],
    more: Sequence[RefusedRow] = (),
) -> int:
    """Put the rows that workers have refused, and those of the server, into one table; how many there are.

    The table appears at once, over an earlier one of the same load. It carries a note that says how many rows were
    refused for what, so that nobody has to read it to know. Without rows there is none.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"_{uuid.uuid4().hex}.parquet")
    rows = 0
    try:
        with pq.ParquetWriter(draft, QUARANTINE, compression="zstd", use_dictionary=_REPEATED) as writer:
            for batch in chain(_from_workers(work, splits, summaries), _from_server(more)):
                rows += batch.num_rows
                writer.write_batch(batch)
            said = note(event_type, event_time(at), _reasons(summaries, more))
            writer.add_key_value_metadata({KEY: encode(said)})
        if rows:
            draft.replace(target)
        else:
            target.unlink(missing_ok=True)
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _from_workers(work: Path, splits: Sequence[Split], summaries: Sequence[Summary]) -> Iterator[pa.RecordBatch]:
    for split, summary, before in zip(splits, summaries, first_lines(splits, summaries), strict=True):
        if not summary.refused:
            continue
        with pa.OSFile(str(part_path(work, "faults", split.number))) as source:
            part = pa.ipc.open_file(source)
            for batch in map(part.get_batch, range(part.num_record_batches)):
                file = pa.repeat(pa.scalar(split.given.name, pa.string()), batch.num_rows)
                line = pc.add(batch.column("line"), before)
                others = [batch.column(name) for name in ("raw", "field", "reason", "code")]
                yield pa.RecordBatch.from_arrays([file, line, *others], schema=QUARANTINE)


def _reasons(summaries: Sequence[Summary], more: Sequence[RefusedRow]) -> list[RefusedFor]:
    server = Tally()
    server.add(len(more), 0, [Fault(row.code, row.field, row.reason) for row in more])
    reasons = summed([*summaries, server.summary()]).reasons
    return [RefusedFor(reason.code, reason.field or None, reason.rule, count) for reason, count in reasons]


def _from_server(rows: Iterable[RefusedRow]) -> Iterator[pa.RecordBatch]:
    listed = [msgspec.structs.asdict(row) for row in rows]
    if listed:
        yield pa.RecordBatch.from_pylist(listed, schema=QUARANTINE)
