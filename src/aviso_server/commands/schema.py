"""`aviso-server schema`: which event types there are and what their fields accept."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from aviso_server.commands.client import DEFAULT_URL, connected, refusal, url_option
from aviso_server.commands.output import FAILED, complain, fail, json_option, print_json, printable
from aviso_server.config import load
from aviso_server.errors import ConfigError

__all__ = ["schema"]


class _Definition(msgspec.Struct, frozen=True):
    payload: dict[str, bool] | None
    identifier: dict[str, dict[str, Any]]


class _Answer(msgspec.Struct, frozen=True):
    schema: dict[str, _Definition]


@click.command()
@click.argument("event_type", required=False)
@url_option
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read a configuration file, ask no server.")
@json_option
def schema(event_type: str | None, url: str | None, file: Path | None, as_json: bool) -> None:
    """Show the event types of a server or of a configuration file.

    \b
    Examples:
      aviso-server schema
      aviso-server schema mars --url http://127.0.0.1:8000
      aviso-server schema --config examples/config.yaml --json

    \b
    Exit codes: 0 shown, 1 no such event type or no server, 2 wrong usage.
    """
    if url is not None and file is not None:
        raise click.UsageError("--url and --config exclude each other")
    schemas = _from_server(url or DEFAULT_URL) if file is None else _from_file(file)
    if event_type is not None and event_type not in schemas:
        near = difflib.get_close_matches(event_type, schemas, n=1)
        advice = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(sorted(schemas)) or 'none'}"
        fail(f"no event type '{event_type}'; {advice}")
    if as_json:
        print_json(schemas if event_type is None else schemas[event_type])
        return
    for name in [event_type] if event_type else sorted(schemas):
        _show(name, schemas[name])
    if not schemas:
        click.echo("No event types are configured.")


def _from_server(url: str) -> dict[str, _Definition]:
    with connected(url) as client:
        response = client.get("/api/v1/schema")
    if response.status_code != 200:
        fail(refusal(response))
    try:
        return msgspec.json.decode(response.content, type=_Answer).schema
    except msgspec.DecodeError:
        fail(f"what answers at {url} is not an aviso server")


def _from_file(file: Path) -> dict[str, _Definition]:
    try:
        settings = load(os.environ, file)
    except ConfigError as error:
        complain(error.problems)
        raise SystemExit(FAILED) from None
    return {kind.name: msgspec.convert(kind.describe(), _Definition) for kind in settings.event_types}


def _show(name: str, definition: _Definition) -> None:
    payload = "required" if (definition.payload or {}).get("required") else "optional"
    table = Table(title=f"{name} (payload {payload})", title_justify="left", title_style="bold")
    for heading in ("field", "type", "required to read", "limits", "description"):
        table.add_column(heading, overflow="fold")
    for field, rules in definition.identifier.items():
        known = {"type", "required", "description"}
        given = {key: value for key, value in rules.items() if key not in known and value is not None}
        limits = "; ".join(f"{key}: {_plain(value)}" for key, value in given.items())
        required = "yes" if rules.get("required") else "no"
        # Values come from elsewhere: as plain text, so that [brackets] are not taken for markup.
        cells = (field, str(rules.get("type", "")), required, limits, str(rules.get("description") or ""))
        table.add_row(*(printable(cell) for cell in cells))
    Console(markup=False, highlight=False).print(table)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
