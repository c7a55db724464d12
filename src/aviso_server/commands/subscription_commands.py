"""`aviso-server subscription`: make subscriptions, see how they are doing, and help them along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click
import msgspec

from aviso_server.commands.notifications import filter_option, read_identifier, read_limits
from aviso_server.commands.server_connection import Server, server_options
from aviso_server.commands.terminal import FAILED, json_option, print_json, print_result, print_table
from aviso_server.model.json_text import printable

__all__ = ["subscription"]

_PATH = "/api/v1/subscriptions"
_PAGE = 1000  # subscriptions that are asked for at a time
_name = click.argument("name")


def _options(command: Callable[..., None]) -> Callable[..., None]:
    return server_options(json_option(command))


@click.group()
def subscription() -> None:
    """Have notifications kept for you: pushed to a sink, or pulled by workers.

    \b
    Examples:
      aviso-server subscription create my-steps mars class=od --push https://hooks.example.org/aviso
      aviso-server subscription create queue mars class=od --from 2025-01-15
      aviso-server subscription list
      aviso-server subscription dead my-steps
      aviso-server subscription retry my-steps

    \b
    Exit codes: 0 done, 1 the server is away or refused, 2 wrong usage.
    """


@subscription.command()
@_name
@click.argument("event_type")
@click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
@filter_option
@click.option("--from", "start", metavar="ID|DATE", help="First notification.  [default: what is published next]")
@click.option("--push", "sink", metavar="URL", help="Send to this address; without it workers pull.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent along. May be repeated.")
@click.option("--batch", type=click.IntRange(1, 1000), default=1, help="Notifications in one request, at most.")
@click.option("--binary", is_flag=True, help="Send attributes in headers instead of one JSON document.")
@click.option("--public-key", is_flag=True, help="Sign with ed25519 instead of a shared secret.")
@click.option("--park", is_flag=True, help="Keep what cannot be delivered as a dead letter and continue.")
@click.option("--max-attempts", type=click.IntRange(0, 1000), help="Before it is a dead letter; 0: any number.")
@_options
def create(
    server: Server,
    name: str,
    event_type: str,
    fields: tuple[str, ...],
    filters: tuple[str, ...],
    start: str | None,
    sink: str | None,
    headers: tuple[str, ...],
    batch: int,
    binary: bool,
    public_key: bool,
    park: bool,
    max_attempts: int | None,
    as_json: bool,
) -> None:
    """Make a subscription to EVENT_TYPE and print its secret, which is shown only now.

    \b
    Examples:
      aviso-server subscription create my-steps mars class=od 'step={"lte": 240}' --push https://hooks.example.org/aviso
      aviso-server subscription create queue mars class=od --from 2025-01-15
    """
    pairs = [text.partition("=") for text in headers]
    if any(not separator for _, separator, _ in pairs):
        raise click.BadParameter("expected NAME=VALUE", param_hint="--header")
    body: dict[str, Any] = {
        "name": name,
        "event_type": event_type,
        "identifier": read_identifier(filters, fields),
        "delivery": "pull" if sink is None else "push",
        "sink": sink,
        "headers": {key: value for key, _, value in pairs},
        "batch": batch,
        "mode": "binary" if binary else "structured",
        "signature": "v1a" if public_key else "v1",
        "on_failure": "park" if park else "block",
        "max_attempts": max_attempts,
        **({} if start is None else read_limits(start, None)),
    }
    made = server.ask("POST", _PATH, body)
    if as_json:
        print_json(made)
        return
    click.echo(printable(f"Made {made['name']}, which is {made['status']}."))
    if made["reason"]:
        click.echo(printable(f"Reason: {made['reason']}"))
    if made["secret"]:
        click.echo(f"Secret: {made['secret']}")
        click.echo("Store it now: it is not shown again.")


@subscription.command("list")
@_options
def list_(server: Server, as_json: bool) -> None:
    """List subscriptions with how far behind they are.

    \b
    Examples:
      aviso-server subscription list
    """
    found: list[Any] = []
    page: str | None = f"{_PATH}?limit={_PAGE}"
    while page is not None:
        answer = server.ask("GET", page)
        found += answer["subscriptions"]
        page = answer["next"] and f"{_PATH}?limit={_PAGE}&after={quote(answer['next'])}"
    if as_json:
        print_json(found)
        return
    members = ("name", "event_type", "delivery", "status", "health")
    rows = [(*[each[name] for name in members], _lag(each), each["dead_letters"]) for each in found]
    print_table(("name", "event type", "delivery", "status", "health", "lag", "dead letters"), rows)


def _lag(shown: Any) -> Any:
    return "" if shown["lag"] is None else shown["lag"]


@subscription.command()
@_name
@_options
def show(server: Server, name: str, as_json: bool) -> None:
    """Show a subscription and its last deliveries.

    \b
    Examples:
      aviso-server subscription show my-steps
    """
    shown = server.ask("GET", f"{_PATH}/{name}")
    deliveries = server.ask("GET", f"{_PATH}/{name}/deliveries")["deliveries"]
    if as_json:
        print_json({**shown, "deliveries": deliveries})
        return
    left_out = {"secret", "request_id", "types"}
    known = {key: value for key, value in shown.items() if key not in left_out and value not in (None, "", [])}
    print_table(("", ""), [(key, _text(value)) for key, value in known.items()])
    if deliveries:
        rows = [(each["time"], each["count"], each["status"], each["answer"][:60]) for each in deliveries]
        print_table(("time", "notifications", "status", "answer"), rows, "Last deliveries")


def _text(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


def _simple(action: str, words: str) -> click.Command:
    """Make a command that posts to a subscription and says what has become of it."""

    @_name
    @_options
    def run(server: Server, name: str, as_json: bool) -> None:
        shown = server.ask("POST", f"{_PATH}/{name}/{action}")
        print_result(shown, f"{name} is {shown['status']}.", as_json)

    words += f"\n\n\b\nExamples:\n  aviso-server subscription {action} my-steps"
    return click.command(action, help=words)(run)


subscription.add_command(_simple("pause", "Stop delivering; nothing is lost meanwhile."))
subscription.add_command(_simple("resume", "Deliver again; asks the sink again if it has not agreed."))


@subscription.command()
@_name
@_options
def test(server: Server, name: str, as_json: bool) -> None:
    """Send a test event to the sink; fails unless it answers with success.

    \b
    Examples:
      aviso-server subscription test my-steps
    """
    tried = server.ask("POST", f"{_PATH}/{name}/test")["delivery"]
    print_result(tried, f"The sink answered {tried['status'] or 'nothing'}: {tried['answer'][:200]}", as_json)
    if not 200 <= tried["status"] < 300:
        raise SystemExit(FAILED)


@subscription.command()
@_name
@_options
def dead(server: Server, name: str, as_json: bool) -> None:
    """List what could not be delivered.

    \b
    Examples:
      aviso-server subscription dead my-steps
    """
    letters = server.ask("GET", f"{_PATH}/{name}/dead")["dead_letters"]
    if as_json:
        print_json(letters)
        return
    members = ("sequence", "attempts", "last_failed", "status")
    rows = [(*[each[name] for name in members], each["answer"][:60]) for each in letters]
    print_table(("sequence", "attempts", "last failed", "status", "answer"), rows)


@subscription.command()
@_name
@click.argument("sequences", nargs=-1, type=int)
@click.option("--skip", is_flag=True, help="Give them up instead.")
@_options
def retry(server: Server, name: str, sequences: tuple[int, ...], skip: bool, as_json: bool) -> None:
    """Deliver dead letters once more: those with these SEQUENCES, or all.

    \b
    Examples:
      aviso-server subscription retry my-steps
      aviso-server subscription retry my-steps 17 --skip
    """
    body = {"sequences": list(sequences)} if sequences else {}
    moved = server.ask("POST", f"{_PATH}/{name}/dead/{'skip' if skip else 'retry'}", body)
    letters = f"{moved['count']} dead letter{'s' if moved['count'] != 1 else ''}"
    print_result(moved, f"{letters} {'given up' if skip else 'on the way'}.", as_json)


@subscription.command()
@_name
@_options
def delete(server: Server, name: str, as_json: bool) -> None:
    """Delete a subscription and its dead letters.

    \b
    Examples:
      aviso-server subscription delete my-steps
    """
    server.ask("DELETE", f"{_PATH}/{name}", kind=None)
    print_result({"deleted": name}, f"{name} is gone.", as_json)
