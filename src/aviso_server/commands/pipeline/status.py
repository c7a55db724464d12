"""`aviso-server pipeline status`: what the log holds, what the archive holds, and how far apart they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from aviso_server.commands.client import credentials
from aviso_server.commands.output import json_option, print_json, printable
from aviso_server.commands.pipeline.place import ask_streams, find, kept, place_options

if TYPE_CHECKING:
    from aviso_server.pipeline.archive.status import StreamStatus
    from aviso_server.pipeline.archive.streams import LogStream

__all__ = ["status"]


@click.command()
@place_options
@click.option("--offline", is_flag=True, help="Look at the files only; ask no server.")
@json_option
def status(
    file: Path | None,
    url: str | None,
    path: str | None,
    spark: str | None,
    token: str | None,
    user: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Show per stream what the log and the archive hold, how far the archive is behind, and what went wrong last.

    Looks at the files themselves, whoever keeps them.

    \b
    Examples:
      aviso-server pipeline status
      aviso-server pipeline status --path /lake/aviso --offline --json

    \b
    Exit codes: 0 shown, 1 the archive or the server cannot be reached, 2 wrong usage.
    """
    headers = credentials(token, user)
    place = find(file, path, url, spark)
    with kept(place, with_spark=False, alone=False) as keeper:
        archived = keeper.board.streams()
    held = {} if offline else ask_streams(place.url, headers)
    rows = {name: _row(archived.get(name), held.get(name)) for name in sorted({*archived, *held})}
    if as_json:
        print_json({"archive": place.path, "streams": rows})
    else:
        _print(rows)


def _row(archived: StreamStatus | None, held: LogStream | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"log": None, "lag": None}
    if held is not None:
        facts["log"] = {"first": held.first, "last": held.last}
        facts["lag"] = max(0, held.last - (0 if archived is None else archived.last))
    own = {"first": 1, "last": 0, "files": 0, "bytes": 0, "archived_at": None, "last_error": None}
    return {**facts, **(own if archived is None else msgspec.to_builtins(archived))}


def _print(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("stream", "log", "archive", "lag", "files", "bytes", "last error"):
        table.add_column(name, justify="right" if name in ("lag", "files", "bytes") else "left", overflow="fold")
    for name, facts in rows.items():
        table.add_row(
            printable(name),
            "unknown" if facts["log"] is None else _range(facts["log"]),
            _range(facts),
            "" if facts["lag"] is None else str(facts["lag"]),
            str(facts["files"]),
            str(facts["bytes"]),
            printable(facts["last_error"] or ""),
        )
    if rows:
        Console(highlight=False).print(table)
    else:
        click.echo("Nothing is archived and the log is empty")


def _range(facts: dict[str, Any]) -> str:
    return f"{facts['first']} to {facts['last']}" if facts["last"] >= facts["first"] else "empty"
