"""`aviso-server serve`: run the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from aviso_server.commands.output import FAILED, complain
from aviso_server.config import load
from aviso_server.errors import ConfigError, LogInUse, LogUnavailable

__all__ = ["serve"]


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read only this file (and the environment).")
@click.option("--ready-file", type=click.Path(path_type=Path), help="Write host, port and pid here once listening.")
@click.option(
    "--local-broker",
    "broker",
    type=click.Path(path_type=Path, file_okay=False),
    help="Start a NATS broker with its data in this folder, and keep notifications on it. For trying things out.",
)
def serve(file: Path | None, ready_file: Path | None, broker: Path | None) -> None:
    """Run the server until it is told to stop.

    Without --config the usual places are read: configuration/config.yaml, /etc/aviso_server/config.yaml and
    ~/.aviso_server/config.yaml, or only the file that AVISOSERVER_CONFIG_FILE names. Variables AVISOSERVER_... win.

    \b
    Examples:
      aviso-server serve
      aviso-server serve --config examples/config.yaml
      AVISOSERVER_APPLICATION__PORT=8080 aviso-server serve
      aviso-server serve --local-broker data/nats

    \b
    Exit codes: 0 stopped as asked, 1 the configuration cannot be used or the server failed, 2 wrong usage.
    """
    if broker is None:
        raise SystemExit(_serve(file, ready_file, os.environ))
    from aviso_server.log.jetstream.local_broker import LocalBroker

    try:
        with LocalBroker(broker, tied=True) as running:
            click.echo(f"broker at {running.url}, its data in {broker}", err=True)
            section = "AVISOSERVER_NOTIFICATION_BACKEND__"
            more = {f"{section}KIND": "jetstream", f"{section}JETSTREAM__NATS_URL": running.url}
            code = _serve(file, ready_file, {**os.environ, **more})
    except (LogInUse, LogUnavailable) as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)


def _serve(file: Path | None, ready_file: Path | None, environ: Mapping[str, str]) -> int:
    try:
        settings = load(environ, file)
    except ConfigError as error:
        complain(error.problems)
        return FAILED
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    # The server is imported late: it is heavy, and the other commands do without it.
    from aviso_server.http.server import run

    return run(settings, ready_file)
