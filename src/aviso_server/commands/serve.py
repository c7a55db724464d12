"""`aviso-server serve`: run the server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aviso_server.commands.output import FAILED, complain
from aviso_server.config import load
from aviso_server.errors import ConfigError

__all__ = ["serve"]


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read only this file (and the environment).")
@click.option("--ready-file", type=click.Path(path_type=Path), help="Write host, port and pid here once listening.")
def serve(file: Path | None, ready_file: Path | None) -> None:
    """Run the server until it is told to stop.

    Without --config the usual places are read: configuration/config.yaml, /etc/aviso_server/config.yaml and
    ~/.aviso_server/config.yaml, or only the file that AVISOSERVER_CONFIG_FILE names. Variables AVISOSERVER_... win.

    \b
    Examples:
      aviso-server serve
      aviso-server serve --config examples/config.yaml
      AVISOSERVER_APPLICATION__PORT=8080 aviso-server serve

    \b
    Exit codes: 0 stopped as asked, 1 the configuration cannot be used or the server failed, 2 wrong usage.
    """
    try:
        settings = load(os.environ, file)
    except ConfigError as error:
        complain(error.problems)
        raise SystemExit(FAILED) from None
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    # The server is imported late: it is heavy, and the other commands do without it.
    from aviso_server.http.server import run

    raise SystemExit(run(settings, ready_file))
