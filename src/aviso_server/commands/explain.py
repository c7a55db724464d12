"""`aviso-server explain`: what a filter means, what it would have brought, and why it drops a notification."""

from __future__ import annotations

from typing import Any, BinaryIO

import click
import msgspec
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aviso_server.commands.client import DEFAULT_URL, connected, credentials, refusal, server_options
from aviso_server.commands.notifications import filter_option, read_identifier
from aviso_server.commands.output import fail, print_json, printable
from aviso_server.model.explain import DEFAULT_DAYS, MOST_DAYS

__all__ = ["explain"]

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
    help=f"Try it on what was stored in so many days.  [default: {DEFAULT_DAYS}]",
)
@click.option("--notification", metavar="ID", help="Say why this one is kept or dropped, such as mars@42.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as one JSON object.")
def explain(
    event_type: str | None,
    fields: tuple[str, ...],
    file: BinaryIO | None,
    filter_text: str | None,
    days: int | None,
    notification: str | None,
    url: str | None,
    token: str | None,
    user: str | None,
    as_json: bool,
) -> None:
    """Say what a filter means, how many stored notifications it lets through, when and where.

    The filter is given as KEY=VALUE, as JSON with --filter, or as the body of a watch request with --file.

    \b
    Examples:
      aviso-server explain mars class=od 'step={"gte": 6}'
      aviso-server explain mars class=od --days 30 --notification mars@42
      aviso-server explain --file watch.json --json

    \b
    Exit codes: 0 explained, 1 the server is away or refused, 2 wrong usage.
    """
    request = _request(event_type, fields, file, filter_text)
    if days is not None:
        request["days"] = days
    if notification is not None:
        request["notification_id"] = notification
    with connected(url or DEFAULT_URL, credentials(token, user)) as client:
        response = client.post("/api/v1/explain", json=request)
    if response.status_code == 404:
        fail(f"what answers at {response.url} does not explain filters")
    if response.status_code != 200:
        fail(refusal(response))
    try:
        answer = msgspec.json.decode(response.content, type=dict[str, Any])
        if as_json:
            print_json(answer)
        else:
            _show(answer)
    except (msgspec.DecodeError, KeyError, TypeError):
        fail(f"what answers at {response.url} is not an aviso server")


def _request(
    event_type: str | None, fields: tuple[str, ...], file: BinaryIO | None, filter_text: str | None
) -> dict[str, Any]:
    if file is None:
        if event_type is None:
            raise click.UsageError("name an EVENT_TYPE, or a request with --file")
        return {"event_type": event_type, "identifier": read_identifier(filter_text, fields)}
    if event_type is not None or filter_text is not None:
        raise click.UsageError("--file and EVENT_TYPE exclude each other")
    try:
        return msgspec.json.decode(file.read(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}", param_hint="--file") from None


def _show(answer: dict[str, Any]) -> None:
    console = Console(markup=False, highlight=False)
    meaning, matches = answer["meaning"], answer["matches"]
    _say(console, meaning["sentence"], style="bold")
    for name in meaning["any_value"]:
        _say(console, f"  {name} may have any value")
    _say(console, meaning["start"]["sentence"])
    _show_matches(console, matches)
    if answer["notification"] is not None:
        _show_verdict(console, answer["notification"])


def _show_matches(console: Console, matches: dict[str, Any]) -> None:
    days, count = matches["days"], matches["count"]
    where = " and ".join(f"the {source}" for source in matches["source"])
    console.print()
    last = "last day" if days == 1 else f"last {days} days"
    _say(console, f"{count} notification{'s' if count != 1 else ''} in the {last}, counted in {where}.", style="bold")
    if not count:
        return
    console.print(_times(matches["times"]["counts"]))
    places = matches["places"]
    if places is None or not places["cells"]:
        return
    table = Table("lat", "lon", "count", title="where (cells of 1°)", title_justify="left")
    for cell in places["cells"][:_MOST_CELLS]:
        table.add_row(str(cell["lat"]), str(cell["lon"]), str(cell["count"]))
    rest = sum(cell["count"] for cell in places["cells"][_MOST_CELLS:]) + places["in_other_cells"]
    if rest:
        table.add_row("elsewhere", "", str(rest))
    if places["without_place"]:
        table.add_row("nowhere", "", str(places["without_place"]))
    console.print(table)


def _times(counts: list[dict[str, Any]]) -> Table:
    """A bar for every interval that has something, the newest last; of many intervals the last ones."""
    filled = [each for each in counts if each["count"]]
    most = max(each["count"] for each in filled)
    table = Table("from (UTC)", "", "count", title="when", title_justify="left")
    earlier = sum(each["count"] for each in filled[:-_MOST_BARS])
    if earlier:
        table.add_row("earlier", "", str(earlier))
    for each in filled[-_MOST_BARS:]:
        table.add_row(printable(each["start"]), Bar(most, 0, each["count"], width=_BAR), str(each["count"]))
    return table


def _show_verdict(console: Console, verdict: dict[str, Any]) -> None:
    console.print()
    _say(console, verdict["sentence"], style="bold")
    if not verdict["clauses"]:
        return
    table = Table("", "clause", "saw")
    for each in verdict["clauses"]:
        mark = Text("yes", style="green") if each["passed"] else Text("no", style="red")
        seen = "nothing" if each["seen"] is None else printable(each["seen"])
        table.add_row(mark, printable(each["sentence"]), seen)
    console.print(table)


def _say(console: Console, sentence: str, style: str = "") -> None:
    console.print(Text(printable(sentence), style=style), soft_wrap=True)
