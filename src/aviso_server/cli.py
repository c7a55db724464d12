"""The `aviso-server` command."""

from __future__ import annotations

import click

from aviso_server import __version__
from aviso_server.commands.ask import explain, health, schema
from aviso_server.commands.check import check, show_help, version
from aviso_server.commands.notifications import publish, replay, watch
from aviso_server.commands.pipeline import pipeline
from aviso_server.commands.serve import serve
from aviso_server.commands.sqlite_log import backup, log, restore
from aviso_server.commands.subscription_commands import subscription

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
      aviso-server publish mars class=od expver=1 domain=g date=20250706 time=12 stream=oper step=6
      aviso-server watch mars class=od
      aviso-server replay mars class=od
      aviso-server explain mars class=od
      aviso-server subscription create queue mars class=od
      aviso-server backup copy.sqlite
      aviso-server log repair

    \b
    Exit codes: 0 done, 1 a problem was found or the command failed, 2 wrong usage.
    """


for command in (
    *(serve, check, schema, publish, watch, replay, explain, subscription, health),
    *(backup, restore, log, pipeline, version, show_help),
):
    main.add_command(command)
