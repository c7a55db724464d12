"""Results: rows of value, rival, ratio and aim, for people and for machines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

__all__ = ["Row", "alternate", "compare", "show", "single"]

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    bench: str
    what: str
    unit: str
    value: float
    rival: str | None = None
    rival_value: float | None = None
    ratio: float | None = None  # above 1: we are better
    lowest_ratio: float | None = None  # over the rounds
    highest_ratio: float | None = None
    cpu_ratio: float | None = None  # the same by CPU time of the server per operation: less noisy on a busy machine
    load_cpu: float | None = None  # highest share of a core that the load generator took
    aim: str = ""
    met: bool | None = None
    note: str = ""


def alternate(rounds: int, measures: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Each measure once per round, one after the other, so that a busy minute hits all of them."""
    results: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            results[name].append(measure())
    return results


def compare(
    bench: str,
    what: str,
    unit: str,
    ours: Sequence[float],
    rival: str,
    theirs: Sequence[float],
    *,
    lower_is_better: bool = False,
    at_least: float | None = None,
    cpu: tuple[Sequence[float], Sequence[float]] | None = None,
    load_cpu: float | None = None,
    note: str = "",
) -> Row:
    """A row from the rounds of both sides; the ratio is the median of the ratios of the rounds.

    `cpu` is the server's CPU time per operation, ours and theirs.
    """
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [b / a if lower_is_better else a / b for a, b in pairs]
    ratio = statistics.median(ratios)
    return Row(
        bench=bench,
        what=what,
        unit=unit,
        value=statistics.median(ours),
        rival=rival,
        rival_value=statistics.median(theirs),
        ratio=ratio,
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
        cpu_ratio=None if cpu is None else statistics.median(b / a for a, b in zip(*cpu, strict=True)),
        load_cpu=load_cpu,
        aim="" if at_least is None else f"ratio >= {at_least:.3g}",
        met=None if at_least is None else ratio >= at_least,
        note=note,
    )


def single(
    bench: str, what: str, unit: str, values: Sequence[float], *, below: float | None = None, note: str = ""
) -> Row:
    """A row without a rival."""
    value = statistics.median(values)
    return Row(
        bench=bench,
        what=what,
        unit=unit,
        value=value,
        aim="" if below is None else f"< {below:g} {unit}",
        met=None if below is None else value < below,
        note=note,
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """The table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("bench", "what"):
        table.add_column(heading, overflow="fold")
    for heading in ("value", "rival", "ratio", "range", "by CPU"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("aim")
    table.add_column("met")
    for row in rows:
        rival = "" if row.rival is None else f"{number(row.rival_value)} {row.rival}"
        spread = "" if row.lowest_ratio is None else f"{row.lowest_ratio:.2f} - {row.highest_ratio:.2f}"
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.met]
        table.add_row(
            row.bench,
            row.what,
            f"{number(row.value)} {row.unit}",
            rival,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            spread,
            "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}",
            row.aim,
            met,
        )
    console.print(table)
    for row in rows:
        if row.load_cpu is not None and row.load_cpu > 0.9:
            console.print(f"caution: {row.bench}, {row.what}: the load generator was busy all the time")
        if row.note:
            console.print(f"{row.bench}, {row.what}: {row.note}")


def number(value: float | None) -> str:
    """A number with as many digits as mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
