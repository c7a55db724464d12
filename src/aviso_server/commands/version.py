"""`aviso-server version`: which version this is."""

from __future__ import annotations

import platform

import click

from aviso_server import __version__
from aviso_server.commands.output import json_option, print_json

__all__ = ["version"]


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version of this server.

    \b
    Examples:
      aviso-server version
      aviso-server version --json
    """
    if as_json:
        print_json({"name": "aviso-server", "version": __version__, "python": platform.python_version()})
    else:
        click.echo(f"aviso-server {__version__}")
