"""Rows that an audit has doubts about, as defects: neighbours with the same trouble become one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.pipeline.audit.findings import Defect, Kind, Where, hour_text

__all__ = ["compared", "in_doubt", "judged"]

_ALIKE = "the rows are the same"
_DIFFERENT = "the rows differ"
_CONTENT = "log and archive differ"


def compared(suspects: pa.Table, in_log: bool) -> Iterator[Defect]:
    """The defects of sequences that were counted and checked.

    A row has `sequence`, `time_ns`, how many rows `log` and `archive` have, how many files have it that should not
    (`misplaced`), whether its rows differ (`differs`) and what is wrong with its form (`fault`). `in_log` says that
    the log was read, and its rows are those that were checked.
    """
    doubled = pc.if_else(suspects["differs"], _DIFFERENT, _ALIKE)
    nothing = pa.repeat("", suspects.num_rows)
    checked: Where = "log" if in_log else "archive"
    yield from _runs(suspects, pc.greater(suspects["log"], 1), doubled, "duplicate", "log", in_log)
    yield from _runs(suspects, pc.greater(suspects["archive"], 1), doubled, "duplicate", "archive", in_log)
    yield from _runs(suspects, pc.is_valid(suspects["fault"]), suspects["fault"], "form", checked, in_log)
    yield from _runs(suspects, pc.greater(suspects["misplaced"], 0), nothing, "misplaced", "archive", in_log)


def in_doubt(suspects: pa.Table) -> pa.Table:
    """The sequences in the archive that no row of the log vouches for: `sequence`, `log` and `single`."""
    unlike = pc.or_(pc.equal(suspects["log"], 0), suspects["differs"])
    found = suspects.filter(pc.and_(pc.greater(suspects["archive"], 0), unlike))
    single = pc.equal(found["archive"], 1)
    return pa.table({"sequence": found["sequence"], "log": found["log"], "single": single})


def judged(rows: pa.Table) -> Iterator[Defect]:
    """The defects of archived rows in doubt that were checked: a wrong form says more than that they differ."""
    wrong = pc.is_valid(rows["fault"])
    other = pc.and_(pc.invert(wrong), pc.and_(pc.equal(rows["log"], 1), rows["single"]))
    yield from _runs(rows, wrong, rows["fault"], "form", "archive", in_log=True)
    yield from _runs(rows, other, pa.repeat(_CONTENT, rows.num_rows), "content", "archive", in_log=True)


def _runs(
    rows: pa.Table, chosen: pa.ChunkedArray, reasons: pa.ChunkedArray, kind: Kind, where: Where, in_log: bool
) -> Iterator[Defect]:
    """The rows that are chosen, in order, neighbours together."""
    own = pa.table({"sequence": rows["sequence"], "time_ns": rows["time_ns"], "reason": reasons}).filter(chosen)
    if not own.num_rows:
        return
    own = own.take(pc.sort_indices(own["sequence"]))
    sequences, times = own["sequence"].to_numpy(), own["time_ns"].to_numpy()
    for run in np.split(np.arange(len(sequences)), np.flatnonzero(np.diff(sequences) > 1) + 1):
        low, high = int(run[0]), int(run[-1])
        reason = str(own["reason"][low].as_py())
        yield Defect(
            kind=kind,
            where=where,
            first=int(sequences[low]),
            last=int(sequences[high]),
            hours=(hour_text(int(times[low])), hour_text(int(times[high]))),
            reason=reason,
            repairable=where == "archive" and (in_log or reason == _ALIKE),
        )
