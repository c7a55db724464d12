"""The `aviso-server` command."""

from __future__ import annotations

import click

from aviso_server import __version__
from aviso_server.commands.backup import backup, restore
from aviso_server.commands.check import check
from aviso_server.commands.explain import explain
from aviso_server.commands.health import health
from aviso_server.commands.help import show_help
from aviso_server.commands.pipeline import pipeline
from aviso_server.commands.replay import replay
from aviso_server.commands.schema import schema
from aviso_server.commands.serve import serve
from aviso_server.commands.version import version

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="aviso-server %(version)s")
def main() -> None:
    """Publish notifications, watch them live and replay them later.

    \b
    Examples:
      aviso-server serve --config examples/config.yaml
      aviso-server check examples/config.yaml
      aviso-server schema
      aviso-server replay mars class=od
      aviso-server explain mars class=od
      aviso-server backup copy.sqlite

    \b
    Exit codes: 0 done, 1 a problem was found or the command failed, 2 wrong usage.
    """


for command in (serve, check, schema, replay, explain, health, backup, restore, pipeline, version, show_help):
    main.add_command(command)
