"""What comes of a load: how many rows were taken and published, and which were refused by what rule.

Refused rows are kept in the quarantine table.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.model.quarantine import KEY, RefusedFor, encode, note
from aviso_server.model.times import event_time
from aviso_server.spark.load.row_checks import Fault, rule_of

__all__ = [
    "FAULTS",
    "FaultPart",
    "Limit",
    "LoadReport",
    "Published",
    "Reason",
    "RefusedRow",
    "Summary",
    "Tally",
    "quarantine_file",
    "read_limit",
    "summed",
    "write_quarantine",
]

_MOST_RULES = 500  # that are told apart; more would be values that look like rules
_MOST_KNOWN = 10_000
_OTHERS = "other reasons"
_LIMIT = re.compile(r"([0-9]+)|([0-9]+(?:\.[0-9]+)?)%")


class Reason(msgspec.Struct, frozen=True, order=True):
    code: str
    field: str
    rule: str


class Summary(msgspec.Struct, frozen=True):
    """What came of some rows."""

    rows: int = 0
    refused: int = 0
    reasons: list[tuple[Reason, int]] = []

    @property
    def taken(self) -> int:
        return self.rows - self.refused

    def ranked(self) -> list[tuple[Reason, int]]:
        """Return the rules, the one that was broken most often first."""
        return sorted(self.reasons, key=lambda each: (-each[1], each[0]))

    def describe(self) -> dict[str, Any]:
        reasons = [
            {"code": reason.code, "field": reason.field or None, "reason": reason.rule, "rows": count}
            for reason, count in self.ranked()
        ]
        return {"rows": self.rows, "taken": self.taken, "refused": self.refused, "reasons": reasons}


class Tally:
    """Counts rows as they are checked."""

    def __init__(self) -> None:
        self.rows = 0
        self._reasons: Counter[Reason] = Counter()
        self._known: dict[Fault, Reason] = {}  # the same value at fault comes again and again

    def add(self, rows: int, faults: Iterable[Fault]) -> None:
        """Count some more rows, with the faults of those that were refused."""
        self.rows += rows
        for fault, times in Counter(faults).items():
            reason = self._known.get(fault)
            if reason is None:
                reason = _kept(self._reasons, Reason(fault.code, fault.field or "", rule_of(fault)))
                if len(self._known) < _MOST_KNOWN:
                    self._known[fault] = reason
            self._reasons[reason] += times

    def summary(self) -> Summary:
        return Summary(self.rows, self._reasons.total(), list(self._reasons.items()))


def summed(parts: Sequence[Summary]) -> Summary:
    reasons: Counter[Reason] = Counter()
    for part in parts:
        for reason, count in part.reasons:
            reasons[_kept(reasons, reason)] += count
    rows, refused = sum(part.rows for part in parts), sum(part.refused for part in parts)
    return Summary(rows, refused, list(reasons.items()))


def _kept(known: Counter[Reason], reason: Reason) -> Reason:
    if reason in known or len(known) < _MOST_RULES:
        return reason
    return Reason(reason.code, reason.field, _OTHERS)


class Limit(msgspec.Struct, frozen=True):
    """How many refused rows are too many."""

    rows: int | None = None
    percent: float | None = None

    def broken(self, summary: Summary) -> str | None:
        """Return what to say if more were refused than may be; None if not."""
        if self.rows is not None and summary.refused > self.rows:
            return _broken(summary, f"{self.rows:,} rows")
        if self.percent is not None and summary.refused * 100 > self.percent * summary.rows:
            return _broken(summary, f"{self.percent:g} %")
        return None


def _broken(summary: Summary, limit: str) -> str:
    share = 100 * summary.refused / max(summary.rows, 1)
    return f"{summary.refused:,} of {summary.rows:,} rows refused ({share:.2f} %), over the limit of {limit}"


def read_limit(text: str | None) -> Limit:
    """Read a limit, `N` or `P%`; PipelineError for anything else."""
    if text is None:
        return Limit()
    found = _LIMIT.fullmatch(text)
    if found is None or (found[2] and float(found[2]) > 100):
        raise PipelineError(f"'{text}' is no limit; accepted are a number of rows (100) and a share of them (0.5%)")
    return Limit(rows=int(found[1])) if found[1] else Limit(percent=float(found[2]))


class Published(msgspec.Struct):
    """What came of the rows so far."""

    published: int = 0
    before: int = 0  # had been published by an earlier run
    refused: int = 0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a load. Travels as JSON."""

    summary: Summary = Summary()
    quarantine: str | None = None
    published: Published | None = None
    imported: int | None = None
    error: str = ""  # why it did not end well
    too_many: bool = False  # refused rows are the reason


FAULTS = pa.schema(
    [
        ("line", pa.int64()),
        ("raw", pa.string()),
        ("field", pa.string()),
        ("reason", pa.string()),
        ("code", pa.string()),
    ]
)
"""Refused rows as workers leave them; lines are counted within the block."""

_QUARANTINE = pa.schema([("file", pa.string()), *FAULTS])
_REPEATED = ["file", "field", "reason", "code"]  # columns in which many rows have the same


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that only the server refused."""

    file: str
    line: int
    raw: str
    field: str | None
    reason: str
    code: str


class FaultPart(msgspec.Struct, frozen=True):
    """The rows of a block that workers have refused."""

    file: str  # the name of the input
    path: Path
    lines_before: int  # of its file


def quarantine_file(folder: Path, event_type: str, names: Iterable[str]) -> Path:
    """Return the file of the table for this load: the same input has the same, so that a repetition takes its place."""
    name = blake2b("\n".join([event_type, *names]).encode(), digest_size=8).hexdigest()
    return folder / f"refused-{name}.parquet"


def write_quarantine(
    target: Path,
    event_type: str,
    at: int,
    parts: Sequence[FaultPart],
    summary: Summary,
    more: Sequence[RefusedRow] = (),
) -> int:
    """Put the rows that workers have refused, and those of the server, into one table; return how many there are.

    The table appears at once, over an earlier one of the same load. It carries a note that says how many rows were
    refused for what, so that nobody has to read it to know. Without rows there is none.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"_{uuid.uuid4().hex}.parquet")
    rows = 0
    try:
        with pq.ParquetWriter(draft, _QUARANTINE, compression="zstd", use_dictionary=_REPEATED) as writer:
            for batch in chain(_from_workers(parts), _from_server(more)):
                rows += batch.num_rows
                writer.write_batch(batch)
            said = note(event_type, event_time(at), _reasons(summary, more))
            writer.add_key_value_metadata({KEY: encode(said)})
        if rows:
            draft.replace(target)
        else:
            target.unlink(missing_ok=True)
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _from_workers(parts: Sequence[FaultPart]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pa.OSFile(str(part.path)) as source:
            content = pa.ipc.open_file(source)
            for batch in map(content.get_batch, range(content.num_record_batches)):
                file = pa.repeat(pa.scalar(part.file, pa.string()), batch.num_rows)
                line = pc.add(batch.column("line"), part.lines_before)
                others = [batch.column(name) for name in ("raw", "field", "reason", "code")]
                yield pa.RecordBatch.from_arrays([file, line, *others], schema=_QUARANTINE)


def _reasons(summary: Summary, more: Sequence[RefusedRow]) -> list[RefusedFor]:
    server = Tally()
    server.add(len(more), [Fault(row.code, row.field, row.reason) for row in more])
    reasons = summed([summary, server.summary()]).reasons
    return [RefusedFor(reason.code, reason.field or None, reason.rule, count) for reason, count in reasons]


def _from_server(rows: Iterable[RefusedRow]) -> Iterator[pa.RecordBatch]:
    listed = [msgspec.structs.asdict(row) for row in rows]
    if listed:
        yield pa.RecordBatch.from_pylist(listed, schema=_QUARANTINE)
