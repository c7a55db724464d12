"""The outcome of an audit as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from aviso_server.commands.output import printable

if TYPE_CHECKING:
    from aviso_server.pipeline.audit.findings import Audit, Defect, Held, StreamAudit
    from aviso_server.pipeline.audit.repair import Mended

__all__ = ["print_audit"]

_MOST_DEFECTS = 50  # of a stream
_WORDS = {"clean": "Nothing is wrong", "defects": "Defects were found", "unchecked": "Not everything could be checked"}


def print_audit(audit: Audit, mended: Sequence[Mended] | None) -> None:
    """A table with a line per stream, then what is wrong with which sequences, then the verdict."""
    console = Console(highlight=False)
    if audit.streams:
        console.print(_overview(audit))
    for name, stream in audit.streams.items():
        if stream.defects:
            click.echo(f"\n{printable(name)}:")
            console.print(_defects(stream))
            if len(stream.defects) > _MOST_DEFECTS:
                click.echo(f"… and {len(stream.defects) - _MOST_DEFECTS} more; --json has all of them")
    for sentence, names in _sentences(audit).items():
        click.echo(f"{', '.join(map(printable, names))}: {printable(sentence)}")
    for each in mended or ():
        what = "written anew" if each.reason is None else f"left as it is: {each.reason}"
        click.echo(f"{printable(each.stream)} {each.first} to {each.last}: {printable(what)}")
    count = len(audit.streams)
    click.echo(f"{_WORDS[audit.verdict]}. {count} stream{'s' if count != 1 else ''}, {audit.seconds:.1f} s")


def _overview(audit: Audit) -> Table:
    table = Table(box=None, pad_edge=False)
    right = ("acknowledged", "same", "lag", "deleted", "wiped", "retention", "defects")
    for name in ("stream", "acknowledged", "log", "archive", *right[1:], "verdict"):
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for name, each in audit.streams.items():
        table.add_row(
            printable(name),
            str(each.acknowledged),
            _held(each.log),
            _held(each.archive),
            str(each.same),
            str(each.lag),
            str(each.explained.deleted),
            str(each.explained.wiped),
            str(each.explained.retention),
            str(each.count),
            each.verdict,
        )
    return table


def _held(held: Held | None) -> str:
    if held is None:
        return "not checked"
    return f"{held.first} to {held.last}" if held.last >= held.first else "empty"


def _defects(stream: StreamAudit) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("sequences", "what", "where", "hours", "mended by --repair", "why"):
        table.add_column(name, overflow="fold")
    for each in stream.defects[:_MOST_DEFECTS]:
        table.add_row(
            str(each.first) if each.first == each.last else f"{each.first} to {each.last}",
            each.kind,
            each.where,
            _hours(each),
            "yes" if each.repairable else "no",
            printable(each.reason),
        )
    return table


def _hours(defect: Defect) -> str:
    if defect.hours is None:
        return "unknown"
    first, last = defect.hours
    return first if first == last else f"{first} to {last}"


def _sentences(audit: Audit) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, each in audit.streams.items():
        for sentence in (*each.unchecked, *each.notes):
            found.setdefault(sentence, []).append(name)
    return found
