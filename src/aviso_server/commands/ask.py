"""`aviso-server health`, `schema` and `explain`: questions to a running server."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, BinaryIO

import click
import httpx
import msgspec
from click.core import ParameterSource
from rich.text import Text

from aviso_server.commands.notifications import filter_option, read_identifier
from aviso_server.commands.server_connection import Server, read_answer, server_options, url_option
from aviso_server.commands.terminal import (
    csv_option,
    fail,
    json_option,
    load_settings,
    print_csv,
    print_json,
    print_result,
    print_table,
)
from aviso_server.model.explain import DEFAULT_DAYS, MOST_DAYS
from aviso_server.model.json_text import printable

__all__ = ["explain", "health", "schema"]

_HEALTH_TIMEOUT = httpx.Timeout(2.0)


@click.command()
@url_option
@click.option(
    "--ready", is_flag=True, help="Ask whether it can take and deliver notifications, not only whether it lives."
)
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer.")
def health(url: str | None, ready: bool, as_json: bool) -> None:
    """Ask a running server how it is; for the health checks of containers and supervisors.

    \b
    Examples:
      aviso-server health
      aviso-server health --ready --url http://127.0.0.1:9000

    \b
    Exit codes: 0 it is well, 1 it is not or does not answer within two seconds, 2 wrong usage.
    """
    server = Server(url)
    with server.connected() as client:
        answer = client.get("/ready" if ready else "/health", timeout=_HEALTH_TIMEOUT)
    if answer.status_code != 200:
        fail(f"the server at {server.url} answers with status {answer.status_code}")
    print_result(read_answer(answer) if as_json else None, f"{server.url} is {'ready' if ready else 'alive'}", as_json)


_BAR = 40  # characters
_MOST_BARS = 48
_MOST_CELLS = 10


@click.command()
@click.argument("event_type", required=False)
@click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--file", type=click.File("rb"), metavar="BODY", help="The body of a watch request; - for stdin.")
@filter_option
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
    help=f"How many days back to try it.  [default: {DEFAULT_DAYS}]",
)
@click.option("--notification", metavar="ID", help="Say why this one is kept or dropped, such as mars@42.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as one JSON object.")
def explain(
    server: Server,
    event_type: str | None,
    fields: tuple[str, ...],
    file: BinaryIO | None,
    filters: tuple[str, ...],
    days: int | None,
    notification: str | None,
    as_json: bool,
) -> None:
    """Say what a filter means, how many stored notifications it lets through, when and where.

    The filter is given as KEY=VALUE, with --filter, or as the body of a watch request with --file.

    \b
    Examples:
      aviso-server explain mars class=od 'step={"gte": 6}'
      aviso-server explain mars class=od --days 30 --notification mars@42
      aviso-server explain --file watch.json --json

    \b
    Exit codes: 0 explained, 1 the server is away or refused, 2 wrong usage.
    """
    request = _request(event_type, fields, file, filters)
    if days is not None:
        request["days"] = days
    if notification is not None:
        request["notification_id"] = notification
    with server.connected() as client:
        response = client.post("/api/v1/explain", json=request)
    if response.status_code == 404:
        fail(f"what answers at {response.url} does not explain filters")
    answer = read_answer(response)
    if as_json:
        print_json(answer)
        return
    try:
        _show(answer)
    except (KeyError, TypeError):
        fail(f"what answers at {response.url} is not an aviso server")


def _request(
    event_type: str | None, fields: tuple[str, ...], file: BinaryIO | None, filters: tuple[str, ...]
) -> dict[str, Any]:
    if file is None:
        if event_type is None:
            raise click.UsageError("name an EVENT_TYPE, or a request with --file")
        return {"event_type": event_type, "identifier": read_identifier(filters, fields)}
    if event_type is not None or filters:
        raise click.UsageError("--file and EVENT_TYPE exclude each other")
    try:
        return msgspec.json.decode(file.read(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}", param_hint="--file") from None


def _show(answer: dict[str, Any]) -> None:
    meaning, matches = answer["meaning"], answer["matches"]
    _say(meaning["sentence"])
    for name in meaning["any_value"]:
        _say(f"  {name} may have any value")
    _say(meaning["start"]["sentence"])
    _show_matches(matches)
    if answer["notification"] is not None:
        _show_verdict(answer["notification"])


def _show_matches(matches: dict[str, Any]) -> None:
    days, count = matches["days"], matches["count"]
    where = " and ".join(f"the {source}" for source in matches["source"])
    last = "last day" if days == 1 else f"last {days} days"
    _say(f"\n{count} notification{'s' if count != 1 else ''} in the {last}, counted in {where}.")
    if not count:
        return
    _show_times(matches["times"]["counts"])
    places = matches["places"]
    if places is None or not places["cells"]:
        return
    rows = [(cell["lat"], cell["lon"], cell["count"]) for cell in places["cells"][:_MOST_CELLS]]
    rest = sum(cell["count"] for cell in places["cells"][_MOST_CELLS:]) + places["in_other_cells"]
    if rest:
        rows.append(("elsewhere", "", rest))
    if places["without_place"]:
        rows.append(("nowhere", "", places["without_place"]))
    print_table(("lat", "lon", "count"), rows, title="where (cells of 1°)")


def _show_times(counts: list[dict[str, Any]]) -> None:
    """Show a bar for every interval that has notifications, the newest last; of many intervals the last ones."""
    filled = [each for each in counts if each["count"]]
    most = max(each["count"] for each in filled)
    earlier = sum(each["count"] for each in filled[:-_MOST_BARS])
    rows = [("earlier", earlier, "")] if earlier else []
    rows += [
        (each["start"], each["count"], "█" * max(1, round(_BAR * each["count"] / most)))
        for each in filled[-_MOST_BARS:]
    ]
    print_table(("from (UTC)", "count", ""), rows, title="when")


def _show_verdict(verdict: dict[str, Any]) -> None:
    _say(f"\n{verdict['sentence']}")
    if not verdict["clauses"]:
        return
    rows = [
        (
            Text("yes", style="green") if each["passed"] else Text("no", style="red"),
            each["sentence"],
            "nothing" if each["seen"] is None else each["seen"],
        )
        for each in verdict["clauses"]
    ]
    print_table(("", "clause", "saw"), rows)


def _say(sentence: str) -> None:
    click.echo("\n".join(map(printable, sentence.split("\n"))))


class _SchemaDefinition(msgspec.Struct, frozen=True):
    payload: dict[str, bool] | None
    identifier: dict[str, dict[str, Any]]


class _SchemaAnswer(msgspec.Struct, frozen=True):
    schema: dict[str, _SchemaDefinition]


@click.command()
@click.argument("event_type", required=False)
@url_option
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read a configuration file, ask no server.")
@json_option
@csv_option
def schema(event_type: str | None, url: str | None, file: Path | None, as_json: bool, as_csv: bool) -> None:
    """Show the event types of a server or of a configuration file.

    \b
    Examples:
      aviso-server schema
      aviso-server schema mars --url http://127.0.0.1:8000
      aviso-server schema --config examples/config.yaml --json

    \b
    Exit codes: 0 shown, 1 no such event type or no server, 2 wrong usage.
    """
    given = click.get_current_context().get_parameter_source("url")
    if given is ParameterSource.COMMANDLINE and file is not None:
        raise click.UsageError("--url and --config exclude each other")
    schemas = _from_file(file) if file is not None else _from_server(url)
    if event_type is not None and event_type not in schemas:
        near = difflib.get_close_matches(event_type, schemas, n=1)
        advice = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(sorted(schemas)) or 'none'}"
        fail(f"no event type '{event_type}'; {advice}")
    if as_json:
        print_json(schemas if event_type is None else schemas[event_type])
        return
    names = [event_type] if event_type else sorted(schemas)
    if as_csv:
        print_csv(("event_type", *_FIELD), [(name, *row) for name in names for row in _field_rows(schemas[name])])
        return
    for name in names:
        if name != names[0]:
            click.echo()
        payload = "required" if (schemas[name].payload or {}).get("required") else "optional"
        print_table(_FIELD, _field_rows(schemas[name]), title=f"{name} (payload {payload})")
    if not schemas:
        click.echo("No event types are configured.")


def _from_server(url: str | None) -> dict[str, _SchemaDefinition]:
    answer: _SchemaAnswer = Server(url).ask("GET", "/api/v1/schema", kind=_SchemaAnswer)
    return answer.schema


def _from_file(file: Path) -> dict[str, _SchemaDefinition]:
    settings = load_settings(file)
    return {kind.name: msgspec.convert(kind.describe(), _SchemaDefinition) for kind in settings.event_types}


_FIELD = ("field", "type", "required to watch", "limits", "description")


def _field_rows(definition: _SchemaDefinition) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for field, rules in definition.identifier.items():
        known = {"type", "required", "description"}
        given = {key: value for key, value in rules.items() if key not in known and value is not None}
        limits = "; ".join(f"{key}: {_plain(value)}" for key, value in given.items())
        required = "yes" if rules.get("required") else "no"
        rows.append((field, rules.get("type", ""), required, limits, rules.get("description") or ""))
    return rows


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
