"""How many rows were taken and refused, and by which rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.load.faults import Fault, rule_of

__all__ = ["Limit", "Reason", "Summary", "Tally", "read_limit", "summed"]

_MOST_RULES = 500  # that are told apart; more would be values that look like rules
_MOST_KNOWN = 10_000
_OTHERS = "other reasons"
_LIMIT = re.compile(r"([0-9]+)|([0-9]+(?:\.[0-9]+)?)%")


class Reason(msgspec.Struct, frozen=True, order=True):
    """A rule that rows broke."""

    code: str
    field: str
    rule: str


class Summary(msgspec.Struct, frozen=True):
    """What came of some rows."""

    rows: int = 0
    refused: int = 0
    lines: int = 0  # of the text, blank ones too
    reasons: list[tuple[Reason, int]] = []

    @property
    def taken(self) -> int:
        """How many rows were taken."""
        return self.rows - self.refused

    def ranked(self) -> list[tuple[Reason, int]]:
        """The rules, the one that was broken most often first."""
        return sorted(self.reasons, key=lambda each: (-each[1], each[0]))

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        reasons = [
            {"code": reason.code, "field": reason.field or None, "reason": reason.rule, "rows": count}
            for reason, count in self.ranked()
        ]
        return {"rows": self.rows, "taken": self.taken, "refused": self.refused, "reasons": reasons}


class Tally:
    """Counts rows as they are checked."""

    def __init__(self) -> None:
        self.rows = 0
        self.lines = 0
        self._reasons: Counter[Reason] = Counter()
        self._known: dict[Fault, Reason] = {}  # the same value at fault comes again and again

    def add(self, rows: int, lines: int, faults: Iterable[Fault]) -> None:
        """Some more rows, with the faults of those that were refused."""
        self.rows += rows
        self.lines += lines
        for fault, times in Counter(faults).items():
            reason = self._known.get(fault)
            if reason is None:
                reason = _kept(self._reasons, Reason(fault.code, fault.field or "", rule_of(fault)))
                if len(self._known) < _MOST_KNOWN:
                    self._known[fault] = reason
            self._reasons[reason] += times

    def summary(self) -> Summary:
        """All of it."""
        return Summary(self.rows, self._reasons.total(), self.lines, list(self._reasons.items()))


def summed(parts: Sequence[Summary]) -> Summary:
    """Several as one."""
    reasons: Counter[Reason] = Counter()
    for part in parts:
        for reason, count in part.reasons:
            reasons[_kept(reasons, reason)] += count
    rows, lines = sum(part.rows for part in parts), sum(part.lines for part in parts)
    return Summary(rows, sum(part.refused for part in parts), lines, list(reasons.items()))


def _kept(known: Counter[Reason], reason: Reason) -> Reason:
    if reason in known or len(known) < _MOST_RULES:
        return reason
    return Reason(reason.code, reason.field, _OTHERS)


class Limit(msgspec.Struct, frozen=True):
    """How many refused rows are too many."""

    rows: int | None = None
    percent: float | None = None

    def broken(self, summary: Summary) -> str | None:
        """What to say if more were refused than may be; None if not."""
        if self.rows is not None and summary.refused > self.rows:
            return f"{summary.refused} of {summary.rows} rows were refused, and {self.rows} may be"
        if self.percent is not None and summary.refused * 100 > self.percent * summary.rows:
            return f"{summary.refused} of {summary.rows} rows were refused, and {self.percent:g} % may be"
        return None


def read_limit(text: str | None) -> Limit:
    """The limit in `N` or `P%`; PipelineError for anything else."""
    if text is None:
        return Limit()
    found = _LIMIT.fullmatch(text)
    if found is None or (found[2] and float(found[2]) > 100):
        raise PipelineError(f"'{text}' is no limit; accepted are a number of rows (100) and a share of them (0.5%)")
    return Limit(rows=int(found[1])) if found[1] else Limit(percent=float(found[2]))
