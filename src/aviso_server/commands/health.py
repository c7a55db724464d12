"""`aviso-server health`: is a server alive and ready?"""

from __future__ import annotations

import click
import httpx

from aviso_server.commands.client import DEFAULT_URL, connected, url_option
from aviso_server.commands.output import fail, print_json

__all__ = ["health"]

_SECONDS = 2.0


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
    where = url or DEFAULT_URL
    with connected(where) as client:
        answer = client.get("/ready" if ready else "/health", timeout=httpx.Timeout(_SECONDS))
    if answer.status_code != 200:
        fail(f"the server at {where} answers with status {answer.status_code}")
    if as_json:
        print_json(answer.json())
    else:
        click.echo(f"{where} is {'ready' if ready else 'alive'}")
